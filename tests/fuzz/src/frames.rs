//! Messages of clients of three ports, through the workers' queues and the switch: each is answered once, whatever it says, and nothing is
//! stored but frames in posted buffers.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use fipsee_interop::golden;
use fipsee_net::frame::Mac;
use fipsee_net::server::{NetworkSetup, Networks, PortSetup, Switches};
use fipsee_net::switch::{Learning, Rules, Vlans};
use fipsee_net::wire::{PackedFrame, PostedBuffer, SERVICE_NET, SendPacked};
use fipsee_ring::Message;
use fipsee_ring::control::Wanted;
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::region::Region;
use fipsee_ring::ring::{Cursor, Reader, Writer};
use fipsee_ring::wait::{Backoff, WaitMode};
use fipsee_serve::session::{Attachment, Client, ClientLimits, Credentials, Service};
use fipsee_serve::{Assignment, Command, Pass, Share, Which, Worker, WorkerHandle, WorkerPlacement};

use crate::take;

const PORTS: u64 = 3;
const DEPTH: u32 = 16;
const POOL_BYTES: usize = 16 << 10;
/// Messages that post buffers: each has at most four, which are answered in up to 16 messages.
const MOST_POSTS: usize = 4;
const MOST_MESSAGES: usize = 14;

thread_local! {
    static WORKER: RefCell<(Worker<()>, WorkerHandle<()>)> = RefCell::new(
        Worker::new(WorkerPlacement::default(), Backoff::new(WaitMode::Sleep, std::time::Duration::ZERO), ()).expect("a worker"),
    );
}

/// A byte says how the ports are configured and which offloads their clients have, each message is a byte that says whose it is, and 60; the rest is in the pools.
pub(crate) fn one(mut bytes: &[u8]) {
    WORKER.with_borrow_mut(|(worker, handle)| {
        let [choice] = take(&mut bytes);
        let networks = networks(choice, handle);
        // The first may leave everything to be done, the second nothing, and the third what the byte says.
        let flags = [31, 0, u32::from(choice) >> 1 & 31];
        let attach = |(number, flags)| Port::attach(&networks, worker, handle, number, flags);
        let mut ports: Vec<Port> = (0..PORTS).zip(flags).map(attach).collect();
        let mut count = 0;
        while bytes.len() > 1 && bytes[0] < 0xf0 && count < MOST_MESSAGES {
            let [of] = take(&mut bytes);
            let message = take(&mut bytes);
            ports[usize::from(of) % 3].publish(of & 4 != 0, &message);
            count += 1;
        }
        let pool = &bytes[..bytes.len().min(POOL_BYTES)];
        ports.iter().for_each(|port| port.region.write(port.pool_offset_bytes, pool).expect("within the pool"));
        let before: Vec<Vec<u8>> = ports.iter().map(Port::pool).collect();
        settle(worker);
        for (number, (port, mut expected)) in ports.iter_mut().zip(before).enumerate() {
            port.check_sent();
            let (filled, now) = (port.check_received(number), port.pool());
            filled.into_iter().for_each(|part| expected[part.clone()].copy_from_slice(&now[part]));
            // As a whole: the fuzzer's instruments make a comparison of each byte cost more than all else.
            assert!(now == expected, "port {number}: stored outside of posted buffers");
        }
        for client in 1..=PORTS {
            let removed = Box::new(|_, _| {});
            handle.mailbox.send(Command::Remove { which: Which::Client(client), finish: false, removed });
        }
        settle(worker);
    });
}

fn settle(worker: &mut Worker<()>) {
    // The second pass visits what the first has woken.
    let mut idle = 0;
    while idle < 3 {
        idle = if worker.pass() == Pass::Worked { 0 } else { idle + 1 };
    }
}

fn networks(choice: u8, handle: &WorkerHandle<()>) -> Networks<()> {
    let has = |bit: u8| choice & bit != 0;
    let port = |number: u8| {
        let vlans = match number {
            _ if !has(1) => Vlans::Access(0),
            0 => Vlans::Access(10),
            1 => Vlans::Trunk { tagged: vec![10, 20], native: has(2).then_some(30) },
            _ => Vlans::Trunk { tagged: Vec::new(), native: Some(10) },
        };
        let mac = Mac([2, 0, 0, 0, 0, 1 + number]);
        let (any_source, isolated, mirror) = (has(4) && number != 0, has(8), has(16) && number == 2);
        let rules = Rules {
            vlans,
            any_source,
            isolated,
            mirror,
            flood_limit: if has(32) { 1 } else { 1_000_000_000 },
            ..Rules::new(mac)
        };
        PortSetup { name: number.to_string(), rules, allow: Box::new(|_| true), reserved: None }
    };
    let mtu = [1500, 68, 9000, 576][usize::from(choice >> 6)];
    let learning = Learning { max_macs: 4, max_macs_per_port: 2, ..Learning::default() };
    let setup = NetworkSetup { name: "lan".to_owned(), mtu, learning, ports: (0..3).map(port).collect() };
    Networks::new(Switches::new(vec![setup]), vec![handle.clone()], Arc::new(|_, _| {}))
}

/// Rings of a pair as the client has them, and what is to come of what it published.
struct Port {
    region: Arc<Region>,
    pool_offset_bytes: u64,
    calls: [Writer<MappedRing>; 2],
    answers: [Reader<MappedRing>; 2],
    /// Frames that are to be answered, by tag.
    sent: HashMap<u16, u32>,
    /// Buffers, and tags of messages that post none.
    posted: Vec<PostedBuffer>,
    posts: usize,
    /// A short frame has come alone, with its addresses.
    has_addresses: bool,
    _held: Box<dyn Attachment<()>>,
    _assigned: Vec<Assignment>,
}

impl Port {
    fn attach(networks: &Networks<()>, worker: &mut Worker<()>, handle: &WorkerHandle<()>, number: u64, flags: u32) -> Self {
        let (credentials, name) = (Credentials::default(), format!("lan/{number}"));
        let share = Share::own(&name);
        let client =
            Client { id: number + 1, credentials: &credentials, limits: ClientLimits::default(), features: 0, share: &share };
        let (service, pool_bytes) = (SERVICE_NET, POOL_BYTES as u64);
        let wanted = Wanted { service, queue_count: 2, depth: DEPTH, flags, pool_bytes, name };
        let Ok(granted) = networks.attach(&client, &wanted) else { panic!("port {number} is refused") };
        granted.commands.into_iter().for_each(|(_, command)| handle.mailbox.send(command));
        worker.pass();
        let (region, layout) = (Arc::clone(&granted.grant.region), &granted.grant.layout);
        let calls = [0, 1].map(|queue| {
            let (geometry, tuning) = (&layout.queues[queue], layout.queues[queue].tuning());
            Writer::new(
                geometry.request_ring(&region, &tuning).expect("it fits"),
                Cursor::at_start(geometry.request_start),
                &tuning,
            )
        });
        let answers = [0, 1].map(|queue| {
            let (geometry, tuning) = (&layout.queues[queue], layout.queues[queue].tuning());
            let ring = geometry.completion_ring(&region, &tuning).expect("it fits");
            Reader::new(ring, Cursor::at_start(geometry.completion_start), &tuning)
        });
        Self {
            region,
            pool_offset_bytes: layout.pool_offset_bytes,
            calls,
            answers,
            sent: HashMap::new(),
            posted: Vec::new(),
            posts: 0,
            has_addresses: false,
            _held: granted.attachment,
            _assigned: granted.assignments,
        }
    }

    fn pool(&self) -> Vec<u8> {
        let mut bytes = vec![0; POOL_BYTES];
        self.region.read(self.pool_offset_bytes, &mut bytes).expect("within the region");
        bytes
    }

    /// By the document: what will be answered.
    fn publish(&mut self, receives: bool, message: &[u8; 60]) {
        if !receives {
            let tags = match (message[0], usize::from(message[1])) {
                (9, count @ 1..=7) => (0..count).map(|index| u16_at(message, 4 + 8 * index)).collect(),
                (9, _) => vec![u16_at(message, 4)],
                _ => vec![u16_at(message, 2)],
            };
            tags.into_iter().for_each(|tag| *self.sent.entry(tag).or_default() += 1);
            return self.calls[0].publish(&Message::from_payload(message));
        }
        if self.posts == MOST_POSTS {
            return;
        }
        self.posts += 1;
        let buffer = |index: usize| {
            let at = 4 + 12 * index;
            let (offset_bytes, length_bytes) = (u32_at(message, at + 4), u32_at(message, at + 8));
            PostedBuffer { tag: u16_at(message, at), memory: u16_at(message, at + 2), offset_bytes, length_bytes }
        };
        let nothing = |tag| PostedBuffer { tag, memory: u16::MAX, offset_bytes: 0, length_bytes: 0 };
        let is_sound = message[2..4] == [0; 2] && message[52..60] == [0; 8];
        match (message[0], message[1]) {
            (3, count @ 1..=4) if is_sound => self.posted.extend((0..count.into()).map(buffer)),
            (3, _) => self.posted.push(nothing(u16_at(message, 4))),
            _ => self.posted.push(nothing(u16_at(message, 2))),
        }
        self.calls[1].publish(&Message::from_payload(message));
    }

    fn check_sent(&mut self) {
        let mut message = Message::ZERO;
        while self.answers[0].receive(&mut message) {
            for (tag, status) in given_back(&message.to_bytes()) {
                assert!(status <= 12, "status {status} of a frame");
                let left = self.sent.get_mut(&tag).filter(|left| **left > 0);
                *left.unwrap_or_else(|| panic!("an answer to no frame, tag {tag}")) -= 1;
            }
        }
        assert!(self.sent.values().all(|left| *left == 0), "not answered: {:x?}", self.sent);
    }

    /// The parts of the pool that frames were put into.
    fn check_received(&mut self, number: usize) -> Vec<Range<usize>> {
        let (mut message, mut filled) = (Message::ZERO, Vec::new());
        while self.answers[1].receive(&mut message) {
            let bytes = message.to_bytes();
            match (bytes[0], usize::from(bytes[1])) {
                (2, length) => {
                    assert!((14..=56).contains(&length) && bytes[4 + length..60].iter().all(|byte| *byte == 0), "{bytes:02x?}");
                    assert!(bytes[10..16] != Mac([2, 0, 0, 0, 0, 1 + number.to_le_bytes()[0]]).0, "its own frame");
                    self.answered(u16_at(&bytes, 2), true);
                    self.has_addresses = true;
                }
                (5, length) => {
                    assert!((57..=68).contains(&length) && bytes[length - 8..60].iter().all(|byte| *byte == 0), "{bytes:02x?}");
                    assert!(self.has_addresses, "no addresses have come: {bytes:02x?}");
                    let buffer = self.answered(u16_at(&bytes, 2), true);
                    assert!(buffer.length_bytes as usize >= length, "it would not hold the frame: {bytes:02x?}");
                }
                (1, count) => {
                    assert!((1..=20).contains(&count) && bytes[2..4] == [0; 2] && bytes[18..20] == [0; 2], "{bytes:02x?}");
                    assert!(number != 1 || bytes[8..18] == [0; 10], "an offload that was not asked for: {bytes:02x?}");
                    let mut left = u32_at(&bytes, 4) as usize;
                    assert!((14..=65_553).contains(&left), "{bytes:02x?}");
                    self.has_addresses |= left <= 68;
                    for index in 0..count {
                        let buffer = self.answered(u16_at(&bytes, 20 + 2 * index), true);
                        let (start, stored) = (buffer.offset_bytes as usize, left.min(buffer.length_bytes as usize));
                        filled.push(start..start + stored);
                        left -= stored;
                    }
                    assert_eq!(left, 0, "the buffers hold the frame");
                }
                (4, count) => {
                    assert!((1..=14).contains(&count) && bytes[2..4] == [0; 2], "{bytes:02x?}");
                    assert!(bytes[4 + 4 * count..60].iter().all(|byte| *byte == 0), "{bytes:02x?}");
                    for at in (0..count).map(|index| 4 + 4 * index) {
                        let (buffer, length) = (self.answered(u16_at(&bytes, at), true), u16_at(&bytes, at + 2));
                        assert!((14..=9018).contains(&length) && u32::from(length) <= buffer.length_bytes, "{bytes:02x?}");
                        let start = buffer.offset_bytes as usize;
                        filled.push(start..start + usize::from(length));
                    }
                }
                _ => given_back(&bytes).for_each(|(tag, status)| {
                    assert!(matches!(status, 1..=3 | 9), "status {status} of a buffer");
                    self.answered(tag, status == 9);
                }),
            }
        }
        filled
    }

    /// The oldest buffer with this tag is answered that can be used, or the oldest that cannot.
    fn answered(&mut self, tag: u16, is_usable: bool) -> PostedBuffer {
        let can_be_used = |buffer: &PostedBuffer| {
            let end = u64::from(buffer.offset_bytes) + u64::from(buffer.length_bytes);
            buffer.memory == 0 && buffer.length_bytes > 0 && end <= POOL_BYTES as u64
        };
        let at = self.posted.iter().position(|buffer| buffer.tag == tag && can_be_used(buffer) == is_usable);
        self.posted.remove(at.unwrap_or_else(|| panic!("tag {tag} is answered (usable: {is_usable}), and was not posted")))
    }
}

fn given_back(bytes: &[u8; 64]) -> impl Iterator<Item = (u16, u16)> {
    let count = usize::from(bytes[1]);
    assert!(bytes[0] == 0 && (1..=14).contains(&count) && bytes[2..4] == [0; 2], "{bytes:02x?}");
    (0..count).map(|index| (u16_at(bytes, 4 + 4 * index), u16_at(bytes, 6 + 4 * index)))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let examples = golden::examples();
    let example =
        |name: &str| examples.iter().find(|(known, _)| known == name).map(|(_, bytes)| bytes.clone()).unwrap_or_default();
    let (post, small) = (example("frame-post"), example("frame-small"));
    // Its rest is within the pools of this test.
    let mut send = example("frame-send");
    send[4..12].copy_from_slice(&[0x24, 0x08, 0, 0, 0x86, 0, 0, 0]);
    let of = |number: u8, message: &[u8]| [&[number][..], message].concat();
    let (to_second, from_second) = (of(0, &send), of(1, &small));
    let mut all: Vec<Vec<u8>> = [0, 0x10, 0x04, 0x41]
        .into_iter()
        .map(|choice| [&[choice][..], &of(5, &post), &of(6, &post), &to_second, &from_second, &of(0, &small), &[0xf0]].concat())
        .collect();
    // Several, of which the second is too short, and whose bytes are behind the end of the messages.
    let frame = |tag, length_bytes| PackedFrame { tag, length_bytes, offset_bytes: 1 };
    let packed = SendPacked::new(0, &[frame(1, 64), frame(2, 13), frame(3, 30), frame(4, 20)]).to_message().to_bytes();
    let bytes = [&[0xf0, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0][..], &[7; 60]].concat();
    all.push([&[0][..], &of(4, &post), &of(0, &packed[..60]), &bytes].concat());
    // Twice without addresses: to the port that has got a frame with them before, and from one that has sent none.
    let compressed = example("frame-compressed");
    let both = [of(0, &small), of(0, &compressed), of(1, &compressed)].concat();
    all.push([&[0x10][..], &of(5, &post), &of(6, &post), &of(0, &send), &both, &of(0, &compressed), &[0xf0]].concat());
    for (name, bytes) in examples.iter().filter(|(name, bytes)| name.starts_with("frame-") && bytes.len() == 60) {
        let queue = if name.contains("post") { 5 } else { 0 };
        all.push([&[0x13][..], &of(5, &post), &of(queue, bytes)].concat());
    }
    all
}
