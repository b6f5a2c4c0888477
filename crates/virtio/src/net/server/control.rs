//! Commands of the driver, where the hypervisor leaves them to the device.

use fipsee_net::server::{Sending, ServedPort};
use fipsee_serve::{Taken, Turn};
use virtio_bindings::virtio_net::{
    VIRTIO_NET_CTRL_ANNOUNCE, VIRTIO_NET_CTRL_ANNOUNCE_ACK, VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, VIRTIO_NET_ERR,
    VIRTIO_NET_OK,
};

use super::has_work;
use crate::core::DeviceQueue;
use crate::core::queue::chain::total_bytes;

/// Most commands of one visit; a driver waits for each.
const MAX_BUDGET: u32 = 8;
/// Longer than any command that is known here.
const MAX_COMMAND_BYTES: usize = 4096;

pub(super) struct Control {
    pub(super) queue: DeviceQueue,
    port: ServedPort,
    pairs: u16,
}

impl Control {
    pub(super) const fn new(queue: DeviceQueue, port: ServedPort, pairs: u16) -> Self {
        Self { queue, port, pairs }
    }

    pub(super) fn visit(&mut self, turn: Turn) -> Taken {
        let waiting = self.queue.ring.waiting();
        if !has_work(&self.queue) || !self.queue.begin_visit(waiting) {
            return Taken::NOTHING;
        }
        // Another thread has the network at this moment: the next pass looks again.
        let Some(mut sending) = self.port.try_sending() else { return Taken::NOTHING };
        let mut taken = Taken::NOTHING;
        for _ in 0..u32::from(waiting).min(MAX_BUDGET).min(turn.requests) {
            let head = self.queue.ring.head(0);
            let first = self.queue.ring.descriptor(head).unwrap_or_default();
            self.queue.ring.advance(1);
            if !self.queue.take(head, first, true) {
                break;
            }
            let is_done = self.queue.read(MAX_COMMAND_BYTES).is_some_and(|command| carry_out(&command, self.pairs, &mut sending));
            let status = if is_done { VIRTIO_NET_OK } else { VIRTIO_NET_ERR };
            let place = self.queue.chain.writable();
            let has_place = total_bytes(place) > 0 && self.queue.write(place, &status.to_le_bytes()[..1]);
            if !has_place {
                self.queue.break_down(format!("a command has no place for the answer, or it is no memory (chain {head})"));
                break;
            }
            self.queue.put_used(head, 1);
            taken = taken.and(Taken::new(1, 0));
        }
        if self.queue.flush() {
            self.queue.interrupt();
        }
        taken
    }
}

/// Is it known and valid? Class, command, and what belongs to it.
fn carry_out(command: &[u8], most_pairs: u16, sending: &mut Sending<'_>) -> bool {
    let Some(([class, which], rest)) = command.split_first_chunk() else { return false };
    match (u32::from(*class), u32::from(*which), rest) {
        (VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, [low, high]) => {
            let pairs = u16::from_le_bytes([*low, *high]);
            let is_possible = (1..=most_pairs).contains(&pairs);
            if is_possible {
                sending.use_pairs(pairs.into());
            }
            is_possible
        }
        (VIRTIO_NET_CTRL_ANNOUNCE, VIRTIO_NET_CTRL_ANNOUNCE_ACK, []) => true,
        _ => false,
    }
}
