//! A lane: one queue of the disk, its buffers, and the requests in flight on it.
//!
//! Requests are handed to the daemon by the threads that read them from the kernel. The thread that finds completions answers
//! them: one of those, as long as they are busy anyway, else the lane's own thread ([`Lane::attend`]), which sleeps on the
//! queue's descriptor. No answer is lost, because a thread that unlocks the lane has armed its doorbell and found nothing left to
//! reap.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use fipsee_block::client::{Buffer, Completion, Disk, Error, Event, Queue};
use fipsee_block::wire::{SECTOR_SHIFT, Status};
use fipsee_ring::clock;
use fipsee_ring::ring::Full;
use fuser::Errno;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::answer::Answer;
use super::log::log;
use super::ranges::Claim;

/// Requests in flight on one lane at most, and the acknowledgements of the two kinds of events.
pub(super) const DEPTH: u32 = 128;
const ACKNOWLEDGEMENTS: usize = 2;
/// Most data of a request of the kernel: what it sends when a file allows it.
pub(super) const MAX_DATA_BYTES: u64 = 1 << 20;
/// A read of any bytes becomes one of whole blocks: up to one more on either side.
const MARGIN_BYTES: u64 = 2 * 4096;
const SMALL_BYTES: u64 = (64 << 10) + MARGIN_BYTES;
const LARGE_BYTES: u64 = MAX_DATA_BYTES + MARGIN_BYTES;
const LARGE_COUNT: u64 = 16;

/// How long a thread of the kernel's side polls for completions before it goes back to the kernel, if that has nothing for
/// it: longer than a memory disk takes, and than a worker that sleeps takes to wake; short enough not to waste a CPU.
const LOOK: Duration = Duration::from_micros(50);
/// How long it polls before it asks the kernel, or yields its CPU: about one round trip to a worker that polls on
/// another CPU.
const LOOK_ALONE: Duration = Duration::from_nanos(1500);

/// A piece of work.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work<'a> {
    Read { offset_bytes: u64, length_bytes: u64 },
    Write { offset_bytes: u64, data: &'a [u8], durably: bool },
    Flush,
    Zero { offset_bytes: u64, length_bytes: u64, unmap: bool },
}

impl Work<'_> {
    const fn data_bytes(&self) -> u64 {
        match self {
            Self::Read { length_bytes, .. } => *length_bytes,
            Self::Write { data, .. } => data.len() as u64,
            Self::Flush | Self::Zero { .. } => 0,
        }
    }
}

/// A request without its completion.
#[derive(Debug)]
struct Pending {
    answer: Answer,
    buffer: Option<Buffer>,
    /// The length to take out of a read's buffer.
    read_bytes: u64,
    /// Held until the write is completed.
    claim: Option<Claim>,
}

/// The state of a lane while the disk is attached, besides its queue.
#[derive(Debug)]
pub(super) struct Slots {
    pending: Vec<Option<Pending>>,
    free: Vec<usize>,
    small: Vec<Buffer>,
    large: Vec<Buffer>,
}

impl Slots {
    /// Slots for a queue of `depth`, their memory shared with the daemon.
    pub(super) fn new(disk: &Disk, depth: usize) -> Result<Self, Error> {
        let depth = depth.saturating_sub(ACKNOWLEDGEMENTS).max(1);
        let small_total = depth as u64 * SMALL_BYTES;
        let memory = disk.create_memory(small_total + LARGE_COUNT * LARGE_BYTES)?;
        let small = (0..depth as u64).map(|index| memory.buffer(index * SMALL_BYTES, SMALL_BYTES));
        let large = (0..LARGE_COUNT).map(|index| memory.buffer(small_total + index * LARGE_BYTES, LARGE_BYTES));
        Ok(Self {
            pending: std::iter::repeat_with(|| None).take(depth).collect(),
            free: (0..depth).rev().collect(),
            small: small.collect::<Result<_, _>>()?,
            large: large.collect::<Result<_, _>>()?,
        })
    }

    fn has_room(&self, data_bytes: u64) -> bool {
        let buffers = if data_bytes > SMALL_BYTES { &self.large } else { &self.small };
        !self.free.is_empty() && (data_bytes == 0 || !buffers.is_empty())
    }

    fn take_back(&mut self, buffers: &mut Vec<Buffer>) {
        for buffer in buffers.drain(..) {
            let home = if buffer.length_bytes() == LARGE_BYTES { &mut self.large } else { &mut self.small };
            home.push(buffer);
        }
    }

    const fn in_flight(&self) -> usize {
        self.pending.len() - self.free.len()
    }

    /// Answer everything in flight with an error: its outcome is unknown.
    pub(super) fn fail(self) {
        for pending in self.pending.into_iter().flatten() {
            pending.answer.send(Err(Errno::EIO));
        }
    }
}

/// A lane's queue and slots.
#[derive(Debug)]
pub(super) struct LaneQueue {
    pub(super) queue: Queue,
    pub(super) slots: Slots,
}

/// The state that the lock protects.
#[derive(Debug)]
pub(super) struct State {
    /// `None`: the disk is lost; requests fail at once.
    pub(super) channel: Option<LaneQueue>,
    /// Counts attachments: a buffer of one is not returned to another.
    pub(super) attachment: u64,
    /// Counts connections, to which the descriptors belong.
    pub(super) connection: u64,
    /// The connection broke, and that was reported.
    pub(super) is_broken: bool,
    is_stopping: bool,
    waiting: usize,
}

/// An event that lanes report.
#[derive(Clone, Copy, Debug)]
pub(super) enum LinkEvent {
    /// A connection of this number broke.
    Lost { connection: u64 },
    /// The disk has an event.
    Event(Event),
    /// All lanes have ended.
    Stop,
}

/// A lane.
#[derive(Debug)]
pub(super) struct Lane {
    state: Mutex<State>,
    /// There is room, or the connection changed.
    changed: Condvar,
    device: OnceLock<OwnedFd>,
    news: Sender<LinkEvent>,
}

/// Buffers that a thread keeps between requests, so that none allocates.
#[derive(Debug, Default)]
struct Scratch {
    finished: Vec<(Pending, Status)>,
    buffers: Vec<Buffer>,
    data: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Lane {
    pub(super) const fn new(channel: LaneQueue, news: Sender<LinkEvent>) -> Self {
        let state =
            State { channel: Some(channel), attachment: 0, connection: 0, is_broken: false, is_stopping: false, waiting: 0 };
        Self { state: Mutex::new(state), changed: Condvar::new(), device: OnceLock::new(), news }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wake the threads that wait for a change of the state.
    pub(super) fn announce(&self) {
        self.changed.notify_all();
    }

    fn wait<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.waiting += 1;
        let mut state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        state
    }

    fn report_lost(&self, state: &mut State) {
        if !state.is_broken {
            state.is_broken = true;
            // The receiver is gone only when the program ends.
            let _ = self.news.send(LinkEvent::Lost { connection: state.connection });
        }
    }

    /// Do `work` and answer; the answer may be sent by another thread. `claim` is kept until then. Waits only when the lane is
    /// full.
    pub(super) fn submit(&self, work: Work<'_>, answer: Answer, claim: Option<Claim>) {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut state = self.lock_with_room(work.data_bytes(), scratch);
            let Some(channel) = &mut state.channel else {
                drop(state);
                return answer.send(Err(Errno::EIO));
            };
            channel.start(work, answer, claim);
            drop(self.settle(self.look(state, scratch), scratch));
        });
    }

    /// Answer completions while this thread is not needed elsewhere.
    fn look<'a>(&'a self, mut state: MutexGuard<'a, State>, scratch: &mut Scratch) -> MutexGuard<'a, State> {
        let (look, alone) = (clock::duration_to_ticks(LOOK), clock::duration_to_ticks(LOOK_ALONE));
        let mut started = clock::ticks();
        loop {
            let Some(channel) = &mut state.channel else { return state };
            if channel.reap(&mut scratch.finished).is_err() {
                return state; // The next thread finds it again.
            }
            if !scratch.finished.is_empty() {
                state = self.answer(state, scratch);
                started = clock::ticks();
                continue;
            }
            let elapsed = clock::ticks().wrapping_sub(started);
            if channel.slots.in_flight() == 0 || elapsed > look {
                return state;
            }
            if self.kernel_has_more() {
                return state;
            }
            if elapsed < alone {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Does the kernel have another request already?
    pub(super) fn kernel_has_more(&self) -> bool {
        let Some(device) = self.device.get() else { return false };
        let mut fds = [PollFd::new(device, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// The other end of the kernel's requests, to see whether there are more.
    pub(super) fn set_device(&self, device: OwnedFd) {
        // Set once, before the first request.
        let _ = self.device.set(device);
    }

    /// The lane, its doorbell silent, with room for a request of `data_bytes`, or without a channel.
    fn lock_with_room(&self, data_bytes: u64, scratch: &mut Scratch) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        loop {
            let Some(channel) = &mut state.channel else { return state };
            if channel.slots.has_room(data_bytes) {
                channel.queue.disarm();
                return state;
            }
            state = self.settle(state, scratch);
            if state.channel.as_ref().is_some_and(|channel| !channel.slots.has_room(data_bytes)) {
                state = self.wait(state);
            }
        }
    }

    /// Answer what is finished until nothing is left, and leave the doorbell armed.
    fn settle<'a>(&'a self, mut state: MutexGuard<'a, State>, scratch: &mut Scratch) -> MutexGuard<'a, State> {
        loop {
            let Some(channel) = &mut state.channel else { return state };
            let reaped = channel.reap(&mut scratch.finished);
            while let Some(event) = channel.queue.next_event() {
                let _ = self.news.send(LinkEvent::Event(event));
            }
            if reaped.is_err() {
                self.report_lost(&mut state);
            } else if scratch.finished.is_empty() && channel.queue.arm_and_work_remains() {
                continue;
            }
            if scratch.finished.is_empty() {
                return state;
            }
            state = self.answer(state, scratch);
        }
    }

    /// Answer what is finished, without the lock.
    fn answer<'a>(&'a self, state: MutexGuard<'a, State>, scratch: &mut Scratch) -> MutexGuard<'a, State> {
        let attachment = state.attachment;
        drop(state);
        scratch.answer();
        let mut state = self.lock();
        let is_the_same = attachment == state.attachment;
        match &mut state.channel {
            Some(channel) if is_the_same => channel.slots.take_back(&mut scratch.buffers),
            _ => scratch.buffers.clear(),
        }
        if state.waiting > 0 {
            self.changed.notify_all();
        }
        state
    }

    /// The lane's own thread: answer what no other thread answers, until [`stop`](Self::stop). `stop` is readable from then on.
    pub(super) fn attend(&self, stop: BorrowedFd<'_>) {
        let mut scratch = Scratch::default();
        let mut state = self.lock();
        while !state.is_stopping {
            let doorbell = match &state.channel {
                Some(channel) if !state.is_broken => channel.queue.as_fd().try_clone_to_owned(),
                _ => {
                    state = self.wait(state);
                    continue;
                }
            };
            let connection = state.connection;
            match doorbell {
                Ok(doorbell) => {
                    drop(state);
                    self.attend_connection(&doorbell, connection, stop, &mut scratch);
                    state = self.lock();
                }
                Err(error) => {
                    log(&format!("cannot watch the disk's doorbell: {error}; connecting again"));
                    self.report_lost(&mut state);
                }
            }
        }
    }

    fn attend_connection(&self, doorbell: &OwnedFd, connection: u64, stop: BorrowedFd<'_>, scratch: &mut Scratch) {
        loop {
            drop(self.settle(self.lock(), scratch));
            let mut fds = [PollFd::new(doorbell, PollFlags::IN), PollFd::new(&stop, PollFlags::IN)];
            // After an error, such as a signal, check again.
            let _ = rustix::event::poll(&mut fds, None);
            let mut state = self.lock();
            if state.is_stopping || state.is_broken || state.connection != connection {
                return;
            }
            let woken = state.channel.as_mut().map_or(Ok(()), |channel| channel.queue.woken());
            if woken.is_err() {
                return self.report_lost(&mut state);
            }
        }
    }

    /// Make [`attend`](Self::attend) return.
    pub(super) fn stop(&self) {
        self.lock().is_stopping = true;
        self.announce();
    }
}

impl LaneQueue {
    /// Hand a request to the daemon; there is room for it.
    fn start(&mut self, work: Work<'_>, answer: Answer, claim: Option<Claim>) {
        let Self { queue, slots } = self;
        let Some(slot) = slots.free.pop() else { return answer.send(Err(Errno::EAGAIN)) };
        let data_bytes = work.data_bytes();
        let buffers = if data_bytes > SMALL_BYTES { &mut slots.large } else { &mut slots.small };
        let buffer = if data_bytes > 0 { buffers.pop() } else { None };
        let token = slot as u64;
        let mut read_bytes = 0;
        let staged = match (work, &buffer) {
            (Work::Read { offset_bytes, length_bytes }, Some(buffer)) => {
                read_bytes = length_bytes;
                queue.read(offset_bytes >> SECTOR_SHIFT, buffer.segment(0, length_bytes), token)
            }
            (Work::Write { offset_bytes, data, durably }, Some(buffer)) => {
                buffer.fill(0, data);
                queue.write(offset_bytes >> SECTOR_SHIFT, buffer.segment(0, data_bytes), durably, token)
            }
            (Work::Zero { offset_bytes, length_bytes, unmap }, _) => {
                queue.write_zeroes(offset_bytes >> SECTOR_SHIFT, length_bytes >> SECTOR_SHIFT, unmap, false, token)
            }
            (Work::Flush, _) => queue.flush(token),
            (Work::Read { .. } | Work::Write { .. }, None) => Err(Full),
        };
        if staged.is_err() {
            slots.free.push(slot);
            slots.take_back(&mut buffer.into_iter().collect());
            return answer.send(Err(Errno::EAGAIN));
        }
        slots.pending[slot] = Some(Pending { answer, buffer, read_bytes, claim });
        queue.submit();
    }

    fn reap(&mut self, finished: &mut Vec<(Pending, Status)>) -> Result<(), Error> {
        let Self { queue, slots } = self;
        let mut take = |completion: Completion| {
            let slot = usize::try_from(completion.token).unwrap_or(usize::MAX);
            if let Some(pending) = slots.pending.get_mut(slot).and_then(Option::take) {
                slots.free.push(slot);
                finished.push((pending, completion.status));
            }
        };
        queue.reap(&mut take).map(drop)
    }
}

impl Scratch {
    /// Answer every finished request; its buffers are kept for their lane.
    fn answer(&mut self) {
        for (pending, status) in self.finished.drain(..) {
            let Pending { answer, buffer, read_bytes, claim } = pending;
            // The claim ends before the program is notified.
            drop(claim);
            if status == Status::Ok {
                let length = usize::try_from(read_bytes).unwrap_or(usize::MAX);
                if self.data.len() < length {
                    self.data.resize(length, 0);
                }
                let data = &mut self.data[..length];
                if let Some(buffer) = &buffer {
                    buffer.copy_to(0, data);
                }
                answer.send(Ok(data));
            } else {
                answer.send(Err(Errno::from_i32(status.errno())));
            }
            self.buffers.extend(buffer);
        }
    }
}
