//! Packed messages of which a visit takes a part: no visit begins a request once its units are spent, and what is left is served by
//! the next one, or before the queue is handed over (docs/protocol.md section 5.9, docs/decisions/0033-fair-shares.md).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use fipsee_block::disk::{Disk, Engine, NullDisk, NullOptions, Submitted, Ticket};
use fipsee_block::packed::{Short, pack};
use fipsee_block::request::Request;
use fipsee_block::server::{QueueServer, QueueSetup};
use fipsee_block::wire::{BlockInfo, PROFILE, Segment, Status};
use fipsee_ring::Message;
use fipsee_ring::channel::{ClientQueue, RegionLayout};
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::handshake::Grant;
use fipsee_ring::memory::{RegionTable, Span};
use fipsee_serve::{Taken, Turn};
use fipsee_testkit::Random;

const DEPTH: u32 = 16;
const POOL_BYTES: u64 = 1 << 20;
const MIB_SECTORS: u16 = 2048;

/// Notes what it is asked for, in order, and answers what moves an odd number of sectors later.
struct Noting {
    info: BlockInfo,
    asked: Mutex<Vec<(u16, u64)>>,
}

impl Noting {
    fn take(&self) -> Vec<(u16, u64)> {
        std::mem::take(&mut self.asked.lock().expect("one thread"))
    }
}

impl Disk for Noting {
    const ANSWERS_AT_ONCE: bool = false;

    fn info(&self) -> BlockInfo {
        self.info
    }

    unsafe fn submit(&self, request: &Request, _: &[Span], _: Ticket, _: &mut Engine) -> Submitted {
        self.asked.lock().expect("one thread").push((request.tag, request.length_sectors));
        if request.length_sectors.is_multiple_of(2) { Submitted::Done(Status::Ok) } else { Submitted::Pending }
    }

    fn resize(&self, _: u64) -> Result<(), String> {
        Err("not this one".to_owned())
    }
}

struct Fixture {
    server: QueueServer,
    client: ClientQueue,
    disk: Noting,
    engine: Engine,
    memory: RegionTable,
    tags: VecDeque<u16>,
}

impl Fixture {
    fn new() -> Self {
        let null = NullDisk::new("disk", &NullOptions { size_bytes: 1 << 30, ..NullOptions::default() }).expect("a disk");
        let mut grant = Grant::new(RegionLayout::plan(&PROFILE, 1, DEPTH, POOL_BYTES, 0), |_| {}).expect("memory");
        let geometry = grant.layout.queues[0];
        let pool = (grant.layout.pool_offset_bytes, grant.layout.pool_bytes);
        let memory = || RegionTable::of_pool(&grant.region, pool.0, pool.1).expect("a good pool");
        let info = null.info();
        let setup = QueueSetup { depth: geometry.depth, info, read_only: false, memory: memory(), counters: Arc::default() };
        let (memory, queue) = (memory(), grant.queues.pop().expect("a queue"));
        let server = QueueServer::new(queue, 0, setup);
        let (doorbell, (ours, _)) = (EventDoorbell::new().expect("a doorbell"), SocketDoorbell::pair().expect("a doorbell"));
        let client = ClientQueue::open(&grant.region, &geometry, doorbell, ours, &geometry.tuning()).expect("rings");
        let disk = Noting { info, asked: Mutex::default() };
        let tags = (0..u16::try_from(DEPTH).expect("few")).collect();
        Self { server, client, disk, engine: Engine::new(8).expect("an engine"), memory, tags }
    }

    /// Requests of these lengths in one message, alone or packed: their tags.
    fn publish(&mut self, lengths: &[u16]) -> Vec<u16> {
        let short = |length_sectors: &u16| {
            let tag = self.tags.pop_front().expect("fewer than the depth");
            Short::new(true, tag, 0, Segment { offset_sectors: 0, length_sectors: *length_sectors, region: 0 })
        };
        let requests: Vec<Short> = lengths.iter().map(short).collect();
        let message = match &requests[..] {
            [one] => one.to_message(),
            [one, two] => pack([one, two]),
            [one, two, three] => pack([one, two, three]),
            _ => panic!("no such message"),
        };
        let count = u32::try_from(requests.len()).expect("few");
        self.client.requests.publish_several(&message, count).expect("room");
        requests.iter().map(|request| request.tag).collect()
    }

    fn visit(&mut self, units: u32) -> Taken {
        self.server.visit(&self.disk, &mut self.engine, Turn { alone: false, requests: u32::MAX, units })
    }

    /// The tags that were answered.
    fn answers(&mut self) -> Vec<u16> {
        let (mut message, mut tags) = (Message::ZERO, Vec::new());
        while self.client.completions.receive(&mut message) {
            let bytes = message.to_bytes();
            for [low, high, status @ ..] in bytes[4..4 + 4 * usize::from(bytes[0])].as_chunks::<4>().0 {
                assert_eq!(Status::from_wire(u16::from_le_bytes(*status)), Some(Status::Ok));
                self.client.requests.answered();
                tags.push(u16::from_le_bytes([*low, *high]));
            }
        }
        self.tags.extend(&tags);
        tags
    }

    fn finish(&mut self, tag: u16) {
        self.server.finish(Ticket { queue: 0, tag, started_ticks: 0 }, Status::Ok);
        self.server.flush();
    }

    /// Another server continues.
    fn hand_over(self) -> Self {
        let Self { server, client, disk, engine, memory, tags } = self;
        let state = server.state().expect("nothing is in flight or left");
        let setup = QueueSetup { depth: DEPTH, info: disk.info, read_only: false, memory, counters: Arc::default() };
        let memory = server.memory;
        let mut server = QueueServer::new(server.queue, 0, setup);
        server.restore(&state);
        Self { server, client, disk, engine, memory, tags }
    }
}

#[test]
fn a_visit_takes_no_more_of_a_message_than_its_units_allow() {
    let mut fixture = Fixture::new();
    let (long, short) = (fixture.publish(&[MIB_SECTORS; 3]), fixture.publish(&[8; 3]));
    for tag in &long {
        assert!(fixture.server.has_work());
        let taken = fixture.visit(2048);
        assert_eq!((taken.requests, fixture.answers()), (1, vec![*tag]), "1 MiB, and the next one is left");
    }
    assert_eq!((fixture.visit(2048).requests, fixture.answers()), (3, short));
    assert!(!fixture.server.has_work() && !fixture.server.arm_and_work_remains());
}

#[test]
fn what_is_left_of_a_message_is_work_and_is_served_before_a_queue_is_handed_over() {
    for lengths in [[2048, 2048, 2046], [2048, 2047, 2047]] {
        let mut fixture = Fixture::new();
        let tags = fixture.publish(&lengths);
        assert_eq!(fixture.visit(2048).requests, 1);
        assert!(fixture.server.has_work() && fixture.server.arm_and_work_remains());
        assert_eq!(fixture.server.state(), None);
        assert!(fixture.server.begin_deferred(&fixture.disk, &mut fixture.engine));
        assert!(!fixture.server.begin_deferred(&fixture.disk, &mut fixture.engine), "once");
        let asked: Vec<u16> = fixture.disk.take().into_iter().map(|(tag, _)| tag).collect();
        assert_eq!(asked, tags);
        for (tag, _) in tags.iter().zip(lengths).filter(|(_, length)| !length.is_multiple_of(2)) {
            assert_eq!(fixture.server.state(), None, "it is in flight");
            fixture.finish(*tag);
        }
        assert_eq!(fixture.answers().len(), 3);
        let mut fixture = fixture.hand_over();
        let more = fixture.publish(&[8]);
        assert_eq!((fixture.visit(2048).requests, fixture.answers()), (1, more));
    }
}

/// Each request is carried out once and in order, within the units, whatever the visits allow and however often servers change.
#[test]
fn parts_of_messages_are_neither_lost_nor_doubled() {
    let (mut random, mut fixture) = (Random(23), Fixture::new());
    let (mut published, mut asked, mut unfinished, mut split) = (VecDeque::new(), 0, Vec::new(), 0);
    while asked < 200_000 {
        let count = usize::try_from(random.below(3)).expect("few") + 1;
        if random.percent(60) && fixture.tags.len() >= count {
            let lengths: Vec<u16> = (0..count).map(|_| u16::try_from(random.below(300)).expect("few") + 1).collect();
            published.extend(fixture.publish(&lengths).into_iter().zip(lengths));
        }
        let units = u32::try_from(random.below(700)).expect("few") + 1;
        let begun = if random.percent(90) {
            let taken = fixture.visit(units);
            split += u32::from(taken.requests > 0 && fixture.server.state().is_none() && unfinished.is_empty());
            let begun = fixture.disk.take();
            let but_last = begun.split_last().map_or(0, |(_, before)| before.iter().map(|(_, sectors)| 8 + sectors).sum());
            assert!(but_last < units.into(), "{begun:?} within {units}");
            begun
        } else {
            fixture.server.begin_deferred(&fixture.disk, &mut fixture.engine);
            fixture.disk.take()
        };
        for (tag, sectors) in begun {
            assert_eq!(published.pop_front().map(|(tag, length): (u16, u16)| (tag, u64::from(length))), Some((tag, sectors)));
            asked += 1;
            unfinished.extend((!sectors.is_multiple_of(2)).then_some(tag));
        }
        if random.percent(50) {
            unfinished.drain(..).for_each(|tag| fixture.finish(tag));
        }
        fixture.answers();
        if fixture.server.state().is_some() && random.percent(10) {
            fixture = fixture.hand_over();
        }
    }
    assert!(split > 1000, "{split} messages were taken in parts");
}
