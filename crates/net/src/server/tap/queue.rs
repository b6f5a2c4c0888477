//! A queue of a device on its worker's thread: frames of the host's stack into the network, and those of the network into the stack.

use std::any::Any;
use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fipsee_ring::clock;
use fipsee_ring::doorbell::EventDoorbell;
use fipsee_ring::memory::Span;
use fipsee_ring::wait::has_woken_thread;
use fipsee_serve::{Blocks, Engine, Queue, Taken, Turn};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::super::copy::copy_frame;
use super::super::endpoint::{Delivered, Frame, Receive};
use super::super::network::Outcome;
use super::super::port::{Sending, ServedPort};
use super::interface;
use crate::wire::{MAX_SMALL_BYTES, OFFLOAD_CHECKSUM, OFFLOAD_ECN, OFFLOAD_TSO4, OFFLOAD_TSO6, Offload};

/// Most frames of one visit.
const BUDGET: u32 = 64;
/// Of the header in front of each frame, which is an [`Offload`].
const HEADER_BYTES: usize = size_of::<Offload>();
/// More than the longest frame: 64 KiB of payload behind its headers.
const BUFFER_BYTES: usize = HEADER_BYTES + (1 << 16) + 64;
/// What the system call for a frame costs beside the frame, in requests.
const CALL_COST: u32 = 4;
/// A device that had no frame is looked at again after this part of the time since it had one, within bounds.
const LOOK_PART: u64 = 16;
const LEAST_PAUSE: Duration = Duration::from_micros(2);
const MOST_PAUSE: Duration = Duration::from_micros(50);
/// What the stack may leave to others, and others to it.
const OFFLOADS: u32 = OFFLOAD_CHECKSUM | OFFLOAD_TSO4 | OFFLOAD_TSO6 | OFFLOAD_ECN;
/// A flag that only says that the checksum was seen to be right.
const DATA_VALID: u8 = 2;

/// A queue of a device, which both directions use.
#[derive(Debug)]
pub struct TapEnd {
    file: OwnedFd,
    /// The device does not exist any more.
    gone: AtomicBool,
    /// Rung then.
    notified: EventDoorbell,
}

impl TapEnd {
    pub fn new(file: OwnedFd, notified: EventDoorbell) -> Self {
        // A device without them is slower.
        let _ = interface::set_offloads(&file, OFFLOADS);
        Self { file, gone: AtomicBool::new(false), notified }
    }

    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Of a frame that was read or written, its bytes. `None`: there was none, or no room for it.
    fn bytes_of(&self, outcome: Result<usize, Errno>) -> Option<usize> {
        // What the kernel says of a queue without a device.
        if outcome == Err(Errno::BADFD) && !self.gone.swap(true, Ordering::AcqRel) {
            self.notified.ring();
        }
        outcome.ok()
    }

    fn is_readable(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let polled = rustix::event::poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&at_once));
        !self.is_gone() && polled.is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for TapEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// When to look at a device again that had no frame: while the worker is awake that takes a system call, and an idle device must not cost
/// others anything.
struct Pause {
    least: u64,
    most: u64,
    /// When there was a frame last.
    worked: u64,
    next: Cell<u64>,
}

impl Pause {
    fn new() -> Self {
        let [least, most] = [LEAST_PAUSE, MOST_PAUSE].map(clock::duration_to_ticks);
        Self { least, most, worked: 0, next: Cell::new(0) }
    }

    fn is_over(&self, now: u64) -> bool {
        now >= self.next.get()
    }

    fn begin(&self, now: u64) {
        let idle = now.saturating_sub(self.worked);
        self.next.set(now.saturating_add((idle / LOOK_PART).clamp(self.least, self.most)));
    }

    fn end(&self) {
        self.next.set(0);
    }
}

/// Frames of the host's stack. While its worker sleeps the device wakes it.
pub struct TapQueue {
    end: Arc<TapEnd>,
    port: ServedPort,
    /// For one frame, with its header.
    buffer: Box<[u8]>,
    /// There was no frame after the device woke the worker last: it will wake it for the next one.
    is_drained: bool,
    pause: Pause,
    blocks: Blocks,
}

impl TapQueue {
    pub fn new(end: Arc<TapEnd>, port: ServedPort) -> Self {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Self { end, port, buffer, is_drained: false, pause: Pause::new(), blocks: Blocks::default() }
    }
}

/// Send a frame behind its header. `None`: there is no whole header.
fn send(sending: &mut Sending<'_>, bytes: &mut [u8]) -> Option<Outcome> {
    let (header, frame) = bytes.split_first_chunk_mut::<HEADER_BYTES>()?;
    let mut offload: Offload = zerocopy::transmute!(*header);
    offload.flags &= !DATA_VALID;
    let (first, rest) = frame.split_at_mut(frame.len().min(MAX_SMALL_BYTES));
    // SAFETY: memory of the queue, which nothing changes until the frame is sent.
    let span = unsafe { Span::new(NonNull::from(&mut *rest).cast(), rest.len()) };
    let rest = if rest.is_empty() { &[][..] } else { std::slice::from_ref(&span) };
    // SAFETY: as above.
    Some(unsafe { sending.send(first, rest, offload) })
}

impl<E: Engine> Queue<E> for TapQueue {
    fn visit(&mut self, _engine: &mut E, turn: Turn) -> Taken {
        let now = clock::ticks();
        if !self.pause.is_over(now) {
            return Taken::NOTHING;
        }
        let Self { end, port, buffer, is_drained, pause, blocks } = self;
        // `None`: another thread has the network at this moment, and the next pass looks again. A frame that was read could not be put back.
        let Some(mut sending) = port.try_sending() else { return Taken::NOTHING };
        let mut taken = Taken::NOTHING;
        while taken.requests < BUDGET.min(turn.requests) && taken.units < turn.units {
            let read = rustix::io::retry_on_intr(|| rustix::io::read(&end.file, &mut **buffer));
            let Some(length) = end.bytes_of(read) else {
                *is_drained |= matches!(read, Err(Errno::AGAIN | Errno::BADFD));
                pause.begin(now);
                break;
            };
            let sent = send(&mut sending, &mut buffer[..length]);
            let (bytes, more_work) = sent.map_or((0, 0), |outcome| (outcome.bytes, outcome.more_work()));
            taken = taken.and(Taken::new(1, blocks.complete(bytes)).with_more_work(more_work + u64::from(CALL_COST)));
            pause.worked = now;
        }
        taken
    }

    fn has_work(&self) -> bool {
        let now = clock::ticks();
        if !self.pause.is_over(now) {
            return false;
        }
        let is_readable = self.end.is_readable();
        if !is_readable {
            self.pause.begin(now);
        }
        is_readable
    }

    /// A visit reads at once, without a system call more.
    fn is_quiet(&self) -> bool {
        !self.pause.is_over(clock::ticks())
    }

    fn flush(&mut self) {}

    fn arm_and_work_remains(&mut self) -> bool {
        self.is_drained = self.is_drained || !self.end.is_readable();
        if !self.is_drained {
            self.pause.end();
        }
        !self.is_drained
    }

    fn disarm(&mut self) {
        self.is_drained = false;
        self.pause.end();
    }

    /// The kernel reports each frame that comes to a worker that watches for that.
    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.end.as_fd())
    }

    fn moved(&mut self, _id: u32) {}

    /// Frames that were not read are in the kernel, and the descriptor is handed over.
    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        None
    }
}

/// Frames for the host's stack.
pub struct TapReceiver {
    end: Arc<TapEnd>,
    /// A frame as the device takes it.
    buffer: Box<[u8]>,
}

impl TapReceiver {
    pub fn new(end: Arc<TapEnd>) -> Self {
        Self { end, buffer: vec![0; BUFFER_BYTES].into_boxed_slice() }
    }
}

impl Receive for TapReceiver {
    unsafe fn deliver(&mut self, frame: &Frame<'_>) -> Delivered {
        let header: [u8; HEADER_BYTES] = zerocopy::transmute!(frame.offload);
        let not_taken = Delivered { extra_work: CALL_COST, ..Delivered::default() };
        let Some(bytes) = self.buffer.get_mut(..HEADER_BYTES + frame.length_bytes as usize) else { return not_taken };
        let (first, rest) = bytes.split_at_mut(HEADER_BYTES);
        first.copy_from_slice(&header);
        // SAFETY: memory of this receiver, which nothing else has.
        let into = unsafe { Span::new(NonNull::from(&mut *rest).cast(), rest.len()) };
        // SAFETY: the caller vouches for the rest of the frame.
        unsafe { copy_frame(frame.head, frame.rest, &[into]) };
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&self.end.file, bytes));
        // A program that waits for the frame.
        has_woken_thread();
        Delivered { is_taken: self.end.bytes_of(written).is_some(), ..not_taken }
    }

    fn offloads(&self) -> u32 {
        OFFLOADS
    }

    /// The stack sees a cable that is pulled out. A kernel that knows no such call (before 5.0) leaves the interface as it is.
    fn set_link(&mut self, is_up: bool) {
        let _ = interface::set_carrier(&self.end.file, is_up);
    }

    /// The stack has taken them.
    fn flush(&mut self) {}
}
