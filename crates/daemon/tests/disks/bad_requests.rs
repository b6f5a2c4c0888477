//! Invalid requests are answered with the status that says what is wrong, and change nothing; the client that sent
//! them goes on, and others are not affected.

use std::time::Duration;

use fipsee_testkit::raw::{BOTH, RawClient, answers_of, attach_message};
use fipsee_testkit::{CorrectClient, Daemon, assert_says, eventually, finish_one};
use fipsee_block::client::{AttachOptions, Blocking, DiskError, Error};
use fipsee_block::packed::{Short, pack};
use fipsee_block::wire::{
    ATTACH_READ_ONLY, FLAG_FUA, FLAG_UNMAP, Operation, Segment, Status, request, request_ack_event, request_flush, request_head,
    request_indirect, request_inline, request_one_segment, request_range,
};
use fipsee_ring::Message;
use fipsee_ring::channel::{ClientQueue, QueueGeometry};
use fipsee_ring::control::{ACCESS_READ, ACCESS_WRITE};

use Operation::{Discard, Flush, GetInfo, Read, Write, WriteZeroes};

const SIZE_SECTORS: u64 = 16 << 11;
const TAG: u16 = 0xfedc;

fn piece(offset_sectors: u32, length_sectors: u16, region: u16) -> Segment {
    Segment { offset_sectors, length_sectors, region }
}

fn one(operation: Operation, sector: u64, segment: Segment) -> Message {
    request_one_segment(operation, 0, TAG, sector, segment)
}

fn with_word(mut message: Message, index: usize, value: u64) -> Message {
    message.set_word(index, message.word(index) | value);
    message
}

/// The disk holds a pattern, every bad request is answered as expected, and the pattern is untouched.
fn check(client: &mut RawClient, correct_client: &mut CorrectClient, cases: &[(&str, Message, Status)]) {
    let pattern = fipsee_testkit::stamp(64 << 10, 7, 7);
    client.fill_pool(0, &pattern);
    assert_eq!(client.ask(&one(Write, 0, piece(0, 128, 0))), Status::Ok);
    for (what, message, expected) in cases {
        assert_eq!(client.ask(message), *expected, "{what}");
    }
    client.fill_pool(0, &vec![0; pattern.len()]);
    assert_eq!(client.ask(&one(Read, 0, piece(0, 128, 0))), Status::Ok);
    let mut read = vec![0; pattern.len()];
    client.read_pool(0, &mut read);
    assert!(read == pattern, "a request that was refused changed the disk");
    correct_client.check();
}

fn setting() -> (Daemon, CorrectClient) {
    let daemon = Daemon::start(&[
        "--disk",
        "m=memory:16M",
        "--disk",
        "big=memory:16M,block=4096",
        "--disk",
        "ro=memory:16M,ro",
        "--disk",
        "f=file:{dir}/disk,size=64M",
    ]);
    let correct_client = CorrectClient::new(&daemon, "big");
    (daemon, correct_client)
}

#[test]
fn requests_outside_the_disk_or_too_long_are_refused() {
    let (daemon, mut correct_client) = setting();
    let mut client = RawClient::attach(&daemon, &attach_message("m", 1, 64, 0));
    let _memory = client.register_new(1, BOTH, 64 << 20);
    let sector = piece(0, 1, 0);
    check(
        &mut client,
        &mut correct_client,
        &[
            ("behind the end", one(Read, SIZE_SECTORS, sector), Status::OutOfRange),
            ("across the end", one(Write, SIZE_SECTORS - 1, piece(0, 2, 0)), Status::OutOfRange),
            ("at the largest sector", one(Write, u64::MAX, sector), Status::OutOfRange),
            ("whose byte offset wraps", one(Write, 1 << 55, sector), Status::OutOfRange),
            ("one sector too long", one(Read, 0, piece(0, 32_769, 1)), Status::TooLong),
            ("as long as a segment gets", one(Write, 0, piece(0, u16::MAX, 1)), Status::TooLong),
            ("too long together", request_inline(Read, 0, TAG, 0, &[piece(0, 30_000, 1); 5]), Status::TooLong),
            ("discard behind the end", request_range(Discard, 0, TAG, SIZE_SECTORS, 1), Status::OutOfRange),
            ("zeroes that wrap", request_range(WriteZeroes, 0, TAG, u64::MAX, 2), Status::OutOfRange),
            ("discard too long", request_range(Discard, 0, TAG, 0, u64::MAX), Status::TooLong),
            ("discard of nothing", request_range(Discard, 0, TAG, 0, 0), Status::NoSegments),
        ],
    );
    let last = one(Write, SIZE_SECTORS - 1, sector);
    assert_eq!(client.ask(&last), Status::Ok, "the last sector exists");
}

#[test]
fn requests_misaligned_to_a_block_of_4096_are_refused() {
    let (daemon, mut correct_client) = setting();
    let mut client = RawClient::attach(&daemon, &attach_message("big", 1, 64, 0));
    let mut other = CorrectClient::new(&daemon, "m");
    for (message, what) in [
        (one(Read, 1, piece(0, 8, 0)), "offset"),
        (one(Write, 0, piece(0, 7, 0)), "length"),
        (request_inline(Write, 0, TAG, 0, &[piece(0, 4, 0), piece(8, 3, 0)]), "length together"),
        (request_range(Discard, 0, TAG, 4, 8), "discard"),
        (request_range(WriteZeroes, 0, TAG, 8, 4), "zeroes"),
    ] {
        assert_eq!(client.ask(&message), Status::Misaligned, "{what}");
    }
    let halves = request_inline(Read, 0, TAG, 8, &[piece(0, 4, 0), piece(8, 4, 0)]);
    assert_eq!(client.ask(&halves), Status::Ok, "pieces need not be whole blocks, their sum must");
    other.check();
    correct_client.check();
}

#[test]
fn memory_that_was_not_handed_over_or_not_for_this_is_refused() {
    let (daemon, mut correct_client) = setting();
    let mut client = RawClient::attach(&daemon, &attach_message("m", 1, 64, 0));
    let pool_sectors = u32::try_from(client.layout.pool_bytes >> 9).expect("small");
    let _readable = client.register_new(2, ACCESS_READ, 1 << 20);
    let _writable = client.register_new(3, ACCESS_WRITE, 1 << 20);
    check(
        &mut client,
        &mut correct_client,
        &[
            ("length 0", one(Write, 0, piece(0, 0, 0)), Status::NoSegments),
            ("length 0 after one", request_inline(Read, 0, TAG, 0, &[piece(0, 1, 0), piece(0, 0, 0)]), Status::NoSegments),
            ("behind the pool", one(Read, 0, piece(pool_sectors, 1, 0)), Status::BadMemory),
            ("across its end", one(Write, 0, piece(pool_sectors - 1, 2, 0)), Status::BadMemory),
            ("far away", one(Read, 0, piece(u32::MAX, u16::MAX, 0)), Status::BadMemory),
            ("no such region", one(Read, 0, piece(0, 1, 1)), Status::BadMemory),
            ("no such id", one(Read, 0, piece(0, 1, 64)), Status::BadMemory),
            ("the last id", one(Write, 0, piece(0, 1, u16::MAX)), Status::BadMemory),
            ("may not be stored to", one(Read, 0, piece(0, 1, 2)), Status::BadMemory),
            ("may not be loaded from", one(Write, 0, piece(0, 1, 3)), Status::BadMemory),
            ("across its end", one(Read, 0, piece(2047, 2, 3)), Status::BadMemory),
            ("info without access", one(GetInfo, 0, piece(0, 1, 2)), Status::BadMemory),
            ("info outside", one(GetInfo, 0, piece(pool_sectors, 1, 0)), Status::BadMemory),
        ],
    );
    assert_eq!(client.ask(&one(Read, 0, piece(2047, 1, 3))), Status::Ok);
    assert_eq!(client.ask(&one(Write, 256, piece(2047, 1, 2))), Status::Ok);
}

#[test]
fn unknown_operations_flags_and_reserved_fields_are_refused() {
    let (daemon, mut correct_client) = setting();
    let mut client = RawClient::attach(&daemon, &attach_message("m", 1, 64, 0));
    let sector = piece(0, 1, 0);
    let unknown = |operation: u8| {
        let message = one(Write, 0, sector);
        Message::from_words([message.word(0) & !0xff | u64::from(operation), 0, sector.to_word(), 0, 0, 0, 0, 0])
    };
    let counted = |operation, segments| {
        request(
            request_head(operation, segments, 0, TAG),
            0,
            [sector, Segment::ZERO, Segment::ZERO, Segment::ZERO, Segment::ZERO],
            0,
        )
    };
    let mut cases = vec![
        ("operation 0", unknown(0), Status::Unsupported),
        ("operation 9", unknown(9), Status::Unsupported),
        ("operation 255", unknown(255), Status::Unsupported),
        ("reserved bytes", with_word(one(Write, 0, sector), 0, 1 << 48), Status::Invalid),
        ("the last reserved bit", with_word(one(Read, 0, sector), 0, 1 << 63), Status::Invalid),
        ("FUA of a read", with_word(one(Read, 0, sector), 0, u64::from(FLAG_FUA) << 16), Status::Invalid),
        ("unmap of a write", with_word(one(Write, 0, sector), 0, u64::from(FLAG_UNMAP) << 16), Status::Invalid),
        ("an unknown flag", with_word(one(Write, 0, sector), 0, 4 << 16), Status::Invalid),
        ("no segment", counted(Read, 0), Status::NoSegments),
        ("no segment", counted(Write, 0), Status::NoSegments),
        ("6 segments", counted(Write, 6), Status::Invalid),
        ("254 segments", counted(Read, 254), Status::Invalid),
        ("a segment of a flush", counted(Flush, 1), Status::Invalid),
        ("two of get-info", counted(GetInfo, 2), Status::Invalid),
        ("aux of a flush", with_word(request_flush(TAG), 7, 1), Status::Invalid),
        ("FUA of a flush", with_word(request_flush(TAG), 0, u64::from(FLAG_FUA) << 16), Status::Invalid),
        ("FUA of a discard", request_range(Discard, FLAG_FUA, TAG, 0, 1), Status::Invalid),
        ("an event that was none", request_ack_event(TAG, 1), Status::Invalid),
        ("an unknown event", request_ack_event(TAG, 200), Status::Invalid),
    ];
    for index in 2..7 {
        cases.push(("unused word of a flush", with_word(request_flush(TAG), index, 1), Status::Invalid));
        let discard = request_range(Discard, 0, TAG, 0, 1);
        if index > 2 {
            cases.push(("unused word of a discard", with_word(discard, index, 1 << 63), Status::Invalid));
        }
    }
    check(&mut client, &mut correct_client, &cases);
}

#[test]
fn indirect_tables_are_bounded_and_do_not_nest() {
    let (daemon, mut correct_client) = setting();
    let mut client = RawClient::attach(&daemon, &attach_message("m", 1, 64, 0));
    let _writable = client.register_new(3, ACCESS_WRITE, 1 << 20);
    let pool_sectors = u32::try_from(client.layout.pool_bytes >> 9).expect("small");
    // Tables: 257 good entries at 128 KiB; one bad entry each at 256 KiB and 257 KiB.
    let entries = |segment: Segment, count: usize| segment.to_word().to_le_bytes().repeat(count);
    client.fill_pool(128 << 10, &entries(piece(1024, 1, 0), 257));
    client.fill_pool(256 << 10, &entries(piece(0, 0, 0), 1));
    client.fill_pool(257 << 10, &entries(piece(0, 1, 9), 1));
    let (good, zero, wrong) = (piece(256, 8, 0), piece(512, 1, 0), piece(514, 1, 0));
    let indirect = |operation, table, count| request_indirect(operation, 0, TAG, 1024, table, count);
    check(
        &mut client,
        &mut correct_client,
        &[
            ("0 entries", indirect(Read, good, 0), Status::NoSegments),
            ("257 entries", indirect(Read, good, 257), Status::TooLong),
            ("all the entries there are", indirect(Write, good, u32::MAX), Status::TooLong),
            ("more entries than the table holds", indirect(Write, piece(256, 1, 0), 65), Status::BadMemory),
            ("table behind the pool", indirect(Read, piece(pool_sectors, 4, 0), 1), Status::BadMemory),
            ("table in no region", indirect(Read, piece(0, 4, 8), 1), Status::BadMemory),
            ("table that may not be loaded", indirect(Read, piece(0, 4, 3), 1), Status::BadMemory),
            ("empty table", indirect(Read, piece(256, 0, 0), 1), Status::NoSegments),
            ("entry of length 0", indirect(Read, zero, 1), Status::NoSegments),
            ("entry in no region", indirect(Write, wrong, 1), Status::BadMemory),
            ("256 entries", indirect(Read, good, 256), Status::Ok),
            ("get-info through a table", request_indirect(GetInfo, 0, TAG, 0, good, 1), Status::Invalid),
        ],
    );
    // A table that names itself is data like any other: it was copied before the read overwrites it.
    let itself = piece(256, 4, 0);
    client.fill_pool(128 << 10, &entries(itself, 256));
    assert_eq!(client.ask(&indirect(Read, itself, 256)), Status::Ok);
    correct_client.check();
}

#[test]
fn writes_to_what_is_read_only_are_refused_with_words() {
    let (daemon, mut correct_client) = setting();
    for (disk, flags) in [("ro", 0), ("m", ATTACH_READ_ONLY), ("f", ATTACH_READ_ONLY)] {
        let mut client = RawClient::attach(&daemon, &attach_message(disk, 1, 8, flags));
        for message in
            [one(Write, 0, piece(0, 1, 0)), request_range(Discard, 0, TAG, 0, 8), request_range(WriteZeroes, 0, TAG, 0, 8)]
        {
            assert_eq!(client.ask(&message), Status::ReadOnly, "{disk}");
        }
        assert_eq!(client.ask(&one(Read, 0, piece(0, 1, 0))), Status::Ok, "{disk}");
    }
    let options = AttachOptions { read_only: true, ..Daemon::options("m") };
    let mut reader = Blocking::attach(&daemon.socket(), &options).expect("attached");
    let error = reader.write_at(&[0; 512], 0).expect_err("read-only").to_string();
    assert_says(&error, &["the disk is read-only", "attach it for writing"]);
    correct_client.check();
}

/// The status of one discard that is longer than the disk's maximum.
fn end_of_a_long_discard(daemon: &Daemon) -> Status {
    let (_disk, mut queue) = daemon.client(&Daemon::options("m"));
    queue.discard(0, 1 << 31, 1).expect("room");
    finish_one(&mut queue)
}

#[test]
fn client_library_says_in_words_what_was_wrong() {
    let (daemon, _correct_client) = setting();
    let mut client = daemon.blocking("m");
    let end = client.info().size_bytes();
    let error = client.read_at(&mut [0; 512], end).expect_err("behind the end");
    assert_says(&error.to_string(), &["past the end of the disk", "fipsee info"]);
    let error = client.read_at(&mut [0; 100], 0).expect_err("no sectors");
    assert!(matches!(error, Error::Service(DiskError::Request(Status::Misaligned))));
    assert_says(&error.to_string(), &["multiples of the disk's logical block size"]);
    let error = client.discard(0, 1 << 40).expect_err("longer than the disk, however it is split");
    assert_says(&error.to_string(), &["past the end of the disk", "fipsee info"]);
    let error = Error::Service(DiskError::Request(end_of_a_long_discard(&daemon)));
    assert_says(&error.to_string(), &["longer than the disk's maximum", "split it"]);
    client.write_at(&[1; 512], end - 512).expect("the client goes on");
}

/// checks: R-5-2
#[test]
fn more_requests_than_the_depth_wait_their_turn() {
    let (daemon, mut correct_client) = setting();
    let mut client = RawClient::attach(&daemon, &attach_message("f", 1, 1, 0));
    let _memory = client.register_new(1, BOTH, 16 << 20);
    // A depth of 1 has rings of 2 and 4 slots: a client that ignores its depth publishes twice what it may.
    let correct = client.layout.queues[0];
    assert_eq!((correct.depth, correct.request_slots), (1, 2));
    let deep = QueueGeometry { depth: 2, ..correct };
    let old = client.queues.remove(0);
    client
        .queues
        .push(ClientQueue::open(&client.region, &deep, old.daemon_doorbell, old.our_doorbell, &deep.tuning()).expect("rings"));
    for round in 0..10 {
        // The slow one first. Were both in flight, the quick one would overtake it.
        client.publish(&request_one_segment(Write, FLAG_FUA, 1, 0, piece(0, 32_768, 1)));
        client.publish(&request_one_segment(Read, 0, 2, 100_000, piece(0, 1, 0)));
        let tags: Vec<u64> = (0..2).map(|_| client.next_completion().word(0) >> 32 & 0xffff).collect();
        client.queues[0].requests.answered();
        client.queues[0].requests.answered();
        assert_eq!(tags, [1, 2], "round {round}");
        correct_client.check();
    }
}

/// A packed message is refused as a whole, by the tag of its first request, or each of its requests is refused alone.
#[test]
fn packed_requests_that_are_wrong_are_refused() {
    let (daemon, mut correct_client) = setting();
    let mut client = RawClient::attach(&daemon, &attach_message("m", 1, 64, 0));
    let sector = piece(0, 1, 0);
    let packed = pack([TAG, TAG ^ 1].map(|tag| Short::new(true, tag, 0, sector)).each_ref());
    check(
        &mut client,
        &mut correct_client,
        &[
            ("no request", with_word(Message::ZERO, 0, packed.word(0) & !0xff00), Status::Invalid),
            ("255 requests", with_word(packed, 0, 0xff00), Status::Invalid),
            ("a write beyond the count", with_word(packed, 0, 4 << 16), Status::Invalid),
            ("a reserved byte", with_word(packed, 0, 1 << 24), Status::Invalid),
            ("a third request of two", with_word(packed, 6, 1), Status::Invalid),
            ("reserved bytes at the end", with_word(packed, 7, 1 << 16), Status::Invalid),
        ],
    );
    let mixed =
        [Short::new(false, 1, SIZE_SECTORS, sector), Short::new(true, 2, 0, piece(0, 1, 9)), Short::new(false, 3, 0, sector)];
    let answers = client.ask_several(&pack(mixed.each_ref()), 3);
    assert_eq!(answers, [(1, Status::OutOfRange), (2, Status::BadMemory), (3, Status::Ok)].into());
    correct_client.check();
}

/// Is a request with a tag of at least `first` answered? If the completion ring has overflowed, its reader waits in vain.
fn is_answered(client: &mut RawClient, first: u16) -> bool {
    while let Some(message) = client.completion_within(Duration::from_millis(100)) {
        if answers_of(&message).iter().any(|(tag, _)| *tag >= first) {
            return true;
        }
    }
    false
}

/// A client that packs three requests into each message exceeds its depth. The daemon carries them out; the
/// client may find its answers overwritten, and no other client is affected.
/// checks: R-5.7-1, R-6-4
#[test]
fn packed_requests_beyond_the_depth_harm_no_other_client() {
    const ROUNDS: u16 = 500;
    let (daemon, mut correct_client) = setting();
    let stamp = fipsee_testkit::stamp(512, 7, 7);
    for disk in ["m", "f"] {
        let mut reader = daemon.blocking(disk);
        let mut rounds = 0..ROUNDS;
        while !rounds.is_empty() {
            let mut client = RawClient::attach(&daemon, &attach_message(disk, 1, 1, 0));
            client.fill_pool(0, &stamp);
            let request = |tag| Short::new(true, tag, u64::from(tag), piece(0, 1, 0));
            let overwritten = rounds.any(|round| {
                let requests = [3 * round, 3 * round + 1, 3 * round + 2].map(request);
                client.publish(&pack(requests.each_ref()));
                let answered = is_answered(&mut client, 3 * round);
                client.queues[0].requests.answered();
                !answered
            });
            if overwritten {
                let last = u64::from(3 * rounds.start - 1);
                let mut found = [0; 512];
                eventually("the last write is done", || {
                    reader.read_at(&mut found, last * 512).expect("read");
                    found[..] == stamp[..]
                });
            }
            correct_client.check();
        }
        let mut written = vec![0; 3 * usize::from(ROUNDS) * 512];
        reader.read_at(&mut written, 0).expect("read");
        assert!(written.chunks(512).all(|sector| sector == stamp), "{disk}: a write is missing");
    }
}
