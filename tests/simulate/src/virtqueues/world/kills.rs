//! How a daemon ends in the middle of something, and what it leaves.

use rustix::io::pwrite;

use super::{INFLIGHT_ENTRY, INFLIGHT_HEADER, INFLIGHT_USED_INDEX, World, device};
use crate::variant::Variant;
use crate::virtqueues::driver::Driver;
use crate::virtqueues::hypervisor::Say;

impl World<'_> {
    /// What the device has asked for happens before anything else.
    pub(super) fn finish_orders(&mut self) {
        while let Some(index) = self.queues.iter().position(|queue| !queue.orders.is_empty()) {
            if let Some(server) = &mut self.queues[index].server {
                if server.in_flight() > 0 {
                    self.end_and_publish();
                    continue;
                }
                if server.begin_deferred(&self.disk, &mut self.engine) {
                    continue;
                }
            }
            if let Some(order) = self.queues[index].orders.pop_front() {
                self.handle(index, order);
                self.carry_out();
            }
        }
    }

    /// The daemon is killed, perhaps while it publishes what has been ended on a queue. Then there is another.
    pub(super) fn kill(&mut self) {
        let index = self.rng.below(self.queues.len());
        let before = self.drivers[index].used_index();
        for _ in 0..self.rng.below(4).min(self.disk.in_flight()) {
            let _ = self.end_one();
        }
        // Interrupts so far have arrived. Those of what is published now may not have been sent yet.
        self.drivers.iter_mut().for_each(|driver| _ = driver.may_run());
        (0..self.queues.len()).for_each(|index| self.publish(index));
        if self.rng.percent(50) {
            self.drivers.iter().for_each(|driver| _ = driver.is_interrupted());
        }
        let count = self.drivers[index].used_index().wrapping_sub(before);
        if count > 0 && self.hypervisor.inflight.is_some() && self.queues[index].server.is_some() {
            self.undo_stores(index, before, count);
        }
        self.disk.daemon_is_gone(&mut self.rng);
        for queue in &mut self.queues {
            (queue.server, queue.lifted) = (None, None);
            queue.orders.clear();
        }
        self.device = device(&self.disk, self.script.layout.queues);
        let was_resetting = self.hypervisor.to_say.iter().any(|say| matches!(say, Say::ResetDriver));
        self.hypervisor.connect();
        if was_resetting {
            // The guest has its device reset all the same: what it had in flight is not looked for any more.
            self.drivers.iter_mut().for_each(Driver::reset);
            self.expected.forget_requests();
            self.hypervisor.inflight = None;
            self.hypervisor.connect();
        }
    }

    /// Of the stores that published `count` elements from `before` on, the last ones have not happened: the used index of the
    /// inflight area, then the marks of its entries, then the used index itself.
    fn undo_stores(&mut self, index: usize, before: u16, count: u16) {
        let Some((file, _)) = &self.hypervisor.inflight else { return };
        let part = (INFLIGHT_HEADER + u64::from(self.script.layout.size) * INFLIGHT_ENTRY).next_multiple_of(64) * index as u64;
        let driver = &self.drivers[index];
        let put = |offset: u64, bytes: &[u8]| assert_eq!(pwrite(file, bytes, part + offset), Ok(bytes.len()));
        let (undone, is_early) = (self.rng.below(usize::from(count) + 3), self.context.is_broken(Variant::InflightClearedEarly));
        self.context
            .say(|| format!("killed while it publishes {count} elements of queue {index}, {undone} stores before the end"));
        if undone > 0 {
            put(INFLIGHT_USED_INDEX, &before.to_le_bytes());
        }
        for place in (0..count).rev().take(undone.saturating_sub(1)) {
            let [head, ..] = driver.used_element(before.wrapping_add(place)).map(u64::from);
            let entry = INFLIGHT_HEADER + head * INFLIGHT_ENTRY;
            if !is_early {
                put(entry, &[1]);
            }
        }
        if undone > usize::from(count) + 1 {
            driver.set_used_index(before);
        }
    }
}
