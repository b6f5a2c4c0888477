//! Requests that are refused, in the words of the client library, and more requests than the depth. The statuses of all that can
//! be wrong are in `conformance/requests.rs`.

use std::time::Duration;

use fipsee_block::client::{AttachOptions, DiskError, Error};
use fipsee_block::packed::{Short, pack};
use fipsee_block::wire::{FLAG_FUA, Operation, Segment, Status, request_one_segment};
use fipsee_ring::channel::{ClientQueue, QueueGeometry};
use fipsee_testkit::raw::{BOTH, RawClient, answers_of, attach_message};
use fipsee_testkit::{CorrectClient, Daemon, assert_says, eventually, finish_one};

fn piece(offset_sectors: u32, length_sectors: u16, region: u16) -> Segment {
    Segment { offset_sectors, length_sectors, region }
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
fn writes_to_what_is_read_only_are_refused_with_words() {
    let (daemon, mut correct_client) = setting();
    for (disk, read_only) in [("ro", false), ("m", true), ("f", true)] {
        let mut reader = daemon.blocking_as(&AttachOptions { read_only, ..Daemon::options(disk) });
        for refused in [reader.write_at(&[0; 512], 0), reader.discard(0, 4096), reader.write_zeroes(0, 4096, false)] {
            assert_says(&refused.expect_err(disk).to_string(), &["the disk is read-only", "attach it for writing"]);
        }
        reader.read_at(&mut [0; 512], 0).expect(disk);
    }
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
        client.publish(&request_one_segment(Operation::Write, FLAG_FUA, 1, 0, piece(0, 32_768, 1)));
        client.publish(&request_one_segment(Operation::Read, 0, 2, 100_000, piece(0, 1, 0)));
        let tags: Vec<u64> = (0..2).map(|_| client.next_completion().word(0) >> 32 & 0xffff).collect();
        client.queues[0].requests.answered();
        client.queues[0].requests.answered();
        assert_eq!(tags, [1, 2], "round {round}");
        correct_client.check();
    }
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
