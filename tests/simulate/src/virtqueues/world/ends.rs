//! Requests end at the disk, and their queues publish that.

use fipsee_virtio::blk::server::VirtqueueServer;

use super::{Awake, World};
use crate::variant::Variant;

impl World<'_> {
    /// A request ends at the disk, and its queue is notified. Which?
    pub(super) fn end_one(&mut self) -> Option<usize> {
        let place = self.rng.below(self.disk.in_flight());
        let (ticket, status) = self.disk.end(place);
        self.context.say(|| format!("disk: tag {} of server {}: {status:?}", ticket.tag, ticket.queue));
        let index = self.queues.iter().position(|queue| queue.id == ticket.queue && queue.server.is_some())?;
        let (driver, queue) = (&self.drivers[index], &mut self.queues[index]);
        if self.context.is_broken(Variant::UsedIndexFirst) {
            queue.old = (0..driver.size).map(|place| driver.used_element(place)).collect();
        }
        queue.server.iter_mut().for_each(|server| server.finish(ticket, status));
        queue.awake = Awake::Looks;
        Some(index)
    }

    /// What has ended on a queue is published.
    pub(super) fn publish(&mut self, index: usize) {
        let (driver, queue) = (&self.drivers[index], &mut self.queues[index]);
        let from = driver.used_index();
        queue.server.iter_mut().for_each(VirtqueueServer::flush);
        if self.context.is_broken(Variant::UsedIndexFirst) {
            queue.hidden.extend(driver.hide_elements(from, &queue.old));
        }
    }

    pub(super) fn end_and_publish(&mut self) {
        if let Some(index) = self.end_one() {
            self.publish(index);
        }
    }
}
