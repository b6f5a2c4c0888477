//! Millions of sleeps on real doorbells: no wake-up is lost, and nothing stalls when threads outnumber CPUs.
//!
//! A lost wake-up would be a hang; `crate::common::sleep_on` turns it into a failure.

use std::thread;
use std::time::Duration;

use crate::common::{
    Doorbell, Random, assert_is_numbered, numbered, one_at_a_time, receive_sleeping, ring_pair, sleep_on, yield_to_peer,
};
use fipsee_ring::Message;
use fipsee_ring::cpu;
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::ring::{CallWriter, Cursor, Reader, StreamError, StreamWriter, Writer};
use fipsee_ring::tuning::Tuning;
use fipsee_ring::wait::{Backoff, Next, WaitMode};

/// Sleeps of a client that calls and sleeps until the answer; its server sleeps about as often.
const CLIENT_SLEEPS: u64 = 1_000_000;
/// The number of the call that ends the server.
const LAST_CALL: u64 = u64::MAX;
/// Messages that are written after a short delay each, so that they meet the reader at every point of going to sleep.
const RACING_MESSAGES: u64 = 2_000_000;
const PAIRS: u64 = 8;

/// One side of a pair that calls and answers.
struct Side {
    to: MappedRing,
    from: MappedRing,
}

impl Side {
    /// The ends of a server.
    fn serve(self, start: Cursor) -> (Reader<MappedRing>, Writer<MappedRing>) {
        (Reader::new(self.from, start, &Tuning::default()), Writer::new(self.to, start, &Tuning::default()))
    }

    /// The ends of a caller.
    fn call(self, start: Cursor, depth: u32) -> (CallWriter<MappedRing>, Reader<MappedRing>) {
        (CallWriter::new(self.to, start, depth, &Tuning::default()), Reader::new(self.from, start, &Tuning::default()))
    }
}

fn sides() -> (Side, Side) {
    let store = cpu::features().store;
    let ((calls_to, calls_from), (answers_to, answers_from)) = (ring_pair(2, store), ring_pair(2, store));
    (Side { to: calls_to, from: answers_from }, Side { to: answers_to, from: calls_from })
}

#[test]
fn both_sides_sleep_before_every_message_and_always_wake() {
    let _alone = one_at_a_time();
    let daemon_doorbell = &EventDoorbell::new().expect("an eventfd");
    let (doorbell_of_daemon, client_doorbell) = &SocketDoorbell::pair().expect("a socket pair");
    let (client, daemon) = sides();
    let start = Cursor::at_start(0);
    let sleeps = thread::scope(|scope| {
        let server = scope.spawn(move || {
            let ((mut calls, mut answers), mut sleeps) = (daemon.serve(start), 0);
            for number in 0.. {
                let call = receive_sleeping(&mut calls, daemon_doorbell, &mut sleeps);
                if call.word(0) == numbered(LAST_CALL).word(0) {
                    break;
                }
                assert_is_numbered(&call, number);
                answers.publish(&numbered(!number));
                if answers.reader_needs_doorbell() {
                    doorbell_of_daemon.ring();
                }
            }
            sleeps
        });
        let ((mut calls, mut answers), mut sleeps) = (client.call(start, 1), 0);
        let mut call = |number| {
            calls.publish_all(&[numbered(number)]).expect("one call at a time");
            if calls.reader_needs_doorbell() {
                daemon_doorbell.ring();
            }
            calls.answered();
        };
        for number in 0.. {
            if sleeps >= CLIENT_SLEEPS {
                call(LAST_CALL);
                break;
            }
            call(number);
            assert_is_numbered(&receive_sleeping(&mut answers, client_doorbell, &mut sleeps), !number);
        }
        sleeps + server.join().expect("the server finishes")
    });
    assert!(sleeps >= CLIENT_SLEEPS);
}

fn race(doorbell: &(impl Doorbell + Sync), ring_doorbell: impl Fn() + Send) -> u64 {
    let _alone = one_at_a_time();
    let (to, from) = ring_pair(64, cpu::features().store);
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut writer, mut random) = (StreamWriter::new(to, Cursor::at_start(0), &Tuning::default()), Random(0x5eed));
            for number in 0..RACING_MESSAGES {
                while let Err(error) = writer.try_publish(&numbered(number)) {
                    assert_eq!(error, StreamError::Full);
                    yield_to_peer();
                }
                if writer.reader_needs_doorbell() {
                    ring_doorbell();
                }
                // From nothing to some microseconds: what a reader needs to find nothing, arm, look again and sleep.
                for _ in 0..random.next() % 200 {
                    std::hint::spin_loop();
                }
            }
        });
        let (mut reader, mut sleeps) = (Reader::new(from, Cursor::at_start(0), &Tuning::default()), 0);
        for number in 0..RACING_MESSAGES {
            assert_is_numbered(&receive_sleeping(&mut reader, doorbell, &mut sleeps), number);
            reader.release_some();
        }
        sleeps
    })
}

#[test]
fn eventfd_wakes_a_reader_that_goes_to_sleep_at_any_moment() {
    let doorbell = EventDoorbell::new().expect("an eventfd");
    let sleeps = race(&doorbell, || doorbell.ring());
    assert!(sleeps > RACING_MESSAGES / 100, "only {sleeps} sleeps: the race was not run");
}

#[test]
fn socket_wakes_a_reader_that_goes_to_sleep_at_any_moment() {
    let (daemon_end, client_end) = SocketDoorbell::pair().expect("a socket pair");
    let sleeps = race(&client_end, || daemon_end.ring());
    assert!(sleeps > RACING_MESSAGES / 100, "only {sleeps} sleeps: the race was not run");
}

/// Receive with the waiting policy of the product.
fn receive_backing_off(reader: &mut Reader<MappedRing>, doorbell: &impl Doorbell, backoff: &mut Backoff) -> Message {
    let mut message = Message::ZERO;
    while !reader.receive(&mut message) {
        if backoff.step(false) == Next::Sleep {
            if !reader.arm_and_work_remains() {
                sleep_on(doorbell, reader);
                assert!(doorbell.take_all(), "the peer closed its end of the doorbell");
            }
            reader.disarm();
            backoff.reset();
        }
    }
    backoff.reset();
    message
}

fn crowd(mode: WaitMode, calls_per_pair: u64) {
    let _alone = one_at_a_time();
    let start = Cursor::at_start(1);
    // They outlive both threads: to the other side a closed end means that the peer is gone.
    let doorbells: Vec<_> = (0..PAIRS).map(|_| SocketDoorbell::pair().expect("a socket pair")).collect();
    thread::scope(|scope| {
        for (pair, (ours, theirs)) in (0..).zip(&doorbells) {
            let (client, daemon) = sides();
            scope.spawn(move || {
                let (mut calls, mut answers) = daemon.serve(start);
                let mut backoff = Backoff::new(mode, Duration::from_micros(50));
                for number in 0..calls_per_pair {
                    let call = receive_backing_off(&mut calls, ours, &mut backoff);
                    assert_is_numbered(&call, number);
                    answers.publish(&numbered(number ^ pair));
                    if answers.reader_needs_doorbell() {
                        ours.ring();
                    }
                }
            });
            scope.spawn(move || {
                let (mut calls, mut answers) = client.call(start, 2);
                let mut backoff = Backoff::new(mode, Duration::from_micros(50));
                for number in 0..calls_per_pair {
                    calls.publish_all(&[numbered(number)]).expect("one call at a time");
                    if calls.reader_needs_doorbell() {
                        theirs.ring();
                    }
                    let answer = receive_backing_off(&mut answers, theirs, &mut backoff);
                    assert_is_numbered(&answer, number ^ pair);
                    calls.answered();
                }
            });
        }
    });
}

#[test]
fn adaptive_pairs_that_outnumber_the_cpus_all_finish() {
    crowd(WaitMode::Adaptive, 10_000);
}

#[test]
fn sleeping_pairs_that_outnumber_the_cpus_all_finish() {
    crowd(WaitMode::Sleep, 10_000);
}

#[test]
fn polling_pairs_that_outnumber_the_cpus_all_finish() {
    crowd(WaitMode::Pause, 500);
}
