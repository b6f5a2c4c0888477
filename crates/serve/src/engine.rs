//! Asynchronous work of a worker.

use std::convert::Infallible;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Names one request in flight to the queue that is notified of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The queue it came from, by the worker's numbering; [`PART`](Self::PART) is the queue's own.
    pub queue: u32,
    pub tag: u16,
    /// When it was taken from its queue; 0 if it is not needed.
    pub started_ticks: u64,
}

impl Ticket {
    /// A bit of [`queue`](Self::queue) by which a queue of two parts knows its own.
    pub const PART: u32 = 1 << 31;
}

/// Where queues begin asynchronous work. Each worker has one, which stays on its thread.
///
/// A worker's pass is: visit queues, which begin work, [`flush`](Self::flush), [`poll`](Self::poll).
pub trait Engine: 'static {
    /// Names a piece of work.
    type Ticket: Copy;
    type Status;

    /// The number, by the worker's count, of the queue that began it.
    fn queue_of(ticket: Self::Ticket) -> u32;

    /// Take what it needs of the kernel now, for a worker that is about to give up its right to.
    fn start(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// What was begun and not yet reported. The default, as that of [`poll`](Self::poll), is for queues that answer everything at
    /// once.
    fn in_flight(&self) -> usize {
        0
    }

    /// How much of it may be in flight together, about: groups with less than their share of that exceed it.
    fn places(&self) -> usize {
        usize::MAX
    }

    /// Must [`flush`](Self::flush) or [`poll`](Self::poll) be called before the worker may sleep?
    fn has_unsent(&self) -> bool {
        false
    }

    /// Readable when there is something to [`poll`](Self::poll). `None`: there is nothing to wait for yet.
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Hand on everything that was begun.
    fn flush(&mut self) {}

    /// Report what has ended, at most `limit`; returns how much.
    fn poll(&mut self, _limit: usize, _finished: &mut impl FnMut(Self::Ticket, Self::Status)) -> usize {
        0
    }

    /// How long the worker may sleep before it calls [`look_for_stalled`](Self::look_for_stalled). `None`: until something
    /// happens.
    fn time_to_look(&self) -> Option<Duration> {
        None
    }

    fn look_for_stalled(&mut self) {}
}

/// For queues that answer everything at once.
impl Engine for () {
    type Ticket = Infallible;
    type Status = ();

    fn queue_of(ticket: Infallible) -> u32 {
        match ticket {}
    }
}
