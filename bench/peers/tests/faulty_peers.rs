//! The harness trusts no mechanism: messages that are changed, lost, doubled or swapped fail the mechanism, and so does one
//! that ends. All that are built carry messages unharmed.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use fipsee_peers::harness::job::{self, Runner};
use fipsee_peers::harness::{BURST, End, Mechanism, Plan, Side};
use fipsee_peers::mechanisms::{self, Entry};
use fipsee_ring::Message;

/// The message that something is done to.
const VICTIM: usize = 100;

const CORRECT: u8 = 0;
const CHANGES_A_CALL: u8 = 1;
const CHANGES_AN_ANSWER: u8 = 2;
const LOSES: u8 = 3;
const DOUBLES: u8 = 4;
const SWAPS: u8 = 5;
const PANICS: u8 = 6;
const DIES: u8 = 7;

/// A pair of sockets with faulty ends.
struct FaultyDaemon<const FAULT: u8>(UnixStream, UnixStream);

struct FaultyDaemonEnd<const FAULT: u8> {
    socket: UnixStream,
    side: Side,
    sent: usize,
    kept: Option<Message>,
}

impl<const FAULT: u8> Mechanism for FaultyDaemon<FAULT> {
    type End = FaultyDaemonEnd<FAULT>;

    fn share(_: &Plan) -> Result<Self, String> {
        UnixStream::pair().map(|(client, server)| Self(client, server)).map_err(|error| error.to_string())
    }

    fn open(self, side: Side, _: &Plan) -> Result<FaultyDaemonEnd<FAULT>, String> {
        let socket = if side == Side::Client { self.0 } else { self.1 };
        Ok(FaultyDaemonEnd { socket, side, sent: 0, kept: None })
    }
}

impl<const FAULT: u8> FaultyDaemonEnd<FAULT> {
    fn put(&mut self, message: &Message) {
        self.socket.write_all(&message.to_bytes()).expect("the other side reads");
    }

    fn send_one(&mut self, message: &Message) {
        let is_victim = self.sent == VICTIM;
        self.sent += 1;
        let mut changed = *message;
        changed.set_word(7, changed.word(7) ^ 1 << 31);
        match (FAULT, self.side) {
            _ if !is_victim => {}
            (CHANGES_A_CALL, Side::Client) | (CHANGES_AN_ANSWER, Side::Server) => return self.put(&changed),
            (LOSES, Side::Client) => return,
            (DOUBLES, Side::Client) => self.put(message),
            (SWAPS, Side::Client) => {
                self.kept = Some(*message);
                return;
            }
            (PANICS, Side::Server) => panic!("not today"),
            (DIES, Side::Server) => std::process::abort(),
            _ => {}
        }
        self.put(message);
        if let Some(kept) = self.kept.take() {
            self.put(&kept);
        }
    }
}

impl<const FAULT: u8> End for FaultyDaemonEnd<FAULT> {
    fn send(&mut self, messages: &[Message]) {
        messages.iter().for_each(|message| self.send_one(message));
    }

    fn receive(&mut self, into: &mut [Message]) -> usize {
        let mut bytes = [0; 64];
        self.socket.read_exact(&mut bytes).expect("the other side writes");
        into[0] = Message::from_bytes(&bytes);
        1
    }
}

/// Two processes that poll fill two CPUs: one job at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn run(runner: Runner, burst: usize) -> Result<(), String> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // On one CPU it is slow and as correct.
    let cpus = job::choose_cpus().unwrap_or([0, 0]);
    runner(&Plan { cpus, slots: 64, burst, warm_up: 16, exchanges: 200 }).map(drop)
}

#[track_caller]
fn fails(runner: Runner, burst: usize, with: &str) {
    let error = run(runner, burst).expect_err("it is faulty");
    assert!(error.starts_with(with), "{error}");
}

#[test]
fn correct_mechanism_passes() {
    for burst in [1, BURST] {
        assert_eq!(run(job::calls::<FaultyDaemon<CORRECT>>, burst), Ok(()));
        assert_eq!(run(job::stream::<FaultyDaemon<CORRECT>>, burst), Ok(()));
    }
}

#[test]
fn one_wrong_bit_fails_on_both_ways() {
    for burst in [1, BURST] {
        // The server answers first and checks then, so either side may be the first to say so.
        let error = run(job::calls::<FaultyDaemon<CHANGES_A_CALL>>, burst).expect_err("it is faulty");
        assert!(error.contains(" 100 is wrong from byte 59 on"), "{error}");
        fails(job::stream::<FaultyDaemon<CHANGES_A_CALL>>, burst, "message 100 is wrong from byte 59 on");
        fails(job::calls::<FaultyDaemon<CHANGES_AN_ANSWER>>, burst, "answer 100 is wrong from byte 59 on");
    }
}

#[test]
fn lost_doubled_and_swapped_messages_fail() {
    for burst in [1, BURST] {
        fails(job::stream::<FaultyDaemon<LOSES>>, burst, "message 100 is wrong");
        fails(job::stream::<FaultyDaemon<DOUBLES>>, burst, "message 101 is wrong");
        fails(job::stream::<FaultyDaemon<SWAPS>>, burst, "message 100 is wrong");
    }
}

#[test]
fn mechanism_that_panics_or_ends_fails_with_its_reason() {
    fails(job::calls::<FaultyDaemon<PANICS>>, 1, "not today");
    // Its other side finds out by itself, or waits in vain until both are ended.
    assert!(run(job::calls::<FaultyDaemon<DIES>>, 1).is_err());
}

#[test]
fn each_built_mechanism_carries_messages_unharmed() {
    for entry in mechanisms::all() {
        let Entry { name, call, burst, stream, missing, .. } = entry;
        assert_eq!(missing.is_some(), call.is_none(), "{name}: either it is measured or the table says what is missing");
        for (runner, size) in [(call, 1), (burst, BURST), (stream, 1), (stream, BURST)] {
            if let Some(runner) = runner {
                assert_eq!(run(runner, size), Ok(()), "{name}, {size} at a time");
            }
        }
    }
}
