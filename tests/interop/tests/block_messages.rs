//! Every message of the block protocol, built by one language and taken apart by the other, in one process and in two.

use fipsee_interop::ffi::{self, FIELDS};
use fipsee_interop::messages::{Case, every_kind};
use fipsee_interop::peer::{Peer, Setup};
use fipsee_interop::random::Random;
use fipsee_ring::Message;
use fipsee_ring::cpu;
use fipsee_ring::ring::{CallWriter, Writer};
use fipsee_ring::tuning::Choices;
use fipsee_ring::tuning::Tuning;
use fipsee_ring::wait::WaitMode;

const ROUNDS: u64 = 200;

fn cases(seed: u64) -> Vec<Case> {
    let mut random = Random::new(seed);
    (0..ROUNDS).flat_map(|_| every_kind(&mut random)).collect()
}

#[test]
fn c_finds_in_every_message_of_rust_the_fields_it_was_made_of() {
    for case in cases(1) {
        assert_eq!(ffi::describe(case.kind, &case.message), case.fields, "{case:?}");
    }
}

#[test]
fn c_builds_every_message_exactly_as_rust_does() {
    for case in cases(2) {
        assert_eq!(ffi::build(case.kind, &case.fields), case.message, "{case:?}");
    }
}

fn setup(role: &'static str, count: usize) -> Setup {
    Setup {
        role,
        slots: 16,
        to_c: (3, u32::MAX),
        from_c: (14, u32::MAX),
        count: u32::try_from(count).expect("some thousands"),
        wait: WaitMode::Adaptive,
        burst: 1,
        store: cpu::features().store,
        choices: Choices::NONE,
        // It does little else than take messages apart, so this costs nothing.
        sanitized: true,
    }
}

fn parts(fields: &[u32; FIELDS]) -> [Message; 3] {
    [0, 15, 30].map(|start| {
        let mut payload = [0; 60];
        for (bytes, field) in payload.as_chunks_mut::<4>().0.iter_mut().zip(&fields[start..start + 15]) {
            *bytes = field.to_le_bytes();
        }
        Message::from_payload(&payload)
    })
}

fn kind_of(case: &Case) -> Message {
    Message::from_words([case.kind.into(), 0, 0, 0, 0, 0, 0, 0])
}

fn receive(peer: &mut Peer) -> Message {
    let mut message = Message::ZERO;
    peer.wait_for_message().expect("the C peer answers");
    assert!(peer.reader.receive(&mut message));
    message
}

#[test]
fn another_process_in_c_takes_apart_what_rust_sends() {
    let cases = cases(3);
    let mut peer = Peer::start(setup("describe", cases.len()));
    let (memory, cursor) = peer.to_c();
    let mut calls = Writer::new(memory, cursor, &Tuning::default());
    for case in &cases {
        calls.publish_all(&[kind_of(case), case.message]);
        if calls.reader_needs_doorbell() {
            peer.ring();
        }
        for part in parts(&case.fields) {
            assert_eq!(receive(&mut peer).to_bytes()[..60], part.to_bytes()[..60], "{case:?}");
        }
    }
    assert!(peer.end().success());
}

#[test]
fn another_process_in_c_sends_what_rust_takes_apart() {
    let cases = cases(4);
    let mut peer = Peer::start(setup("build", cases.len()));
    let (memory, cursor) = peer.to_c();
    let mut calls = CallWriter::new(memory, cursor, 4, &Tuning::default());
    for case in &cases {
        let [first, second, third] = parts(&case.fields);
        calls.publish_all(&[kind_of(case), first, second, third]).expect("all four were answered");
        if calls.reader_needs_doorbell() {
            peer.ring();
        }
        assert_eq!(receive(&mut peer).to_bytes()[..60], case.message.to_bytes()[..60], "{case:?}");
        (0..4).for_each(|_| calls.answered());
    }
    assert!(peer.end().success());
}
