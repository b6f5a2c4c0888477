//! Where a virtqueue stands between two visits: all that another server of it must know to go on.

use std::collections::VecDeque;

use super::{DeviceQueue, DeviceQueueSetup};
use crate::core::fault_guard;
use crate::core::inflight::InflightStanding;
use crate::core::queue::Virtqueue;

/// Where a virtqueue stands. The device works on nothing of it, and what was used is published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VirtqueueStanding {
    /// The next available entry.
    pub next_available: u16,
    /// The next used entry.
    pub next_used: u16,
    /// Chains that were taken and not used, by their heads: those that wait for something, and what is to be served again. Sorted.
    pub taken: Vec<u16>,
    /// Why it is not served any more.
    pub fault: Option<String>,
    /// Of the inflight area, if there is one.
    pub inflight: Option<InflightStanding>,
}

impl DeviceQueue {
    /// Where the queue stands; `None` while something is not published. The caller has seen that nothing is in flight.
    pub(crate) fn standing(&self) -> Option<VirtqueueStanding> {
        if self.ring.has_unpublished() {
            return None;
        }
        let is_served = self.fault.is_none();
        let mut taken: Vec<u16> = self.resubmit.iter().copied().collect();
        taken.extend((0..self.ring.size).filter(|head| is_served && self.held[usize::from(*head)]));
        taken.sort_unstable();
        Some(VirtqueueStanding {
            next_available: self.ring.next_available,
            next_used: self.ring.published,
            taken,
            fault: self.fault.clone(),
            inflight: self.inflight.as_ref().map(|area| area.standing),
        })
    }

    /// Go on as another server of the queue left off, which counts and not what stands in the rings. Nothing is written to memory of the
    /// guest or the inflight area before the first visit, so that the other one may go on after all.
    ///
    /// # Errors
    /// As [`new`](Self::new); and a queue cannot stand there.
    pub(crate) fn resume(mut setup: DeviceQueueSetup, standing: &VirtqueueStanding) -> Result<Self, String> {
        let faults_seen = fault_guard::fault_count();
        let size = setup.size;
        let positions = (standing.next_available, standing.next_used);
        let ring = Virtqueue::at(&setup, positions)?;
        let known = match (&mut setup.inflight, standing.inflight) {
            (Some(area), Some(inflight)) => area.resume(size, inflight),
            (None, None) => true,
            _ => false,
        };
        if !known || standing.taken.iter().any(|head| *head >= size) {
            return Err(format!("a queue of {size} descriptors cannot stand as it is said to: {standing:?}"));
        }
        let resubmit: VecDeque<u16> = standing.taken.iter().copied().collect();
        let mut queue = Self::over(setup, ring, resubmit, faults_seen)?;
        queue.fault.clone_from(&standing.fault);
        Ok(queue)
    }
}
