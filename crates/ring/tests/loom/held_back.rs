//! Doorbells that a policy holds back: the product's decision between the writer and its sleeping reader, with every time at which it
//! may be asked. A reader that is never woken is loom's deadlock.

use fipsee_ring::notify::{CallerModerator, Moderator, Policy, Verdict};
use fipsee_ring::ring::{CallWriter, Cursor, Reader, Writer};
use fipsee_ring::tuning::Tuning;
use loom::thread;

use super::cells::{CellRing, Doorbell};
use super::{model, numbered, receive_sleeping};

const PER_SECOND: u64 = 1_000_000;
/// Longer than any delay of the policies.
const LONG: u64 = PER_SECOND;
const MESSAGES: u64 = 2;
const POLICIES: [&str; 4] = ["max_rate=1000", "min_completions=2,max_delay_us=50", "max_rate=1000,max_delay_us=50", "auto"];

/// Time passes before a message is published, or not: a bit each.
type Pauses = u32;
const ALL_PAUSES: std::ops::Range<Pauses> = 0..1 << MESSAGES;

fn policy(text: &str) -> Policy {
    text.parse().expect("a possible policy")
}

/// A decision with a past: the last notification was just now, and `auto` has seen a high rate, so that both hold back.
fn moderator(text: &str, now: &mut u64) -> Moderator {
    let mut moderator = Moderator::new(policy(text), PER_SECOND);
    for _ in 0..64 {
        *now += PER_SECOND / 1000;
        if !moderator.reader_sleeps(*now, 64, 64) {
            moderator.notified(*now);
        }
    }
    moderator
}

fn receive_all(ring: CellRing, doorbell: &Doorbell) {
    let mut reader = Reader::new(ring, Cursor::at_start(0), &Tuning::default());
    for number in 1..=MESSAGES {
        assert_eq!(receive_sleeping(&mut reader, doorbell), numbered(number));
    }
}

/// What the server of a queue does when it has published `count` completions, or what it holds back is due.
fn flush(moderator: &mut Moderator, writer: &mut Writer<CellRing>, doorbell: &Doorbell, now: u64, count: u32, to_come: u32) {
    if !writer.reader_sleeps() {
        moderator.reader_is_awake(count);
    } else if moderator.reader_sleeps(now, count, to_come) && writer.reader_needs_doorbell() {
        doorbell.ring();
    }
}

/// `stuck`: requests of the client that are in flight and never end, for which a policy may wait.
fn serve(policy: &'static str, pauses: Pauses, stuck: u32) {
    model(move || {
        let (ring, doorbell) = (CellRing::new(4), Doorbell::new());
        let (peer, peer_doorbell) = (ring.clone(), doorbell.clone());
        let server = thread::spawn(move || {
            let mut now = 0;
            let mut moderator = moderator(policy, &mut now);
            let mut writer = Writer::new(peer, Cursor::at_start(0), &Tuning::default());
            let flush = |now, count, moderator: &mut Moderator, writer: &mut Writer<CellRing>| {
                flush(moderator, writer, &peer_doorbell, now, count, stuck);
            };
            for number in 1..=MESSAGES {
                if pauses >> (number - 1) & 1 == 1 {
                    now += LONG;
                    if moderator.due().is_some_and(|due| due <= now) {
                        flush(now, 0, &mut moderator, &mut writer);
                    }
                }
                writer.publish(&numbered(number));
                flush(now, 1, &mut moderator, &mut writer);
            }
            while let Some(due) = moderator.due() {
                now = now.max(due);
                flush(now, 0, &mut moderator, &mut writer);
            }
        });
        receive_all(ring, &doorbell);
        server.join().expect("the server finishes");
    });
}

/// checks: R-2.4-7
#[test]
fn sleeping_client_is_woken_at_the_latest_when_its_notification_is_due() {
    for policy in POLICIES {
        for pauses in ALL_PAUSES {
            for stuck in [0, 64] {
                serve(policy, pauses, stuck);
            }
        }
    }
}

/// How the client goes on after its last request.
#[derive(Clone, Copy)]
enum End {
    /// It waits in the library, which knows when the doorbell is due.
    Waits,
    /// It arms the queue and waits elsewhere, or has another policy.
    Elsewhere,
}

fn call(policy: Policy, pauses: Pauses, end: End) {
    model(move || {
        let (ring, doorbell) = (CellRing::new(4), Doorbell::new());
        let (peer, peer_doorbell) = (ring.clone(), doorbell.clone());
        let client = thread::spawn(move || {
            let mut now = LONG;
            let mut requests = CallWriter::new(peer, Cursor::at_start(0), 4, &Tuning::default());
            let mut moderator = CallerModerator::new(policy, PER_SECOND);
            let ring_for = |verdict| {
                if verdict == Verdict::Ring {
                    peer_doorbell.ring();
                }
            };
            for number in 1..=MESSAGES {
                if pauses >> (number - 1) & 1 == 1 {
                    now += LONG;
                    if moderator.is_due(|| now, true) {
                        ring_for(moderator.ask(&mut requests, || now, true));
                    }
                }
                requests.publish(&numbered(number)).expect("it is deep enough");
                ring_for(moderator.ask(&mut requests, || now, true));
            }
            match end {
                End::Waits => {
                    while moderator.is_due(|| now, false) {
                        ring_for(moderator.ask(&mut requests, || now, false));
                        now = now.max(moderator.due().unwrap_or(now));
                    }
                }
                End::Elsewhere => {
                    if moderator.release(&mut requests, || now) {
                        peer_doorbell.ring();
                    }
                }
            }
        });
        receive_all(ring, &doorbell);
        client.join().expect("the client finishes");
    });
}

/// checks: R-2.4-7
#[test]
fn sleeping_daemon_is_woken_at_the_latest_when_its_client_waits() {
    for text in POLICIES {
        for pauses in ALL_PAUSES {
            for end in [End::Waits, End::Elsewhere] {
                call(policy(text), pauses, end);
            }
        }
    }
}
