//! What a daemon says to the C client of a port: it takes frames that fit its buffers alone, and each buffer back once, or finds a fault, as the Rust client does.

use std::cell::RefCell;
use std::ffi::c_int;
use std::path::Path;

use fipsee_net::frame::Mac;
use fipsee_net::wire::{KIND_EVENT, PROFILE, PortInfo};
use fipsee_net::{AttachOptions, Error, Port};
use fipsee_ring::Message;
use fipsee_ring::ring::{Cursor, Writer};
use fipsee_ring::tuning::Tuning;
use fipsee_ring::wait::WaitMode;

use crate::channel::TestChannel;
use crate::take;

/// As in `c/fuzz.h`.
const DEPTH: u8 = 8;
const FRAME_BYTES: usize = 518;
const MOST_FRAMES: usize = 168;
const MOST_MESSAGES: usize = 12;

/// `struct fuzz_frames`.
#[repr(C)]
struct Frames {
    lengths: *mut u32,
    bytes: *mut u8,
    count: u32,
    given_back: u32,
    refused: u32,
}

// SAFETY: the signature is that of c/fuzz.h, which build.rs compiles into this crate.
unsafe extern "C" {
    fn fuzz_net(messages: *const Message, rings: *const u8, message_count: u32, sent_count: u32, into: *mut Frames) -> c_int;
}

/// What came of messages.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// Frames given back, how many of them refused, and those received.
    Sound(u32, u32, Vec<Vec<u8>>),
    FaultSent,
    FaultReceived,
}

struct Fixture {
    channel: TestChannel,
    /// Room for all frames.
    lengths: Vec<u32>,
    bytes: Vec<u8>,
}

thread_local! {
    static FIXTURE: RefCell<Fixture> = RefCell::new(Fixture::new());
}

/// As [`received`](crate::received::one): a byte says how many frames were sent; each message is a byte that says which ring, and 60.
pub(crate) fn one(mut bytes: &[u8]) {
    let [choice] = take(&mut bytes);
    let (mut rings, mut messages) = (Vec::new(), Vec::new());
    while !bytes.is_empty() && messages.len() < MOST_MESSAGES {
        let [ring] = take(&mut bytes);
        rings.push(ring & 1);
        messages.push(Message::from_payload(&take(&mut bytes)));
    }
    let sent = u32::from(choice % (DEPTH + 1));
    FIXTURE.with_borrow_mut(|fixture| {
        let outcome = fixture.by_c(&rings, &messages, sent);
        check(&outcome, &messages, sent);
        // The clients post their buffers again at different times, but for each ring's first message both have posted all.
        for ring in [0, 1] {
            let first = rings.iter().position(|of| *of == ring).map(|at| messages[at]);
            let is_event = |message: &Message| ring == 1 && message.to_bytes()[0] == KIND_EVENT;
            if let Some(message) = first.filter(|message| !is_event(message)) {
                let c = fixture.by_c(&[ring], &[message], sent);
                let rust = fixture.by_rust(ring, message, sent);
                assert!(are_the_same(&c, &rust), "C: {c:?}, Rust: {rust:?}: {:02x?}", message.to_bytes());
            }
        }
    });
}

/// Each frame has a possible length, and is in a message or in buffers whole.
fn check(outcome: &Outcome, messages: &[Message], sent: u32) {
    let Outcome::Sound(given_back, refused, frames) = outcome else { return };
    assert!(given_back <= &sent && refused <= given_back, "{given_back} of {sent} given back, {refused} refused");
    for frame in frames {
        assert!((14..=FRAME_BYTES).contains(&frame.len()), "a frame of {} bytes", frame.len());
        // One that has its own addresses, or those of the one before, begins at byte 4 of a message.
        let is_of = |message: &Message| {
            let bytes = message.to_bytes();
            let (behind, all) = (bytes[4..60].starts_with(&frame[12.min(frame.len())..]), bytes[4..60].starts_with(frame));
            bytes[0] == 2 && all || bytes[0] == 5 && behind
        };
        let is_buffer = |byte: u8| (DEPTH..2 * DEPTH).contains(&byte);
        let is_in_buffers = frame.iter().all(|byte| *byte == frame[0]) && is_buffer(frame[0]);
        assert!(is_in_buffers || messages.iter().any(is_of), "bytes from elsewhere: {frame:02x?}");
    }
}

fn are_the_same(c: &Outcome, rust: &Outcome) -> bool {
    match (c, rust) {
        (Outcome::Sound(back, refused, frames), Outcome::Sound(rust_back, rust_refused, rust_frames)) => {
            // What is in buffers differs: each client has others.
            let is_same =
                |(c, rust): (&Vec<u8>, &Vec<u8>)| c.len() == rust.len() && (c == rust || rust.iter().all(|byte| *byte == 0));
            (back, refused, frames.len()) == (rust_back, rust_refused, rust_frames.len())
                && frames.iter().zip(rust_frames).all(is_same)
        }
        _ => c == rust,
    }
}

impl Fixture {
    fn new() -> Self {
        let (lengths, bytes) = (vec![0; MOST_FRAMES], vec![0; MOST_FRAMES * FRAME_BYTES]);
        Self { channel: TestChannel::of(&PROFILE, 2, DEPTH.into(), 32 << 10), lengths, bytes }
    }

    fn by_c(&mut self, rings: &[u8], messages: &[Message], sent: u32) -> Outcome {
        assert!(rings.len() == messages.len() && messages.len() <= MOST_MESSAGES && sent <= DEPTH.into());
        let (lengths, bytes) = (self.lengths.as_mut_ptr(), self.bytes.as_mut_ptr());
        let mut into = Frames { lengths, bytes, count: 0, given_back: 0, refused: 0 };
        let count = u32::try_from(messages.len()).expect("few");
        // SAFETY: as many messages and rings as are said, and a structure as C has it, with room for all frames that there may be.
        match unsafe { fuzz_net(messages.as_ptr(), rings.as_ptr(), count, sent, &raw mut into) } {
            0 => {}
            1 => return Outcome::FaultSent,
            2 => return Outcome::FaultReceived,
            _ => panic!("the record of buffers is wrong"),
        }
        let frame = |at: usize| self.bytes[at * FRAME_BYTES..][..self.lengths[at] as usize].to_vec();
        Outcome::Sound(into.given_back, into.refused, (0..into.count as usize).map(frame).collect())
    }

    fn by_rust(&self, ring: u8, message: Message, sent: u32) -> Outcome {
        let Self { channel, .. } = self;
        channel.clear();
        let info = PortInfo::new(Mac([2, 0, 0, 0, 0, 1]), 500, 0, 1).to_bytes();
        let options = AttachOptions { depth: DEPTH.into(), wait: WaitMode::Sleep, ..AttachOptions::new("lan/a") };
        let ports = Port::over(channel.attached(info), Path::new("none"), &options);
        let mut port = ports.expect("a good channel").pop().expect("one pair");
        assert_eq!(port.depths(), (DEPTH.into(), DEPTH.into()), "as C has them");
        (0..sent).for_each(|number| port.stage(&vec![2; if number % 2 == 0 { 40 } else { 300 }]).expect("there is room"));
        port.submit();
        let geometry = &channel.layout.queues[usize::from(ring)];
        let completions = geometry.completion_ring(&channel.region, &Tuning::default()).expect("a good ring");
        Writer::new(completions, Cursor::at_start(geometry.completion_start), &Tuning::default()).publish(&message);
        let given_back = match port.reap() {
            Ok(given_back) => u32::try_from(given_back).expect("few"),
            Err(Error::Fault(_)) => return Outcome::FaultSent,
            Err(other) => panic!("neither correct nor a fault: {other}"),
        };
        let (mut frame, mut frames) = (Vec::new(), Vec::new());
        let refused = u32::try_from(port.refused().0).expect("few");
        loop {
            match port.receive(&mut frame) {
                Ok(true) => frames.push(frame.clone()),
                Ok(false) => return Outcome::Sound(given_back, refused, frames),
                // Of a buffer that the daemon did not take.
                Err(Error::Service(_)) => {}
                Err(Error::Fault(_)) => return Outcome::FaultReceived,
                Err(other) => panic!("neither correct nor a fault: {other}"),
            }
        }
    }
}
