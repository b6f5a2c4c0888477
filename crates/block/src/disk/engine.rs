//! One io_uring per worker: carries the requests of all its file disks.

use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::OnceLock;

use io_uring::{EnterFlags, IoUring};
use rustix::io::Errno;

use super::file::job::{Job, Progress};
use super::{Submitted, Ticket};
use crate::wire::Status;

mod buffers;
mod chain;
mod grants;
mod held_back;
mod setup;
mod stalled;

pub(in crate::disk) use buffers::{Buffer, Buffers, MAX_BUFFER_BYTES};
use chain::Chains;
pub(in crate::disk) use grants::Grants;
use held_back::{BELL, HeldBack};
pub(in crate::disk) use stalled::Awaited;
use stalled::Stalls;

/// Most submission entries the kernel grants.
const MAX_ENTRIES: u32 = 32768;

struct Slot {
    ticket: Ticket,
    job: Job,
}

/// The requests of one worker that the kernel works on, and those that wait for it.
///
/// The io_uring is made when the first file disk needs it: a worker with only null and memory disks runs on a machine
/// that has none. The engine stays on its thread (it is not [`Send`]), because the kernel may be told that only one
/// thread submits; make it on the worker's thread.
///
/// A worker's pass is: submit requests, [`flush`](Self::flush), [`poll`](Self::poll). Before sleeping it adds
/// [`as_fd`](Self::as_fd) to its epoll set and asks [`has_unsent`](Self::has_unsent). epoll_wait(2) may end with EINTR
/// when a completion arrives: treat that as a wake-up and poll.
pub struct Engine {
    entries: u32,
    ring: Option<IoUring>,
    /// Grows to the most requests ever in flight, which the queue depths bound. A job's spans are on the heap, so they
    /// stay where the kernel found them when this grows.
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Not yet in the submission queue: it, or the completion queue's worth of requests in the kernel, was full.
    waiting: VecDeque<u32>,
    /// In the submission queue, oldest first; the kernel has not taken them.
    pushed: VecDeque<u32>,
    in_kernel: usize,
    /// The kernel refused io_uring_enter for good; everything it has not taken fails.
    broken: Option<Errno>,
    /// Requests of disks that wrap others.
    chains: Chains,
    /// Memory for transfers that cannot use the client's.
    buffers: Buffers,
    /// Requests that cannot begin yet.
    held_back: Option<HeldBack>,
    /// Requests that are in flight for too long.
    stalls: Stalls,
    _stays_on_its_thread: PhantomData<*const ()>,
}

impl core::fmt::Debug for Engine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut text = f.debug_struct("Engine");
        text.field("entries", &self.entries).field("in_flight", &self.in_flight()).field("in_kernel", &self.in_kernel);
        text.field("broken", &self.broken).finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine whose submission queue will have `entries` entries (rounded up to a power of two). More requests than
    /// twice that wait inside the engine.
    ///
    /// # Errors
    /// `entries` is 0 or above 32768.
    pub fn new(entries: u32) -> io::Result<Self> {
        if !(1..=MAX_ENTRIES).contains(&entries) {
            let text = format!("an engine of {entries} entries cannot be made; use 1 to {MAX_ENTRIES}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(Self {
            entries,
            ring: None,
            slots: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            pushed: VecDeque::new(),
            in_kernel: 0,
            broken: None,
            chains: Chains::default(),
            buffers: Buffers::default(),
            held_back: None,
            stalls: Stalls::default(),
            _stays_on_its_thread: PhantomData,
        })
    }

    /// Find out whether this machine lets us use io_uring for disks. Once it did, it is not asked again: the process may have given
    /// up the right to make further ones.
    ///
    /// # Errors
    /// Why not, in words that say what to do.
    pub fn check() -> Result<(), String> {
        static IS_FINE: OnceLock<()> = OnceLock::new();
        if IS_FINE.get().is_none() {
            setup::ask_kernel()?;
            let _ = IS_FINE.set(());
        }
        Ok(())
    }

    /// Make the io_uring now rather than at the first request, for a worker that is about to give up its right to.
    ///
    /// # Errors
    /// Why the machine has none, in words that say what to do.
    pub fn start(&mut self) -> Result<(), String> {
        if self.ring.is_none() {
            self.held_back = Some(HeldBack::new().map_err(|error| {
                format!("an eventfd cannot be made ({error}); raise the limit of open files (`ulimit -n`, LimitNOFILE=)")
            })?);
            self.ring = Some(setup::build(self.entries)?);
        }
        Ok(())
    }

    /// Requests that were submitted and not yet reported.
    #[must_use]
    #[inline(always)]
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Must [`flush`](Self::flush) or [`poll`](Self::poll) be called before the worker may sleep? True for requests that
    /// were submitted and not flushed, and when the kernel could not take them.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        !self.pushed.is_empty()
            || (self.in_kernel == 0 && !self.waiting.is_empty())
            || (self.broken.is_some() && self.in_flight() > 0)
    }

    /// Readable when there is something to [`poll`](Self::poll). `None` until the first file disk was used.
    #[must_use]
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor stays open as long as the ring, which the engine keeps until it is dropped.
        self.ring.as_ref().map(|ring| unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) })
    }

    /// Why it takes no request any more, if it does not.
    pub(in crate::disk) fn refusal(&self) -> Errno {
        self.broken.unwrap_or(Errno::IO)
    }

    /// Queue a job that `prepare` sets up.
    ///
    /// # Safety
    /// The memory that the job names stays valid until its ticket is reported.
    pub(in crate::disk) unsafe fn begin(&mut self, ticket: Ticket, prepare: impl FnOnce(&mut Job)) -> Submitted {
        if self.broken.is_some() || self.start().is_err() {
            return Submitted::Done(Status::IoError);
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => match u32::try_from(self.slots.len()) {
                Ok(index) => {
                    self.slots.push(Slot { ticket, job: Job::idle() });
                    index
                }
                Err(_) => return Submitted::Done(Status::IoError),
            },
        };
        let slot = &mut self.slots[index as usize];
        slot.ticket = ticket;
        prepare(&mut slot.job);
        if slot.job.range_to_lock().is_none() || self.lock(index) {
            self.waiting.push_back(index);
        }
        Submitted::Pending
    }

    /// Keep other writes out of the range that the job in this slot changes. False if it waits for that.
    #[inline(never)]
    fn lock(&mut self, index: u32) -> bool {
        let (job, Some(held_back)) = (&mut self.slots[index as usize].job, &mut self.held_back) else { return true };
        let Some((target, range)) = job.range_to_lock() else { return true };
        let Some((lock, is_held)) = target.locks().map(|locks| locks.acquire(range, &held_back.grants, index)) else {
            return true;
        };
        if is_held {
            job.set_lock(lock);
        } else if held_back.add() {
            self.waiting.push_back(BELL);
        }
        is_held
    }

    /// Go on with requests whose range is held now.
    fn take_granted(&mut self) {
        let Some(held_back) = &mut self.held_back else { return };
        for (index, lock) in held_back.take() {
            self.slots[index as usize].job.set_lock(lock);
            self.waiting.push_back(index);
        }
    }

    /// Hand everything submitted to the kernel, with one system call unless there is more than the queue holds.
    pub fn flush(&mut self) {
        while (!self.waiting.is_empty() || !self.pushed.is_empty()) && self.send() {}
    }

    /// Fill the submission queue and enter the kernel once. True if it took everything and there is room for more.
    fn send(&mut self) -> bool {
        let (Some(ring), Some(held_back), None) = (self.ring.as_mut(), self.held_back.as_mut(), self.broken) else {
            return false;
        };
        let limit = ring.params().cq_entries() as usize;
        let mut queue = ring.submission();
        while self.in_kernel + self.pushed.len() < limit && !queue.is_full() {
            let Some(index) = self.waiting.pop_front() else {
                break;
            };
            let entry = match index {
                BELL => held_back.entry(),
                _ => match self.slots[index as usize].job.entry(&mut self.buffers) {
                    Some(entry) => entry,
                    None => {
                        held_back.for_buffer.push_back(index);
                        continue;
                    }
                },
            };
            let entry = entry.user_data(u64::from(index));
            // SAFETY: the entry names a descriptor that the job keeps open, an array of spans or a buffer that the job keeps in
            // place, and memory that is valid until the ticket is reported, which `begin`'s caller promised; or the bell and
            // its count, which the engine keeps until the read has ended.
            let pushed = unsafe { queue.push(&entry) };
            debug_assert!(pushed.is_ok(), "there was room");
            self.pushed.push_back(index);
        }
        drop(queue);
        if self.pushed.is_empty() {
            return false;
        }
        match ring.submit() {
            Ok(taken) => {
                let taken = taken.min(self.pushed.len());
                self.pushed.drain(..taken);
                self.in_kernel += taken;
                taken > 0 && self.pushed.is_empty() && self.in_kernel < limit
            }
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                // Out of memory for the moment, or completions must be reaped first: the entries stay where they are.
                if !matches!(errno, Errno::AGAIN | Errno::BUSY | Errno::INTR | Errno::NOMEM) {
                    self.broken = Some(errno);
                }
                false
            }
        }
    }

    /// Report finished requests to `finished`, at most `limit`; returns how many. Makes no system call, except when the
    /// kernel asks for one or when a request needs a further step.
    ///
    /// A disk may finish a queue's worth at once. With a small limit the first of them are answered, and the client's
    /// next requests are under way, before the last are looked at: the disk stands still for less long.
    pub fn poll(&mut self, limit: usize, finished: &mut impl FnMut(Ticket, Status)) -> usize {
        if self.in_flight() == 0 && self.in_kernel == 0 {
            return 0;
        }
        let count = match self.stalls.is_empty() {
            true => self.poll_once(limit, finished),
            false => self.poll_with_stalled(limit, finished),
        };
        if self.stalls.is_due() {
            self.look_for_stalled();
        }
        count
    }

    #[inline(always)]
    fn poll_once(&mut self, limit: usize, finished: &mut impl FnMut(Ticket, Status)) -> usize {
        let mut count = self.reap(limit, finished);
        if count == 0 && self.kernel_asks() {
            // The completions are ready but held back until this thread enters the kernel.
            let _ = self.enter(0);
            count = self.reap(limit, finished);
        }
        if self.has_ended_steps() {
            count += self.continue_chains(finished);
        }
        self.flush();
        count += self.fail_unsent(finished);
        if self.has_ended_steps() {
            count += self.continue_chains(finished);
        }
        count
    }

    fn kernel_asks(&mut self) -> bool {
        let Some(ring) = self.ring.as_mut() else {
            return false;
        };
        let queue = ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Enter the kernel without submitting; wait for `completion_count` completions.
    fn enter(&self, completion_count: u32) -> io::Result<usize> {
        let Some(ring) = self.ring.as_ref() else {
            return Ok(0);
        };
        // SAFETY: nothing is submitted and no argument is passed, so the kernel reads none of our memory.
        unsafe { ring.submitter().enter::<u8>(0, completion_count, EnterFlags::GETEVENTS.bits(), None) }
    }

    fn reap(&mut self, limit: usize, finished: &mut impl FnMut(Ticket, Status)) -> usize {
        let (Some(ring), Some(held_back)) = (self.ring.as_mut(), self.held_back.as_mut()) else {
            return 0;
        };
        let mut count = 0;
        for entry in ring.completion().take(limit) {
            if entry.user_data() == u64::from(BELL) {
                self.in_kernel -= 1;
                if held_back.heard() {
                    self.waiting.push_back(BELL);
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
                    if Chains::is_link(slot.ticket) {
                        self.chains.ended(slot.ticket, status);
                        continue;
                    }
                    count += 1;
                    finished(slot.ticket, status);
                }
            }
        }
        if self.buffers.was_given() {
            while let Some(index) = held_back.for_buffer.pop_back() {
                self.waiting.push_front(index);
            }
        }
        self.take_granted();
        count
    }

    /// After the kernel refused for good: nothing that it has not taken will ever be done.
    fn fail_unsent(&mut self, finished: &mut impl FnMut(Ticket, Status)) -> usize {
        let Some(errno) = self.broken else { return 0 };
        let Some(held_back) = self.held_back.as_mut() else {
            return 0;
        };
        let mut count = 0;
        while let Some(index) = self.pushed.pop_front().or_else(|| self.waiting.pop_front()) {
            if index == BELL {
                continue;
            }
            let slot = &mut self.slots[index as usize];
            slot.job.refused(errno);
            slot.job.release(&mut self.buffers, &held_back.grants);
            self.free.push(index);
            if Chains::is_link(slot.ticket) {
                self.chains.ended(slot.ticket, Status::IoError);
                continue;
            }
            count += 1;
            finished(slot.ticket, Status::IoError);
        }
        count
    }
}

impl Drop for Engine {
    /// Waits until the kernel has finished everything it took: it may still write into clients' memory. What it has not
    /// taken is forgotten, and nobody waits for it.
    fn drop(&mut self) {
        let Some(held_back) = self.held_back.take() else { return };
        held_back.stop();
        self.wait_for_kernel();
        for slot in &mut self.slots {
            slot.job.abandon(&mut self.buffers, &held_back.grants);
        }
    }
}

impl Engine {
    fn wait_for_kernel(&mut self) {
        while self.in_kernel > 0 {
            let Some(ring) = self.ring.as_mut() else {
                return;
            };
            let reaped = ring.completion().count();
            self.in_kernel = self.in_kernel.saturating_sub(reaped);
            if reaped == 0 && self.enter(1).is_err() {
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_of_zero_or_too_many_entries_is_refused() {
        for entries in [0, MAX_ENTRIES + 1] {
            let text = Engine::new(entries).map(|_| ()).expect_err("refused").to_string();
            assert!(text.contains(&entries.to_string()) && text.contains("1 to 32768"), "{text}");
        }
    }

    #[test]
    fn engine_without_file_disks_makes_no_ring() {
        let mut engine = Engine::new(8).expect("engine");
        engine.flush();
        assert_eq!(engine.poll(usize::MAX, &mut |_, _| {}), 0);
        assert!(engine.as_fd().is_none());
        assert!(!engine.has_unsent());
        engine.start().expect("this machine has io_uring");
        assert!(engine.as_fd().is_some());
    }
}
