//! What the two sides do in each task: as the product's clients and its daemon do, with its ring.

use std::io;

use fipsee_ring::mapped::MappedRing;
use fipsee_ring::pace::let_answers_gather;
use fipsee_ring::ring::{CallWriter, Reader, StreamWriter, Writer};
use fipsee_ring::tuning::{TAKE_MANY, Tuning};
use fipsee_ring::{AtomicU32, Message, clock};

use super::decide::Task;
use super::fixture::{ANSWERS_START, CALL_SLOTS, Idle, Rings, STREAM_SLOTS, cursor};
use crate::bounce::Bounce;
use crate::matrix::{median, to_f64};
use crate::payload;

/// Messages that are there together at most.
const MOST: usize = CALL_SLOTS as usize;
/// Messages of a stream published together, with one look at the doorbell.
const STREAM_BATCH: usize = 16;
/// A stream's reader gives back all that it has after this many empty looks.
const LOOKS_PER_RELEASE: u32 = 64;
/// Bounces that are not counted, and the length and number of the windows that are.
const BOUNCES_PER_WINDOW: u32 = 16;
const BOUNCE_WINDOWS: u32 = 16;
const BOUNCE_WARM_WINDOWS: u32 = 4;

/// How a task is timed: windows of `bursts` of `messages` each, the first `warm` of which do not count.
#[derive(Clone, Copy)]
struct Course {
    messages: usize,
    bursts: u32,
    warm: u32,
    windows: u32,
}

const fn course(task: Task) -> Course {
    match task {
        Task::RoundTrip => Course { messages: 1, bursts: 16, warm: 2, windows: 10 },
        Task::Burst8 => Course { messages: 8, bursts: 4, warm: 2, windows: 10 },
        Task::Burst64 => Course { messages: 64, bursts: 1, warm: 4, windows: 12 },
        // A lap: its slots in batches of 16.
        Task::Stream => Course { messages: STREAM_BATCH, bursts: STREAM_SLOTS[0] / 16, warm: 2, windows: 4 },
        Task::ShortStream => Course { messages: STREAM_BATCH, bursts: 4 * STREAM_SLOTS[1] / 16, warm: 2, windows: 8 },
    }
}

/// Messages of one piece of a task, those that do not count included.
pub(super) fn messages_of(task: Task) -> u32 {
    course(task).all_messages()
}

impl Course {
    const fn all_bursts(self) -> u32 {
        self.bursts * (self.warm + self.windows)
    }

    fn all_messages(self) -> u32 {
        self.all_bursts() * u32::try_from(self.messages).unwrap_or(u32::MAX)
    }

    /// Ticks per message of the median window, given the times at their ends.
    fn per_message(self, ends: &[u64]) -> f64 {
        let windows = ends.windows(2).skip(usize::try_from(self.warm).unwrap_or(0));
        let ticks = windows.map(|ends| to_f64(ends[1].wrapping_sub(ends[0])));
        median(ticks.collect()).unwrap_or(0.0) / (f64::from(self.bursts) * to_f64(self.messages as u64))
    }
}

/// Is this message `sequence`, in all its 60 bytes?
#[inline(always)]
fn check(message: &Message, sequence: u64) -> io::Result<()> {
    if payload::is_message(message, sequence) { Ok(()) } else { Err(wrong(sequence)) }
}

#[cold]
fn wrong(sequence: u64) -> io::Error {
    let text = format!(
        "message {sequence} is not what was sent; the ring or this machine's memory is at fault: report this with the CPU's model"
    );
    io::Error::other(text)
}

/// One side: what it waits with, and how far the rings are, which both count for themselves.
pub(super) struct Caller<'a> {
    pub(super) rings: &'a Rings,
    pub(super) idle: Idle<'a>,
    calls: u32,
    streamed: [u32; STREAM_SLOTS.len()],
    ends: Vec<u64>,
}

impl<'a> Caller<'a> {
    pub(super) const fn new(rings: &'a Rings, idle: Idle<'a>) -> Self {
        Self { rings, idle, calls: 0, streamed: [0; STREAM_SLOTS.len()], ends: Vec::new() }
    }

    /// Let calls go on at slot `start`, some laps later: far apart, bursts take up to twice as long from some starts as from
    /// others, and what is compared must begin at the same.
    pub(super) const fn start_calls_at(&mut self, start: u32) {
        self.calls = self.calls.next_multiple_of(CALL_SLOTS) + CALL_SLOTS + start;
    }

    pub(super) fn run(&mut self, task: Task, tuning: &Tuning) -> io::Result<f64> {
        match task.stream() {
            Some(which) => self.send(which, course(task), tuning),
            None => self.call(course(task), tuning),
        }
    }

    fn call(&mut self, course: Course, tuning: &Tuning) -> io::Result<f64> {
        let Self { rings, idle, ends, .. } = self;
        let mut sequence = u64::from(self.calls);
        let to = cursor(self.calls, CALL_SLOTS);
        let from = cursor(self.calls.wrapping_add(ANSWERS_START), CALL_SLOTS);
        let mut calls = CallWriter::new(rings.calls(tuning)?, to, CALL_SLOTS, tuning);
        let mut answers = Reader::new(rings.answers(tuning)?, from, tuning);
        let mut burst = [Message::ZERO; MOST];
        let burst = burst.get_mut(..course.messages).unwrap_or_default();
        ends.clear();
        for number in 0..course.all_bursts() {
            if number % course.bursts == 0 {
                ends.push(clock::ticks());
            }
            exchange(&mut calls, &mut answers, burst, &mut sequence, idle)?;
        }
        ends.push(clock::ticks());
        self.calls += course.all_messages();
        Ok(course.per_message(&self.ends))
    }

    fn send(&mut self, which: usize, course: Course, tuning: &Tuning) -> io::Result<f64> {
        let Self { rings, idle, streamed, ends, .. } = self;
        let streamed = &mut streamed[which];
        let mut sequence = u64::from(*streamed);
        let mut writer = StreamWriter::new(rings.stream(which, tuning)?, cursor(*streamed, STREAM_SLOTS[which]), tuning);
        let mut batch = [Message::ZERO; STREAM_BATCH];
        ends.clear();
        for number in 0..course.all_bursts() {
            if number % course.bursts == 0 {
                ends.push(clock::ticks());
            }
            for message in &mut batch {
                *message = payload::message(sequence);
                sequence += 1;
            }
            let mut sent = 0;
            while sent < STREAM_BATCH {
                let count = writer.publish_burst(batch.get(sent..).unwrap_or_default()).map_err(io::Error::other)?;
                sent += count;
                if count == 0 {
                    idle.step()?;
                } else {
                    idle.reset();
                    // No reader sleeps; the full fence is part of what a batch costs.
                    let _ = writer.reader_needs_doorbell();
                }
            }
        }
        ends.push(clock::ticks());
        *streamed += course.all_messages();
        Ok(course.per_message(ends))
    }

    /// One word bounced on one line, there and back, in ticks.
    pub(super) fn bounce(&mut self, line: &AtomicU32) -> io::Result<f64> {
        let course = Course { messages: 1, bursts: BOUNCES_PER_WINDOW, warm: BOUNCE_WARM_WINDOWS, windows: BOUNCE_WINDOWS };
        self.ends.clear();
        let mut side = Bounce::new(line, line);
        for number in 0..course.all_bursts() {
            if number % course.bursts == 0 {
                self.ends.push(clock::ticks());
            }
            side.call(|| self.idle.step())?;
            self.idle.reset();
        }
        self.ends.push(clock::ticks());
        Ok(course.per_message(&self.ends))
    }

    /// The other side of [`bounce`](Self::bounce).
    pub(super) fn bounce_back(&mut self, line: &AtomicU32) -> io::Result<()> {
        let mut side = Bounce::new(line, line);
        for _ in 0..BOUNCES_PER_WINDOW * (BOUNCE_WARM_WINDOWS + BOUNCE_WINDOWS) {
            side.answer(|| self.idle.step())?;
            self.idle.reset();
        }
        Ok(())
    }
}

#[inline(always)]
fn exchange(
    calls: &mut CallWriter<MappedRing>,
    answers: &mut Reader<MappedRing>,
    burst: &mut [Message],
    sequence: &mut u64,
    idle: &mut Idle<'_>,
) -> io::Result<()> {
    let first = *sequence;
    for message in &mut *burst {
        *message = payload::message(*sequence);
        *sequence += 1;
    }
    for message in &*burst {
        // As many as the ring has slots, and all of the burst before were answered.
        let published = calls.publish(message);
        debug_assert!(published.is_ok(), "a burst fits the ring");
        calls.prefetch(burst.len());
    }
    let _ = calls.reader_needs_doorbell();
    if burst.len() == 1 {
        answers.begin_run();
    }
    let mut answer = Message::ZERO;
    for (due, sequence) in (1..=burst.len()).rev().zip(first..) {
        while !answers.receive(&mut answer) {
            idle.step()?;
            let_answers_gather(due);
        }
        idle.reset();
        calls.answered();
        check(&answer, !sequence)?;
    }
    Ok(())
}

pub(super) fn answer(side: &mut Caller<'_>, task: Task, tuning: &Tuning) -> io::Result<()> {
    match task.stream() {
        Some(which) => receive(side, which, course(task), tuning),
        None => serve(side, course(task), tuning),
    }
}

fn serve(side: &mut Caller<'_>, course: Course, tuning: &Tuning) -> io::Result<()> {
    let Caller { rings, idle, calls, .. } = side;
    let from = cursor(*calls, CALL_SLOTS);
    let to = cursor(calls.wrapping_add(ANSWERS_START), CALL_SLOTS);
    let mut reader = Reader::new(rings.calls(tuning)?, from, tuning);
    let mut writer = Writer::new(rings.answers(tuning)?, to, tuning);
    let together = usize::try_from(tuning.take).unwrap_or(1);
    let mut taken = [Message::ZERO; TAKE_MANY as usize];
    let mut sequence = u64::from(*calls);
    *calls += course.all_messages();
    while sequence < u64::from(*calls) {
        while !reader.has_message() {
            idle.step()?;
        }
        idle.reset();
        reader.begin_run();
        loop {
            let mut count = 0;
            for message in taken.iter_mut().take(together) {
                if !reader.receive(message) {
                    break;
                }
                count += 1;
                // A caller that waits has nothing more there: to look costs a line transfer.
                if course.messages == 1 {
                    break;
                }
            }
            for call in taken.iter().take(count) {
                check(call, sequence)?;
                writer.publish(&payload::message(!sequence));
                writer.prefetch(1);
                sequence += 1;
            }
            if count == 0 || course.messages == 1 {
                break;
            }
        }
        let _ = writer.reader_needs_doorbell();
    }
    Ok(())
}

fn receive(side: &mut Caller<'_>, which: usize, course: Course, tuning: &Tuning) -> io::Result<()> {
    let Caller { rings, idle, streamed, .. } = side;
    let streamed = &mut streamed[which];
    let mut reader = Reader::new(rings.stream(which, tuning)?, cursor(*streamed, STREAM_SLOTS[which]), tuning);
    let mut sequence = u64::from(*streamed);
    *streamed += course.all_messages();
    let (mut message, mut looks) = (Message::ZERO, 0_u32);
    while sequence < u64::from(*streamed) {
        if reader.receive_streamed(&mut message) {
            idle.reset();
            looks = 0;
            check(&message, sequence)?;
            sequence += 1;
            reader.release_some();
            continue;
        }
        looks += 1;
        if looks.is_multiple_of(LOOKS_PER_RELEASE) {
            reader.release_all();
        }
        idle.step()?;
    }
    reader.release_all();
    Ok(())
}
