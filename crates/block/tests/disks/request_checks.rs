//! Checks of requests that cannot be seen at the daemon's disks: capabilities that every one has, and the end of a disk
//! (docs/protocol.md sections 5.3 and 5.6).

use std::sync::Arc;

use fipsee_block::disk::{Disk, Engine, MemoryDisk, MemoryOptions};
use fipsee_block::request::{RequestLimits, parse};
use fipsee_block::server::{QueueServer, QueueSetup};
use fipsee_block::wire::{
    self, CAPABILITY_FLUSH, CAPABILITY_WRITE, KIND_DETACH, Operation, PROFILE, Segment, Status, event, request_ack_event,
    request_flush, request_one_segment, request_range,
};
use fipsee_ring::Message;
use fipsee_ring::channel::{ClientQueue, RegionLayout};
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::handshake::Grant;
use fipsee_ring::memory::RegionTable;
use fipsee_serve::Turn;

const SECTORS: u64 = 2048;

fn status_of(message: &Message, capabilities: u32) -> Status {
    let limits =
        RequestLimits { sector_count: SECTORS, block_mask: 0, max_transfer_sectors: 256, max_range_sectors: 256, capabilities };
    let parsed = parse(message, &limits, &RegionTable::default(), &mut Vec::new());
    parsed.map_or_else(|status| status, |_| Status::Ok)
}

/// checks: R-5.3-18, R-5.3-23
#[test]
fn an_operation_without_capability_is_unsupported_in_its_place_among_the_checks() {
    let empty = |operation| request_range(operation, 0, 1, u64::MAX, 0);
    for (operation, capability) in
        [(Operation::Discard, wire::CAPABILITY_DISCARD), (Operation::WriteZeroes, wire::CAPABILITY_WRITE_ZEROES)]
    {
        assert_eq!(status_of(&empty(operation), CAPABILITY_WRITE), Status::Unsupported, "before the length is checked");
        assert_eq!(status_of(&empty(operation), CAPABILITY_WRITE | capability), Status::NoSegments);
        assert_eq!(status_of(&empty(operation), 0), Status::ReadOnly, "after the right to write");
        let with_aux = {
            let mut message = request_range(operation, 0, 1, 0, 8);
            message.set_word(7, 1);
            message
        };
        assert_eq!(status_of(&with_aux, CAPABILITY_WRITE), Status::Invalid, "after the fields");
        assert_eq!(status_of(&request_range(operation, 0, 1, 0, 8), CAPABILITY_WRITE | capability), Status::Ok);
    }
    assert_eq!(status_of(&request_flush(1), CAPABILITY_WRITE), Status::Unsupported);
    assert_eq!(status_of(&request_flush(1), CAPABILITY_FLUSH), Status::Ok);
}

/// checks: R-5.3-25, R-5.3-26, R-5.6-2, R-5.6-3
#[test]
fn a_removed_disk_answers_valid_requests_with_detached_and_others_as_before() {
    let disk = MemoryDisk::new(&MemoryOptions { size_bytes: SECTORS * 512, ..Default::default() }).expect("a disk");
    let mut engine = Engine::new(8).expect("an engine");
    let mut grant = Grant::new(RegionLayout::plan(&PROFILE, 1, 8, 4096, 0), |_| {}).expect("memory");
    let geometry = grant.layout.queues[0];
    let setup = QueueSetup {
        depth: geometry.depth,
        info: disk.info(),
        read_only: false,
        memory: RegionTable::of_pool(&grant.region, grant.layout.pool_offset_bytes, grant.layout.pool_bytes)
            .expect("a good pool"),
        counters: Arc::default(),
    };
    let mut server = QueueServer::new(grant.queues.pop().expect("a queue"), 0, setup);
    let (doorbell, (ours, _theirs)) = (EventDoorbell::new().expect("a doorbell"), SocketDoorbell::pair().expect("a doorbell"));
    let mut client = ClientQueue::open(&grant.region, &geometry, doorbell, ours, &geometry.tuning()).expect("rings");
    let segment = Segment { offset_sectors: 0, length_sectors: 1, region: 0 };
    let mut ask = |server: &mut QueueServer, message: &Message| {
        client.requests.publish(message).expect("room");
        while server.visit(&disk, &mut engine, Turn::whole(false)).requests > 0 {}
        let mut answer = Message::ZERO;
        assert!(client.completions.receive(&mut answer), "an answer");
        if answer == event_detach_as_taken(&answer) {
            assert!(client.completions.receive(&mut answer), "an answer behind the event");
        }
        client.requests.answered();
        Status::from_wire(u16::try_from(answer.word(0) >> 48).expect("16 bits")).expect("a status")
    };
    let ack = request_ack_event(9, KIND_DETACH);
    assert_eq!(ask(&mut server, &ack), Status::Invalid, "nothing to acknowledge yet");
    server.announce_detach();
    for operation in [Operation::Read, Operation::Write, Operation::GetInfo] {
        let good = request_one_segment(operation, 0, 1, 0, segment);
        assert_eq!(ask(&mut server, &good), Status::Detached, "{operation:?}");
    }
    assert_eq!(ask(&mut server, &request_flush(1)), Status::Detached);
    let beyond = request_one_segment(Operation::Read, 0, 1, SECTORS, segment);
    assert_eq!(ask(&mut server, &beyond), Status::OutOfRange, "the other checks come first");
    assert_eq!(ask(&mut server, &ack), Status::Ok, "it can be acknowledged to the end");
    assert_eq!(ask(&mut server, &ack), Status::Invalid, "once");
}

/// The detach event with the stamp that `taken` has.
fn event_detach_as_taken(taken: &Message) -> Message {
    let mut event = event(KIND_DETACH, 0);
    event.set_word(7, taken.word(7) & !0xffff_ffff);
    event
}
