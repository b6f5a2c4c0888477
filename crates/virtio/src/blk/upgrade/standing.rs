//! Where a virtqueue and its ring stand between two visits.

use fipsee_block::server::Standing;
use fipsee_ring::ring::Cursor;

use super::desk::Grant;
use super::queue::{Device, GuestQueue};
use crate::blk::server::{VirtqueueServer, VirtqueueSetup};
use crate::core::VirtqueueStanding;

/// Where a virtqueue stands, with its ring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestStanding {
    /// The virtqueue. A bell that the guest has parked is among what was taken and not answered.
    pub virtqueue: VirtqueueStanding,
    /// The ring beside it, if its guest is attached.
    pub ring: Option<RingStanding>,
}

/// Where a ring in guest memory stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingStanding {
    /// Its number in the attachment.
    pub queue: u16,
    /// Rung while no bell was parked.
    pub kept: bool,
    /// As for any ring.
    pub standing: Standing,
}

impl GuestQueue {
    /// Where it stands; `None` while requests are in flight, or the device is about to end the attachment.
    pub(super) fn standing(&self) -> Option<GuestStanding> {
        let ring = match &self.ring {
            Some(ring) if ring.ending => return None,
            Some(ring) => Some(RingStanding { queue: ring.number, kept: ring.kept, standing: ring.server.standing()? }),
            None => None,
        };
        Some(GuestStanding { virtqueue: self.virtqueue.standing()?, ring })
    }

    /// Go on as another server left off. `grant`: the ring, if there is one.
    ///
    /// # Errors
    /// As [`VirtqueueServer::resume`]; and a ring cannot stand there, or is missing.
    pub fn resume(
        id: u32,
        setup: VirtqueueSetup,
        device: Box<dyn Device>,
        standing: &GuestStanding,
        grant: Option<Grant>,
    ) -> Result<Self, String> {
        let log = setup.queue.log.clone();
        let mut queue = Self::over(id, setup, device, |id, setup| VirtqueueServer::resume(id, setup, &standing.virtqueue))?;
        let (ring, grant) = match (&standing.ring, grant) {
            (None, None) => return Ok(queue),
            (Some(ring), Some(grant)) if ring.queue == grant.queue => (ring, grant),
            _ => return Err("its ring is not the one that it has".to_owned()),
        };
        let Standing { request, completion, .. } = ring.standing;
        let fits = |cursor: Cursor, slots: u32| cursor.index() < slots;
        if !fits(request, grant.entry.request_slots) || !fits(completion, grant.entry.completion_slots) {
            return Err("its ring stands outside itself".to_owned());
        }
        queue.attach_at(grant, (request, completion));
        if let Some(served) = &mut queue.ring {
            served.server.take_stand(&ring.standing);
            (served.kept, served.log) = (ring.kept, log);
        }
        Ok(queue)
    }
}
