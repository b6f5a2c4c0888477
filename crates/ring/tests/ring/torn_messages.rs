//! Millions of messages through real shared memory, every byte checked, with every way of storing them.

use std::sync::Arc;
use std::thread;

use crate::common::{assert_is_numbered, numbered, one_at_a_time, ring_pair, store_variants, tunings, yield_to_peer};
use fipsee_ring::Message;
use fipsee_ring::cpu::StoreVariant;
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::region::Region;
use fipsee_ring::ring::{CallWriter, Cursor, Reader, RingMemory, StreamError, StreamWriter, Writer};
use fipsee_ring::tuning::Tuning;

const STREAM_MESSAGES: u64 = 2_500_000;
const CALLS: u64 = 150_000;

/// Look until a message comes, and yield the CPU occasionally: the peer may need it.
fn receive_polling<M: RingMemory>(reader: &mut Reader<M>) -> Message {
    let mut message = Message::ZERO;
    let mut looks = 0_u32;
    while !reader.receive(&mut message) {
        looks += 1;
        if looks.is_multiple_of(64) {
            yield_to_peer();
        }
        std::hint::spin_loop();
    }
    message
}

fn stream(store: StoreVariant, slot_count: u32, start: Cursor, message_count: u64) {
    for tuning in tunings() {
        stream_tuned(store, slot_count, start, message_count, &tuning);
    }
}

fn stream_tuned(store: StoreVariant, slot_count: u32, start: Cursor, message_count: u64, tuning: &Tuning) {
    let _alone = one_at_a_time();
    let (to, from) = ring_pair(slot_count, store);
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut writer = StreamWriter::new(to, start, tuning);
            for number in 0..message_count {
                while let Err(error) = writer.try_publish(&numbered(number)) {
                    assert_eq!(error, StreamError::Full);
                    yield_to_peer();
                }
                // Its fence is among the choices.
                let _ = writer.reader_needs_doorbell();
            }
        });
        let mut reader = Reader::new(from, start, tuning);
        for number in 0..message_count {
            assert_is_numbered(&receive_polling(&mut reader), number);
            reader.release_some();
        }
    });
}

/// checks: R-2.2-1
#[test]
fn streamed_messages_arrive_whole_and_in_order_with_every_store_variant() {
    for store in store_variants() {
        stream(store, 256, Cursor::at_start(7), STREAM_MESSAGES);
    }
}

#[test]
fn smallest_ring_reuses_its_two_slots_without_tearing_a_message() {
    for store in store_variants() {
        stream(store, 2, Cursor::at_start(1), STREAM_MESSAGES / 20);
    }
}

/// checks: R-2.1-2
#[test]
fn stamps_wrap_past_their_largest_value_without_losing_a_message() {
    for store in store_variants() {
        stream(store, 4, Cursor::at(3, u32::MAX - 2), 100);
    }
}

#[test]
fn bursts_of_calls_are_answered_whole_with_every_store_variant() {
    let _alone = one_at_a_time();
    const DEPTH: u32 = 16;
    for (store, tuning) in store_variants().into_iter().flat_map(|store| tunings().map(|tuning| (store, tuning))) {
        let (calls_to, calls_from) = ring_pair(DEPTH, store);
        let (answers_to, answers_from) = ring_pair(DEPTH, store);
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut calls = Reader::new(calls_from, Cursor::at_start(3), &tuning);
                let mut answers = Writer::new(answers_to, Cursor::at_start(5), &tuning);
                for number in 0..CALLS {
                    assert_is_numbered(&receive_polling(&mut calls), number);
                    answers.publish(&numbered(number + CALLS));
                    answers.fence();
                }
            });
            let mut calls = CallWriter::new(calls_to, Cursor::at_start(3), DEPTH, &tuning);
            let mut answers = Reader::new(answers_from, Cursor::at_start(5), &tuning);
            let (mut sent, mut answered) = (0, 0);
            while answered < CALLS {
                let burst_count = u64::from(calls.free()).min(CALLS - sent);
                let burst: Vec<Message> = (sent..sent + burst_count).map(numbered).collect();
                calls.publish_all(&burst).expect("as many as are free");
                let _ = calls.reader_needs_doorbell();
                sent += burst_count;
                assert_is_numbered(&receive_polling(&mut answers), answered + CALLS);
                calls.answered();
                answered += 1;
            }
        });
    }
}

/// checks: R-2.1-3
#[test]
fn stamps_of_other_laps_are_not_messages() {
    for store in store_variants() {
        let region = Arc::new(Region::create("fipsee-test", 4096).expect("memory for a ring"));
        let ring = || MappedRing::new(&region, 128, 2, 0).expect("the ring fits").with_store(store);
        let mut reader = Reader::new(ring(), Cursor::at(0, 5), &Tuning::default());
        let mut message = numbered(9);
        for stamp in [1, 4, 6, u32::MAX] {
            Writer::new(ring(), Cursor::at(0, stamp), &Tuning::default()).publish(&numbered(1));
            assert!(!reader.receive(&mut message), "stamp {stamp} taken for 5");
            assert_eq!(message, numbered(9), "nothing was received, yet the message changed");
        }
        Writer::new(ring(), Cursor::at(0, 5), &Tuning::default()).publish(&numbered(1));
        assert!(reader.receive(&mut message));
        assert_is_numbered(&message, 1);
        assert_eq!(message.word(7) >> 32, 5, "the stamp is in the last four bytes");
    }
}
