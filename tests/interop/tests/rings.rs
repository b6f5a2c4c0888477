//! The ring in C and the ring in Rust, in two processes, both ways.

use fipsee_interop::ffi;
use fipsee_interop::peer::{Peer, Setup, is_pattern, pattern};
use fipsee_ring::Message;
use fipsee_ring::cpu::{self, StoreVariant};
use fipsee_ring::ring::{CallWriter, StreamWriter, Writer};
use fipsee_ring::tuning::{Choices, Ownership, Touch};
use fipsee_ring::wait::WaitMode;

const COUNT: u32 = 12_000;
const LONG_COUNT: u32 = 250_000;
const WAITS: [WaitMode; 3] = [WaitMode::Pause, WaitMode::Adaptive, WaitMode::Sleep];

/// Every pair of ownership and touch, as words.
fn every() -> [Choices; 9] {
    let ownerships = [Ownership::PrefetchNext, Ownership::LockedAhead, Ownership::NotAsked];
    let touches = [Touch::Never, Touch::Runs, Touch::Always];
    std::array::from_fn(|place| Choices::NONE.with_ownership(ownerships[place / 3]).with_touch(touches[place % 3]))
}

/// Ring sizes, each with starts at different indices; most are about to wrap their stamp.
fn setups(role: &'static str) -> Vec<Setup> {
    let mut setups = Vec::new();
    let wraps = [1, u32::MAX, u32::MAX - 1, 7];
    for (slots, waits) in [(2, 0), (4, 1), (64, 2), (8192, 0)] {
        for (turn, lap) in wraps.iter().enumerate() {
            let index = [0, slots - 1, slots / 2, 1][turn];
            setups.push(Setup {
                role,
                slots,
                to_c: (index, *lap),
                from_c: (slots - 1 - index, wraps[(turn + 1) % wraps.len()]),
                count: COUNT,
                wait: WAITS[(waits + turn) % WAITS.len()],
                burst: [1, 7, 32, 64][turn],
                store: cpu::features().store,
                choices: every()[(slots as usize / 2 + turn) % every().len()],
                sanitized: false,
            });
        }
    }
    setups
}

fn expect_success(peer: &mut Peer, setup: Setup) {
    let status = peer.end();
    assert!(status.success(), "the C peer ended with {status}: {setup:?}");
}

fn stream_to_c(setup: Setup) {
    let mut peer = Peer::start(setup);
    let (memory, cursor) = peer.to_c();
    let mut stream = StreamWriter::new(memory, cursor, &setup.tuning());
    let mut sequence = 0;
    while sequence < setup.count {
        let end = (sequence + setup.burst).min(setup.count);
        let batch: Vec<Message> = (sequence..end).map(|number| pattern(number, 0)).collect();
        let sent = stream.publish_burst(&batch).expect("C counts what it releases");
        sequence += u32::try_from(sent).expect("a batch is small");
        if stream.reader_needs_doorbell() {
            peer.ring();
        }
        if sent == 0 {
            peer.let_it_run().unwrap_or_else(|gone| panic!("at {sequence}: {gone:?}: {setup:?}"));
        }
    }
    expect_success(&mut peer, setup);
}

fn stream_from_c(setup: Setup) {
    let mut peer = Peer::start(setup);
    let (mut sequence, mut message) = (0, Message::ZERO);
    while sequence < setup.count {
        peer.wait_for_message().unwrap_or_else(|gone| panic!("at {sequence}: {gone:?}: {setup:?}"));
        for _ in 0..setup.burst {
            if !peer.reader.receive(&mut message) {
                break;
            }
            assert!(is_pattern(&message, sequence, 0), "message {sequence} is {message:?}: {setup:?}");
            sequence += 1;
        }
        peer.reader.release_some();
    }
    peer.reader.release_all();
    expect_success(&mut peer, setup);
}

fn call_c(setup: Setup) {
    let mut peer = Peer::start(setup);
    let (memory, cursor) = peer.to_c();
    let mut calls = CallWriter::new(memory, cursor, setup.slots, &setup.tuning());
    let (mut sent, mut answered, mut reply) = (0, 0, Message::ZERO);
    while answered < setup.count {
        let end = (sent + setup.burst.min(calls.free())).min(setup.count);
        let batch: Vec<Message> = (sent..end).map(|number| pattern(number, 1)).collect();
        calls.publish_all(&batch).expect("as many as are free");
        sent = end;
        if calls.reader_needs_doorbell() {
            peer.ring();
        }
        peer.wait_for_message().unwrap_or_else(|gone| panic!("at {answered}: {gone:?}: {setup:?}"));
        while peer.reader.receive(&mut reply) {
            assert!(is_pattern(&reply, answered, 2), "reply {answered} is {reply:?}: {setup:?}");
            answered += 1;
            calls.answered();
        }
    }
    expect_success(&mut peer, setup);
}

fn answer_c(setup: Setup) {
    let mut peer = Peer::start(setup);
    let (memory, cursor) = peer.to_c();
    let mut replies = Writer::new(memory, cursor, &setup.tuning());
    let (mut sequence, mut message) = (0, Message::ZERO);
    while sequence < setup.count {
        peer.wait_for_message().unwrap_or_else(|gone| panic!("at {sequence}: {gone:?}: {setup:?}"));
        let mut batch = Vec::new();
        while batch.len() < 64 && peer.reader.receive(&mut message) {
            assert!(is_pattern(&message, sequence, 1), "call {sequence} is {message:?}: {setup:?}");
            batch.push(pattern(sequence, 2));
            sequence += 1;
        }
        replies.publish_all(&batch);
        if replies.reader_needs_doorbell() {
            peer.ring();
        }
    }
    expect_success(&mut peer, setup);
}

#[test]
fn c_reads_what_rust_streams() {
    setups("stream-read").into_iter().for_each(stream_to_c);
}

#[test]
fn rust_reads_what_c_streams() {
    setups("stream-write").into_iter().for_each(stream_from_c);
}

#[test]
fn c_answers_what_rust_calls() {
    setups("serve").into_iter().for_each(call_c);
}

#[test]
fn rust_answers_what_c_calls() {
    setups("call").into_iter().for_each(answer_c);
}

#[test]
fn sanitizers_find_nothing_in_the_ends_in_c() {
    for (role, run) in
        [("stream-read", stream_to_c as fn(Setup)), ("stream-write", stream_from_c), ("serve", call_c), ("call", answer_c)]
    {
        setups(role).into_iter().for_each(|setup| run(Setup { count: COUNT / 10, sanitized: true, ..setup }));
    }
}

fn long(role: &'static str, slots: u32, wait: WaitMode, burst: u32) -> Setup {
    let store = cpu::features().store;
    let choices = Choices::NONE;
    Setup { role, slots, to_c: (0, 1), from_c: (1, 1), count: LONG_COUNT, wait, burst, store, choices, sanitized: false }
}

#[test]
fn no_wakeup_is_lost_between_sleeping_c_and_rust_ends_of_a_call_ring() {
    call_c(long("serve", 4, WaitMode::Adaptive, 1));
    answer_c(long("call", 4, WaitMode::Sleep, 2));
}

/// checks: R-2.3-6
#[test]
fn no_wakeup_is_lost_between_sleeping_c_and_rust_ends_of_a_stream() {
    stream_to_c(long("stream-read", 64, WaitMode::Sleep, 3));
    stream_from_c(long("stream-write", 64, WaitMode::Adaptive, 3));
}

#[test]
fn c_reads_every_store_variant_of_rust() {
    let best = cpu::features().store;
    let variants = match best {
        StoreVariant::Wide64 => vec![StoreVariant::Portable, StoreVariant::Wide16, StoreVariant::Split32, StoreVariant::Wide64],
        StoreVariant::Split32 => vec![StoreVariant::Portable, StoreVariant::Wide16, StoreVariant::Split32],
        StoreVariant::Wide16 => vec![StoreVariant::Portable, StoreVariant::Wide16],
        StoreVariant::Portable => vec![StoreVariant::Portable],
    };
    eprintln!("store variants of this CPU: {variants:?}; the others are skipped because it does not have them");
    for store in variants {
        for (slots, burst) in [(2, 1), (64, 16), (8192, 64)] {
            let setup = Setup { store, to_c: (1, u32::MAX), count: 40_000, ..long("stream-read", slots, WaitMode::Pause, burst) };
            stream_to_c(setup);
        }
        call_c(Setup { store, count: 20_000, ..long("serve", 4, WaitMode::Adaptive, 2) });
    }
}

#[test]
fn rust_reads_every_store_of_the_fio_engine() {
    // Those that this CPU lacks the C side does not use: then words are stored once more.
    for store in [StoreVariant::Wide16, StoreVariant::Split32, StoreVariant::Wide64] {
        let choices = Choices::NONE.with_store(store);
        for (slots, burst) in [(2, 1), (64, 16), (8192, 64)] {
            let wait = WaitMode::Pause;
            stream_from_c(Setup { choices, to_c: (1, u32::MAX), count: 40_000, ..long("stream-write", slots, wait, burst) });
        }
        answer_c(Setup { choices, count: 20_000, ..long("call", 4, WaitMode::Adaptive, 2) });
    }
}

/// checks: R-2.2-1, R-2.3-5, R-2.4-1, R-2.4-3
#[test]
fn c_accesses_shared_words_in_the_order_of_the_protocol() {
    let expected = [
        "Ss",    // Publish: the stamp, after the payload ("!" would follow otherwise).
        "FLa",   // Doorbell: fence, then the flag.
        "LsC",   // Receive: the stamp, then one copy.
        "Sr",    // Release.
        "SaFLs", // Arm: flag, fence, look again.
        "FLaSa", // Doorbell of a sleeper: clear the flag.
        "Sa",    // Disarm.
        "Lr",    // Free slots.
    ];
    assert_eq!(ffi::trace(Choices::NONE)[0], expected.join(" "));
}

/// The accesses of bursts of 1, 3 and 1 messages, each received until nothing is there and then released, and of two calls that
/// are answered one after the other: `touches` of the three bursts and of the calls, and the writers' `fences` after them.
fn runs(touches: [&[bool]; 4], fences: [&str; 5]) -> String {
    let receive = |touch: &bool| if *touch { "LsCTs" } else { "LsC" };
    let mut all: Vec<String> = Vec::new();
    for ((burst, look), fence) in touches[..3].iter().zip(["", "", "Lr"]).zip(fences) {
        all.push(format!("{look}{}", "Ss".repeat(burst.len())));
        all.push(format!("{fence}La"));
        all.extend(burst.iter().map(|touch| receive(touch).to_owned()));
        all.extend(["Ls".to_owned(), "Sr".to_owned()]); // The slots are given back: no touch comes later.
    }
    for (touch, fence) in touches[3].iter().zip(&fences[3..]) {
        all.extend([receive(touch).to_owned(), "Ss".to_owned(), format!("{fence}La")]); // So is the slot of a call, by its answer.
    }
    all.join(" ")
}

/// checks: R-2-2, R-2.2-1, R-2.4-3, R-2.6-1
#[test]
fn c_touches_after_the_copy_and_before_the_slot_is_given_back() {
    let (no, yes): (&[bool], &[bool]) = (&[false], &[true]);
    let never = [no, &[false; 3], no, &[false; 2]];
    let in_runs = [no, &[false, true, true], no, &[false; 2]];
    let always = [yes, &[true; 3], yes, &[true; 2]];
    let stack = ["F"; 5];
    // The stream's single messages are in slot 3 of 0 to 3, the answers in 4 and 5 of 4 to 7: two on from each. The burst of three is in
    // 0 to 2: as many slots from the next on.
    let ahead = ["F1", "F3F0F1", "F1", "F6", "F7"];
    for (ownership, fences) in [
        (None, stack),
        (Some(Ownership::PrefetchNext), stack),
        (Some(Ownership::LockedAhead), ahead),
        (Some(Ownership::NotAsked), stack),
    ] {
        for (touch, touches) in
            [(None, never), (Some(Touch::Never), never), (Some(Touch::Runs), in_runs), (Some(Touch::Always), always)]
        {
            let mut choices = ownership.map_or(Choices::NONE, |ownership| Choices::NONE.with_ownership(ownership));
            choices = touch.map_or(choices, |touch| choices.with_touch(touch));
            assert_eq!(ffi::trace(choices)[1], runs(touches, fences), "{ownership:?}, {touch:?}");
        }
    }
    for unknown in [0x44, 0xff, 0xffef_ffff, 0x7700_0000] {
        assert_eq!(ffi::trace(Choices::from_word(unknown))[1], runs(never, stack), "unknown values are no advice: {unknown:#x}");
    }
}

/// A touch in the wrong place, or a fence that changes a stamp, loses messages or delivers others.
#[test]
fn every_choice_of_c_and_rust_delivers_every_message() {
    for (place, choices) in every().into_iter().enumerate() {
        for slots in [2, 64] {
            let wait = WAITS[place % WAITS.len()];
            let starts = ((slots - 1, u32::MAX), (0, u32::MAX - 1));
            let setup = |role, burst| Setup {
                choices,
                to_c: starts.0,
                from_c: starts.1,
                count: COUNT / 3,
                ..long(role, slots, wait, burst)
            };
            stream_to_c(setup("stream-read", 3));
            stream_from_c(setup("stream-write", 3));
            for burst in [1, 3] {
                call_c(setup("serve", burst));
                answer_c(setup("call", burst));
            }
        }
    }
}

/// checks: R-2.3-8, R-6-16
#[test]
fn a_c_writer_refuses_a_wrong_release_counter() {
    let setup = long("stream-write", 64, WaitMode::Pause, 8);
    let mut peer = Peer::start(setup);
    peer.wait_for_message().expect("C streams until the ring is full");
    // One more than was ever published: the ring holds 64.
    peer.region.write(128, &65_u32.to_le_bytes()).expect("within the region");
    assert_eq!(peer.end().code(), Some(3), "C accepted the fault");
}
