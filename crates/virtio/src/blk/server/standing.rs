//! Where a virtqueue stands between two visits: all that another server of it must know to go on.

use std::collections::VecDeque;

use super::{VirtqueueServer, VirtqueueSetup};
use crate::core::fault_guard;
use crate::core::inflight::InflightStanding;
use crate::core::queue::Virtqueue;

/// Where a virtqueue stands. The disk works on nothing of it, and what was answered is published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VirtqueueStanding {
    /// The next available entry.
    pub next_available: u16,
    /// The next used entry.
    pub next_used: u16,
    /// Chains that were taken and not answered, by their heads: questions, and what is to be served again. Sorted.
    pub taken: Vec<u16>,
    /// Why it is not served any more.
    pub fault: Option<String>,
    /// Of the inflight area, if there is one.
    pub inflight: Option<InflightStanding>,
}

impl VirtqueueServer {
    /// Where the queue stands; `None` while requests are in flight.
    #[must_use]
    pub fn standing(&self) -> Option<VirtqueueStanding> {
        if self.in_flight > 0 || self.queue.has_unpublished() {
            return None;
        }
        let is_served = self.fault.is_none();
        let mut taken: Vec<u16> = self.resubmit.iter().copied().collect();
        taken.extend((0..self.queue.size()).filter(|head| is_served && self.busy[usize::from(*head)]));
        taken.sort_unstable();
        Some(VirtqueueStanding {
            next_available: self.queue.next_available(),
            next_used: self.queue.published(),
            taken,
            fault: self.fault.clone(),
            inflight: self.inflight.as_ref().map(crate::core::inflight::InflightQueue::standing),
        })
    }

    /// Go on as another server of the queue left off, which counts and not what stands in the rings. Nothing is written to memory of the
    /// guest or the inflight area before the first visit, so that the other one may go on after all.
    ///
    /// # Errors
    /// As [`new`](Self::new); and a queue cannot stand there.
    pub fn resume(id: u32, mut setup: VirtqueueSetup, standing: &VirtqueueStanding) -> Result<Self, String> {
        let faults_seen = fault_guard::fault_count();
        let size = setup.size;
        let positions = (standing.next_available, standing.next_used);
        let queue = Virtqueue::at(&setup.memory, &setup.layout(), positions, setup.event_index())?;
        let known = match (&mut setup.inflight, standing.inflight) {
            (Some(area), Some(inflight)) => area.resume(size, inflight),
            (None, None) => true,
            _ => false,
        };
        if !known || standing.taken.iter().any(|head| *head >= size) {
            return Err(format!("a queue of {size} descriptors cannot stand as it is said to: {standing:?}"));
        }
        let resubmit: VecDeque<u16> = standing.taken.iter().copied().collect();
        let mut server = Self::over(id, setup, queue, resubmit, faults_seen)?;
        server.fault.clone_from(&standing.fault);
        Ok(server)
    }
}
