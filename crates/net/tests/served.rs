//! Ports served by a worker that this thread drives: whatever clients publish, each message is answered once, and nothing is stored
//! outside of buffers that were posted.

use std::collections::HashMap;
use std::sync::Arc;

use fipsee_net::frame::Mac;
use fipsee_net::server::{NetworkSetup, Networks, PortSetup, Switches};
use fipsee_net::switch::{Learning, Rules, Vlans};
use fipsee_net::wire::{
    Filled, FilledPacked, KIND_RECEIVED, KIND_RECEIVED_COMPRESSED, KIND_RECEIVED_PACKED, KIND_RECEIVED_SMALL, KIND_RETURNED,
    MAX_SMALL_BYTES, OPERATION_SEND_COMPRESSED, OPERATION_SEND_PACKED, Offload, PackedFrame, Post, PostedBuffer, Returned,
    SERVICE_NET, Send, SendPacked, Small, compressed, first_byte, is_compressible,
};
use fipsee_ring::Message;
use fipsee_ring::control::Wanted;
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::region::Region;
use fipsee_ring::ring::{Cursor, Reader, Writer};
use fipsee_ring::wait::{Backoff, WaitMode};
use fipsee_serve::session::{Attachment, Client, ClientLimits, Credentials, Service};
use fipsee_serve::{Share, Worker, WorkerPlacement};
use fipsee_testkit::networks::settle;
use fipsee_testkit::random::Random;

const DEPTH: u32 = 16;
const POOL_BYTES: u32 = 16 << 10;

/// A ring of calls and that of their answers.
struct Rings {
    calls: Writer<MappedRing>,
    answers: Reader<MappedRing>,
}

/// A client of a port, as far as memory goes.
struct Port {
    region: Arc<Region>,
    pool_offset_bytes: u64,
    transmit: Rings,
    receive: Rings,
    /// Buffers that were posted and not answered, by tag: each tag is given once at a time.
    posted: HashMap<u16, PostedBuffer>,
    next_tag: u16,
    _held: Box<dyn Attachment<()>>,
    _assigned: Vec<fipsee_serve::Assignment>,
}

fn attach(
    networks: &Networks<()>,
    worker: &mut Worker<()>,
    id: u64,
    name: &str,
    mail: &dyn Fn(fipsee_serve::Command<()>),
) -> Port {
    let credentials = Credentials::default();
    let (limits, share) = (ClientLimits::default(), Share::own(name));
    let client = Client { id, credentials: &credentials, limits, features: 0, share: &share };
    let (service, pool_bytes) = (SERVICE_NET, POOL_BYTES.into());
    let wanted = Wanted { service, queue_count: 2, depth: DEPTH, flags: 0, pool_bytes, name: name.to_owned() };
    let Ok(granted) = networks.attach(&client, &wanted) else { panic!("{name} is refused") };
    granted.commands.into_iter().for_each(|(_, command)| mail(command));
    settle(worker);
    let (region, layout) = (Arc::clone(&granted.grant.region), &granted.grant.layout);
    let mut rings = layout.queues.iter().map(|queue| {
        let tuning = queue.tuning();
        let (calls, answers) = (queue.request_ring(&region, &tuning), queue.completion_ring(&region, &tuning));
        Rings {
            calls: Writer::new(calls.expect("it fits"), Cursor::at_start(queue.request_start), &tuning),
            answers: Reader::new(answers.expect("it fits"), Cursor::at_start(queue.completion_start), &tuning),
        }
    });
    let (transmit, receive) = (rings.next().expect("two queues"), rings.next().expect("two queues"));
    drop(rings);
    let (pool_offset_bytes, posted, next_tag) = (layout.pool_offset_bytes, HashMap::new(), 0);
    let (_held, _assigned) = (granted.attachment, granted.assignments);
    Port { region, pool_offset_bytes, transmit, receive, posted, next_tag, _held, _assigned }
}

impl Port {
    fn pool(&self) -> Vec<u8> {
        let mut bytes = vec![0; POOL_BYTES as usize];
        self.region.read(self.pool_offset_bytes, &mut bytes).expect("within the region");
        bytes
    }

    /// Anything, as a rule of a form that comes far: how many frames, or messages that are none.
    fn send(&mut self, random: &mut Random, tag: u16, number: u8) -> u8 {
        let small = |value: u64| u8::try_from(value).expect("small");
        let mut first = [0; MAX_SMALL_BYTES];
        random.fill(&mut first);
        let destination = [2, 0, 0, 0, 0, small(random.below(4))];
        first[..6].copy_from_slice(if random.percent(30) { &[0xff; 6] } else { &destination });
        first[6..12].copy_from_slice(&[2, 0, 0, 0, 0, if random.percent(90) { number } else { 9 }]);
        if random.percent(30) {
            first[12..16].copy_from_slice(&[0x81, 0, 0, small(random.below(3)) * 10]);
        }
        if random.percent(30) {
            return self.send_packed(random, tag, first);
        }
        let mut message = if random.percent(30) {
            compressed(OPERATION_SEND_COMPRESSED, tag, &vec![7; usize::try_from(13 + random.below(57)).expect("small")])
        } else if random.percent(30) {
            let frame = &first[..usize::try_from(10 + random.below(46)).expect("small")];
            Small::new(2, tag, frame).to_message()
        } else {
            let rest_bytes = u32::try_from(random.below(1600)).expect("small");
            let offset_bytes = u32::try_from(random.below(u64::from(POOL_BYTES) + 100)).expect("small");
            let (first_bytes, offload) = (small(10 + random.below(30)), Offload::default());
            let first = first[..36].try_into().expect("36");
            Send { operation: 1, first_bytes, tag, offset_bytes, rest_bytes, memory: 0, offload, first, stamp: 0 }.to_message()
        };
        if random.percent(5) {
            let (word, noise) = (usize::try_from(random.below(8)).expect("small"), random.number());
            // Not the tag, by which the answer is known.
            message.set_word(word, if word == 0 { message.word(0) & 0xffff_0000 | noise & !0xffff_0000 } else { noise });
        }
        // Nor one that has its tags elsewhere.
        if first_byte(&message) == OPERATION_SEND_PACKED {
            message.set_word(0, message.word(0) ^ 0x80);
        }
        self.transmit.calls.publish(&message);
        self.region.write(self.pool_offset_bytes, &[number; 64]).expect("the client's own");
        1
    }

    /// Several with the same first bytes, in places that may be buffers, too, all with one tag.
    fn send_packed(&mut self, random: &mut Random, tag: u16, first: [u8; MAX_SMALL_BYTES]) -> u8 {
        let mut frame = || {
            let length_bytes = u16::try_from(if random.percent(50) { 60 } else { random.below(1600) }).expect("small");
            let offset_bytes = u32::try_from(random.below(u64::from(POOL_BYTES))).expect("small");
            // Of one that is at the end there is less.
            let _ = self.region.write(self.pool_offset_bytes + u64::from(offset_bytes), &first);
            PackedFrame { tag, length_bytes, offset_bytes }
        };
        let frames = [(); 7].map(|()| frame());
        let memory = u16::from(random.percent(5));
        let message = SendPacked { count: u8::try_from(random.below(9)).expect("small"), ..SendPacked::new(memory, &frames) };
        let answers = message.named().map_or(1, <[_]>::len);
        self.transmit.calls.publish(&message.to_message());
        u8::try_from(answers).expect("few")
    }

    fn post(&mut self, random: &mut Random) {
        let count = 1 + random.below(4);
        if self.posted.len() + usize::try_from(count).expect("small") > DEPTH as usize {
            return;
        }
        let mut buffers = Vec::new();
        for _ in 0..count {
            let (tag, memory) = (self.next_tag, u16::from(random.percent(5)));
            self.next_tag = self.next_tag.wrapping_add(1);
            let offset_bytes = u32::try_from(64 + random.below(u64::from(POOL_BYTES))).expect("small");
            let longest = if random.percent(50) { 100 } else { 2000 };
            let length_bytes = u32::try_from(random.below(longest)).expect("small");
            buffers.push(PostedBuffer { tag, memory, offset_bytes, length_bytes });
        }
        self.posted.extend(buffers.iter().map(|buffer| (buffer.tag, *buffer)));
        self.receive.calls.publish(&Post::new(&buffers).to_message());
    }

    /// The answers on the receive queue: the parts of the pool that a frame was put into, and how many frames.
    fn take(&mut self) -> (Vec<std::ops::Range<usize>>, u64) {
        let (mut message, mut filled_parts, mut frames) = (Message::ZERO, Vec::new(), 0);
        while self.receive.answers.receive(&mut message) {
            let mut answered =
                |tag: u16| self.posted.remove(&tag).unwrap_or_else(|| panic!("{tag} is answered, and was not posted"));
            match first_byte(&message) {
                KIND_RECEIVED => {
                    let filled = Filled::of(&message);
                    let mut left = filled.length_bytes;
                    for tag in &filled.tags[..usize::from(filled.count)] {
                        let PostedBuffer { memory, offset_bytes, length_bytes, .. } = answered(*tag);
                        assert!(memory == 0 && left > 0 && offset_bytes + length_bytes <= POOL_BYTES);
                        let stored = left.min(length_bytes);
                        filled_parts.push(offset_bytes as usize..(offset_bytes + stored) as usize);
                        left -= stored;
                    }
                    assert_eq!(left, 0, "the buffers hold the frame");
                    frames += 1;
                }
                KIND_RECEIVED_PACKED => {
                    let packed = FilledPacked::of(&message);
                    for frame in packed.named().expect("frames") {
                        let PostedBuffer { memory, offset_bytes, length_bytes, .. } = answered(frame.tag);
                        let stored = u32::from(frame.length_bytes);
                        assert!(
                            memory == 0 && (14..=length_bytes).contains(&stored) && offset_bytes + length_bytes <= POOL_BYTES
                        );
                        filled_parts.push(offset_bytes as usize..(offset_bytes + stored) as usize);
                        frames += 1;
                    }
                }
                KIND_RECEIVED_COMPRESSED => {
                    let Small { length_bytes, tag, .. } = Small::of(&message);
                    assert!(is_compressible(length_bytes.into()), "a frame of {length_bytes} bytes");
                    assert!(answered(tag).length_bytes >= length_bytes.into());
                    frames += 1;
                }
                KIND_RECEIVED_SMALL => {
                    let small = Small::of(&message);
                    assert!((14..=MAX_SMALL_BYTES).contains(&usize::from(small.length_bytes)));
                    answered(small.tag);
                    frames += 1;
                }
                kind => {
                    assert_eq!(kind, KIND_RETURNED);
                    let returned = Returned::of(&message);
                    returned.entries[..usize::from(returned.count)].iter().for_each(|entry| _ = answered(entry.tag));
                }
            }
        }
        (filled_parts, frames)
    }
}

/// Small frames, one for each buffer, until every buffer that was posted is answered.
fn assert_none_is_lost(ports: &mut [Port], worker: &mut Worker<()>) {
    for number in 0..ports.len() {
        let from = (number + 1) % ports.len();
        let address = |number: usize| [2, 0, 0, 0, 0, u8::try_from(number).expect("small")];
        let frame = [&address(number)[..], &address(from), &[8, 0, 1, 2, 3]].concat();
        for tag in 0..2 * u16::try_from(DEPTH).expect("small") {
            ports[from].transmit.calls.publish(&Small::new(2, tag, &frame).to_message());
            settle(worker);
            let mut message = Message::ZERO;
            while ports[from].transmit.answers.receive(&mut message) {}
            ports.iter_mut().for_each(|port| _ = port.take());
        }
        assert!(ports[number].posted.is_empty(), "buffers were never answered: {:?}", ports[number].posted);
    }
}

#[test]
fn whatever_is_published_is_answered_once_and_stored_in_posted_buffers_alone() {
    let mut all_frames = 0;
    for seed in 0..60 {
        let mut random = Random(seed);
        let (mut worker, handle) =
            Worker::new(WorkerPlacement::default(), Backoff::new(WaitMode::Sleep, std::time::Duration::ZERO), ())
                .expect("a worker");
        let trunk = Vlans::Trunk { tagged: vec![10, 20], native: Some(0) };
        let rules = [
            Rules { any_source: true, flood_limit: 1_000_000_000, ..Rules::new(Mac([2, 0, 0, 0, 0, 0])) },
            Rules { vlans: trunk, flood_limit: 1_000_000_000, ..Rules::new(Mac([2, 0, 0, 0, 0, 1])) },
            Rules { mirror: seed % 2 == 0, flood_limit: 1_000_000_000, ..Rules::new(Mac([2, 0, 0, 0, 0, 2])) },
        ];
        let port =
            |(name, rules): (&str, Rules)| PortSetup { name: name.to_owned(), rules, allow: Box::new(|_| true), reserved: None };
        let ports = ["a", "b", "c"].into_iter().zip(rules).map(port).collect();
        let setup = NetworkSetup { name: "n".to_owned(), mtu: 1500, learning: Learning::default(), ports };
        let networks = Networks::new(Switches::new(vec![setup]), vec![handle.clone()], Arc::new(|_, _| {}));
        let mail = |command| handle.mailbox.send(command);
        let names = ["n/a", "n/b", "n/c"];
        let mut ports: Vec<Port> = (1..).zip(names).map(|(id, name)| attach(&networks, &mut worker, id, name, &mail)).collect();
        for step in 0..300_u16 {
            let from = usize::try_from(random.below(3)).expect("small");
            ports.iter_mut().for_each(|port| port.post(&mut random));
            let answers = ports[from].send(&mut random, step, u8::try_from(from).expect("small"));
            let before: Vec<Vec<u8>> = ports.iter().map(Port::pool).collect();
            settle(&mut worker);
            let mut message = Message::ZERO;
            assert!(ports[from].transmit.answers.receive(&mut message), "no answer, seed {seed}, step {step}");
            let returned = Returned::of(&message);
            assert_eq!((returned.kind, returned.count), (KIND_RETURNED, answers));
            let entries = &returned.entries[..usize::from(answers)];
            assert!(entries.iter().all(|entry| entry.tag == step), "{entries:?}");
            let is_any_taken = entries.iter().any(|entry| entry.status == 0);
            assert!(!ports[from].transmit.answers.receive(&mut message), "answered twice");
            for (number, (port, before)) in ports.iter_mut().zip(&before).enumerate() {
                let (filled, frames) = port.take();
                assert!(number != from || frames == 0, "back to the sender");
                assert!(frames == 0 || is_any_taken, "refused, and delivered");
                all_frames += frames;
                let now = port.pool();
                let stray = (0..now.len()).find(|at| now[*at] != before[*at] && !filled.iter().any(|part| part.contains(at)));
                assert_eq!(stray, None, "stored outside of posted buffers, seed {seed}, step {step}");
            }
        }
        assert_none_is_lost(&mut ports, &mut worker);
    }
    assert!(all_frames > 2000, "only {all_frames} frames: the test must deliver");
}
