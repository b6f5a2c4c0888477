use fipsee_ring::channel::RegionLayout;
use fipsee_ring::handshake::Grant;

use super::*;
use crate::frame::Mac;
use crate::server::endpoint::Endpoint;
use crate::server::receiver::Receiver;
use crate::server::{NetworkSetup, PortSetup};
use crate::switch::{Learning, Rules};
use crate::wire::{
    Filled, FilledPacked, KIND_RECEIVED_COMPRESSED, KIND_RECEIVED_PACKED, OPERATION_JOIN, OPERATION_SEND,
    OPERATION_SEND_COMPRESSED, OPERATION_SEND_SMALL, Offload, PROFILE, PackedFrame, Post, Request, Send, Small, Status,
    compressed,
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
    (TransmitQueue::new(end, memory, (network, Sender { port: 0, pair: 0, offloads: 0 }), (8, None)), client, grant)
}

/// Port 1 is served: its client's ends of the queue that receives.
fn receiver_of(queue: &TransmitQueue, grant: &mut Grant) -> (Writer<MappedRing>, Reader<MappedRing>) {
    let (geometry, end) = (grant.layout.queues[1], grant.queues.remove(0));
    let ring = |ring: Result<MappedRing, _>| ring.expect("it fits");
    let posts = ring(geometry.request_ring(&grant.region, &geometry.tuning()));
    let comes = ring(geometry.completion_ring(&grant.region, &geometry.tuning()));
    let cursors = (end.requests.cursor(), end.completions.cursor());
    let receiver = Receiver::new(end, memory(grant), (0, Events::default()));
    queue.network.data().add(1, 0, Endpoint::Rings(Box::new(receiver)));
    (Writer::new(posts, cursors.0, &geometry.tuning()), Reader::new(comes, cursors.1, &geometry.tuning()))
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
    let (mut poster, mut comes) = receiver_of(&queue, &mut grant);
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
                None if first_byte(&message) == KIND_RECEIVED_COMPRESSED => vec![Small::of(&message).tag],
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

/// A sender, and port 1 behind a switch.
struct Exchange {
    queue: TransmitQueue,
    client: Writer<MappedRing>,
    answers: Reader<MappedRing>,
    poster: Writer<MappedRing>,
    comes: Reader<MappedRing>,
    grant: Grant,
    tag: u16,
}

/// A message, the status by which it is answered, and by which kind its frame comes, with its length, in buffers of these lengths.
type Step<'a> = (Message, Status, Option<(u8, u8, &'a [u32])>);

impl Exchange {
    fn new() -> Self {
        let (queue, client, mut grant) = queue_of(2);
        let (sent, at) = (grant.layout.queues[0], queue.end.completions.cursor());
        let answers = sent.completion_ring(&grant.region, &sent.tuning()).expect("it fits");
        let answers = Reader::new(answers, at, &sent.tuning());
        let (poster, comes) = receiver_of(&queue, &mut grant);
        Self { queue, client, answers, poster, comes, grant, tag: 0 }
    }

    /// A message with the first bytes of a frame, the rest of which is in memory.
    fn alone(&self, frame: &[u8]) -> Message {
        let (first, rest) = frame.split_first_chunk().expect("longer");
        self.grant.region.write(self.grant.layout.pool_offset_bytes, rest).expect("within the pool");
        let (operation, offload) = (OPERATION_SEND, Offload::default());
        let rest_bytes = u32::try_from(rest.len()).expect("short");
        Send { operation, first_bytes: 36, tag: 0, offset_bytes: 0, rest_bytes, memory: 0, offload, first: *first, stamp: 0 }
            .to_message()
    }

    fn step(&mut self, (sent, status, comes_by): Step<'_>) {
        let mut message = Message::ZERO;
        if let Some((_, _, lengths)) = comes_by {
            let buffer = |(tag, length): (u16, &u32)| PostedBuffer {
                tag,
                memory: 0,
                offset_bytes: 128 * u32::from(tag),
                length_bytes: *length,
            };
            self.poster.publish(&Post::new(&(self.tag..).zip(lengths).map(buffer).collect::<Vec<_>>()).to_message());
        }
        self.client.publish(&sent);
        assert_eq!(self.queue.visit(&mut (), Turn::whole(true)).requests, 1);
        assert!(self.answers.receive(&mut message));
        let bytes = message.to_bytes();
        assert_eq!((bytes[1], u16::from(bytes[6])), (1, status.to_wire()));
        assert_eq!(self.comes.receive(&mut message), comes_by.is_some());
        let Some((kind, length, lengths)) = comes_by else { return };
        let bytes = message.to_bytes();
        let (found_length, found_tag) = if kind == 1 { (bytes[4], bytes[20]) } else { (bytes[1], bytes[2]) };
        assert_eq!((bytes[0], found_length, u16::from(found_tag)), (kind, length, self.tag));
        self.tag += u16::try_from(lengths.len()).expect("few");
    }

    fn received_addresses(&self) -> Option<Addresses> {
        self.queue.network.data().endpoint(1, 0).and_then(Endpoint::state).expect("its state").addresses
    }
}

/// From port 0, or another station, to port 1 or to all.
fn addressed(to: Mac, source: u8, length: usize) -> Vec<u8> {
    let mut frame = [&to.0[..], &[2, 0, 0, 0, 0, source], &[8, 0]].concat();
    frame.resize(length, 7);
    frame
}

fn without(frame: &[u8]) -> Message {
    compressed(OPERATION_SEND_COMPRESSED, 0, frame)
}

const TO: Mac = Mac([2, 0, 0, 0, 0, 1]);

/// checks: R-10.3-20, R-10.4-11
#[test]
fn frame_goes_without_its_addresses_where_they_are_known() {
    let mut exchange = Exchange::new();
    let [short, longest, long] = [57, 68, 69].map(|length| addressed(TO, 0, length));
    let less = |length: u8| Small { length_bytes: length, ..Small::of(&without(&short)) }.to_message();
    let (ok, invalid) = (Status::Ok, Status::Invalid);
    let (alone_short, alone_long) = (exchange.alone(&short), exchange.alone(&long));
    let alone_wrong = exchange.alone(&addressed(TO, 5, 60));
    let packed = packed(&exchange.grant, 1, Mac([2, 0, 0, 0, 0, 9]));
    let one: &[u32] = &[128];
    let steps = [
        (without(&short), invalid, None),
        (alone_short, ok, Some((1, 57, one))),
        (alone_short, ok, Some((1, 57, one))),
        (without(&short), ok, Some((5, 57, one))),
        (packed, ok, None),
        (without(&longest), ok, Some((5, 68, one))),
        (less(69), invalid, None),
        (less(13), Status::TooShort, None),
        (less(14), ok, Some((2, 14, one))),
        (alone_long, ok, Some((1, 69, one))),
        (without(&short), ok, Some((5, 57, one))),
        // Its addresses are those of the next one, although the switch does not take it.
        (alone_wrong, Status::WrongSource, None),
        (without(&addressed(TO, 5, 60)), Status::WrongSource, None),
        (small(TO), ok, Some((2, 14, one))),
        // The buffer would not hold it.
        (without(&longest), ok, Some((1, 68, &[64, 64][..]))),
        (without(&longest), ok, Some((5, 68, one))),
        (Small { length_bytes: 57, ..Small::new(OPERATION_SEND_SMALL, 0, &short) }.to_message(), invalid, None),
        (without(&short), invalid, None),
    ];
    steps.into_iter().for_each(|step| exchange.step(step));
    assert_eq!(exchange.received_addresses(), Addresses::of(&short));
}

/// checks: R-10.4-11
#[test]
fn addresses_that_a_receiver_knows_are_those_of_the_last_short_frame_that_came_alone() {
    let mut exchange = Exchange::new();
    let [short, to_all] = [TO, Mac::BROADCAST].map(|to| addressed(to, 0, 60));
    let (short_alone, long_alone) = (exchange.alone(&short), exchange.alone(&addressed(TO, 0, 69)));
    let (ok, one) = (Status::Ok, &[128][..]);
    let steps = [
        (short_alone, ok, Some((1, 60, one))),
        (without(&short), ok, Some((5, 60, one))),
        // In a message, and in several buffers.
        (small(Mac::BROADCAST), ok, Some((2, 14, one))),
        (without(&to_all), ok, Some((5, 60, one))),
        (long_alone, ok, Some((1, 69, one))),
        (without(&short), ok, Some((1, 60, &[30, 30][..]))),
        (without(&short), ok, Some((5, 60, one))),
        (small(Mac::BROADCAST), ok, Some((2, 14, one))),
        (long_alone, ok, Some((1, 69, one))),
        // The switch is not asked where this goes, and the receiver does not know its addresses.
        (without(&short), ok, Some((1, 60, one))),
    ];
    steps.into_iter().for_each(|step| exchange.step(step));
    let state = exchange.queue.network.data().endpoint(1, 0).and_then(Endpoint::state).expect("its state");
    assert_eq!(state.addresses, Addresses::of(&short));
    // By which the next daemon goes on.
    let (_, _, mut grant) = queue_of(2);
    let mut next = Receiver::new(grant.queues.remove(0), memory(&grant), (0, Events::default()));
    next.restore(&state).expect("it has no buffers");
    assert_eq!(next.state().addresses, state.addresses);
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
    let long = Send { operation, first_bytes: 36, tag: 0, offset_bytes: 0, rest_bytes: 100, memory: 0, offload, first, stamp: 0 };
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
