//! The work of both sides, the same for every design.

use std::time::{Duration, Instant};

use fipsee_ring::pace::Delays;
use fipsee_ring::{Message, clock, cpu};
use fipsee_topology::payload;
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

/// The reason that a side stopped early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerError {
    Gone,
    /// A message differs from the one sent, or the other side breaks the rules of the ring.
    Wrong(String),
}

/// The calling end of call and reply.
pub trait Calls {
    /// Publish `calls`, and receive as many answers.
    fn exchange(&mut self, calls: &[Message], answers: &mut [Message]) -> Result<(), PeerError>;
    /// Publish a message that has no answer.
    fn send(&mut self, message: &Message);
    /// The delay of both sides' first look.
    fn delays(&self) -> Delays {
        Delays::default()
    }
}

/// The answering end of call and reply.
pub trait Answers {
    /// Give every message to `answer` and publish what it returns, until it returns nothing.
    fn serve(&mut self, answer: &mut impl FnMut(&Message) -> Option<Message>) -> Result<(), PeerError>;
}

pub trait Sends {
    /// Publish `messages`, waiting for free slots.
    fn send(&mut self, messages: &[Message]) -> Result<(), PeerError>;
    /// Wait until the other side has taken everything.
    fn drain(&mut self) -> Result<(), PeerError>;
}

pub trait Receives {
    /// Give every message to `take`, until it returns `false`; all that was received is then released.
    fn receive(&mut self, take: &mut impl FnMut(&Message) -> bool) -> Result<(), PeerError>;
}

#[derive(Clone, Debug)]
pub struct Sample {
    /// Times of whole bursts, in ticks; of a stream, of [`STREAM_CHUNK`] messages each.
    pub ticks: Histogram<u64>,
    /// Messages sent, not counting answers.
    pub messages: u64,
    /// From before the first to after the last, in ticks.
    pub elapsed_ticks: u64,
    /// The final delay of the first look.
    pub delays: Delays,
    /// Processor time of the answering side meanwhile, in nanoseconds, where it was asked for.
    pub answerer_cpu_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// As many as there is time for.
    Time(Duration),
    /// So many bursts; of a stream, so many times [`STREAM_CHUNK`] messages.
    Count(u64),
}

/// The length of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunLength {
    /// Not counted: pages are mapped, caches are filled, and the delay of the first look is found.
    pub warm_up: Amount,
    pub measured: Amount,
}

impl RunLength {
    pub const fn of_time(warm_up: Duration, measured: Duration) -> Self {
        Self { warm_up: Amount::Time(warm_up), measured: Amount::Time(measured) }
    }
}

impl Amount {
    /// Do it so often. The clock is read after each `together` times.
    #[inline(always)]
    fn repeat(self, together: u32, mut once: impl FnMut() -> Result<(), PeerError>) -> Result<(), PeerError> {
        match self {
            Self::Count(count) => (0..count).try_for_each(|_| once()),
            Self::Time(time) => {
                let end_ticks = clock::ticks_fenced().saturating_add(clock::duration_to_ticks(time));
                while clock::ticks() < end_ticks {
                    (0..together).try_for_each(|_| once())?;
                }
                Ok(())
            }
        }
    }
}

/// Bursts between two readings of the wall clock.
const BATCHES_PER_CLOCK_CHECK: u32 = 64;
/// Most messages of a stream published together.
const MOST_STREAMED: usize = 64;
/// Messages of a stream between two time stamps.
pub const STREAM_CHUNK: u64 = 4096;
/// Longest time that the histogram holds.
const LONGEST: Duration = Duration::from_secs(1000);

/// An empty one, for ticks.
pub fn histogram() -> Result<Histogram<u64>, String> {
    let histogram = Histogram::new_with_bounds(1, clock::duration_to_ticks(LONGEST), 3);
    histogram.map_err(|error| format!("cannot make a histogram: {error}; report this"))
}

fn trouble(text: String) -> PeerError {
    PeerError::Wrong(text)
}

/// Bursts of `queue` messages.
pub fn call(end: &mut impl Calls, queue: u32, length: RunLength) -> Result<Sample, PeerError> {
    let mut calls = vec![Message::ZERO; queue as usize];
    let mut answers = calls.clone();
    let mut sequence = 0;
    let mut ticks = histogram().map_err(trouble)?;
    length.warm_up.repeat(1, || burst(end, &mut calls, &mut answers, &mut sequence).map(|_| ()))?;
    let (first, started_ticks) = (sequence, clock::ticks_fenced());
    length.measured.repeat(BATCHES_PER_CLOCK_CHECK, || {
        ticks.saturating_record(burst(end, &mut calls, &mut answers, &mut sequence)?);
        Ok(())
    })?;
    let elapsed_ticks = clock::ticks_fenced() - started_ticks;
    end.send(&payload::STOP);
    Ok(Sample { ticks, messages: sequence - first, elapsed_ticks, delays: end.delays(), answerer_cpu_ns: 0 })
}

/// One burst and its answers; the time from before the first store to after the last answer was copied, in ticks.
#[inline(always)]
fn burst(end: &mut impl Calls, calls: &mut [Message], answers: &mut [Message], sequence: &mut u64) -> Result<u64, PeerError> {
    let first = *sequence;
    for message in &mut *calls {
        *message = payload::message(*sequence);
        *sequence += 1;
    }
    let from_ticks = clock::ticks_fenced();
    end.exchange(calls, answers)?;
    let to_ticks = clock::ticks_fenced();
    for (answer, sequence) in answers.iter().zip(first..) {
        if !payload::is_answer(answer, sequence) {
            return Err(wrong("answer", sequence, answer, &payload::answer_to(&payload::message(sequence))));
        }
    }
    Ok(to_ticks.wrapping_sub(from_ticks))
}

#[cold]
fn wrong(what: &str, sequence: u64, came: &Message, sent: &Message) -> PeerError {
    let (came, sent) = (came.to_bytes(), sent.to_bytes());
    let byte = came.iter().zip(&sent).position(|(came, sent)| came != sent).unwrap_or(0);
    PeerError::Wrong(format!(
        "{what} {sequence} is wrong from byte {byte} on: {:02x}, not {:02x}; it is not what was sent, so the ring or this machine's \
         memory is at fault: report this with the CPU's model",
        came[byte], sent[byte]
    ))
}

/// Answer until the stop message. Every message is checked.
pub fn answer(end: &mut impl Answers) -> Result<(), PeerError> {
    let (mut sequence, mut verdict) = (0, Ok(()));
    end.serve(&mut |message| {
        if payload::is_message(message, sequence) {
            sequence += 1;
            return Some(payload::answer_to(message));
        }
        if !payload::is_stop(message) {
            verdict = Err(wrong("message", sequence, message, &payload::message(sequence)));
        }
        None
    })?;
    verdict
}

/// Send a stream, `together` messages at a time.
pub fn send(end: &mut impl Sends, together: u32, length: RunLength) -> Result<Sample, PeerError> {
    let mut messages = [Message::ZERO; MOST_STREAMED];
    let together = usize::try_from(together).unwrap_or(1).clamp(1, MOST_STREAMED);
    let messages = &mut messages[..together];
    let mut sequence = 0;
    let mut ticks = histogram().map_err(trouble)?;
    length.warm_up.repeat(1, || chunk(end, messages, &mut sequence))?;
    end.drain()?;
    let (first, started_ticks) = (sequence, clock::ticks_fenced());
    let mut from_ticks = started_ticks;
    length.measured.repeat(1, || {
        chunk(end, messages, &mut sequence)?;
        let to_ticks = clock::ticks_fenced();
        ticks.saturating_record(to_ticks.wrapping_sub(from_ticks));
        from_ticks = to_ticks;
        Ok(())
    })?;
    end.drain()?;
    let elapsed_ticks = clock::ticks_fenced() - started_ticks;
    end.send(&[payload::STOP])?;
    Ok(Sample { ticks, messages: sequence - first, elapsed_ticks, delays: Delays::default(), answerer_cpu_ns: 0 })
}

#[inline(always)]
fn chunk(end: &mut impl Sends, messages: &mut [Message], sequence: &mut u64) -> Result<(), PeerError> {
    for _ in 0..STREAM_CHUNK / messages.len() as u64 {
        for message in &mut *messages {
            *message = payload::message(*sequence);
            *sequence += 1;
        }
        end.send(messages)?;
    }
    Ok(())
}

/// Word 1 of a call after a silence.
const HOW_LONG: u64 = 0;
const HOW_LONG_AND_CPU: u64 = 1;
/// Silences from here on sleep, shorter ones spin.
const SLEPT: Duration = Duration::from_millis(1);

/// Time on a clock that both sides share: the time-stamp counter where all CPUs count alike, else the system's nanoseconds, which
/// take longer to read.
#[inline(always)]
fn shared_time() -> u64 {
    if cpu::features().has_invariant_tsc { clock::ticks_fenced() } else { nanoseconds(ClockId::Monotonic) }
}

/// The name of that clock.
pub fn shared_clock() -> &'static str {
    if cpu::features().has_invariant_tsc { "tsc" } else { "monotonic" }
}

/// Nanoseconds since `earlier`. The counts are subtracted first: each process has measured the counter's rate for itself.
#[inline(always)]
fn ns_since(earlier: u64) -> u64 {
    let elapsed = shared_time().saturating_sub(earlier);
    if cpu::features().has_invariant_tsc { clock::ticks_to_ns(elapsed) } else { elapsed }
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Calls after silences: in `ticks`, nanoseconds from publishing to the copy on the other side, as measured there.
pub fn wake(end: &mut impl Calls, silence: Duration, length: RunLength) -> Result<Sample, PeerError> {
    let mut sequence = 0;
    let mut ask = |what: u64| {
        let (mut answer, number) = ([Message::ZERO], sequence);
        sequence += 1;
        end.exchange(&[Message::from_words([number, what, shared_time(), 0, 0, 0, 0, 0])], &mut answer)?;
        if answer[0].word(0) == !number { Ok((answer[0].word(1), answer[0].word(2))) } else { Err(wrong_answer(number)) }
    };
    length.warm_up.repeat(1, || ask(HOW_LONG).map(|_| ()))?;
    let mut ticks = histogram().map_err(trouble)?;
    let (_, before_ns) = ask(HOW_LONG_AND_CPU)?;
    let started_ticks = clock::ticks_fenced();
    length.measured.repeat(1, || {
        be_silent(silence);
        ticks.saturating_record(ask(HOW_LONG)?.0.max(1));
        Ok(())
    })?;
    let (_, after_ns) = ask(HOW_LONG_AND_CPU)?;
    let elapsed_ticks = clock::ticks_fenced() - started_ticks;
    end.send(&payload::STOP);
    let (messages, answerer_cpu_ns) = (ticks.len(), after_ns.saturating_sub(before_ns));
    Ok(Sample { ticks, messages, elapsed_ticks, delays: Delays::default(), answerer_cpu_ns })
}

#[cold]
fn wrong_answer(number: u64) -> PeerError {
    PeerError::Wrong(format!("the answer to call {number} is none to it: report this with the CPU's model"))
}

fn be_silent(duration: Duration) {
    if duration >= SLEPT {
        // tidy: allow sleep, the silence is what is measured
        return std::thread::sleep(duration);
    }
    let until = Instant::now() + duration;
    while Instant::now() < until {
        core::hint::spin_loop();
    }
}

/// The other side of [`wake`]. Word 1 of an answer: from publishing to here, in nanoseconds; word 2: processor time if it was asked
/// for.
pub fn awake(end: &mut impl Answers) -> Result<(), PeerError> {
    end.serve(&mut |message| {
        let latency_ns = ns_since(message.word(2));
        let cpu_ns = if message.word(1) == HOW_LONG_AND_CPU { nanoseconds(ClockId::ProcessCPUTime) } else { 0 };
        let answer = Message::from_words([!message.word(0), latency_ns, cpu_ns, 0, 0, 0, 0, 0]);
        (!payload::is_stop(message)).then_some(answer)
    })
}

/// Receive a stream until the stop message. Every message is checked.
pub fn receive(end: &mut impl Receives) -> Result<(), PeerError> {
    let (mut sequence, mut verdict) = (0, Ok(()));
    end.receive(&mut |message| {
        if payload::is_message(message, sequence) {
            sequence += 1;
            return true;
        }
        if !payload::is_stop(message) {
            verdict = Err(wrong("message", sequence, message, &payload::message(sequence)));
        }
        false
    })?;
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A design without a second side: it answers itself, and flips one bit of one message.
    struct Spoiling {
        spoiled: u64,
        seen: u64,
    }

    impl Spoiling {
        fn pass(&mut self, message: &Message) -> Message {
            let mut passed = *message;
            if self.seen == self.spoiled {
                passed.set_word(3, passed.word(3) ^ 1 << 17);
            }
            self.seen += 1;
            passed
        }
    }

    impl Calls for Spoiling {
        fn exchange(&mut self, calls: &[Message], answers: &mut [Message]) -> Result<(), PeerError> {
            for (call, answer) in calls.iter().zip(answers) {
                *answer = self.pass(&payload::answer_to(call));
            }
            Ok(())
        }

        fn send(&mut self, _: &Message) {}
    }

    impl Answers for Spoiling {
        fn serve(&mut self, answer: &mut impl FnMut(&Message) -> Option<Message>) -> Result<(), PeerError> {
            for sequence in 0..100 {
                let call = self.pass(&payload::message(sequence));
                if answer(&call).is_none() {
                    return Ok(());
                }
            }
            assert!(answer(&payload::STOP).is_none());
            Ok(())
        }
    }

    impl Receives for Spoiling {
        fn receive(&mut self, take: &mut impl FnMut(&Message) -> bool) -> Result<(), PeerError> {
            self.serve(&mut |message| take(message).then_some(*message))
        }
    }

    const BRIEF: RunLength = RunLength::of_time(Duration::ZERO, Duration::from_micros(10));

    fn spoiling(spoiled: u64) -> Spoiling {
        Spoiling { spoiled, seen: 0 }
    }

    fn assert_noticed(result: Result<(), PeerError>, what: &str) {
        let Err(PeerError::Wrong(text)) = result else { panic!("{result:?}") };
        assert!(text.starts_with(&format!("{what} is wrong from byte 26 on")) && text.contains("not what was sent"), "{text}");
    }

    #[test]
    fn a_spoiled_answer_message_or_stream_is_noticed() {
        assert_noticed(call(&mut spoiling(70), 8, BRIEF).map(|_| ()), "answer 70");
        assert_noticed(answer(&mut spoiling(70)), "message 70");
        assert_noticed(receive(&mut spoiling(70)), "message 70");
        assert_eq!(answer(&mut spoiling(u64::MAX)), Ok(()));
        assert_eq!(receive(&mut spoiling(u64::MAX)), Ok(()));
    }

    #[test]
    fn a_counted_run_has_as_many_bursts() {
        let length = RunLength { warm_up: Amount::Count(3), measured: Amount::Count(5) };
        let sample = call(&mut spoiling(u64::MAX), 8, length).expect("sound");
        assert_eq!((sample.messages, sample.ticks.len()), (40, 5));
    }

    #[test]
    fn correct_messages_are_counted() {
        let sample = call(&mut spoiling(u64::MAX), 8, BRIEF).expect("sound");
        assert_eq!(sample.messages, 8 * sample.ticks.len());
        assert!(sample.elapsed_ticks > 0 && sample.messages >= 8 * u64::from(BATCHES_PER_CLOCK_CHECK));
    }
}
