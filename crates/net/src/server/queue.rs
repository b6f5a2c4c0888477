//! The queues of a port, on their worker's thread.

use std::any::Any;
use std::sync::Arc;

use fipsee_ring::channel::ServerQueue;
use fipsee_ring::memory::RegionTable;
use fipsee_ring::{Message, clock};
use fipsee_serve::session::Positions;
use fipsee_serve::{Engine, Queue, Taken, Turn};

use super::network::Network;
use super::receiver::Receiver;
use crate::switch::PortNumber;
use crate::wire::{MAX_RETURNED, PostedBuffer, Returned, Status};

/// Most frames of one visit.
const BUDGET: u32 = 64;
const BLOCK_BYTES: u64 = 512;
const NS_PER_SECOND: u128 = 1_000_000_000;

/// What another process needs to continue with a queue.
pub(super) type QueueState = (Positions, Vec<PostedBuffer>);

/// A transmit queue.
pub(super) struct TransmitQueue {
    end: ServerQueue,
    memory: RegionTable,
    network: Arc<Network>,
    port: PortNumber,
    depth: u32,
    returned: Vec<(u16, Status)>,
}

impl TransmitQueue {
    pub(super) fn new(end: ServerQueue, memory: RegionTable, network: Arc<Network>, port: PortNumber, depth: u32) -> Self {
        Self { end, memory, network, port, depth, returned: Vec::with_capacity(MAX_RETURNED) }
    }
}

fn now_ns() -> u64 {
    let ns = u128::from(clock::ticks()) * NS_PER_SECOND / u128::from(clock::ticks_per_second().max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

impl<E: Engine> Queue<E> for TransmitQueue {
    fn end(&self) -> Option<&ServerQueue> {
        Some(&self.end)
    }

    fn end_mut(&mut self) -> Option<&mut ServerQueue> {
        Some(&mut self.end)
    }

    fn visit(&mut self, _engine: &mut E, turn: Turn) -> Taken {
        let Self { end: ServerQueue { requests, completions, .. }, memory, network, port, depth, returned } = self;
        if !requests.has_message() {
            return Taken::NOTHING;
        }
        let Some(mut data) = network.try_data() else {
            // Another thread has it at this moment: the next pass looks again. A queue that stayed armed would not be looked at before
            // the worker sleeps.
            requests.disarm();
            return Taken::NOTHING;
        };
        let (now_ns, most) = (now_ns(), BUDGET.min(*depth).min(turn.requests));
        let (mut taken, mut message) = (Taken::NOTHING, Message::ZERO);
        while taken.requests < most && taken.units < turn.units && requests.receive(&mut message) {
            let outcome = data.transmit(network, *port, &message, memory, now_ns);
            taken = taken.and(Taken::new(1, outcome.bytes.div_ceil(BLOCK_BYTES)));
            returned.push((outcome.tag, outcome.status));
            if returned.len() == MAX_RETURNED {
                completions.publish(&Returned::new(returned).to_message());
                returned.clear();
            }
        }
        if !returned.is_empty() {
            completions.publish(&Returned::new(returned).to_message());
            returned.clear();
        }
        data.flush();
        drop(data);
        requests.disarm();
        Queue::<E>::flush(self);
        taken
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn moved(&mut self, _id: u32) {}

    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        let positions = (self.end.requests.cursor(), self.end.completions.cursor());
        let state: QueueState = (positions, Vec::new());
        Some(Box::new(state))
    }
}

/// A receive queue: the network has it, and gives it frames. There is nothing to visit, and no doorbell to wait for: buffers are
/// looked for when there is a frame.
pub(super) struct ReceiveQueue {
    network: Arc<Network>,
    port: PortNumber,
    pair: usize,
}

impl ReceiveQueue {
    /// From now on it gets frames.
    pub(super) fn begin(receiver: Receiver, network: Arc<Network>, port: PortNumber, pair: usize) -> Self {
        network.data().add(port, pair, receiver);
        Self { network, port, pair }
    }
}

impl Drop for ReceiveQueue {
    fn drop(&mut self) {
        self.network.data().remove(self.port, self.pair);
    }
}

impl<E: Engine> Queue<E> for ReceiveQueue {
    fn visit(&mut self, _engine: &mut E, _turn: Turn) -> Taken {
        Taken::NOTHING
    }

    fn moved(&mut self, _id: u32) {}

    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        let state: QueueState = self.network.data().receiver(self.port, self.pair)?.state();
        Some(Box::new(state))
    }
}

#[cfg(test)]
mod tests {
    use fipsee_ring::channel::RegionLayout;
    use fipsee_ring::handshake::Grant;
    use fipsee_ring::ring::Writer;

    use super::*;
    use crate::frame::Mac;
    use crate::server::{NetworkSetup, PortSetup};
    use crate::switch::{Learning, Rules};
    use crate::wire::{OPERATION_SEND_SMALL, PROFILE, Small};

    #[test]
    fn queue_of_a_network_that_another_thread_has_waits_for_nothing_and_is_looked_at_again() {
        let port = PortSetup { name: "a".to_owned(), rules: Rules::new(Mac([2; 6])), allow: Box::new(|_| true) };
        let (name, learning) = ("lan".to_owned(), Learning::default());
        let network = Arc::new(Network::new(NetworkSetup { name, mtu: 1500, learning, ports: vec![port] }));
        let mut grant = Grant::new(RegionLayout::plan(&PROFILE, 1, 8, 4096, 1), |_| {}).expect("memory");
        let memory = RegionTable::of_pool(&grant.region, grant.layout.pool_offset_bytes, 4096).expect("within the region");
        let (end, geometry) = (grant.queues.remove(0), grant.layout.queues[0]);
        let ring = geometry.request_ring(&grant.region, &geometry.tuning()).expect("it fits");
        let mut client = Writer::new(ring, end.requests.cursor(), &geometry.tuning());
        let mut queue = TransmitQueue::new(end, memory, Arc::clone(&network), 0, 8);
        assert!(!Queue::<()>::arm_and_work_remains(&mut queue), "nothing is there, and the worker may sleep");
        client.publish(&Small::new(OPERATION_SEND_SMALL, 0, &[2; 14]).to_message());
        assert!(client.reader_needs_doorbell());
        let held = network.data();
        for _ in 0..3 {
            assert_eq!(queue.visit(&mut (), Turn::whole(true)), Taken::NOTHING);
            assert!(Queue::<()>::arm_and_work_remains(&mut queue), "the worker must not sleep");
        }
        drop(held);
        assert_eq!(queue.visit(&mut (), Turn::whole(true)).requests, 1);
        assert!(!Queue::<()>::arm_and_work_remains(&mut queue), "all is done");
    }
}
