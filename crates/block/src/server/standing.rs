//! Where a queue stands between two visits: all that another server of it must know to go on.

use fipsee_ring::doorbell::ClientBell;
use fipsee_ring::memory::Memory;
use fipsee_ring::ring::Cursor;

use super::QueueServer;

/// An event that waits for its credit, or to be acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventStanding {
    /// The client has it and has not acknowledged it.
    pub unacknowledged: bool,
    /// What is to be sent when it has.
    pub wanted: Option<u64>,
}

/// Where a queue stands. Nothing is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The next request.
    pub request: Cursor,
    /// The next completion.
    pub completion: Cursor,
    /// Changes of the size.
    pub resize: EventStanding,
    /// The end of the disk.
    pub detach: EventStanding,
    /// Has the disk gone?
    pub detached: bool,
}

impl<M: Memory, C: ClientBell, O> QueueServer<M, C, O> {
    /// Where the queue stands; `None` while requests are in flight.
    #[must_use]
    pub fn standing(&self) -> Option<Standing> {
        (self.in_flight == 0 && self.packer.count == 0).then(|| Standing {
            request: self.queue.requests.cursor(),
            completion: self.queue.completions.cursor(),
            resize: self.resize,
            detach: self.detach,
            detached: self.detached,
        })
    }

    /// Go on as another server left off, whose cursors the channel's end was opened with.
    pub fn take_stand(&mut self, standing: &Standing) {
        self.resize = standing.resize;
        if standing.resize.wanted.is_some() {
            self.told_sectors = 0;
        }
        self.detach = standing.detach;
        self.detached = standing.detached;
    }
}
