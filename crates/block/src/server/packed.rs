//! Packed messages: up to three requests in one, of which a visit may take a part.

use fipsee_ring::doorbell::ClientDoorbell;
use fipsee_ring::memory::Memory;
use fipsee_ring::{Message, clock};

use super::QueueServer;
use crate::disk::{Disk, Engine};
use crate::packed::unpack;
use crate::request::check_short;

/// What a visit has left of a packed message because its units were spent.
#[derive(Debug)]
pub(super) struct Left {
    /// The first request that is left; 0: none is.
    pub(super) from: usize,
    message: Message,
}

impl Left {
    pub(super) const NOTHING: Self = Self { from: 0, message: Message::ZERO };
}

impl<M: Memory, C: ClientDoorbell, O> QueueServer<M, C, O> {
    /// Serve the requests of a packed message from the given one on: one at least, and no other once the units are spent.
    #[inline(always)]
    pub(super) fn serve_packed<D: Disk>(
        &mut self,
        message: &Message,
        from: usize,
        disk: &D,
        engine: &mut Engine,
        (taken, units): (u32, u32),
        started_ticks: u64,
    ) -> u32 {
        let mut count = 0;
        for short in unpack(message).skip(from) {
            if count > 0 && self.is_spent(taken + count, units) {
                self.left = Left { from: from + count as usize, message: *message };
                break;
            }
            let checked = check_short(&short, &self.limits, &self.memory, &mut self.spans);
            self.serve(short.tag, checked, disk, engine, started_ticks);
            count += 1;
        }
        count
    }

    /// Serve what an earlier visit has left of a message, within so many units.
    #[cold]
    pub(super) fn serve_left<D: Disk>(&mut self, disk: &D, engine: &mut Engine, units: u32, started_ticks: u64) -> u32 {
        let Left { from, message } = std::mem::replace(&mut self.left, Left::NOTHING);
        self.serve_packed(&message, from, disk, engine, (0, units), started_ticks)
    }

    /// Begin what a visit has left of a message that it took. Was there anything?
    #[cold]
    pub fn begin_deferred<D: Disk>(&mut self, disk: &D, engine: &mut Engine) -> bool {
        if self.left.from == 0 {
            return false;
        }
        self.serve_left(disk, engine, u32::MAX, clock::ticks());
        self.flush();
        std::mem::take(&mut self.tally).write_to(&self.counters);
        true
    }

    /// Never serve what a visit has left: the queue is over.
    pub fn discard_left(&mut self) {
        self.left = Left::NOTHING;
    }
}
