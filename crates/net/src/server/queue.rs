//! The queues of a port, on their worker's thread.

use std::any::Any;
use std::sync::Arc;

use fipsee_ring::channel::ServerQueue;
use fipsee_ring::memory::RegionTable;
use fipsee_ring::{Message, clock};
use fipsee_serve::session::Positions;
use fipsee_serve::{Blocks, Engine, Queue, Taken, Turn};

use super::events::Events;
use super::network::Network;
use super::port::ServedPort;
use super::stages::{self, Stage};
use crate::switch::PortNumber;
use crate::wire::{MAX_RETURNED, PostedBuffer, Returned, Status};

/// Most frames of one visit.
const BUDGET: u32 = 64;
const NS_PER_SECOND: u128 = 1_000_000_000;

/// What another process needs to continue with a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QueueState {
    pub(super) positions: Positions,
    /// That were taken from a receive queue, and hold no frame yet.
    pub(super) buffers: Vec<PostedBuffer>,
    pub(super) events: Events,
}

/// Whose frames a transmit queue has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    pub(super) port: PortNumber,
    pub(super) pair: usize,
    /// In force.
    pub(super) offloads: u32,
}

/// A transmit queue.
pub(super) struct TransmitQueue {
    end: ServerQueue,
    memory: RegionTable,
    network: Arc<Network>,
    sender: Sender,
    depth: u32,
    returned: Vec<(u16, Status)>,
    blocks: Blocks,
}

impl TransmitQueue {
    pub(super) fn new(end: ServerQueue, memory: RegionTable, (network, sender): (Arc<Network>, Sender), depth: u32) -> Self {
        Self { end, memory, network, sender, depth, returned: Vec::with_capacity(MAX_RETURNED), blocks: Blocks::default() }
    }
}

impl Drop for TransmitQueue {
    fn drop(&mut self) {
        self.network.data().left(self.sender.port);
    }
}

/// Time as the switch counts it.
pub fn now_ns() -> u64 {
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
        let Self { end: ServerQueue { requests, completions, .. }, memory, network, sender, depth, returned, blocks } = self;
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
            stages::stamp(Stage::Taken);
            let (tag, outcome) = data.transmit(network, *sender, &message, memory, now_ns);
            // To give it to one receiver costs about as much as a request: a visit ends with the frame that is its 256th delivery.
            taken = taken.and(Taken::new(1, blocks.complete(outcome.bytes)).with_more_work(outcome.deliveries));
            returned.push((tag, outcome.status));
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
        Some(Box::new(QueueState { positions, buffers: Vec::new(), events: Events::default() }))
    }
}

/// A receive queue: the network has its [`Receiver`], and gives it frames. There is nothing to visit, and no doorbell to wait for: buffers are
/// looked for when there is a frame.
pub(super) struct ReceiveQueue {
    port: ServedPort,
    pair: usize,
}

impl ReceiveQueue {
    /// The network is given its receiver apart from it ([`Data::add`](super::network::Data::add)).
    pub(super) const fn new(port: ServedPort, pair: usize) -> Self {
        Self { port, pair }
    }
}

impl Drop for ReceiveQueue {
    fn drop(&mut self) {
        self.port.remove(self.pair);
    }
}

impl<E: Engine> Queue<E> for ReceiveQueue {
    fn visit(&mut self, _engine: &mut E, _turn: Turn) -> Taken {
        Taken::NOTHING
    }

    fn moved(&mut self, _id: u32) {}

    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        let state: QueueState = self.port.network.data().endpoint(self.port.number, self.pair)?.state()?;
        Some(Box::new(state))
    }
}

#[cfg(test)]
mod tests {
    use fipsee_ring::channel::RegionLayout;
    use fipsee_ring::handshake::Grant;
    use fipsee_ring::mapped::MappedRing;
    use fipsee_ring::ring::Writer;

    use super::*;
    use crate::frame::Mac;
    use crate::server::endpoint::Endpoint;
    use crate::server::receiver::Receiver;
    use crate::server::{NetworkSetup, PortSetup};
    use crate::switch::{Learning, Rules};
    use crate::wire::{OPERATION_SEND, OPERATION_SEND_SMALL, Offload, PROFILE, Post, Send, Small};

    /// A transmit queue of the first of so many ports, the client's end of its calls, and the grant, of which the second queue is left.
    fn queue_of(ports: u8) -> (TransmitQueue, Writer<MappedRing>, Grant) {
        let port = |number| {
            let rules = Rules { mirror: number == 1, ..Rules::new(Mac([2, 0, 0, 0, 0, number])) };
            PortSetup { name: number.to_string(), rules, allow: Box::new(|_| true) }
        };
        let (name, learning, ports) = ("lan".to_owned(), Learning::default(), (0..ports).map(port).collect());
        let network = Arc::new(Network::new(NetworkSetup { name, mtu: 1500, learning, ports }));
        let mut grant = Grant::new(RegionLayout::plan(&PROFILE, 2, 8, 4096, 1), |_| {}).expect("memory");
        let (end, memory, geometry) = (grant.queues.remove(0), memory(&grant), grant.layout.queues[0]);
        let ring = geometry.request_ring(&grant.region, &geometry.tuning()).expect("it fits");
        let client = Writer::new(ring, end.requests.cursor(), &geometry.tuning());
        (TransmitQueue::new(end, memory, (network, Sender { port: 0, pair: 0, offloads: 0 }), 8), client, grant)
    }

    fn memory(grant: &Grant) -> RegionTable {
        RegionTable::of_pool(&grant.region, grant.layout.pool_offset_bytes, 4096).expect("within the region")
    }

    fn small(destination: Mac) -> Message {
        Small::new(OPERATION_SEND_SMALL, 0, &[&destination.0[..], &[2, 0, 0, 0, 0, 0, 8, 0]].concat()).to_message()
    }

    #[test]
    fn queue_of_a_network_that_another_thread_has_waits_for_nothing_and_is_looked_at_again() {
        let (mut queue, mut client, _grant) = queue_of(1);
        let network = Arc::clone(&queue.network);
        assert!(!Queue::<()>::arm_and_work_remains(&mut queue), "nothing is there, and the worker may sleep");
        client.publish(&small(Mac::BROADCAST));
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

    #[test]
    fn every_attempt_to_deliver_is_cost_and_ends_a_visit() {
        let (mut queue, mut client, _grant) = queue_of(200);
        (0..200).for_each(|port| queue.network.data().switch.set_up(port, true));
        (0..5).for_each(|_| client.publish(&small(Mac::BROADCAST)));
        // No port has posted a buffer.
        let visits: Vec<Taken> = (0..4).map(|_| queue.visit(&mut (), Turn::whole(true))).collect();
        let of = |frames: u32| Taken { requests: frames, units: frames * 8 * 200, work_units: frames * 8 * 199 };
        assert_eq!(visits, [of(2), of(2), of(1), Taken::NOTHING]);
        // To one port, and the copy of the mirror.
        client.publish(&small(Mac([2, 0, 0, 0, 0, 7])));
        assert_eq!(queue.visit(&mut (), Turn::whole(true)), Taken { requests: 1, units: 24, work_units: 16 });
    }

    #[test]
    fn useless_messages_of_a_receiver_are_cost_of_the_frame_and_bounded() {
        let (mut queue, mut client, mut grant) = queue_of(3);
        let geometry = grant.layout.queues[1];
        let ring = geometry.request_ring(&grant.region, &geometry.tuning()).expect("it fits");
        let (end, memory) = (grant.queues.remove(0), memory(&grant));
        let mut poster = Writer::new(ring, end.requests.cursor(), &geometry.tuning());
        queue.network.data().add(2, 0, Endpoint::Rings(Box::new(Receiver::new(end, memory, (0, Events::default())))));
        let buffer = |length_bytes| PostedBuffer { tag: 0, memory: 0, offset_bytes: 0, length_bytes };
        // One of each can be used, and holds little.
        (0..6).for_each(|_| poster.publish(&Post::new(&[buffer(1), buffer(0), buffer(5000)]).to_message()));
        let sent = small(Mac([2, 0, 0, 0, 0, 2]));
        client.publish(&sent);
        assert_eq!(queue.visit(&mut (), Turn::whole(true)), Taken { requests: 1, units: 24, work_units: 16 }, "one was enough");
        let first = <[u8; 36]>::try_from([&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 0, 8, 0][..], &[0; 22]].concat()).expect("36");
        let (operation, offload) = (OPERATION_SEND, Offload::default());
        let long =
            Send { operation, first_bytes: 36, tag: 0, offset_bytes: 0, rest_bytes: 100, memory: 0, offload, first, stamp: 0 };
        client.publish(&long.to_message());
        assert_eq!(
            queue.visit(&mut (), Turn::whole(true)),
            Taken { requests: 1, units: 48, work_units: 40 },
            "four, and it is dropped"
        );
    }
}
