//! The queues of a port, on their worker's thread.

use std::any::Any;
use std::cell::LazyCell;
use std::sync::{Arc, LazyLock};

use fipsee_ring::channel::ServerQueue;
use fipsee_ring::control::ACCESS_READ;
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::memory::RegionTable;
use fipsee_ring::ring::{Reader, Writer};
use fipsee_ring::{Message, clock, cpu};
use fipsee_serve::session::Positions;
use fipsee_serve::{Blocks, Engine, Queue, Taken, Turn};

use super::events::Events;
use super::network::{Network, Outcome};
use super::packed::Flow;
use super::port::ServedPort;
use super::stages::{self, Stage};
use crate::switch::PortNumber;
use crate::wire::{KIND_RETURNED, OPERATION_SEND_PACKED, Packing, PostedBuffer, SendPacked, first_byte};

/// Most frames of one visit.
const BUDGET: u32 = 64;
/// More than one message, for the ring.
const BURST: usize = 2;
const NS_PER_SECOND: u64 = 1_000_000_000;

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
    returned: Packing,
    blocks: Blocks,
}

impl TransmitQueue {
    pub(super) fn new(end: ServerQueue, memory: RegionTable, (network, sender): (Arc<Network>, Sender), depth: u32) -> Self {
        Self { end, memory, network, sender, depth, returned: Packing::default(), blocks: Blocks::default() }
    }
}

impl Drop for TransmitQueue {
    fn drop(&mut self) {
        self.network.data().left(self.sender.port);
    }
}

/// Time as the switch counts it. For each visit: a division of 128 bits would take longer than the switch.
#[inline(always)]
pub fn now_ns() -> u64 {
    const FRACTION_BITS: u32 = 32;
    static NS_PER_TICK: LazyLock<u64> = LazyLock::new(|| (NS_PER_SECOND << FRACTION_BITS) / clock::ticks_per_second().max(1));
    let ns = (u128::from(clock::ticks()) * u128::from(*NS_PER_TICK)) >> FRACTION_BITS;
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// What became of the frames of a visit.
struct Answers<'a> {
    returned: &'a mut Packing,
    completions: &'a mut Writer<MappedRing>,
    blocks: &'a mut Blocks,
    taken: Taken,
}

impl Answers<'_> {
    #[inline(always)]
    fn add(&mut self, tag: u16, outcome: Outcome) {
        // A visit ends with the message that has its 256th delivery.
        self.taken = self.taken.and(Taken::new(1, self.blocks.complete(outcome.bytes)).with_more_work(outcome.more_work()));
        self.returned.push(tag, outcome.status.to_wire());
        if self.returned.is_full() {
            self.publish();
            self.completions.prefetch(BURST);
        }
    }

    #[inline(always)]
    fn publish(&mut self) {
        if !self.returned.is_empty() {
            self.completions.publish(&self.returned.take(KIND_RETURNED));
        }
    }
}

/// Ask for the first lines of the frames that a message names, so that their transfers overlap.
#[inline(always)]
fn ask_for(message: &Message, memory: &RegionTable) {
    let packed = SendPacked::within(message);
    let spans = packed.named().unwrap_or_default().iter().map(|frame| memory.span(frame.extent(packed.memory), ACCESS_READ));
    spans.flatten().for_each(|span| cpu::prefetch_for_read(span.base().as_ptr()));
}

/// The same for the next message, if it is there; that it is says that more may follow.
#[inline(always)]
fn ask_for_next(requests: &Reader<MappedRing>, memory: &RegionTable) -> bool {
    let mut next = Message::ZERO;
    let is_there = requests.peek(&mut next) && first_byte(&next) == OPERATION_SEND_PACKED;
    if is_there {
        requests.prefetch_ahead(1);
        ask_for(&next, memory);
    }
    is_there
}

impl<E: Engine> Queue<E> for TransmitQueue {
    fn end(&self) -> Option<&ServerQueue> {
        Some(&self.end)
    }

    fn end_mut(&mut self) -> Option<&mut ServerQueue> {
        Some(&mut self.end)
    }

    fn visit(&mut self, _engine: &mut E, turn: Turn) -> Taken {
        let Self { end, memory, network, sender, depth, returned, blocks } = self;
        let ServerQueue { requests, completions, client_doorbell, .. } = end;
        if !requests.has_message() {
            return Taken::NOTHING;
        }
        let Some(mut data) = network.try_data() else {
            // Another thread has it at this moment: the next pass looks again. A queue that stayed armed would not be looked at before
            // the worker sleeps.
            requests.disarm();
            return Taken::NOTHING;
        };
        // Most frames need no time.
        let (now_ns, most) = (LazyCell::new(now_ns), BUDGET.min(*depth).min(turn.requests));
        let mut answers = Answers { returned, completions, blocks, taken: Taken::NOTHING };
        let (mut message, mut is_asked_for, mut flow) = (Message::ZERO, false, Flow::default());
        while answers.taken.requests < most && answers.taken.units < turn.units && requests.receive(&mut message) {
            stages::stamp(Stage::Taken);
            if first_byte(&message) == OPERATION_SEND_PACKED {
                if !is_asked_for {
                    ask_for(&message, memory);
                }
                is_asked_for = ask_for_next(requests, memory);
                let packed = SendPacked::within(&message);
                let sender = (&**network, *sender, &mut flow);
                data.transmit_packed(sender, packed, memory, || *now_ns, |tag, outcome| answers.add(tag, outcome));
            } else {
                is_asked_for = false;
                flow.forget();
                let (tag, outcome) = data.transmit(network, *sender, &message, memory, || *now_ns);
                answers.add(tag, outcome);
            }
        }
        let taken = answers.taken;
        answers.publish();
        let fenced = data.flush();
        drop(data);
        requests.disarm();
        if completions.reader_needs_doorbell_after(fenced) {
            client_doorbell.ring();
        }
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

    fn is_visited(&self) -> bool {
        false
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

    use super::*;
    use crate::frame::Mac;
    use crate::server::endpoint::Endpoint;
    use crate::server::receiver::Receiver;
    use crate::server::{NetworkSetup, PortSetup};
    use crate::switch::{Learning, Rules};
    use crate::wire::{
        Filled, FilledPacked, KIND_RECEIVED_PACKED, OPERATION_JOIN, OPERATION_SEND, OPERATION_SEND_SMALL, Offload, PROFILE,
        PackedFrame, Post, Request, Send, Small,
    };

    /// A transmit queue of the first of so many ports, the client's end of its calls, and the grant, of which the second queue is left.
    fn queue_of(ports: u8) -> (TransmitQueue, Writer<MappedRing>, Grant) {
        let port = |number| {
            let rules = Rules { mirror: number == 1, ..Rules::new(Mac([2, 0, 0, 0, 0, number])) };
            PortSetup { name: number.to_string(), rules, allow: Box::new(|_| true), reserved: None }
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

    /// A message that sends so many frames of 64 bytes that are at the beginning of the pool.
    fn packed(grant: &Grant, frames: usize, destination: Mac) -> Message {
        let mut bytes = [&destination.0[..], &[2, 0, 0, 0, 0, 0, 8, 0]].concat();
        bytes.resize(64, 7);
        grant.region.write(grant.layout.pool_offset_bytes, &bytes).expect("within the pool");
        let frame = |tag| PackedFrame { tag, length_bytes: 64, offset_bytes: 0 };
        SendPacked::new(0, &(0..7).map(frame).collect::<Vec<_>>()[..frames]).to_message()
    }

    #[test]
    fn frames_count_for_a_visit_whatever_message_they_came_by() {
        let (mut queue, mut client, grant) = queue_of(2);
        let sent = packed(&grant, 7, Mac([2, 0, 0, 0, 0, 1]));
        (0..4).for_each(|_| client.publish(&sent));
        // A message is taken as a whole.
        let turn = |requests| Turn { requests, ..Turn::whole(true) };
        let visits = [8, 7, 8].map(|most| queue.visit(&mut (), turn(most)).requests);
        assert_eq!(visits, [14, 7, 7]);
        // Without a receiver, as its cost.
        let (mut queue, mut client, grant) = queue_of(200);
        (0..200).for_each(|port| queue.network.data().switch.set_up(port, true));
        let broadcast = packed(&grant, 2, Mac::BROADCAST);
        (0..2).for_each(|_| client.publish(&broadcast));
        let visits: Vec<Taken> = (0..3).map(|_| queue.visit(&mut (), Turn::whole(true))).collect();
        let of = |frames: u32| Taken { requests: frames, units: frames * 8 * 199, work_units: frames * 8 * 198 };
        assert_eq!(visits, [of(2), of(2), Taken::NOTHING]);
    }

    #[test]
    fn nothing_is_left_collected_when_a_visit_is_over() {
        let (mut queue, mut client, mut grant) = queue_of(2);
        let geometry = grant.layout.queues[1];
        let ring = |ring: Result<MappedRing, _>| ring.expect("it fits");
        let posts = ring(geometry.request_ring(&grant.region, &geometry.tuning()));
        let comes = ring(geometry.completion_ring(&grant.region, &geometry.tuning()));
        let (end, memory) = (grant.queues.remove(0), memory(&grant));
        let mut poster = Writer::new(posts, end.requests.cursor(), &geometry.tuning());
        let mut comes = Reader::new(comes, end.completions.cursor(), &geometry.tuning());
        queue.network.data().add(1, 0, Endpoint::Rings(Box::new(Receiver::new(end, memory, (0, Events::default())))));
        let buffer = |tag: u16| PostedBuffer { tag, memory: 0, offset_bytes: 1024 + 64 * u32::from(tag), length_bytes: 64 };
        (0..8).for_each(|of| poster.publish(&Post::new(&[0, 1, 2, 3].map(|more| buffer(4 * of + more))).to_message()));
        let mut expected_tag = 0;
        // A frame alone, a burst, and frames that come one by one in a visit.
        for (messages, counts) in [(vec![1], vec![1]), (vec![7, 7, 2], vec![14, 2]), (vec![1, 1, 1], vec![1, 1, 1])] {
            for frames in messages {
                let sent = packed(&grant, frames, Mac([2, 0, 0, 0, 0, 1]));
                client.publish(&sent);
            }
            while queue.visit(&mut (), Turn::whole(true)) != Taken::NOTHING {}
            let mut message = Message::ZERO;
            let mut left: usize = counts.iter().sum();
            while comes.receive(&mut message) {
                let filled = FilledPacked::of(&message);
                let tags = match filled.named().filter(|_| filled.kind == KIND_RECEIVED_PACKED) {
                    Some(frames) => frames.iter().map(|frame| frame.tag).collect(),
                    None => vec![Filled::of(&message).tags[0]],
                };
                for tag in tags {
                    assert_eq!(tag, expected_tag);
                    expected_tag += 1;
                    left -= 1;
                }
            }
            assert_eq!(left, 0, "some are not published");
            let state = queue.network.data().endpoint(1, 0).and_then(Endpoint::state).expect("its state");
            assert_eq!(state.buffers.first().map(|buffer| buffer.tag), Some(expected_tag), "and none is there twice");
        }
    }

    #[test]
    fn every_attempt_to_deliver_is_cost_and_ends_a_visit() {
        let (mut queue, mut client, _grant) = queue_of(200);
        (0..200).for_each(|port| queue.network.data().switch.set_up(port, true));
        (0..5).for_each(|_| client.publish(&small(Mac::BROADCAST)));
        // No port has posted a buffer.
        let visits: Vec<Taken> = (0..4).map(|_| queue.visit(&mut (), Turn::whole(true))).collect();
        let of = |frames: u32| Taken { requests: frames, units: frames * 8 * 199, work_units: frames * 8 * 198 };
        assert_eq!(visits, [of(2), of(2), of(1), Taken::NOTHING]);
        // To one port, and the copy of the mirror.
        client.publish(&small(Mac([2, 0, 0, 0, 0, 7])));
        assert_eq!(queue.visit(&mut (), Turn::whole(true)), Taken { requests: 1, units: 16, work_units: 8 });
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
        assert_eq!(queue.visit(&mut (), Turn::whole(true)), Taken { requests: 1, units: 16, work_units: 8 }, "one was enough");
        let first = <[u8; 36]>::try_from([&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 0, 8, 0][..], &[0; 22]].concat()).expect("36");
        let (operation, offload) = (OPERATION_SEND, Offload::default());
        let long =
            Send { operation, first_bytes: 36, tag: 0, offset_bytes: 0, rest_bytes: 100, memory: 0, offload, first, stamp: 0 };
        client.publish(&long.to_message());
        assert_eq!(
            queue.visit(&mut (), Turn::whole(true)),
            Taken { requests: 1, units: 40, work_units: 32 },
            "four, and it is dropped"
        );
    }

    #[test]
    fn what_a_client_asks_for_after_its_receivers_are_gone_does_not_stay() {
        let (mut queue, mut client, mut grant) = queue_of(1);
        let network = Arc::clone(&queue.network);
        let receiver = Receiver::new(grant.queues.remove(0), memory(&grant), (0, Events::default()));
        network.data().add(0, 0, Endpoint::Rings(Box::new(receiver)));
        let groups = || network.data().switch.groups(0).map(<[Mac]>::to_vec);
        let group = Mac([1, 0, 0x5e, 0, 0, 7]);
        client.publish(&Request::new(OPERATION_JOIN, 0, Some(group)).to_message());
        queue.visit(&mut (), Turn::whole(true));
        assert_eq!(groups(), Some(vec![group]));
        // Its queues end in any order.
        drop(network.data().remove(0, 0));
        assert_eq!(groups(), None);
        client.publish(&Request::new(OPERATION_JOIN, 1, Some(group)).to_message());
        queue.visit(&mut (), Turn::whole(true));
        drop(queue);
        assert_eq!(groups(), None, "the next client would get no other group");
    }
}
