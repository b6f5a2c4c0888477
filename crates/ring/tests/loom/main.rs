//! The ring algorithm under the model checker: every interleaving (up to the preemption bound) and every value that
//! the memory model lets a load return. Run by `cargo xtask loom`, which also runs the known-bad variants and demands
//! that the tests it names fail (docs/memory-order.md, "What is checked").
#![cfg(loom)]

mod cells;
mod held_back;

use self::cells::{CellRing, Doorbell};
use fipsee_ring::ring::{CallWriter, Cursor, Full, Reader, RingMemory, StreamError, StreamWriter, Writer};
use fipsee_ring::tuning::{Ownership, Touch, Tuning};
use fipsee_ring::{AtomicU32, Message, Ordering, PeerFault};
use loom::thread;
use std::cell::Cell;
use std::sync::Arc;

/// Preemptions explored per execution. Every known-bad variant is found with 2.
const PREEMPTION_BOUND: usize = 3;

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTION_BOUND);
    builder.check(run);
}

/// A message of which every word names its number, so that a mixture of two is neither.
fn numbered(number: u64) -> Message {
    Message::from_words([number; 8])
}

/// Every choice that adds accesses to a slot: the writer's locked operation two slots ahead, the reader's touch.
fn busiest() -> Tuning {
    Tuning { ownership: Ownership::LockedAhead, touch: Touch::Always, ..Tuning::usual() }
}

fn receive_polling(reader: &mut Reader<CellRing>) -> Message {
    let mut message = Message::ZERO;
    while !reader.receive(&mut message) {
        thread::yield_now();
    }
    message
}

fn receive_sleeping(reader: &mut Reader<CellRing>, doorbell: &Doorbell) -> Message {
    let mut message = Message::ZERO;
    while !reader.receive(&mut message) {
        reader.release_all();
        if !reader.arm_and_work_remains() {
            doorbell.wait();
        }
        reader.disarm();
    }
    message
}

/// Wait like a reader that has the CPU watch the line of the stamp: the instructions take a snapshot of the line, and wait as
/// long as the line equals it. Waiting for a write that has already come is loom's deadlock.
fn receive_watching(reader: &mut Reader<CellRing>) -> Message {
    let mut message = Message::ZERO;
    while !reader.receive(&mut message) {
        let (watch, watched) = (reader.watch(), Cell::new(None));
        let arm = |stamp: &AtomicU32| watched.set(Some(stamp.load(Ordering::Relaxed)));
        watch.wait(arm, || {
            let ring = reader.memory();
            while Some(ring.stamp(reader.cursor().index()).load(Ordering::Relaxed)) == watched.get() {
                thread::yield_now();
            }
        });
    }
    message
}

/// `count` numbered messages through two slots, each taken by `take`; with `wakes`, the writer rings after each if that is asked for.
fn stream(start: Cursor, count: u64, tuning: Tuning, wakes: bool, take: fn(&mut Reader<CellRing>, &Doorbell, u64)) {
    model(move || {
        let (ring, doorbell) = (CellRing::new(2), Doorbell::new());
        let (peer, peer_doorbell) = (ring.clone(), doorbell.clone());
        let writer = thread::spawn(move || {
            let mut writer = StreamWriter::new(peer, start, &tuning);
            for number in 1..=count {
                while let Err(error) = writer.try_publish(&numbered(number)) {
                    assert_eq!(error, StreamError::Full, "a correct reader was called faulty");
                    thread::yield_now();
                }
                if wakes && writer.reader_needs_doorbell() {
                    peer_doorbell.ring();
                }
            }
        });
        let mut reader = Reader::new(ring, start, &tuning);
        for number in 1..=count {
            take(&mut reader, &doorbell, number);
        }
        writer.join().expect("the writer finishes");
    });
}

/// To a reader that polls.
fn reuse_slots(tuning: Tuning) {
    stream(Cursor::at_start(0), 4, tuning, false, |reader, _, number| {
        assert_eq!(receive_polling(reader), numbered(number));
        reader.release_some();
    });
}

/// checks: R-2.3-5, R-2.3-7
#[test]
fn stream_reuses_released_slots_only() {
    reuse_slots(Tuning::usual());
}

/// The touch comes before the slot is given back: nothing that is written later is undone by it.
///
/// checks: R-2-2
#[test]
fn touched_slots_are_reused_without_loss() {
    reuse_slots(busiest());
}

#[test]
fn watched_line_wakes_for_every_message() {
    stream(Cursor::at_start(0), 3, Tuning::usual(), false, |reader, _, number| {
        assert_eq!(receive_watching(reader), numbered(number));
        reader.release_all();
    });
}

/// checks: R-2.1-2
#[test]
fn stamp_wraps_past_its_largest_value() {
    stream(Cursor::at(1, u32::MAX), 4, Tuning::usual(), false, |reader, _, number| {
        assert_eq!(receive_polling(reader), numbered(number));
        reader.release_some();
        assert!(number < 4 || reader.cursor() == Cursor::at(1, 2), "laps count 2^32 - 1, 1, 2");
    });
}

/// To a reader that sleeps when it can.
fn wake_for_every_message(tuning: Tuning) {
    stream(Cursor::at_start(0), 3, tuning, true, |reader, doorbell, number| {
        assert_eq!(receive_sleeping(reader, doorbell), numbered(number));
        reader.release_some();
    });
}

/// checks: R-2.4-1, R-2.4-3
#[test]
fn sleeping_reader_is_woken_for_every_message() {
    wake_for_every_message(Tuning::usual());
}

/// S with the fence on a slot ahead instead of on the stack.
///
/// checks: R-2.4-3
#[test]
fn sleeping_reader_is_woken_by_a_writer_whose_fence_is_on_a_slot() {
    wake_for_every_message(busiest());
}

/// checks: R-2.2-1
#[test]
fn stream_burst_is_seen_whole_and_in_order() {
    model(|| {
        let ring = CellRing::new(2);
        let peer = ring.clone();
        let writer = thread::spawn(move || {
            let mut writer = StreamWriter::new(peer, Cursor::at_start(1), &Tuning::default());
            let messages = [numbered(1), numbered(2), numbered(3)];
            let mut sent = 0;
            while sent < messages.len() {
                let count = writer.publish_burst(&messages[sent..]).expect("the reader is correct");
                sent += count;
                if count == 0 {
                    thread::yield_now();
                }
            }
        });
        let mut reader = Reader::new(ring, Cursor::at_start(1), &Tuning::default());
        for number in 1..=3 {
            assert_eq!(receive_polling(&mut reader), numbered(number));
            reader.release_all();
        }
        writer.join().expect("the writer finishes");
    });
}

/// Three calls in two slots: the third is published while the server still takes the second.
fn answer_calls(tuning: Tuning, fences: bool) {
    model(move || {
        let (calls, answers) = (CellRing::new(2), CellRing::new(2));
        let (peer_calls, peer_answers) = (calls.clone(), answers.clone());
        let server = thread::spawn(move || {
            let mut calls = Reader::new(peer_calls, Cursor::at_start(0), &tuning);
            let mut answers = Writer::new(peer_answers, Cursor::at_start(1), &tuning);
            for _ in 0..3 {
                let call = receive_polling(&mut calls);
                answers.publish(&numbered(10 * call.word(0)));
                if fences {
                    answers.fence();
                }
            }
        });
        let mut calls = CallWriter::new(calls, Cursor::at_start(0), 2, &tuning);
        let mut answers = Reader::new(answers, Cursor::at_start(1), &tuning);
        calls.publish_all(&[numbered(1), numbered(2)]).expect("two fit");
        assert_eq!(calls.publish_all(&[numbered(3)]), Err(Full));
        for number in 1..=3 {
            assert_eq!(receive_polling(&mut answers), numbered(10 * number));
            calls.answered();
            if number == 1 {
                calls.publish_all(&[numbered(3)]).expect("the answer freed a slot");
            }
        }
        server.join().expect("the server finishes");
    });
}

/// checks: R-2.3-2
#[test]
fn answers_return_the_slots_of_their_calls() {
    answer_calls(Tuning::usual(), false);
}

/// An answer gives back a slot that was touched before. The locked operation of the writer, which may meet the touch, changes no
/// stamp.
#[test]
fn answers_return_the_touched_slots_of_their_calls() {
    answer_calls(busiest(), true);
}

#[test]
fn sleeping_reader_is_woken_for_a_batch_with_one_look_at_its_flag() {
    model(|| {
        let (ring, doorbell) = (CellRing::new(4), Doorbell::new());
        let (peer, peer_doorbell) = (ring.clone(), doorbell.clone());
        let writer = thread::spawn(move || {
            let mut writer = Writer::new(peer, Cursor::at_start(3), &Tuning::default());
            for batch in [[1, 2], [3, 4]] {
                writer.publish_all(&batch.map(numbered));
                if writer.reader_needs_doorbell() {
                    peer_doorbell.ring();
                }
            }
        });
        let mut reader = Reader::new(ring, Cursor::at_start(3), &Tuning::default());
        for number in 1..=4 {
            assert_eq!(receive_sleeping(&mut reader, &doorbell), numbered(number));
        }
        writer.join().expect("the writer finishes");
    });
}

/// A worker that has published in several rings.
///
/// checks: R-2.4-3
#[test]
fn two_sleeping_readers_are_woken_by_a_writer_with_one_fence() {
    model(|| {
        let rings = [(); 2].map(|()| (CellRing::new(2), Doorbell::new()));
        let peers = rings.clone();
        let writer = thread::spawn(move || {
            let [mut first, mut second] = peers.clone().map(|(ring, _)| Writer::new(ring, Cursor::at_start(0), &busiest()));
            first.publish(&numbered(1));
            second.publish(&numbered(2));
            if first.reader_needs_doorbell() {
                peers[0].1.ring();
            }
            if second.reader_needs_doorbell_after(true) {
                peers[1].1.ring();
            }
        });
        let [(first, doorbell), (second, other_doorbell)] = rings;
        let other = thread::spawn(move || {
            let mut reader = Reader::new(second, Cursor::at_start(0), &busiest());
            assert_eq!(receive_sleeping(&mut reader, &other_doorbell), numbered(2));
        });
        let mut reader = Reader::new(first, Cursor::at_start(0), &busiest());
        assert_eq!(receive_sleeping(&mut reader, &doorbell), numbered(1));
        other.join().expect("the other reader finishes");
        writer.join().expect("the writer finishes");
    });
}

#[test]
fn caller_and_server_both_sleep_and_both_wake() {
    model(|| {
        let (calls, answers) = (CellRing::new(2), CellRing::new(2));
        let (server_doorbell, client_doorbell) = (Doorbell::new(), Doorbell::new());
        let server = {
            let (calls, answers) = (calls.clone(), answers.clone());
            let (server_doorbell, client_doorbell) = (server_doorbell.clone(), client_doorbell.clone());
            thread::spawn(move || {
                let mut calls = Reader::new(calls, Cursor::at_start(0), &Tuning::default());
                let mut answers = Writer::new(answers, Cursor::at_start(0), &Tuning::default());
                for _ in 0..2 {
                    let call = receive_sleeping(&mut calls, &server_doorbell);
                    answers.publish(&call);
                    if answers.reader_needs_doorbell() {
                        client_doorbell.ring();
                    }
                }
            })
        };
        let mut calls = CallWriter::new(calls, Cursor::at_start(0), 1, &Tuning::default());
        let mut answers = Reader::new(answers, Cursor::at_start(0), &Tuning::default());
        for number in 1..=2 {
            calls.publish_all(&[numbered(number)]).expect("one call at a time");
            if calls.reader_needs_doorbell() {
                server_doorbell.ring();
            }
            assert_eq!(receive_sleeping(&mut answers, &client_doorbell), numbered(number));
            calls.answered();
        }
        server.join().expect("the server finishes");
    });
}

#[test]
fn false_release_counter_is_a_fault_and_never_a_count_beyond_the_ring() {
    for count in [1, 2, 3, 0x8000_0000, u32::MAX] {
        model(move || {
            let ring = CellRing::new(2);
            let peer = ring.clone();
            let faulty_reader = thread::spawn(move || peer.released().store(count, Ordering::Relaxed));
            let mut writer = StreamWriter::new(ring, Cursor::at_start(0), &Tuning::default());
            let mut published = 0;
            for number in 1..=3 {
                match writer.try_publish(&numbered(number)) {
                    Ok(()) => published += 1,
                    Err(StreamError::Full) => assert!(published >= 2, "full with a free slot"),
                    Err(StreamError::Fault(fault)) => {
                        let outstanding = published;
                        assert_eq!(
                            fault,
                            PeerFault::Count { what: "messages as released", value: count.into(), limit: outstanding.into() }
                        );
                        assert!(count > outstanding, "a possible count was called a fault");
                        break;
                    }
                }
                let free = writer.free_slots(2);
                assert!(free.is_err() || free.is_ok_and(|count| count <= 2), "more free slots than slots");
            }
            faulty_reader.join().expect("the faulty reader finishes");
        });
    }
}

/// A daemon that answers `count` times and is gone: what the kernel says of its socket from then on, and the wake-up.
fn answer_and_hang_up(answers: CellRing, gone: &AtomicU32, count: u64, doorbell: &Doorbell) {
    let mut answers = Writer::new(answers, Cursor::at_start(0), &Tuning::default());
    for number in 1..=count {
        answers.publish(&numbered(number));
        if answers.reader_needs_doorbell() {
            doorbell.ring();
        }
    }
    // A close: a reader that sees it sees what came before.
    gone.store(1, Ordering::Release);
    doorbell.ring();
}

/// The end of a channel, at any moment of a client that does `when_empty` between two looks.
fn take_all_before_the_end(when_empty: fn(&mut Reader<CellRing>, &Doorbell)) {
    model(move || {
        let (answers, gone, doorbell) = (CellRing::new(2), Arc::new(AtomicU32::new(0)), Doorbell::new());
        let (peer, peer_gone, peer_doorbell) = (answers.clone(), Arc::clone(&gone), doorbell.clone());
        let daemon = thread::spawn(move || answer_and_hang_up(peer, &peer_gone, 2, &peer_doorbell));
        let mut reader = Reader::new(answers, Cursor::at_start(0), &Tuning::default());
        let (mut message, mut taken) = (Message::ZERO, 0);
        loop {
            if reader.receive(&mut message) {
                taken += 1;
                assert_eq!(message, numbered(taken));
            } else if reader.is_over(|| gone.load(Ordering::Acquire) != 0) {
                break;
            } else {
                when_empty(&mut reader, &doorbell);
            }
        }
        assert_eq!(taken, 2, "an answer that was published is lost");
        daemon.join().expect("the daemon ends");
    });
}

#[test]
fn what_was_published_before_a_hang_up_is_taken_after_it() {
    take_all_before_the_end(|_, _| thread::yield_now());
}

/// It is woken by the end, and takes everything before it reports the end.
#[test]
fn sleeping_client_wakes_when_the_channel_ends_and_loses_nothing() {
    take_all_before_the_end(|reader, doorbell| {
        if !reader.arm_and_work_remains() {
            doorbell.wait();
        }
        reader.disarm();
    });
}
