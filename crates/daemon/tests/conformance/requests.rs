//! Sections 5.1 to 5.4, 5.8 and 5.9: requests, their checks and their effects.

use fipsee_testkit::bytes::*;
use fipsee_testkit::{CorrectClient, Daemon};
use rustix::fs::SealFlags;

use super::client::Client;

const SECTORS: u64 = 2048;
const TAG: u16 = 0xbeef;
/// Registered memory: readable only, writable only, and both.
const LOAD: u16 = 2;
const STORE: u16 = 3;
const LARGE: u16 = 4;

fn daemon() -> (Daemon, CorrectClient) {
    let daemon = Daemon::start(&[
        "--disk",
        "a=memory:1M",
        "--disk",
        "ro=memory:1M,ro",
        "--disk",
        "b=memory:1M,block=4096",
        "--disk",
        "w=memory:1M",
        "--disk",
        "n=null:1G",
    ]);
    let correct_client = CorrectClient::new(&daemon, "w");
    (daemon, correct_client)
}

fn client(daemon: &Daemon, disk: &str) -> Client {
    let client = Client::attach(daemon, &Wanted { depth: 64, ..Wanted::disk(disk) });
    for (id, access, length) in [(LOAD, 1, 4096), (STORE, 2, 4096), (LARGE, 3, 64 << 20)] {
        let file = memory_file(length, SealFlags::SHRINK);
        assert_eq!(client.register(id, access, length, &file).kind(), REGISTERED);
    }
    client
}

/// What is wrong, the request, its status.
type Case = (&'static str, [u8; 60], u16);

/// Every request gets its status, and the disk's pattern is unchanged.
fn check(client: &mut Client, correct_client: &mut CorrectClient, cases: &[Case]) {
    let is_writable = u32_at(client.info(), 36) & 1 != 0;
    client.fill(0, &vec![0x5a; 64 << 10]);
    if is_writable {
        assert_eq!(client.ask(&transfer(WRITE, TAG, 0, (0, 128, 0))), 0);
    }
    for (what, request, status) in cases {
        assert_eq!(client.ask(request), *status, "{what}");
    }
    let expected = if is_writable { 0x5a } else { 0 };
    assert_eq!(client.ask(&transfer(READ, TAG, 0, (0, 128, 0))), 0);
    assert!(client.pool(0, 64 << 10).iter().all(|byte| *byte == expected), "a request that was refused changed the disk");
    correct_client.check();
}

fn at<const N: usize>(mut request: [u8; 60], offset: usize, value: [u8; N]) -> [u8; 60] {
    request[offset..offset + N].copy_from_slice(&value);
    request
}

fn range(operation: u8, flags: u16, sector: u64, length: u64) -> [u8; 60] {
    request((operation, 0, flags), TAG, sector, &length.to_le_bytes(), 0)
}

fn one(operation: u8, sector: u64, piece: Piece) -> [u8; 60] {
    transfer(operation, TAG, sector, piece)
}

fn counted(operation: u8, segment_count: u8, middle: &[u8], aux: u32) -> [u8; 60] {
    request((operation, segment_count, 0), TAG, 0, middle, aux)
}

const GOOD: Piece = (0, 1, 0);

/// checks: R-5.3-1, R-5.3-2, R-5.3-3, R-5.3-4, R-5.3-6, R-5.3-7, R-5.3-12, R-5.3-13, R-5.3-15, R-6-2, R-6-4
#[test]
fn reads_and_writes_get_the_status_of_the_first_check_they_fail() {
    let (daemon, mut correct_client) = daemon();
    let mut client = client(&daemon, "a");
    let pool = u32::try_from(client.pool_bytes / 512).expect("small");
    let read = one(READ, 0, GOOD);
    let mut cases: Vec<Case> = vec![
        ("operation 0", at(read, 0, [0]), 3),
        ("operation 9, with reserved bytes", at(at(read, 0, [9]), 6, [1]), 3),
        ("operation 255", at(read, 0, [255]), 3),
        ("reserved bytes, with a wrong flag", at(at(read, 7, [1]), 2, [4]), 2),
        ("the last reserved bit", at(read, 7, [0x80]), 2),
        ("UNMAP of a write", at(one(WRITE, 0, GOOD), 2, [2]), 2),
        ("a flag, with no segment", at(at(read, 2, [2]), 1, [0]), 2),
        ("FUA of a read", at(read, 2, [1]), 2),
        ("the last flag of a write", at(one(WRITE, 0, GOOD), 3, [0x80]), 2),
        ("no segment, beyond the end", at(one(READ, SECTORS, GOOD), 1, [0]), 11),
        ("no segment", at(one(WRITE, 0, GOOD), 1, [0]), 11),
        ("6 segments, the first wrong", at(one(READ, 0, (0, 0, 0)), 1, [6]), 2),
        ("254 segments", at(one(WRITE, 0, GOOD), 1, [254]), 2),
        ("S1: id 64, length 0", one(READ, 0, (0, 0, 64)), 4),
        ("S1: the last id", one(WRITE, 0, (0, 1, u16::MAX)), 4),
        ("S2: length 0 of no memory", one(READ, 0, (0, 0, 9)), 11),
        ("S2: length 0 beyond the end of memory", one(READ, 0, (pool + 9, 0, 0)), 11),
        ("S3: no memory of that id", one(READ, 0, (0, 1, 9)), 4),
        ("S3: beyond its end", one(WRITE, 0, (pool, 1, 0)), 4),
        ("S3: across its end, beyond the disk", one(READ, SECTORS, (pool - 1, 2, 0)), 4),
        ("S3: across the end of what was registered", one(READ, 0, (7, 2, STORE)), 4),
        ("S3: far beyond", one(READ, 0, (u32::MAX, u16::MAX, 0)), 4),
        ("S3: not to be stored into", one(READ, 0, (0, 1, LOAD)), 4),
        ("S3: not to be loaded from", one(WRITE, 0, (0, 1, STORE)), 4),
        ("too long, beyond the end", one(READ, SECTORS, (0, 32_769, LARGE)), 10),
        ("as long as a segment gets", one(WRITE, 0, (0, u16::MAX, LARGE)), 10),
        ("as long as may be, beyond the end", one(READ, 0, (0, 32_768, LARGE)), 6),
        ("behind the end", one(READ, SECTORS, GOOD), 6),
        ("across the end", one(WRITE, SECTORS - 1, (0, 2, 0)), 6),
        ("the last sector of all", one(WRITE, u64::MAX, GOOD), 6),
        ("bytes that wrap", one(READ, 1 << 55, GOOD), 6),
    ];
    // The first wrong segment decides, whatever follows it.
    for (what, second, status) in [("S2 second", (0, 0, 0), 11), ("S3 second", (0, 1, 9), 4), ("S1 second", (0, 0, 99), 4)] {
        let segments = [segment(GOOD), segment(second), segment((0, 0, 64))].concat();
        cases.push((what, counted(READ, 3, &segments, 0), status));
    }
    let long = segment((0, 10_000, LARGE)).repeat(5);
    cases.push(("too long together", counted(WRITE, 5, &long, 0), 10));
    check(&mut client, &mut correct_client, &cases);
    assert_eq!(client.ask(&one(WRITE, SECTORS - 1, GOOD)), 0, "the last sector exists");
}

/// checks: R-5.3-8, R-5.3-9, R-5.3-10, R-5.3-11, R-5.3-12, R-5.2-2, R-5.2-4
#[test]
fn tables_are_checked_before_what_they_hold() {
    let (daemon, mut correct_client) = daemon();
    let mut client = client(&daemon, "a");
    let pool = u32::try_from(client.pool_bytes / 512).expect("small");
    client.fill(128 << 10, &segment((1024, 1, 0)).repeat(257));
    for (offset, entry) in [(256, (0, 0, 0)), (257, (0, 1, 9)), (258, (0, 0, 64))] {
        client.fill(offset << 10, &segment(entry));
    }
    let good = (256, 5, 0);
    let table = |operation, piece, entries| counted(operation, 255, &segment(piece), entries);
    check(
        &mut client,
        &mut correct_client,
        &[
            ("no entry of no table", table(READ, (0, 0, 99), 0), 11),
            ("257 entries", table(READ, good, 257), 10),
            ("too many entries of no table", table(WRITE, (0, 0, 99), u32::MAX), 10),
            ("S1 of the table", table(READ, (0, 0, 64), 1), 4),
            ("S2 of the table: length 0", table(READ, (256, 0, 0), 1), 11),
            ("S2 of the table: length 0 of no memory", table(READ, (256, 0, 9), 1), 11),
            ("S3 of the table: no memory of that id", table(READ, (0, 4, 9), 1), 4),
            ("S3 of the table: outside", table(READ, (pool, 1, 0), 1), 4),
            ("S3 of the table: not to be loaded from", table(READ, (0, 1, STORE), 1), 4),
            ("a table shorter than its entries", table(READ, (256, 1, 0), 65), 4),
            ("S2 of an entry", table(READ, (512, 1, 0), 1), 11),
            ("S3 of an entry", table(WRITE, (514, 1, 0), 1), 4),
            ("S1 of an entry", table(READ, (516, 1, 0), 1), 4),
            ("64 entries fill a sector", table(READ, (256, 1, 0), 64), 0),
            ("256 entries of a longer table", table(READ, good, 256), 0),
        ],
    );
    // A table that names itself: the table was copied before the read overwrites it.
    client.fill(128 << 10, &segment((256, 4, 0)).repeat(256));
    assert_eq!(client.ask(&table(READ, (256, 4, 0), 256)), 0);
    correct_client.check();
}

/// checks: R-5.3-14, R-5.3-21, R-5.3-22, R-5.3-15
#[test]
fn blocks_of_4096_bytes_must_be_whole() {
    let (daemon, mut correct_client) = daemon();
    let mut client = client(&daemon, "b");
    assert_eq!(u32_at(client.info(), 16), 4096);
    let halves = [segment((0, 4, 0)), segment((8, 4, 0))].concat();
    let short = [segment((0, 4, 0)), segment((8, 3, 0))].concat();
    check(
        &mut client,
        &mut correct_client,
        &[
            ("sector, beyond the end", one(READ, SECTORS + 1, (0, 8, 0)), 9),
            ("length", one(WRITE, 0, (0, 7, 0)), 9),
            ("length together", counted(WRITE, 2, &short, 0), 9),
            ("discard from", range(DISCARD, 0, 4, 8), 9),
            ("zeroes to, beyond the end", range(ZERO, 0, SECTORS, 4), 9),
            ("zeroes beyond the end", range(ZERO, 0, SECTORS, 8), 6),
            ("whole, beyond the end", one(READ, SECTORS, (0, 8, 0)), 6),
            ("segments that are whole together", counted(READ, 2, &halves, 0), 0),
        ],
    );
}

/// checks: R-5.3-16, R-5.3-19, R-5.3-20, R-5.3-22, R-5.3-24, R-5.3-26, R-5.1-1
#[test]
fn other_requests_get_the_status_of_the_first_check_they_fail() {
    let (daemon, mut correct_client) = daemon();
    let mut client = client(&daemon, "a");
    let longest = u64::from(u32_at(client.info(), 28));
    let get_info = |piece| request((GET_INFO, 1, 0), TAG, 0, &segment(piece), 0);
    let mut cases: Vec<Case> = vec![
        ("discard of nothing, misplaced", range(DISCARD, 0, u64::MAX, 0), 11),
        ("zeroes of nothing", range(ZERO, 0, 0, 0), 11),
        ("discard too long, beyond the end", range(DISCARD, 0, SECTORS, longest + 1), 10),
        ("the longest discard of all", range(DISCARD, 0, 0, u64::MAX), 10),
        ("as long as may be, beyond the end", range(ZERO, 0, 0, longest), 6),
        ("zeroes behind the end", range(ZERO, 0, SECTORS, 1), 6),
        ("discard that wraps", range(DISCARD, 0, u64::MAX, 2), 6),
        ("FUA of a discard", range(DISCARD, 1, 0, 8), 2),
        ("UNMAP of a discard", range(DISCARD, 2, 0, 8), 2),
        ("a flag of zeroes", range(ZERO, 4, 0, 8), 2),
        ("a segment of zeroes", at(range(ZERO, 0, 0, 8), 1, [1]), 2),
        ("a segment of a flush", at(flush(TAG), 1, [1]), 2),
        ("FUA of a flush", at(flush(TAG), 2, [1]), 2),
        ("get-info at a sector", at(get_info(GOOD), 8, [1]), 2),
        ("get-info without a segment", at(get_info((0, 0, 64)), 1, [0]), 2),
        ("get-info with two", at(get_info(GOOD), 1, [2]), 2),
        ("get-info with a table", at(at(get_info(GOOD), 1, [255]), 56, [1]), 2),
        ("get-info: S1", get_info((0, 0, 64)), 4),
        ("get-info: S2", get_info((0, 0, 9)), 11),
        ("get-info: S3", get_info((0, 1, LOAD)), 4),
        ("get-info: S3, beyond its end", get_info((8, 1, STORE)), 4),
        ("a segment of ack-event", at(ack_event(TAG, 1), 1, [1]), 2),
        ("ack-event of nothing", ack_event(TAG, 1), 2),
        ("ack-event of what is none", ack_event(TAG, u32::MAX), 2),
    ];
    // Every unused byte of an operation.
    for (what, good, used) in [
        ("a flush", flush(TAG), 8),
        ("ack-event", ack_event(TAG, 1), 8),
        ("a discard", range(DISCARD, 0, 0, 8), 24),
        ("zeroes", range(ZERO, 0, 0, 8), 24),
        ("get-info", get_info(GOOD), 24),
    ] {
        let aux_is_used = good[0] == ACK_EVENT;
        let end = if aux_is_used { 56 } else { 60 };
        cases.extend((used..end).map(|offset| (what, at(good, offset, [1]), 2)));
    }
    check(&mut client, &mut correct_client, &cases);
}

/// checks: R-5.3-4, R-5.3-5, R-5.3-16, R-5.3-17
#[test]
fn what_a_read_only_disk_lacks_is_checked_in_its_place() {
    let (daemon, mut correct_client) = daemon();
    let mut client = client(&daemon, "ro");
    assert_eq!(u32_at(client.info(), 36) & 5, 0, "neither write nor FUA");
    check(
        &mut client,
        &mut correct_client,
        &[
            ("FUA without the capability", at(one(WRITE, 0, GOOD), 2, [1]), 2),
            ("a write, of no segment", at(one(WRITE, 0, GOOD), 1, [0]), 5),
            ("a write", one(WRITE, 0, GOOD), 5),
            ("FUA zeroes without the capability", range(ZERO, 1, 0, 8), 2),
            ("zeroes, of nothing", range(ZERO, 0, 0, 0), 5),
            ("a discard", range(DISCARD, 0, 0, 8), 5),
            ("a flush", flush(TAG), 0),
        ],
    );
}

/// checks: R-5.1-2, R-5.2-1, R-5.4-1, R-5.4-2
#[test]
fn segments_are_filled_and_emptied_in_their_order() {
    let (daemon, _correct_client) = daemon();
    let mut client = client(&daemon, "a");
    let bytes: Vec<u8> = (0_u16..5 * 512).map(|at| (at / 512 + 1).to_le_bytes()[0]).collect();
    client.fill(0, &bytes);
    // Five segments from the last sector to the first, written from sector 100 on.
    let backwards: Vec<u8> = (0..5).rev().flat_map(|sector| segment((sector, 1, 0))).collect();
    assert_eq!(client.ask(&request((WRITE, 5, 0), TAG, 100, &backwards, 0xffff_ffff)), 0, "aux is ignored");
    assert_eq!(client.ask(&one(READ, 100, (8, 5, 0))), 0);
    let found: Vec<u8> = client.pool(8 * 512, 5 * 512).chunks(512).map(|sector| sector[0]).collect();
    assert_eq!(found, [5, 4, 3, 2, 1]);
    // Segments beyond the count are ignored.
    let two = [segment((20, 1, 0)), segment((22, 1, 0)), [0xff; 8], [0xff; 8], [0xff; 8]].concat();
    assert_eq!(client.ask(&request((READ, 2, 0), TAG, 100, &two, 7)), 0);
    assert_eq!((client.pool(20 * 512, 512), client.pool(22 * 512, 512)), (vec![5; 512], vec![4; 512]));
    // Overlapping segments are stored one after the other.
    let same = segment((30, 1, 0)).repeat(3);
    assert_eq!(client.ask(&request((READ, 3, 0), TAG, 100, &same, 0)), 0);
    assert_eq!(client.pool(30 * 512, 512), [3; 512]);
}

/// checks: R-5.4-4, R-5.4-5, R-5.4-6, R-5.4-7
#[test]
fn operations_do_what_they_are_called() {
    let (daemon, _correct_client) = daemon();
    let mut client = client(&daemon, "a");
    for flags in 0..4 {
        client.fill(0, &[9; 8 * 512]);
        assert_eq!(client.ask(&at(one(WRITE, 0, (0, 8, 0)), 2, [1])), 0, "FUA");
        assert_eq!(client.ask(&range(ZERO, flags, 2, 3)), 0);
        assert_eq!(client.ask(&one(READ, 0, (8, 8, 0))), 0);
        let found: Vec<u8> = client.pool(8 * 512, 8 * 512).chunks(512).map(|sector| sector[511]).collect();
        assert_eq!(found, [9, 9, 0, 0, 0, 9, 9, 9], "flags {flags}");
    }
    assert_eq!(client.ask(&range(DISCARD, 0, 5, 2)), 0);
    assert_eq!(client.ask(&one(READ, 5, (0, 2, 0))), 0);
    assert!(client.pool(0, 1024).iter().all(|byte| *byte == 0 || *byte == 9));
    assert_eq!(client.ask(&flush(TAG)), 0);
    client.fill(0, &[0xee; 1024]);
    assert_eq!(client.ask(&request((GET_INFO, 1, 0), TAG, 0, &segment((0, 2, 0)), 0)), 0);
    assert_eq!(client.pool(0, 64), client.info(), "as in ATTACHED");
    assert_eq!(client.pool(64, 960), [0xee; 960], "64 bytes, no more");
}

/// checks: R-5.4-8
#[test]
fn of_two_writes_of_one_queue_one_wins_each_sector() {
    let (daemon, _correct_client) = daemon();
    let mut client = client(&daemon, "a");
    client.fill(0, &vec![1; 64 * 512]);
    client.fill(64 * 512, &vec![2; 64 * 512]);
    for _ in 0..50 {
        client.publish(&transfer(WRITE, 1, 0, (0, 64, 0)));
        client.publish(&transfer(WRITE, 2, 32, (64, 64, 0)));
        assert_eq!((client.completion().1, client.completion().1), (0, 0));
        assert_eq!(client.ask(&one(READ, 0, (256, 96, 0))), 0);
        let found = client.pool(256 * 512, 96 * 512);
        for (sector, bytes) in found.chunks(512).enumerate() {
            let allowed: &[u8] = if sector < 32 {
                &[1]
            } else if sector < 64 {
                &[1, 2]
            } else {
                &[2]
            };
            assert!(allowed.iter().any(|byte| bytes == [*byte; 512]), "sector {sector} is of neither");
        }
    }
}

fn packed(count: u8, writes: u8, tags: [u16; 3], requests: &[(u64, Piece)]) -> [u8; 60] {
    let mut bytes = [0; 60];
    bytes[..3].copy_from_slice(&[8, count, writes]);
    bytes[4..6].copy_from_slice(&tags[0].to_le_bytes());
    bytes[6..8].copy_from_slice(&tags[1].to_le_bytes());
    bytes[56..58].copy_from_slice(&tags[2].to_le_bytes());
    for (index, (sector, piece)) in requests.iter().enumerate() {
        bytes[8 + 16 * index..16 + 16 * index].copy_from_slice(&sector.to_le_bytes());
        bytes[16 + 16 * index..24 + 16 * index].copy_from_slice(&segment(*piece));
    }
    bytes
}

/// checks: R-5.9-2, R-5.9-3
#[test]
fn packed_requests_are_requests_of_their_own_or_none_at_all() {
    let (daemon, mut correct_client) = daemon();
    let mut client = client(&daemon, "a");
    assert_eq!(u32_at(client.info(), 36) & 32, 32);
    let three = [(0, (0, 1, 0)), (SECTORS, (1, 1, 0)), (2, (2, 1, 9))];
    client.fill(0, &[6; 512]);
    client.publish(&packed(3, 0b101, [10, 11, 12], &three));
    let mut answers = [client.completion(), client.completion(), client.completion()];
    answers.sort_unstable();
    assert_eq!(answers, [(10, 0), (11, 6), (12, 4)]);
    let good = packed(2, 0b10, [TAG, 1, 0], &three[..2]);
    let whole = packed(3, 0, [TAG, 1, 2], &three);
    let cases: Vec<Case> = vec![
        ("count 0", at(good, 1, [0]), 2),
        ("count 1", at(good, 1, [1]), 2),
        ("count 4", at(whole, 1, [4]), 2),
        ("count 255", at(whole, 1, [255]), 2),
        ("a write beyond the count", at(good, 2, [0b100]), 2),
        ("the last bit of writes", at(whole, 2, [0x80]), 2),
        ("the reserved byte", at(good, 3, [1]), 2),
        ("a third request of two: sector", at(good, 40, [1]), 2),
        ("a third request of two: segment", at(good, 55, [1]), 2),
        ("a third tag of two", at(good, 56, [1]), 2),
        ("reserved bytes", at(whole, 58, [1]), 2),
        ("reserved bytes", at(good, 59, [1]), 2),
    ];
    check(&mut client, &mut correct_client, &cases);
}

/// checks: R-5-2, R-5-1
#[test]
fn requests_beyond_the_depth_wait_in_the_ring() {
    let daemon = Daemon::start(&["--disk", "a=delay:100ms:memory:1M", "--workers", "1"]);
    // A depth of 3 has 4 slots: one request more than the depth fits.
    let mut client = Client::attach(&daemon, &Wanted { depth: 3, ..Wanted::disk("a") });
    let before = std::time::Instant::now();
    for tag in 0..4 {
        client.publish(&transfer(READ, tag, 0, (0, 1, 0)));
    }
    let mut answers: Vec<u16> = (0..3).map(|_| client.completion().0).collect();
    answers.sort_unstable();
    assert_eq!(answers, [0, 1, 2], "the fourth started with the others");
    assert_eq!(client.completion(), (3, 0));
    assert!(before.elapsed().as_millis() >= 200, "the fourth did not wait for its turn");
}
