//! The ring over ordinary memory with words of one size each: small enough for Miri, which then checks every access
//! for races, and the first thing to run when something is wrong.
#![cfg(not(loom))]

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;

use fipsee_ring::ring::{CallWriter, Cursor, Full, Reader, RingMemory, StreamError, StreamWriter, Writer};
use fipsee_ring::{AtomicU32, Message, Ordering, PeerFault};

const MESSAGES: u64 = if cfg!(miri) { 40 } else { 20_000 };

struct Slot {
    words: [AtomicU64; 7],
    low: AtomicU32,
    stamp: AtomicU32,
}

struct Cells {
    slots: Vec<Slot>,
    released: AtomicU32,
    asleep: AtomicU32,
}

/// A ring in boxed atomics.
#[derive(Clone)]
struct HeapRing(Arc<Cells>);

impl HeapRing {
    fn new(slot_count: usize) -> Self {
        let slot = || Slot { words: Default::default(), low: AtomicU32::new(0), stamp: AtomicU32::new(0) };
        let slots = (0..slot_count).map(|_| slot()).collect();
        Self(Arc::new(Cells { slots, released: AtomicU32::new(0), asleep: AtomicU32::new(0) }))
    }

    fn slot(&self, index: u32) -> &Slot {
        &self.0.slots[usize::try_from(index).expect("an index fits usize")]
    }
}

// SAFETY: the vector never changes, so neither do its length (a power of two at every use) and the words; both copies
// use only slot `index`, and each word is read once.
unsafe impl RingMemory for HeapRing {
    fn slot_count(&self) -> u32 {
        u32::try_from(self.0.slots.len()).expect("few slots")
    }

    fn stamp(&self, index: u32) -> &AtomicU32 {
        &self.slot(index).stamp
    }

    fn released(&self) -> &AtomicU32 {
        &self.0.released
    }

    fn asleep(&self) -> &AtomicU32 {
        &self.0.asleep
    }

    unsafe fn copy_in(&self, index: u32, into: &mut Message) {
        let slot = self.slot(index);
        for (word, from) in slot.words.iter().enumerate() {
            into.set_word(word, from.load(Ordering::Relaxed));
        }
        into.set_word(7, u64::from(slot.low.load(Ordering::Relaxed)));
    }

    unsafe fn write_payload(&self, index: u32, message: &Message) {
        let slot = self.slot(index);
        for (word, to) in slot.words.iter().enumerate() {
            to.store(message.word(word), Ordering::Relaxed);
        }
        let low = u32::try_from(message.word(7) & 0xffff_ffff).expect("32 bits");
        slot.low.store(low, Ordering::Relaxed);
    }
}

fn numbered(number: u64) -> Message {
    Message::from_words([number; 8])
}

#[test]
fn stream_arrives_in_order() {
    let ring = HeapRing::new(4);
    let peer = ring.clone();
    let writer = thread::spawn(move || {
        let mut writer = StreamWriter::new(peer, Cursor::at(3, u32::MAX));
        for number in 0..MESSAGES {
            while let Err(error) = writer.try_publish(&numbered(number)) {
                assert_eq!(error, StreamError::Full);
                thread::yield_now();
            }
        }
    });
    let mut reader = Reader::new(ring, Cursor::at(3, u32::MAX));
    let mut message = Message::ZERO;
    for number in 0..MESSAGES {
        while !reader.receive(&mut message) {
            thread::yield_now();
        }
        assert_eq!(message, numbered(number), "message {number} is torn");
        reader.release_some();
    }
    writer.join().expect("the writer finishes");
}

/// checks: R-2.3-7
#[test]
fn full_ring_takes_nothing_until_the_reader_releases() {
    let ring = HeapRing::new(2);
    let mut writer = StreamWriter::new(ring.clone(), Cursor::at_start(0));
    let mut reader = Reader::new(ring, Cursor::at_start(0));
    assert_eq!(writer.publish_burst(&[numbered(1), numbered(2), numbered(3)]), Ok(2));
    assert_eq!(writer.try_publish(&numbered(3)), Err(StreamError::Full));
    let mut message = Message::ZERO;
    assert!(reader.receive(&mut message));
    assert_eq!(writer.try_publish(&numbered(3)), Err(StreamError::Full), "received is not released");
    reader.release_all();
    assert_eq!(writer.try_publish(&numbered(3)), Ok(()));
    for number in 2..=3 {
        assert!(reader.receive(&mut message));
        assert_eq!(message, numbered(number));
    }
    assert!(!reader.receive(&mut message), "nothing more was published");
}

/// checks: R-2.3-8
#[test]
fn release_counter_may_wrap_but_not_lie() {
    let ring = HeapRing::new(4);
    let mut writer = StreamWriter::new(ring.clone(), Cursor::at_start(0));
    assert_eq!(writer.publish_burst(&[numbered(1), numbered(2)]), Ok(2));
    for lie in [3, 4, 5, 0x8000_0000, u32::MAX] {
        ring.released().store(lie, Ordering::Relaxed);
        assert_eq!(writer.free_slots(2), Ok(2), "nobody looks at the counter while enough is known to be free");
        assert_eq!(writer.free_slots(3), Err(PeerFault::ReleasedTooMany { moved: lie, outstanding: 2 }));
    }
    ring.released().store(2, Ordering::Relaxed);
    assert_eq!(writer.free_slots(4), Ok(4));
    ring.released().store(1, Ordering::Relaxed);
    assert_eq!(writer.publish_burst(&[numbered(3); 4]), Ok(4));
    assert_eq!(writer.free_slots(1), Err(PeerFault::ReleasedTooMany { moved: u32::MAX, outstanding: 4 }), "it went back");
}

/// checks: R-2.3-1
#[test]
fn calls_beyond_the_depth_are_given_back_whole() {
    let ring = HeapRing::new(4);
    let mut calls = CallWriter::new(ring.clone(), Cursor::at_start(0), 3);
    assert_eq!(calls.publish_all(&[numbered(1); 4]), Err(Full));
    assert_eq!((calls.free(), ring.stamp(0).load(Ordering::Relaxed)), (3, 0), "nothing was published");
    assert_eq!(calls.publish_all(&[numbered(1); 3]), Ok(()));
    assert_eq!(calls.publish_all(&[numbered(1)]), Err(Full));
    calls.answered();
    assert_eq!((calls.free(), calls.outstanding()), (1, 2));
}

/// checks: R-2.4-6
#[test]
fn doorbell_is_wanted_once_for_each_arming() {
    let ring = HeapRing::new(2);
    let mut writer = Writer::new(ring.clone(), Cursor::at_start(0));
    let mut reader = Reader::new(ring, Cursor::at_start(0));
    assert!(!writer.reader_needs_doorbell(), "nobody sleeps");
    assert!(!reader.arm_and_work_remains());
    assert!(reader.is_armed());
    writer.publish(&numbered(1));
    assert!(writer.reader_needs_doorbell());
    assert!(!writer.reader_needs_doorbell(), "rung already");
    assert!(reader.arm_and_work_remains(), "a message is there");
    reader.disarm();
    assert!(!reader.is_armed());
    assert!(!writer.reader_needs_doorbell(), "disarmed");
}
