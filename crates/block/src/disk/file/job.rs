//! One request of a file disk: the steps it takes and what each result means.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use io_uring::squeue::{Entry, Flags};
use io_uring::{opcode, types};
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags};

use super::target::{Target, ZeroMethod};
use crate::request::Span;
use crate::wire::{MAX_INDIRECT_ENTRIES, Status};

/// Bytes of zeroes that one span of a written-out write-zeroes names.
const ZERO_BYTES: usize = 64 << 10;

#[repr(align(4096))]
struct Zeroes([u8; ZERO_BYTES]);

static ZEROES: Zeroes = Zeroes([0; ZERO_BYTES]);

/// How often a step that the kernel put off is repeated before it counts as failed.
const MAX_ATTEMPTS: u8 = 100;

/// What a job does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Write-zeroes by writing: the file system can do it no other way.
    ZeroFill {
        durable: bool,
    },
    Sync,
    /// Let time pass, for disks that wrap others.
    Timer,
}

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::disk) enum Progress {
    Finished(Status),
    /// Submit [`Job::entry`] again: the rest, or the next step.
    Again,
}

/// A request, or what remains of it.
pub(in crate::disk) struct Job {
    /// Keeps the descriptors open until the kernel is done with them, even if the disk is dropped.
    target: Option<Arc<Target>>,
    step: Step,
    offset_bytes: u64,
    length_bytes: u64,
    /// The memory, laid out as iovecs; the kernel is given a pointer to the rest, from `first` on.
    spans: Vec<Span>,
    first: usize,
    /// The method that the allocation in flight uses.
    method: ZeroMethod,
    /// The transfer in flight bypasses the page cache.
    is_direct: bool,
    /// The direct descriptor refused this request.
    avoid_direct: bool,
    attempts: u8,
    /// When a timer ends, on the monotonic clock. On the heap, so that it stays where the kernel is told to find it.
    deadline: Option<Box<types::Timespec>>,
}

impl Job {
    pub(in crate::disk) const fn idle() -> Self {
        Self {
            target: None,
            step: Step::Sync,
            offset_bytes: 0,
            length_bytes: 0,
            spans: Vec::new(),
            first: 0,
            method: ZeroMethod::Write,
            is_direct: false,
            avoid_direct: false,
            attempts: 0,
            deadline: None,
        }
    }

    /// Begin anew. The spans hold `length_bytes` together, or there are none.
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
        *self = Self { target: Some(Arc::clone(target)), step, offset_bytes, length_bytes, spans: reused, ..Self::idle() };
    }

    /// Begin anew, as a timer. `deadline`: since the start of the monotonic clock.
    pub(in crate::disk) fn set_up_timer(&mut self, deadline: Duration) {
        let time = types::Timespec::new().sec(deadline.as_secs()).nsec(deadline.subsec_nanos());
        *self = Self { step: Step::Timer, deadline: Some(Box::new(time)), ..Self::idle() };
    }

    /// Let go of the files and the memory. A write that raced with a shrink made the file longer: cut it again.
    pub(in crate::disk) fn release(&mut self) {
        if let Some(target) = self.target.take()
            && !matches!(self.step, Step::Read | Step::Discard)
        {
            target.cut_after(self.offset_bytes + self.length_bytes);
        }
        self.spans.clear();
    }

    /// The kernel's form of the next step.
    pub(in crate::disk) fn entry(&mut self) -> Entry {
        if let (Step::Timer, Some(deadline)) = (self.step, &self.deadline) {
            return opcode::Timeout::new(&raw const **deadline).flags(types::TimeoutFlags::ABS).build();
        }
        let Some(target) = self.target.as_ref() else {
            return opcode::Nop::new().build();
        };
        let buffered = types::Fd(target.buffered_fd());
        let entry = match self.step {
            Step::Sync => opcode::Fsync::new(buffered).flags(types::FsyncFlags::DATASYNC).build(),
            Step::Discard => self.allocate(buffered, FallocateFlags::PUNCH_HOLE),
            Step::Zero { unmap, durable } => {
                self.method = target.zero_method(unmap);
                match self.method {
                    ZeroMethod::ZeroRange => self.allocate(buffered, FallocateFlags::ZERO_RANGE),
                    ZeroMethod::PunchHole => self.allocate(buffered, FallocateFlags::PUNCH_HOLE),
                    ZeroMethod::Write => {
                        self.step = Step::ZeroFill { durable };
                        return self.entry();
                    }
                }
            }
            Step::ZeroFill { .. } => {
                self.fill_with_zeroes();
                self.transfer()
            }
            Step::Read | Step::Write { .. } => self.transfer(),
            Step::Timer => opcode::Nop::new().build(),
        };
        // A step that was put off goes to a kernel thread, where it can wait.
        if self.attempts > 0 { entry.flags(Flags::ASYNC) } else { entry }
    }

    fn allocate(&self, file: types::Fd, how: FallocateFlags) -> Entry {
        let mode = (how | FallocateFlags::KEEP_SIZE).bits().cast_signed();
        opcode::Fallocate::new(file, self.length_bytes).offset(self.offset_bytes).mode(mode).build()
    }

    fn fill_with_zeroes(&mut self) {
        self.spans.clear();
        self.first = 0;
        let mut rest = self.length_bytes;
        while rest > 0 && self.spans.len() < MAX_INDIRECT_ENTRIES {
            let piece = usize::try_from(rest).unwrap_or(ZERO_BYTES).min(ZERO_BYTES);
            // SAFETY: the zeroes live for ever, and a job that names them only ever writes them to a file.
            self.spans.push(unsafe { Span::new(NonNull::from(&ZEROES.0).cast(), piece) });
            rest -= piece as u64;
        }
    }

    fn transfer(&mut self) -> Entry {
        let spans = &self.spans[self.first..];
        let is_read = self.step == Step::Read;
        let direct = match self.target.as_ref() {
            Some(target) if !self.avoid_direct => target.direct_fd(is_read, self.offset_bytes, spans),
            _ => None,
        };
        self.is_direct = direct.is_some();
        let file = types::Fd(direct.or_else(|| self.target.as_ref().map(|target| target.buffered_fd())).unwrap_or(-1));
        let durable = matches!(self.step, Step::Write { durable: true });
        let flags = if durable { ReadWriteFlags::DSYNC.bits().cast_signed() } else { 0 };
        match spans {
            [span] if let Ok(length) = u32::try_from(span.length_bytes()) => {
                let memory = span.base().as_ptr();
                match is_read {
                    true => opcode::Read::new(file, memory, length).offset(self.offset_bytes).build(),
                    false => opcode::Write::new(file, memory, length).offset(self.offset_bytes).rw_flags(flags).build(),
                }
            }
            _ => {
                let count = u32::try_from(spans.len()).unwrap_or(0);
                let vector = spans.as_ptr().cast();
                match is_read {
                    true => opcode::Readv::new(file, vector, count).offset(self.offset_bytes).build(),
                    false => opcode::Writev::new(file, vector, count).offset(self.offset_bytes).rw_flags(flags).build(),
                }
            }
        }
    }

    /// What the kernel's result of the last [`entry`](Self::entry) means.
    pub(in crate::disk) fn advance(&mut self, result: i32) -> Progress {
        let bytes = match usize::try_from(result) {
            Ok(bytes) => bytes,
            Err(_) => return self.failed(Errno::from_raw_os_error(result.saturating_neg())),
        };
        self.attempts = 0;
        match self.step {
            Step::Sync | Step::Discard | Step::Timer => Progress::Finished(Status::Ok),
            Step::Zero { durable, .. } => self.written(durable),
            // End of file: someone cut the file below its size. Nothing written: the kernel owes us an errno.
            Step::Read | Step::Write { .. } | Step::ZeroFill { .. } if bytes == 0 => Progress::Finished(Status::IoError),
            _ => self.moved(bytes),
        }
    }

    fn moved(&mut self, bytes: usize) -> Progress {
        let mut skip = bytes;
        while let Some(span) = self.spans.get_mut(self.first).filter(|_| skip > 0) {
            let piece = span.length_bytes().min(skip);
            skip -= piece;
            if piece == span.length_bytes() {
                self.first += 1;
            } else {
                // SAFETY: the rest of a span is as valid as the whole.
                let rest = unsafe { span.base().add(piece) };
                // SAFETY: as above.
                *span = unsafe { Span::new(rest, span.length_bytes() - piece) };
            }
        }
        let done = (bytes as u64).min(self.length_bytes);
        self.offset_bytes += done;
        self.length_bytes -= done;
        match self.step {
            _ if self.length_bytes > 0 => Progress::Again,
            Step::ZeroFill { durable } => self.written(durable),
            _ => Progress::Finished(Status::Ok),
        }
    }

    /// The zeroes are in the file; if they must be durable, that is a step of its own.
    fn written(&mut self, durable: bool) -> Progress {
        if !durable {
            return Progress::Finished(Status::Ok);
        }
        self.step = Step::Sync;
        Progress::Again
    }

    fn failed(&mut self, errno: Errno) -> Progress {
        match (errno, self.step) {
            (Errno::TIME, Step::Timer) => return Progress::Finished(Status::Ok),
            (Errno::AGAIN | Errno::INTR, _) if self.attempts < MAX_ATTEMPTS => {
                self.attempts += 1;
                return Progress::Again;
            }
            // The file system is stricter than it said.
            (Errno::INVAL, Step::Read | Step::Write { .. } | Step::ZeroFill { .. }) if self.is_direct => {
                self.avoid_direct = true;
                return Progress::Again;
            }
            (Errno::OPNOTSUPP | Errno::NOSYS, Step::Zero { .. }) => {
                if let Some(target) = &self.target {
                    target.forget_zero_method(self.method);
                }
                return Progress::Again;
            }
            _ => {}
        }
        Progress::Finished(status_of(errno))
    }
}

/// What a client is told of an error of the file below its disk.
pub(in crate::disk) fn status_of(errno: Errno) -> Status {
    match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Status::NoSpace,
        // Remounted read-only, or made immutable, under us.
        Errno::ROFS | Errno::PERM | Errno::ACCESS | Errno::TXTBSY => Status::ReadOnly,
        Errno::OPNOTSUPP | Errno::NOSYS => Status::Unsupported,
        Errno::FAULT => Status::BadMemory,
        _ => Status::IoError,
    }
}

#[cfg(test)]
#[path = "job_tests.rs"]
mod tests;
