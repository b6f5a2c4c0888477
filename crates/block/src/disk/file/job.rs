//! One request of a file disk: its steps and the meaning of each result.

use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use fipsee_ring::memory::{Span, cut_spans};
use fipsee_serve::uring::{self, Buffers, Grants, Job as _, Needs};
use io_uring::squeue::{Entry, Flags};
use io_uring::{opcode, types};
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags};

use super::range_lock::{LockId, Range};
use super::target::{Target, ZeroMethod};
use super::window::{Alignment, Piece, Window, next_piece};
use crate::disk::engine::NEEDS;
use crate::disk::faults::Awaited;
use crate::wire::{MAX_INDIRECT_ENTRIES, Operation, SECTOR_BYTES, Status};

/// How often a step that the kernel deferred is repeated before it counts as failed.
const MAX_ATTEMPTS: u8 = 100;
/// Bytes of zeroes that one span of a written-out write-zeroes names.
const ZERO_BYTES: usize = 64 << 10;

#[repr(align(4096))]
struct Zeroes([u8; ZERO_BYTES]);

static ZEROES: Zeroes = Zeroes([0; ZERO_BYTES]);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::disk) enum Step {
    Read,
    Write {
        durable: bool,
    },
    Discard,
    Zero {
        unmap: bool,
        durable: bool,
    },
    #[default]
    Sync,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Asked {
    #[default]
    Other,
    /// A transfer of this many bytes with the client's memory.
    Plain(u64),
    /// The next step of the window.
    Window,
    /// This many bytes, zeroed by the file system.
    Allocate(ZeroMethod, u64),
}

type Progress = uring::Progress<Status>;

/// A request, or the rest of it.
#[derive(Default)]
pub struct Job {
    /// Keeps the descriptor open until the kernel is done with it, even if the disk is dropped.
    target: Option<Arc<Target>>,
    step: Step,
    offset_bytes: u64,
    length_bytes: u64,
    /// The memory of the rest, as iovecs from `first` on; the kernel is given a pointer to these. For a write-zeroes that
    /// writes: zeroes for the next piece.
    spans: Vec<Span>,
    first: usize,
    /// Bytes that `spans` still hold.
    span_bytes: u64,
    asked: Asked,
    /// For direct I/O that needs other memory or whole units.
    window: Option<Window>,
    /// The kernel refused the client's memory.
    avoid_memory: bool,
    /// The range locked against other writes meanwhile.
    lock: Option<LockId>,
    attempts: u8,
    /// Without a target: a timer, for disks that wrap others.
    timer: Option<Box<Timer>>,
}

/// On the heap, so that the address given to the kernel stays valid.
struct Timer {
    /// When it ends, on the monotonic clock.
    deadline: types::Timespec,
    awaited: Option<Awaited>,
}

impl Job {
    /// Start over. The spans hold `length_bytes` together, or there are none.
    pub(in crate::disk) fn set_up(
        &mut self,
        target: &Arc<Target>,
        step: Step,
        offset_bytes: u64,
        length_bytes: u64,
        spans: &[Span],
    ) {
        let mut reused = std::mem::take(&mut self.spans);
        reused.clear();
        reused.extend_from_slice(spans);
        let span_bytes = if spans.is_empty() { 0 } else { length_bytes };
        let target = Some(Arc::clone(target));
        *self = Self { target, step, offset_bytes, length_bytes, spans: reused, span_bytes, ..Self::default() };
    }

    /// Start over, as a timer. `deadline`: since the start of the monotonic clock.
    pub(in crate::disk) fn set_up_timer(&mut self, deadline: Duration, awaited: Option<Awaited>) {
        let deadline = types::Timespec::new().sec(deadline.as_secs()).nsec(deadline.subsec_nanos());
        *self = Self { timer: Some(Box::new(Timer { deadline, awaited })), ..Self::default() };
    }

    /// It has failed; `None`: the file is shorter than the disk.
    #[cold]
    fn record(&self, errno: Option<Errno>) {
        if let (Some(_), Some(Awaited { faults, operation, sector })) = (&self.target, self.awaited()) {
            faults.failed(operation, sector, errno);
        }
    }

    #[inline(always)]
    fn range_to_lock(&self) -> Option<(&Arc<Target>, Range)> {
        let target = self.target.as_ref().filter(|target| target.locks.is_some())?;
        match self.step {
            Step::Write { .. } | Step::Discard | Step::Zero { .. } => {
                Some((target, target.range_to_lock(self.offset_bytes, self.length_bytes)?))
            }
            Step::Read | Step::Sync => None,
        }
    }

    /// Lock the range that this changes against other writes. False if it must wait.
    #[inline(never)]
    fn acquire(&mut self, grants: &Arc<Grants>, slot: u32) -> bool {
        let Some((target, range)) = self.range_to_lock() else { return true };
        let Some((lock, is_held)) = target.locks.as_ref().map(|locks| locks.acquire(range, grants, slot)) else { return true };
        if is_held {
            self.lock = Some(lock);
        }
        is_held
    }

    /// The next step of anything but a transfer of whole units to or from suitable memory; `None`: it needs a buffer.
    fn other_step(&mut self, file: types::Fd, buffers: &mut Buffers) -> Option<Entry> {
        self.asked = Asked::Other;
        match self.step {
            Step::Sync => Some(opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build()),
            Step::Discard => Some(self.allocate(file, FallocateFlags::PUNCH_HOLE, self.length_bytes)),
            Step::Zero { unmap, .. } => self.zero(file, unmap, buffers),
            Step::Read | Step::Write { .. } => self.transfer(file, buffers),
        }
    }

    fn allocate(&self, file: types::Fd, how: FallocateFlags, length_bytes: u64) -> Entry {
        let mode = (how | FallocateFlags::KEEP_SIZE).bits().cast_signed();
        opcode::Fallocate::new(file, length_bytes).offset(self.offset_bytes).mode(mode).build()
    }

    /// Zero a range: by the file system where it can, else by writing.
    fn zero(&mut self, file: types::Fd, unmap: bool, buffers: &mut Buffers) -> Option<Entry> {
        if let Some(target) = self.target.as_ref().filter(|_| self.span_bytes == 0) {
            let (method, length_bytes) = target.next_zero_part(self.offset_bytes, self.length_bytes, unmap);
            let how = match method {
                ZeroMethod::ZeroRange => FallocateFlags::ZERO_RANGE,
                ZeroMethod::PunchHole => FallocateFlags::PUNCH_HOLE,
                ZeroMethod::Write => {
                    self.fill_with_zeroes(length_bytes);
                    return self.transfer(file, buffers);
                }
            };
            self.asked = Asked::Allocate(method, length_bytes);
            return Some(self.allocate(file, how, length_bytes));
        }
        self.transfer(file, buffers)
    }

    fn fill_with_zeroes(&mut self, length_bytes: u64) {
        self.spans.clear();
        self.first = 0;
        let mut rest = length_bytes;
        while rest > 0 && self.spans.len() < MAX_INDIRECT_ENTRIES {
            let piece = usize::try_from(rest).unwrap_or(ZERO_BYTES).min(ZERO_BYTES);
            // SAFETY: the zeroes are static, and a job that names them only ever writes them to a file.
            self.spans.push(unsafe { Span::new(NonNull::from(&ZEROES.0).cast(), piece) });
            rest -= piece as u64;
        }
        self.span_bytes = length_bytes - rest;
    }

    fn transfer(&mut self, file: types::Fd, buffers: &mut Buffers) -> Option<Entry> {
        if self.window.is_none() {
            match self.piece() {
                Piece::Plain { length_bytes } => {
                    self.asked = Asked::Plain(length_bytes);
                    let count = cut_spans(&mut self.spans, self.first, length_bytes);
                    return Some(self.plain_entry(file, count));
                }
                Piece::Window { start_bytes, length_bytes } => {
                    let buffer = buffers.take(length_bytes)?;
                    let (data, is_read) = ((self.offset_bytes, self.span_bytes), self.step == Step::Read);
                    let spans = &self.spans[self.first..];
                    self.window = Some(Window::new(buffer, (start_bytes, length_bytes), data, is_read, spans));
                }
            }
        }
        self.asked = Asked::Window;
        let flags = self.write_flags();
        self.window.as_mut().map(|window| window.entry(file, flags))
    }

    /// Between the file and the next `count` spans.
    #[inline(always)]
    fn plain_entry(&self, file: types::Fd, count: usize) -> Entry {
        let (offset, flags, is_read) = (self.offset_bytes, self.write_flags(), self.step == Step::Read);
        match &self.spans[self.first..self.first + count] {
            [span] if let Ok(length) = u32::try_from(span.length_bytes()) => {
                let memory = span.base().as_ptr();
                match is_read {
                    true => opcode::Read::new(file, memory, length).offset(offset).build(),
                    false => opcode::Write::new(file, memory, length).offset(offset).rw_flags(flags).build(),
                }
            }
            spans => {
                let (vector, count) = (spans.as_ptr().cast(), u32::try_from(count).unwrap_or(0));
                match is_read {
                    true => opcode::Readv::new(file, vector, count).offset(offset).build(),
                    false => opcode::Writev::new(file, vector, count).offset(offset).rw_flags(flags).build(),
                }
            }
        }
    }

    #[inline(always)]
    const fn write_flags(&self) -> i32 {
        match self.step {
            Step::Write { durable: true } => ReadWriteFlags::DSYNC.bits().cast_signed(),
            _ => 0,
        }
    }

    #[inline(always)]
    fn memory_fits(&self, alignment: Alignment) -> bool {
        let bits = |bits, span: &Span| bits | span.base().addr().get() as u64 | span.length_bytes() as u64;
        self.spans[self.first..].iter().fold(0, bits) & alignment.memory_mask == 0 && !self.avoid_memory
    }

    fn piece(&self) -> Piece {
        match self.target.as_ref().and_then(|target| target.alignment) {
            Some(alignment) => next_piece(alignment, self.offset_bytes, self.span_bytes, self.memory_fits(alignment)),
            None => Piece::Plain { length_bytes: self.span_bytes },
        }
    }

    fn ended_early(&self) -> Progress {
        self.record(None);
        Progress::Finished(Status::IoError)
    }

    /// Of a transfer of `asked_bytes`, this many bytes were moved. Direct I/O continues at a whole unit.
    fn moved(&mut self, bytes: u64, asked_bytes: u64, attempts: u8, buffers: &mut Buffers) -> Progress {
        let unit_mask = self.target.as_ref().and_then(|target| target.alignment).map_or(0, |alignment| alignment.unit_mask);
        let mut done = if bytes >= asked_bytes { asked_bytes } else { bytes & !unit_mask };
        if done == 0 {
            // For a read that is the end of a truncated file.
            if self.step == Step::Read || attempts >= MAX_ATTEMPTS {
                return self.ended_early();
            }
            self.attempts = attempts + 1;
            return Progress::Again;
        }
        if let Some(window) = &mut self.window {
            match window.advance(done, &self.spans[self.first..]) {
                Some(bytes) => done = bytes,
                None => return Progress::Again,
            }
        }
        self.give_back(buffers);
        self.spend(done);
        self.done(done)
    }

    fn give_back(&mut self, buffers: &mut Buffers) {
        if let Some(window) = self.window.take() {
            buffers.give(window.buffer);
        }
    }

    fn spend(&mut self, bytes: u64) {
        self.span_bytes -= bytes;
        let mut skip = usize::try_from(bytes).unwrap_or(usize::MAX);
        while let Some(span) = self.spans.get_mut(self.first).filter(|_| skip > 0) {
            let piece = span.length_bytes().min(skip);
            skip -= piece;
            if piece == span.length_bytes() {
                self.first += 1;
            } else {
                *span = span.without_first(piece);
            }
        }
    }

    /// Is nothing left when this much of the range is done?
    #[inline(always)]
    fn is_last(&self, bytes: u64) -> bool {
        bytes == self.length_bytes && matches!(self.step, Step::Read | Step::Write { .. })
    }

    fn done(&mut self, bytes: u64) -> Progress {
        self.offset_bytes += bytes;
        self.length_bytes -= bytes;
        match self.step {
            _ if self.length_bytes > 0 => Progress::Again,
            // The zeroes are in the file; if they must be durable, that is a separate step.
            Step::Zero { durable: true, .. } => {
                self.step = Step::Sync;
                Progress::Again
            }
            _ => Progress::Finished(Status::Ok),
        }
    }

    fn failed(&mut self, errno: Errno) -> Progress {
        match (errno, self.asked) {
            (Errno::TIME, _) if self.timer.is_some() => return Progress::Finished(Status::Ok),
            (Errno::AGAIN | Errno::INTR, _) if self.attempts < MAX_ATTEMPTS => {
                self.attempts += 1;
                return Progress::Again;
            }
            // The file system is stricter about memory than it reported.
            (Errno::INVAL, Asked::Plain(_)) if !self.avoid_memory => {
                self.avoid_memory = true;
                return Progress::Again;
            }
            (Errno::OPNOTSUPP | Errno::NOSYS, Asked::Allocate(method, _)) => {
                if let Some(target) = &self.target {
                    target.forget_zero_method(method);
                }
                return Progress::Again;
            }
            // The client's memory, not the disk.
            (Errno::FAULT, _) => {}
            _ => self.record(Some(errno)),
        }
        Progress::Finished(status_of(errno))
    }
}

// SAFETY: the job keeps its target, and with it the descriptor, its window and its timer until it is released; the spans' vector,
// the window's buffer and the timer are on the heap; the rest of what entries name is static.
unsafe impl uring::Job for Job {
    type Status = Status;
    type Awaited = Awaited;
    const NOT_DONE: Status = Status::IoError;

    fn needs() -> &'static Needs {
        &NEEDS
    }

    fn idle() -> Self {
        Self::default()
    }

    #[inline(always)]
    fn may_begin(&mut self, grants: &Arc<Grants>, slot: u32) -> bool {
        self.range_to_lock().is_none() || self.acquire(grants, slot)
    }

    fn set_lock(&mut self, lock: LockId) {
        self.lock = Some(lock);
    }

    /// A read or write of whole units to or from suitable memory, or through the page cache, is one operation.
    fn entry(&mut self, buffers: &mut Buffers) -> Option<Entry> {
        let Some(target) = &self.target else {
            let Some(timer) = &self.timer else { return Some(opcode::Nop::new().build()) };
            return Some(opcode::Timeout::new(&raw const timer.deadline).flags(types::TimeoutFlags::ABS).build());
        };
        let (file, alignment) = (types::Fd(target.file().as_raw_fd()), target.alignment);
        let is_plain = matches!(self.step, Step::Read | Step::Write { .. })
            && alignment.is_none_or(|alignment| {
                let is_whole = (self.offset_bytes | self.span_bytes) & alignment.unit_mask == 0;
                is_whole && self.window.is_none() && self.memory_fits(alignment)
            });
        let entry = if is_plain {
            self.asked = Asked::Plain(self.span_bytes);
            self.plain_entry(file, self.spans.len() - self.first)
        } else {
            self.other_step(file, buffers)?
        };
        // A deferred step goes to a kernel thread, where it can wait.
        Some(if self.attempts > 0 { entry.flags(Flags::ASYNC) } else { entry })
    }

    fn advance(&mut self, result: i32, buffers: &mut Buffers) -> Progress {
        let bytes = match usize::try_from(result) {
            // Most requests: all in one operation.
            Ok(bytes) if self.asked == Asked::Plain(bytes as u64) && self.is_last(bytes as u64) => {
                return Progress::Finished(Status::Ok);
            }
            Ok(bytes) => bytes,
            Err(_) => return self.failed(Errno::from_raw_os_error(result.saturating_neg())),
        };
        let attempts = std::mem::take(&mut self.attempts);
        match self.asked {
            Asked::Other => Progress::Finished(Status::Ok),
            Asked::Allocate(_, length_bytes) => self.done(length_bytes),
            // End of file: the file was truncated below its size. Nothing written: no errno was given.
            Asked::Plain(_) | Asked::Window if bytes == 0 => self.ended_early(),
            Asked::Plain(asked_bytes) => self.moved(bytes as u64, asked_bytes, attempts, buffers),
            Asked::Window => {
                let (bytes, left_bytes) = self.window.as_ref().map_or((0, 0), |window| window.counted(bytes));
                self.moved(bytes, left_bytes, attempts, buffers)
            }
        }
    }

    #[cold]
    fn refused(&self, errno: Errno) {
        self.record(Some(errno));
    }

    /// Release the file, the memory and the range. A write that raced with a shrink made the file longer: truncate it again.
    fn release(&mut self, buffers: &mut Buffers, grants: &Arc<Grants>) {
        self.give_back(buffers);
        if let Some(target) = self.target.take() {
            if !matches!(self.step, Step::Read | Step::Discard) {
                target.cut_after(self.offset_bytes + self.length_bytes);
            }
            if let (Some(lock), Some(locks)) = (self.lock.take(), target.locks.as_ref()) {
                locks.release(lock, grants);
            }
        } else {
            self.timer = None;
        }
        self.spans.clear();
    }

    fn abandon(&mut self, buffers: &mut Buffers, grants: &Arc<Grants>) {
        if let (None, Some(locks)) = (self.lock, self.target.as_ref().and_then(|target| target.locks.as_ref())) {
            locks.cancel(grants);
        }
        self.release(buffers, grants);
    }

    fn awaited(&self) -> Option<Awaited> {
        let Some(target) = &self.target else { return self.timer.as_ref()?.awaited.clone() };
        let operation = match self.step {
            Step::Read => Operation::Read,
            Step::Write { .. } => Operation::Write,
            Step::Discard => Operation::Discard,
            Step::Zero { .. } => Operation::WriteZeroes,
            Step::Sync => Operation::Flush,
        };
        Some(Awaited { faults: Arc::clone(&target.faults), operation, sector: self.offset_bytes / SECTOR_BYTES })
    }
}

pub(in crate::disk) fn status_of(errno: Errno) -> Status {
    match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Status::NoSpace,
        // Remounted read-only, or made immutable, meanwhile.
        Errno::ROFS | Errno::PERM | Errno::ACCESS | Errno::TXTBSY => Status::ReadOnly,
        Errno::OPNOTSUPP | Errno::NOSYS => Status::Unsupported,
        Errno::FAULT => Status::BadMemory,
        _ => Status::IoError,
    }
}

#[cfg(test)]
#[path = "job_tests.rs"]
mod tests;
