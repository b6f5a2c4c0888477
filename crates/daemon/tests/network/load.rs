//! Two ports under load while their daemon is killed, or replaced by another.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fipsee_net::{Error, Port};
use fipsee_testkit::{eventually, wait_for};

use super::{all_sent, frame, lan, mac, options};

/// A frame that carries its number.
fn numbered(number: u64) -> Vec<u8> {
    // Every second one is so short that it goes without its addresses.
    let length_bytes = if number.is_multiple_of(2) { 60 + number % 1400 } else { 57 + number % 12 };
    let mut sent = frame(mac(1), mac(2), usize::try_from(length_bytes).expect("small"), number);
    sent[14..22].copy_from_slice(&number.to_le_bytes());
    sent
}

/// The number of a frame, all of which must be there.
#[track_caller]
fn number_of(found: &[u8]) -> u64 {
    let number = u64::from_le_bytes(*found[14..].first_chunk().expect("8 bytes"));
    assert_eq!(found, numbered(number), "frame {number} has changed");
    number
}

/// Frames on their way at most: fewer than buffers are posted.
const WINDOW: u64 = 32;

/// Sets a flag when it is dropped: the other threads of a test that fails end.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// checks: R-4.8-2, R-10.7-4
#[test]
fn takeovers_under_load_lose_no_frame_for_which_there_are_buffers() {
    let mut daemon = lan(1500, ["", "", ""]);
    let (mut a, mut b) = (super::attach(&daemon.socket(), "a"), super::attach(&daemon.socket(), "b"));
    let (received, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let sent = std::thread::scope(|scope| {
        let _over = SetAtEnd(&is_over);
        let sender = scope.spawn(|| {
            let mut number = 0;
            while !is_over.load(Ordering::Relaxed) {
                if number < received.load(Ordering::Acquire) + WINDOW {
                    a.send(&numbered(number)).expect("sent");
                    number += 1;
                } else {
                    std::thread::yield_now();
                }
            }
            all_sent(&mut a);
            (number, a.refused())
        });
        let receiver = scope.spawn(|| {
            let mut found = Vec::new();
            // The sender waits for what is received: none may be missing.
            while !is_over.load(Ordering::Relaxed) {
                while b.receive(&mut found).expect("the daemon is there") {
                    assert_eq!(number_of(&found), received.load(Ordering::Relaxed), "in order, each once");
                    received.fetch_add(1, Ordering::Release);
                }
                std::thread::yield_now();
            }
        });
        for _ in 0..5 {
            let before = received.load(Ordering::Relaxed);
            daemon.take_over();
            eventually("frames go on", || {
                assert!(!receiver.is_finished() && !sender.is_finished(), "one of them has failed");
                received.load(Ordering::Relaxed) > before + 200
            });
        }
        is_over.store(true, Ordering::Relaxed);
        receiver.join().expect("every frame came");
        sender.join().expect("sent")
    });
    let (sent, refused) = sent;
    let mut found = Vec::new();
    for number in received.load(Ordering::Relaxed)..sent {
        eventually("the rest comes", || b.receive(&mut found).expect("the daemon is there"));
        assert_eq!(number_of(&found), number);
    }
    assert_eq!(refused, (0, None));
}

/// Attach again after a daemon was killed; `None`: the test is over.
fn attach_again(socket: &Path, port: &str, is_over: &AtomicBool) -> Option<Port> {
    wait_for("the next daemon", || {
        let attached = Port::attach(socket, &options(port)).ok();
        if is_over.load(Ordering::Relaxed) { Some(None) } else { attached.map(Some) }
    })
}

#[test]
fn killed_daemons_lose_frames_and_change_repeat_or_reorder_none() {
    let mut daemon = lan(1500, ["", "", ""]);
    let socket = daemon.socket();
    let (mut a, mut b) = (super::attach(&socket, "a"), super::attach(&socket, "b"));
    let (received, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _over = SetAtEnd(&is_over);
        scope.spawn(|| {
            for number in 0.. {
                // Of a daemon that is gone nothing is given back, and the transmit buffers are used up.
                while let Err(error) = a.send(&numbered(number)) {
                    assert!(matches!(error, Error::Full), "{error}");
                    let gone = a.wait_sent(Some(fipsee_ring::clock::ticks() + 1_000_000));
                    if matches!(gone, Err(Error::Disconnected)) {
                        let Some(again) = attach_again(&socket, "a", &is_over) else { return };
                        a = again;
                    }
                }
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let receiver = scope.spawn(|| {
            let (mut found, mut last) = (Vec::new(), None);
            while !is_over.load(Ordering::Relaxed) {
                let deadline = Some(fipsee_ring::clock::ticks() + 10_000_000);
                match b.wait(deadline, &mut found) {
                    Ok(true) => {
                        let number = number_of(&found);
                        assert!(last.is_none_or(|last| number > last), "{number} after {last:?}");
                        last = Some(number);
                        received.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(false) => {}
                    Err(Error::Disconnected) => {
                        let Some(again) = attach_again(&socket, "b", &is_over) else { return };
                        b = again;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        });
        for _ in 0..4 {
            let before = received.load(Ordering::Relaxed);
            eventually("frames go on", || {
                assert!(!receiver.is_finished(), "the receiver has failed");
                received.load(Ordering::Relaxed) > before + 500
            });
            daemon.kill_9_and_start_at_once();
        }
        is_over.store(true, Ordering::Relaxed);
        receiver.join().expect("what came was right");
    });
}
