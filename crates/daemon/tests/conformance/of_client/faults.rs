//! Section 6: each fault of a daemon ends the attachment; what is none does not.

use fipsee_block::client::{AttachOptions, Disk, Error, Event};
use fipsee_ring::control::RefusalCode;
use fipsee_testkit::bytes::*;
use fipsee_testkit::faulty::script::{Script, completion, event, handshake, play};
use fipsee_testkit::{Scratch, assert_says};
use rustix::fs::SealFlags;

pub(crate) fn options(depth: u32) -> AttachOptions {
    let mut options = AttachOptions::new("a");
    (options.depth, options.pool_bytes, options.ask_worker_cpu) = (depth, 4096, false);
    options
}

#[track_caller]
fn assert_fault<T>(what: &str, outcome: Result<T, Error>) {
    match outcome {
        Err(Error::Fault(_) | Error::Malformed(_)) => {}
        Err(other) => panic!("{what}: {other}, which is no fault"),
        Ok(_) => panic!("{what}: taken for good"),
    }
}

/// Attach to a daemon with this script.
fn attach(script: Script, options: &AttachOptions) -> Result<(), Error> {
    let (dir, daemon) = play(move |control| {
        let attached = handshake(control, &script);
        // Until the client closes.
        attached.map(|attached| attached.control.receive().is_none());
    });
    let outcome = Disk::attach(&dir.path("s"), options).map(drop);
    daemon.join().expect("no panic");
    outcome
}

fn changed(change: impl FnOnce(&mut Script)) -> Script {
    let mut script = Script::new(8, 0x1f);
    change(&mut script);
    script
}

/// checks: R-6-8, R-6-9, R-4.4-3, R-4.2-2, R-4.2-3, R-4.2-5, R-1-2
#[test]
fn an_answer_that_is_malformed_or_not_agreed_on_is_a_fault() {
    attach(Script::new(8, 0x1f), &options(8)).expect("a correct daemon");
    for (what, offset, byte) in [
        ("magic", 0, 0),
        ("kind", 4, 7),
        ("kind 0", 4, 0),
        ("version of the header", 6, 2),
        ("length", 8, 41),
        ("version in force", 12, 2),
        ("version 0 in force", 12, 0),
        ("reserved", 20, 1),
        ("a feature that was not offered", 24, 1),
        ("an unknown feature", 31, 0x80),
    ] {
        assert_fault(what, attach(changed(|script| script.welcome[offset] = byte), &options(8)));
    }
    assert_fault("a short WELCOME", attach(changed(|script| script.welcome.truncate(39)), &options(8)));
    assert_fault("a long WELCOME", attach(changed(|script| script.welcome.push(0)), &options(8)));
    assert_fault("more than 512 bytes", attach(changed(|script| script.welcome.resize(600, 0)), &options(8)));
    assert_fault("WELCOME with a descriptor", attach(changed(|script| script.stray = 1), &options(8)));
}

/// checks: R-4.5-9, R-4.2-6
#[test]
fn a_refusal_of_any_code_and_version_is_read() {
    let refused = |code: u32, text: &[u8]| {
        let bytes = with(with(control(REFUSED, 420), 12, &code.to_le_bytes()), 16, &text.len().to_le_bytes()[..4]);
        with(bytes, 20, text)
    };
    let newer = with(refused(2, b"too old"), 6, &[9]);
    let longer = [with(newer.clone(), 8, &436_u32.to_le_bytes()), vec![0xee; 16]].concat();
    for (what, bytes, expected, words) in [
        ("an unknown code", refused(99, b"because"), RefusalCode::Other(99), "because"),
        ("of a newer version", newer, RefusalCode::Malformed, "too old"),
        ("of a newer version, longer", longer, RefusalCode::Malformed, "too old"),
    ] {
        match attach(changed(|script| script.welcome = bytes), &options(8)) {
            Err(Error::Refused { code, text }) => assert_eq!((code, text.as_str()), (expected, words), "{what}"),
            other => panic!("{what}: {other:?}"),
        }
    }
    assert_fault("no UTF-8", attach(changed(|script| script.welcome = refused(2, &[0xff])), &options(8)));
    let cut = with(refused(2, b"no"), 16, &[1]);
    assert_fault("more text than said", attach(changed(|script| script.welcome = cut), &options(8)));
}

/// checks: R-6-10, R-3.3-3, R-4.2-5
#[test]
fn an_attached_without_what_belongs_to_it_is_a_fault() {
    for (what, change) in [
        ("no queue", (|script| script.attached[12] = 0) as fn(&mut Script)),
        ("more queues than descriptors", |script| script.attached[12] = 2),
        ("more queues than wanted", |script| {
            script.attached[12] = 2;
            script.region[12] = 2;
            script.region.extend_from_within(64..128);
            script.more = 2;
        }),
        ("reserved", |script| script.attached[14] = 1),
        ("a descriptor too few", |script| script.fewer = 1),
        ("no descriptor", |script| script.fewer = 3),
        ("a descriptor too many", |script| script.more = 1),
        ("a region of no bytes", |script| script.attached[16..24].fill(0)),
        ("a region longer than its file", |script| script.attached[18] = 1),
        ("a region above 2^41", |script| script.attached[22] = 2),
        ("a region that can shrink", |script| script.seals = SealFlags::GROW),
        ("a region that is not to be written", |script| script.seals = SealFlags::SHRINK | SealFlags::FUTURE_WRITE),
    ] {
        assert_fault(what, attach(changed(change), &options(8)));
    }
    // A longer file is fine.
    attach(changed(|script| script.file_bytes *= 2), &options(8)).expect("at least as long");
}

/// checks: R-6-11, R-3.3-1, R-3.3-2
#[test]
fn a_region_that_is_not_as_laid_out_is_a_fault() {
    let at = |offset: usize, value: u64, bytes: usize| {
        changed(move |script| script.region[offset..offset + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]))
    };
    let ring = |offset| [(offset, 32), (offset, 12_288), (offset, 12_288 - 64), (offset, u64::MAX - 63), (offset, 1 << 41)];
    let offsets = [64, 72, 80].into_iter().flat_map(ring).map(|(offset, value)| (offset, value, 8));
    let header = [(0, 0, 8), (8, 2, 4), (8, 0, 4), (12, 0, 4), (12, 2, 4), (12, 65, 4), (16, 8192, 8), (16, 16_384, 8)];
    let features = [(24, 1, 8), (24, 1 << 63, 8)];
    let pool = [(32, 4095, 8), (32, 12_288, 8), (32, u64::MAX - 4095, 8), (40, 1, 8), (40, 8192, 8), (40, 1 << 31, 8)];
    let counts = [88, 92].into_iter().flat_map(|offset| [0, 1, 3, 131_072, 1 << 31].map(|value| (offset, value, 4)));
    let starts = [(96, 8, 4), (100, 16, 4), (96, u64::from(u32::MAX), 4), (100, u64::from(u32::MAX), 4)];
    let depths = [(104, 0, 4), (104, 9, 4), (104, 4097, 4), (104, u64::from(u32::MAX), 4)];
    let reserved = [48, 55, 56, 63, 108, 112, 120, 127].map(|offset| (offset, 1, 1));
    let fields = offsets.chain(header).chain(features).chain(pool).chain(counts).chain(starts).chain(depths).chain(reserved);
    let mut count = 0;
    for (offset, value, bytes) in fields {
        assert_fault(&format!("{value:#x} at {offset}"), attach(at(offset, value, bytes), &options(8)));
        count += 1;
    }
    assert!(count > 50, "{count} fields");
}

/// checks: R-6-12
#[test]
fn block_info_outside_its_bounds_is_a_fault() {
    for (what, offset, value) in [
        ("no sector", 8, 0_u64),
        ("2^55 sectors", 8, 1 << 55),
        ("the end at 2^55", 0, (1 << 55) - 2048),
        ("an end that wraps", 0, u64::MAX),
        ("a block of 256", 16, 256 | 4096 << 32),
        ("a block of 8192", 16, 8192 | 4096 << 32),
        ("a block of 513", 16, 513 | 4096 << 32),
        ("a transfer below a block", 24, 511 | 2048 << 32),
        ("no segment", 32, 0x1f << 32),
        ("reserved", 56, 1),
        ("reserved", 56, 1 << 63),
    ] {
        let change = |script: &mut Script| script.attached[24 + offset..32 + offset].copy_from_slice(&value.to_le_bytes());
        assert_fault(what, attach(changed(change), &options(8)));
    }
    // Unknown capabilities are ignored, and more segments than a daemon gives are none too many.
    let change = |script: &mut Script| script.attached[56..64].copy_from_slice(&[0xff; 8]);
    attach(changed(change), &options(8)).expect("ignored");
}

/// Attach to a daemon with these features in WELCOME and in the region, and this word about its worker; the worker's CPU.
fn worker_cpu_given(welcome: u8, region: u8, worker_cpu_plus_1: u32) -> Result<Option<usize>, Error> {
    let script = changed(|script| {
        script.welcome[24] = welcome;
        script.region[24] = region;
        script.region[108..112].copy_from_slice(&worker_cpu_plus_1.to_le_bytes());
    });
    let (dir, daemon) = play(move |control| {
        handshake(control, &script).map(|attached| attached.control.receive().is_none());
    });
    let attached = Disk::attach(&dir.path("s"), &AttachOptions { ask_worker_cpu: true, ..options(8) });
    let worker_cpu = attached.map(|(_disk, queues)| queues[0].worker_cpu());
    daemon.join().expect("no panic");
    worker_cpu
}

#[test]
fn a_daemon_without_the_feature_is_used_as_before() {
    // The worker may be on a CPU that this process cannot see: the user of the number must check.
    for (welcome, region, word, expected) in
        [(0, 0, 0, None), (1, 1, 64, Some(63)), (1, 1, 0, None), (1, 1, (1 << 20) + 1, Some(1 << 20))]
    {
        assert_eq!(worker_cpu_given(welcome, region, word).expect("attached"), expected);
    }
}

/// checks: R-4.4-3, R-3.2-2
#[test]
fn a_daemon_that_does_not_keep_to_what_was_agreed_is_at_fault() {
    for (welcome, region, word, what) in [
        (2, 0, 0, "features we did not offer"),
        (3, 1, 0, "features we did not offer"),
        (0, 1, 0, "the features of the region"),
        (1, 0, 0, "the features of the region"),
        (1, 3, 0, "the features of the region"),
        (0, 0, 2, "44"),
    ] {
        assert_says(&worker_cpu_given(welcome, region, word).expect_err(what).to_string(), &[what]);
    }
}

/// One request, answered by these messages; what the client makes of them, and the tag that it used.
fn answered(
    depth: u32,
    messages: impl FnOnce(u16) -> Vec<[u8; 60]> + Send + 'static,
) -> (Scratch, Result<(usize, Option<Event>), Error>) {
    let (dir, daemon) = play(move |control| {
        let mut attached = handshake(control, &Script::new(depth, 0x1f)).expect("attached");
        let request = attached.take();
        for message in messages(u16_at(&request, 4)) {
            attached.publish(&message);
        }
        while attached.control.receive().is_some() {}
    });
    let (disk, mut queues) = Disk::attach(&dir.path("s"), &options(depth)).expect("attached");
    let queue = &mut queues[0];
    queue.flush(1).expect("room");
    let outcome = queue.wait(&mut |_| {}).map(|count| (count, queue.next_event()));
    drop((disk, queues));
    daemon.join().expect("no panic");
    (dir, outcome)
}

/// checks: R-6-13, R-5.5-1
#[test]
fn a_completion_that_answers_nothing_is_a_fault() {
    let byte = |offset: usize, value: u8| {
        move |tag| {
            let mut message = completion(&[(tag, 0)]);
            message[offset] = value;
            vec![message]
        }
    };
    for (what, messages) in [
        ("count 0", Box::new(byte(0, 0)) as Box<dyn FnOnce(u16) -> Vec<[u8; 60]> + Send>),
        ("count 15", Box::new(byte(0, 15))),
        ("kind 3", Box::new(byte(1, 3))),
        ("kind 255", Box::new(byte(1, 255))),
        ("reserved", Box::new(byte(2, 1))),
        ("reserved", Box::new(byte(3, 1))),
        ("status 12", Box::new(byte(6, 12))),
        ("status 256", Box::new(byte(7, 1))),
        ("an unused tag", Box::new(|tag| vec![completion(&[(tag ^ 1, 0)])])),
        ("a tag beyond the depth", Box::new(|_| vec![completion(&[(0xffff, 0)])])),
        ("the same tag twice", Box::new(|tag| vec![completion(&[(tag, 0), (tag, 0)])])),
    ] {
        assert_fault(what, answered(8, messages).1);
    }
    // Entries beyond the count are not looked at.
    let (_, outcome) = answered(8, |tag| {
        let mut message = completion(&[(tag, 0)]);
        message[8..].fill(0xff);
        vec![message]
    });
    assert!(matches!(outcome, Ok((1, None))), "{outcome:?}");
}

/// checks: R-6-14, R-5.6-1
#[test]
fn an_event_that_is_none_is_a_fault() {
    let reserved = (2..8).chain(16..60).flat_map(|offset| [(1, offset), (2, offset)]).chain((8..16).map(|offset| (2, offset)));
    for (kind, offset) in reserved {
        let messages = move |_| {
            let mut message = event(kind, if kind == 1 { 4096 } else { 0 });
            message[offset] = 1;
            vec![message]
        };
        assert_fault(&format!("byte {offset} of event {kind}"), answered(8, messages).1);
    }
    for (what, kind, count, value) in
        [("count 0", 1, 0, 4096), ("count 2", 2, 2, 0), ("no sector", 1, 1, 0), ("2^55 sectors", 1, 1, 1 << 55)]
    {
        let messages = move |_| {
            let mut message = event(kind, value);
            message[0] = count;
            vec![message]
        };
        assert_fault(what, answered(8, messages).1);
    }
    let (_, outcome) = answered(8, |_| vec![event(1, (1 << 55) - 1)]);
    assert!(matches!(outcome, Ok((0, Some(Event::Resized { sector_count: 0x007f_ffff_ffff_ffff })))), "{outcome:?}");
}

/// checks: R-6-15, R-5.6-3, R-5.6-5
#[test]
fn a_second_event_is_a_fault_until_the_first_is_acknowledged_and_none_from_then_on() {
    for kind in [1, 2] {
        let value = if kind == 1 { 4096 } else { 0 };
        // With its only place taken by a request the client cannot acknowledge.
        assert_fault("a second event", answered(1, move |_| vec![event(kind, value); 2]).1);
    }
    // With places left it acknowledges at once; the next event comes before the acknowledgement is answered.
    let (dir, daemon) = play(move |control| {
        let mut attached = handshake(control, &Script::new(4, 0x1f)).expect("attached");
        let first = attached.take();
        let mut unanswered = Vec::new();
        for sectors in [4096, 8192, 16_384] {
            attached.publish(&event(1, sectors));
            let acknowledgement = attached.take();
            assert_eq!(acknowledgement, ack_event(u16_at(&acknowledgement, 4), 1), "{acknowledgement:02x?}");
            unanswered.push((u16_at(&acknowledgement, 4), 0));
        }
        attached.publish(&completion(&unanswered));
        attached.answer(u16_at(&first, 4), 0);
        while attached.control.receive().is_some() {}
    });
    let (disk, mut queues) = Disk::attach(&dir.path("s"), &options(4)).expect("attached");
    queues[0].flush(1).expect("room");
    let mut finished = 0;
    while finished == 0 {
        finished += queues[0].wait(&mut |_| {}).expect("no fault");
    }
    assert_eq!(disk.info().sector_count, 16_384, "the newest size");
    drop((disk, queues));
    daemon.join().expect("no panic");
}
