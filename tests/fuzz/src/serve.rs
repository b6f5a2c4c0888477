//! Messages on a request ring, through the whole server of a queue: each is answered once, with its tag, whatever it says.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use fipsee_block::disk::{Disk, Engine, MemoryDisk, MemoryOptions};
use fipsee_block::server::{QueueServer, QueueSetup};
use fipsee_block::stats::QueueCounters;
use fipsee_block::wire::{self, KIND_COMPLETIONS, Operation, Segment, Status};
use fipsee_interop::golden;
use fipsee_ring::Message;
use fipsee_ring::memory::RegionTable;
use fipsee_ring::ring::{Cursor, Reader, Writer};
use fipsee_ring::tuning::Tuning;
use fipsee_serve::Turn;

use crate::channel::TestChannel;
use crate::take;

const DEPTH: u32 = 8;
const POOL_BYTES: u64 = 8192;

struct Fixture {
    channel: TestChannel,
    disk: MemoryDisk,
    engine: Engine,
}

thread_local! {
    static FIXTURE: RefCell<Fixture> = RefCell::new(Fixture {
        channel: TestChannel::new(DEPTH, POOL_BYTES),
        disk: MemoryDisk::new(&MemoryOptions { size_bytes: 64 << 10, ..Default::default() }).expect("memory"),
        engine: Engine::new(8).expect("an engine"),
    });
}

/// A byte says how many messages there are, each is 60 bytes; the rest is in the pool.
pub(crate) fn one(bytes: &[u8]) {
    FIXTURE.with_borrow_mut(|fixture| fixture.one(bytes));
}

impl Fixture {
    fn one(&mut self, mut bytes: &[u8]) {
        let Self { channel, disk, engine } = self;
        channel.clear();
        let [choice] = take(&mut bytes);
        let messages: Vec<Message> = (0..choice % 8).map(|_| Message::from_payload(&take(&mut bytes))).collect();
        let pool = &bytes[..bytes.len().min(4096)];
        channel.region.write(channel.layout.pool_offset_bytes, pool).expect("within the pool");
        let geometry = &channel.layout.queues[0];
        let setup = QueueSetup {
            depth: DEPTH,
            info: disk.info(),
            read_only: choice & 0x80 != 0,
            memory: RegionTable::of_pool(&channel.region, channel.layout.pool_offset_bytes, POOL_BYTES).expect("a good pool"),
            counters: Arc::new(QueueCounters::default()),
        };
        let mut server = QueueServer::new(channel.server(), 0, setup);
        if choice & 0x40 != 0 {
            server.announce_resize(&disk.info());
        }
        if choice & 0x20 != 0 {
            server.announce_detach();
        }
        let tuning = Tuning::default();
        let requests = geometry.request_ring(&channel.region, &tuning).expect("a good ring");
        Writer::new(requests, Cursor::at_start(geometry.request_start), &Tuning::default()).publish_all(&messages);
        let completions = geometry.completion_ring(&channel.region, &tuning).expect("a good ring");
        let mut answers = Reader::new(completions, Cursor::at_start(geometry.completion_start), &Tuning::default());
        while server.visit(disk, engine, Turn::whole(false)).requests > 0 {}
        assert_eq!(server.in_flight(), 0, "a memory disk answers at once");
        let mut due: HashMap<u16, u32> = HashMap::new();
        for tag in messages.iter().flat_map(|message| tags(&message.to_bytes())) {
            *due.entry(tag).or_default() += 1;
        }
        let mut answer = Message::ZERO;
        while answers.receive(&mut answer) {
            settle(&answer.to_bytes(), &mut due);
        }
        assert!(due.values().all(|count| *count == 0), "not answered: {due:x?}");
    }
}

/// The tags to be answered: one, or those of a packed message if it is well-formed (docs/protocol.md section 5.9).
fn tags(message: &[u8; 64]) -> Vec<u16> {
    let tag = |at: usize| u16::from_le_bytes([message[at], message[at + 1]]);
    let is_zero = |range: Range<usize>| message[range].iter().all(|byte| *byte == 0);
    let is_sound = message[3] == 0 && message[2] >> message[1].min(7) == 0;
    match (message[0], message[1]) {
        (8, 2) if is_sound && is_zero(40..60) => vec![tag(4), tag(6)],
        (8, 3) if is_sound && is_zero(58..60) => vec![tag(4), tag(6), tag(56)],
        _ => vec![tag(4)],
    }
}

fn settle(answer: &[u8; 64], due: &mut HashMap<u16, u32>) {
    if answer[1] != KIND_COMPLETIONS {
        return assert_eq!(answer[0], 1, "an event");
    }
    let count = usize::from(answer[0]);
    assert!((1..=14).contains(&count) && answer[2..4] == [0, 0], "{answer:02x?}");
    for entry in answer[4..4 + 4 * count].as_chunks::<4>().0 {
        let half = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
        assert!(Status::from_wire(half(2)).is_some(), "{answer:02x?}");
        let left = due.get_mut(&half(0)).filter(|count| **count > 0);
        *left.unwrap_or_else(|| panic!("an answer to no request: {answer:02x?}")) -= 1;
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let segment = |at: u32| Segment { offset_sectors: at, length_sectors: 2, region: 0 };
    let pair = [
        wire::request_one_segment(Operation::Write, 0, 1, 8, segment(0)),
        wire::request_one_segment(Operation::Read, 0, 2, 8, segment(4)),
    ];
    let pair = pair.iter().flat_map(|message| message.to_bytes()[..60].to_vec());
    let mut all = vec![[vec![2], pair.collect()].concat()];
    let requests = golden::examples().into_iter().filter(|(name, _)| name.starts_with("request-") || name.starts_with("packed-"));
    all.extend(requests.map(|(_, bytes)| [&[1][..], &bytes].concat()));
    all
}
