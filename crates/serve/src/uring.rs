//! An [`Engine`](crate::Engine) over one io_uring: carries the jobs of all queues of a worker.
//!
//! What a [`Job`] asks the kernel for, and what the results mean, is its service's. The engine is made for one kind of job: no
//! virtual call is between them.

use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use fipsee_ring::clock;
use io_uring::{EnterFlags, IoUring};
use rustix::io::Errno;

use crate::{Engine as _, Ticket};

mod buffers;
mod chain;
mod held_back;
mod job;
mod setup;
mod stalled;

pub use self::buffers::{Buffer, Buffers, MAX_BUFFER_BYTES};
use self::chain::Ended;
pub use self::held_back::Grants;
use self::held_back::{DOORBELL, HeldBack};
pub use self::job::{Awaited, Job, Progress};
pub use self::setup::Needs;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted<S> {
    Done(S),
    /// The [`Engine`] will report its ticket.
    Pending,
}

const MAX_ENTRIES: u32 = 32768;

struct Slot<J> {
    ticket: Ticket,
    job: J,
}

/// Made for the first job.
struct Kernel {
    ring: IoUring,
    /// Requests that cannot begin yet.
    held_back: HeldBack,
}

impl Kernel {
    /// Enter the kernel without submitting; wait for `completion_count` completions.
    fn enter(&self, completion_count: u32) -> io::Result<usize> {
        // SAFETY: nothing is submitted and no argument is passed, so the kernel reads none of our memory.
        unsafe { self.ring.submitter().enter::<u8>(0, completion_count, EnterFlags::GETEVENTS.bits(), None) }
    }

    /// Are completions ready but held back until this thread enters the kernel? Then it does.
    fn enter_if_asked(&mut self) -> bool {
        let queue = self.ring.submission();
        let asks = queue.taskrun() || queue.cq_overflow();
        drop(queue);
        if asks {
            let _ = self.enter(0);
        }
        asks
    }
}

/// The requests of one worker that the kernel works on, and those that wait for it.
///
/// The io_uring is made when the first job needs it: a worker without jobs runs on a machine that has none. The engine stays on
/// its thread (it is not [`Send`]), because the kernel may rely on one thread that submits; make it on the worker's thread.
///
/// epoll_wait(2) may end with EINTR when a completion arrives: treat that as a wake-up and poll.
pub struct Engine<J: Job> {
    entries: u32,
    kernel: Option<Kernel>,
    /// Grows to the most requests ever in flight, which the queue depths bound. A job's spans are on the heap, so they
    /// stay where the kernel found them when this grows.
    slots: Vec<Slot<J>>,
    free: Vec<u32>,
    /// Not yet in the submission queue: it, or the completion queue's worth of requests in the kernel, was full.
    waiting: VecDeque<u32>,
    /// In the submission queue, oldest first; the kernel has not taken them.
    pushed: VecDeque<u32>,
    in_kernel: usize,
    /// The kernel refused io_uring_enter for good; everything it has not taken fails.
    broken: Option<Errno>,
    ended: Ended<J>,
    /// Memory for transfers that cannot use the client's.
    buffers: Buffers,
    _stays_on_its_thread: PhantomData<*const ()>,
}

impl<J: Job> Engine<J> {
    /// An engine whose submission queue will have `entries` entries (rounded up to a power of two). More requests than
    /// twice that wait inside the engine.
    pub fn new(entries: u32) -> io::Result<Self> {
        if !(1..=MAX_ENTRIES).contains(&entries) {
            let text = format!("an engine of {entries} entries cannot be made; use 1 to {MAX_ENTRIES}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(Self {
            entries,
            kernel: None,
            slots: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            pushed: VecDeque::new(),
            in_kernel: 0,
            broken: None,
            ended: Ended::default(),
            buffers: Buffers::default(),
            _stays_on_its_thread: PhantomData,
        })
    }

    /// Find out whether this machine lets us use io_uring for such jobs. Once it did, it is not asked again: the process may have
    /// given up the right to make further ones.
    pub fn check() -> Result<(), String> {
        let needs = J::needs();
        if needs.is_there.get().is_none() {
            setup::ask_kernel(needs)?;
            let _ = needs.is_there.set(());
        }
        Ok(())
    }

    /// From when on a request counts as stalled, instead of 30 seconds.
    pub const fn set_stall_limit(&mut self, limit: Duration) {
        self.ended.stalls.limit = limit;
    }

    /// Why it takes no job any more, if it does not.
    pub fn refusal(&self) -> Errno {
        self.broken.unwrap_or(Errno::IO)
    }

    /// Queue a job that `prepare` sets up.
    ///
    /// # Safety
    /// The memory that the job names stays valid until its ticket is reported.
    pub unsafe fn begin(&mut self, ticket: Ticket, prepare: impl FnOnce(&mut J)) -> Submitted<J::Status> {
        if self.broken.is_some() || self.start().is_err() {
            return Submitted::Done(J::NOT_DONE);
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => match u32::try_from(self.slots.len()) {
                Ok(index) => {
                    self.slots.push(Slot { ticket, job: J::idle() });
                    index
                }
                Err(_) => return Submitted::Done(J::NOT_DONE),
            },
        };
        let slot = &mut self.slots[index as usize];
        slot.ticket = ticket;
        prepare(&mut slot.job);
        let Some(Kernel { held_back, .. }) = &mut self.kernel else { return Submitted::Done(J::NOT_DONE) };
        if slot.job.may_begin(&held_back.grants, index) {
            self.waiting.push_back(index);
        } else if held_back.add() {
            self.waiting.push_back(DOORBELL);
        }
        Submitted::Pending
    }

    fn reap(&mut self, limit: usize, finished: &mut impl FnMut(Ticket, J::Status)) -> usize {
        let Some(Kernel { ring, held_back }) = &mut self.kernel else { return 0 };
        let mut count = 0;
        for entry in ring.completion().take(limit) {
            if entry.user_data() == u64::from(DOORBELL) {
                self.in_kernel -= 1;
                if held_back.received() {
                    self.waiting.push_back(DOORBELL);
                }
                continue;
            }
            let Some((index, slot)) =
                u32::try_from(entry.user_data()).ok().and_then(|index| Some((index, self.slots.get_mut(index as usize)?)))
            else {
                debug_assert!(false, "the kernel returned a number it was not given");
                continue;
            };
            self.in_kernel -= 1;
            match slot.job.advance(entry.result(), &mut self.buffers) {
                Progress::Again => self.waiting.push_back(index),
                Progress::Finished(status) => {
                    slot.job.release(&mut self.buffers, &held_back.grants);
                    self.free.push(index);
                    count += self.ended.job(slot.ticket, status, finished);
                }
            }
        }
        if self.buffers.was_given() {
            while let Some(index) = held_back.for_buffer.pop_back() {
                self.waiting.push_front(index);
            }
        }
        for (index, lock) in held_back.take() {
            self.slots[index as usize].job.set_lock(lock);
            self.waiting.push_back(index);
        }
        count
    }

    /// After the kernel refused for good: nothing that it has not taken will ever be done.
    fn fail_unsent(&mut self, finished: &mut impl FnMut(Ticket, J::Status)) -> usize {
        let (Some(errno), Some(Kernel { held_back, .. })) = (self.broken, &self.kernel) else { return 0 };
        let mut count = 0;
        while let Some(index) = self.pushed.pop_front().or_else(|| self.waiting.pop_front()) {
            if index == DOORBELL {
                continue;
            }
            let slot = &mut self.slots[index as usize];
            slot.job.refused(errno);
            slot.job.release(&mut self.buffers, &held_back.grants);
            self.free.push(index);
            count += self.ended.job(slot.ticket, J::NOT_DONE, finished);
        }
        count
    }
}

impl<J: Job> crate::Engine for Engine<J> {
    type Ticket = Ticket;
    type Status = J::Status;

    #[inline(always)]
    fn queue_of(ticket: Ticket) -> u32 {
        ticket.queue & !Ticket::PART
    }

    fn start(&mut self) -> Result<(), String> {
        if self.kernel.is_none() {
            let held_back = HeldBack::new().map_err(|error| {
                format!("an eventfd cannot be made ({error}); raise the limit of open files (`ulimit -n`, LimitNOFILE=)")
            })?;
            self.kernel = Some(Kernel { ring: setup::build(J::needs(), self.entries)?, held_back });
        }
        Ok(())
    }

    #[inline(always)]
    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    #[inline(always)]
    fn places(&self) -> usize {
        self.entries as usize
    }

    /// True for what was submitted and not flushed, and when the kernel could not take it.
    fn has_unsent(&self) -> bool {
        !self.pushed.is_empty()
            || (self.in_kernel == 0 && !self.waiting.is_empty())
            || (self.broken.is_some() && self.in_flight() > 0)
    }

    /// `None` until the first job.
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor stays open as long as the ring, which the engine keeps until it is dropped.
        self.kernel.as_ref().map(|kernel| unsafe { BorrowedFd::borrow_raw(kernel.ring.as_raw_fd()) })
    }

    /// With one system call unless there is more than the queue holds.
    fn flush(&mut self) {
        let (Some(Kernel { ring, held_back }), None) = (&mut self.kernel, self.broken) else { return };
        let limit = ring.params().cq_entries() as usize;
        while !self.waiting.is_empty() || !self.pushed.is_empty() {
            let mut queue = ring.submission();
            while self.in_kernel + self.pushed.len() < limit && !queue.is_full() {
                let Some(index) = self.waiting.pop_front() else { break };
                let entry = match index {
                    DOORBELL => held_back.entry(),
                    _ => match self.slots[index as usize].job.entry(&mut self.buffers) {
                        Some(entry) => entry,
                        None => {
                            held_back.for_buffer.push_back(index);
                            continue;
                        }
                    },
                };
                let entry = entry.user_data(u64::from(index));
                // SAFETY: the entry names what the job keeps in place, as its trait demands, and memory that is valid until the
                // ticket is reported, which `begin`'s caller promised; or the doorbell and its count, which the engine keeps
                // until the read has ended.
                let pushed = unsafe { queue.push(&entry) };
                debug_assert!(pushed.is_ok(), "there was room");
                self.pushed.push_back(index);
            }
            drop(queue);
            if self.pushed.is_empty() {
                return;
            }
            match ring.submit() {
                Ok(taken) => {
                    let taken = taken.min(self.pushed.len());
                    self.pushed.drain(..taken);
                    self.in_kernel += taken;
                    if taken == 0 || !self.pushed.is_empty() || self.in_kernel >= limit {
                        return;
                    }
                }
                Err(error) => {
                    let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                    // Out of memory for the moment, or completions must be reaped first: the entries stay where they are.
                    if !matches!(errno, Errno::AGAIN | Errno::BUSY | Errno::INTR | Errno::NOMEM) {
                        self.broken = Some(errno);
                    }
                    return;
                }
            }
        }
    }

    /// Makes no system call, except when the kernel asks for one or when a request needs a further step.
    fn poll(&mut self, limit: usize, finished: &mut impl FnMut(Ticket, J::Status)) -> usize {
        if self.in_flight() == 0 && self.in_kernel == 0 {
            return 0;
        }
        let mut count = self.reap(limit, finished);
        if count == 0 && self.kernel.as_mut().is_some_and(Kernel::enter_if_asked) {
            count = self.reap(limit, finished);
        }
        if self.ended.has_steps() {
            count += self.continue_chains(finished);
        }
        self.flush();
        count += self.fail_unsent(finished);
        if self.ended.has_steps() {
            count += self.continue_chains(finished);
        }
        if self.ended.stalls.is_due() {
            self.look_for_stalled();
        }
        count
    }

    fn time_to_look(&self) -> Option<Duration> {
        (self.in_flight() > 0).then(|| self.ended.stalls.time_to_look())
    }

    #[cold]
    fn look_for_stalled(&mut self) {
        let now = clock::ticks();
        let Some(limit) = self.ended.stalls.begin_look(now) else { return };
        for slot in &self.slots {
            let Some(awaited) = slot.job.awaited() else { continue };
            let ticket = self.ended.request_of(slot.ticket);
            let age = stalled::age_of(ticket, now);
            if age >= limit {
                self.ended.stalls.add(ticket, age, awaited);
            }
        }
    }
}

impl<J: Job> Drop for Engine<J> {
    /// Waits until the kernel has finished everything it took: it may still write into clients' memory. What it has not
    /// taken is forgotten, and not waited for.
    fn drop(&mut self) {
        let Some(mut kernel) = self.kernel.take() else { return };
        kernel.held_back.stop();
        while self.in_kernel > 0 {
            let reaped = kernel.ring.completion().count();
            self.in_kernel = self.in_kernel.saturating_sub(reaped);
            if reaped == 0 && kernel.enter(1).is_err() {
                std::thread::yield_now();
            }
        }
        for slot in &mut self.slots {
            slot.job.abandon(&mut self.buffers, &kernel.held_back.grants);
        }
    }
}
