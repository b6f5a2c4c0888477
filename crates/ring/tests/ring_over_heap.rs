//! The ring over ordinary memory with words of one size each: small enough for Miri, which then checks every access
//! for races, and the first thing to run when something is wrong.
#![cfg(not(loom))]

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread;

use fipsee_ring::ring::{CallWriter, Cursor, Full, Reader, RingMemory, StreamError, StreamWriter, Writer};
use fipsee_ring::tuning::{Ownership, Touch, Tuning};
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

fn too_many(released: u32, outstanding: u32) -> PeerFault {
    PeerFault::Count { what: "messages as released", value: released.into(), limit: outstanding.into() }
}

#[test]
fn stream_arrives_in_order() {
    stream(Tuning::usual());
    stream(busiest());
}

fn busiest() -> Tuning {
    Tuning { ownership: Ownership::LockedAhead, touch: Touch::Always, ..Tuning::usual() }
}

fn stream(tuning: Tuning) {
    let ring = HeapRing::new(4);
    let peer = ring.clone();
    let writer = thread::spawn(move || {
        let mut writer = StreamWriter::new(peer, Cursor::at(3, u32::MAX), &tuning);
        for number in 0..MESSAGES {
            while let Err(error) = writer.try_publish(&numbered(number)) {
                assert_eq!(error, StreamError::Full);
                thread::yield_now();
            }
            let _ = writer.reader_needs_doorbell();
        }
    });
    let mut reader = Reader::new(ring, Cursor::at(3, u32::MAX), &tuning);
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
    let mut writer = StreamWriter::new(ring.clone(), Cursor::at_start(0), &Tuning::default());
    let mut reader = Reader::new(ring, Cursor::at_start(0), &Tuning::default());
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

/// checks: R-2.3-8, R-6-16
#[test]
fn release_counter_may_wrap_but_not_exceed_what_was_published() {
    let ring = HeapRing::new(4);
    let mut writer = StreamWriter::new(ring.clone(), Cursor::at_start(0), &Tuning::default());
    assert_eq!(writer.publish_burst(&[numbered(1), numbered(2)]), Ok(2));
    for count in [3, 4, 5, 0x8000_0000, u32::MAX] {
        ring.released().store(count, Ordering::Relaxed);
        assert_eq!(writer.free_slots(2), Ok(2), "the counter is not read while enough is known to be free");
        assert_eq!(writer.free_slots(3), Err(too_many(count, 2)));
    }
    ring.released().store(2, Ordering::Relaxed);
    assert_eq!(writer.free_slots(4), Ok(4));
    ring.released().store(1, Ordering::Relaxed);
    assert_eq!(writer.publish_burst(&[numbered(3); 4]), Ok(4));
    assert_eq!(writer.free_slots(1), Err(too_many(u32::MAX, 4)), "it went back");
}

/// checks: R-2.3-1
#[test]
fn calls_beyond_the_depth_are_given_back_whole() {
    let ring = HeapRing::new(4);
    let mut calls = CallWriter::new(ring.clone(), Cursor::at_start(0), 3, &Tuning::default());
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
    let mut writer = Writer::new(ring.clone(), Cursor::at_start(0), &Tuning::default());
    let mut reader = Reader::new(ring, Cursor::at_start(0), &Tuning::default());
    assert!(!writer.reader_needs_doorbell(), "the reader does not sleep");
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

/// A ring that notes what is done to it, in order.
#[derive(Clone)]
struct NotedRing(HeapRing, Arc<Mutex<Vec<Note>>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Note {
    Copied(u32),
    Touched(u32, u32),
    Fenced(u32),
    Prefetched(u32),
}

impl NotedRing {
    fn new(slot_count: usize) -> Self {
        Self(HeapRing::new(slot_count), Arc::default())
    }

    fn note(&self, note: Note) {
        self.1.lock().expect("one thread").push(note);
    }

    fn notes(&self) -> Vec<Note> {
        std::mem::take(&mut self.1.lock().expect("one thread"))
    }
}

// SAFETY: as for `HeapRing`, to which everything is passed on.
unsafe impl RingMemory for NotedRing {
    fn slot_count(&self) -> u32 {
        self.0.slot_count()
    }

    fn stamp(&self, index: u32) -> &AtomicU32 {
        self.0.stamp(index)
    }

    fn released(&self) -> &AtomicU32 {
        self.0.released()
    }

    fn asleep(&self) -> &AtomicU32 {
        self.0.asleep()
    }

    unsafe fn copy_in(&self, index: u32, into: &mut Message) {
        self.note(Note::Copied(index));
        // SAFETY: the caller's obligations are the same.
        unsafe { self.0.copy_in(index, into) };
    }

    unsafe fn write_payload(&self, index: u32, message: &Message) {
        // SAFETY: as above.
        unsafe { self.0.write_payload(index, message) };
    }

    fn touch(&self, index: u32, stamp: u32) {
        self.note(Note::Touched(index, stamp));
        self.0.touch(index, stamp);
    }

    fn full_fence_at(&self, index: u32) {
        self.note(Note::Fenced(index));
        self.0.full_fence_at(index);
    }

    fn prefetch_for_write(&self, index: u32) {
        self.note(Note::Prefetched(index));
    }
}

/// Receive what is there, from slot 2 of a ring of four on, and say which slots were touched.
fn touched(tuning: &Tuning, runs: &[u64]) -> Vec<u32> {
    let ring = NotedRing::new(4);
    let mut writer = Writer::new(ring.clone(), Cursor::at(2, 7), &Tuning::default());
    let mut reader = Reader::new(ring.clone(), Cursor::at(2, 7), tuning);
    let mut message = Message::ZERO;
    for run in runs {
        (0..*run).for_each(|number| writer.publish(&numbered(number)));
        while reader.receive(&mut message) {}
    }
    let notes = ring.notes();
    let touches = notes.iter().zip(notes.iter().skip(1)).filter_map(|(before, note)| match note {
        Note::Touched(index, stamp) => {
            assert_eq!(*before, Note::Copied(*index), "a touch comes right after the copy");
            assert_eq!(*stamp, if *index < 2 { 8 } else { 7 }, "and stores what was read");
            Some(*index)
        }
        _ => None,
    });
    touches.collect()
}

/// checks: R-2-2
#[test]
fn messages_are_touched_as_chosen() {
    let with = |touch| Tuning { touch, ..Tuning::usual() };
    assert_eq!(touched(&with(Touch::Never), &[1, 3]), [0; 0]);
    assert_eq!(touched(&with(Touch::Runs), &[1, 3]), [0, 1], "not the first of a run");
    assert_eq!(touched(&with(Touch::Always), &[1, 3]), [2, 3, 0, 1]);
}

#[test]
fn lone_messages_are_touched_or_not_whatever_is_done_with_runs() {
    let ring = NotedRing::new(4);
    let mut writer = Writer::new(ring.clone(), Cursor::at_start(0), &Tuning::default());
    let mut reader = Reader::new(ring.clone(), Cursor::at_start(0), &Tuning { touch: Touch::Runs, ..Tuning::usual() });
    let mut message = Message::ZERO;
    let mut receive_lone = |reader: &mut Reader<NotedRing>| {
        writer.publish(&numbered(1));
        reader.begin_run();
        assert!(reader.receive(&mut message));
        ring.notes().into_iter().any(|note| matches!(note, Note::Touched(..)))
    };
    assert!(!receive_lone(&mut reader));
    assert!(!receive_lone(&mut reader), "it follows another without an empty look, but was said to begin a run");
    reader.set_touch_lone(true);
    assert!(receive_lone(&mut reader));
}

#[test]
fn ownership_is_asked_for_as_chosen_after_lone_messages_and_short_bursts() {
    for (ownership, lone, burst) in [
        (Ownership::PrefetchNext, vec![Note::Prefetched(1)], vec![]),
        (Ownership::LockedAhead, vec![Note::Fenced(2)], vec![Note::Fenced(3), Note::Fenced(4)]),
        (Ownership::NotAsked, vec![], vec![]),
    ] {
        let ring = NotedRing::new(16);
        let tuning = Tuning { ownership, burst_prefetch_slots: 0, ..Tuning::usual() };
        let mut writer = Writer::new(ring.clone(), Cursor::at_start(0), &tuning);
        writer.publish(&numbered(1));
        writer.prefetch(1);
        assert!(!writer.reader_needs_doorbell());
        assert_eq!(ring.notes(), lone, "{ownership:?}");
        writer.publish_all(&[numbered(2), numbered(3)]);
        assert!(!writer.reader_needs_doorbell());
        assert_eq!(ring.notes(), burst, "{ownership:?}: a short burst");
        writer.publish_all(&[4, 5, 6, 7, 8, 9, 10, 11, 12].map(numbered));
        assert!(!writer.reader_needs_doorbell());
        assert_eq!(ring.notes(), [], "{ownership:?}: a long burst");
    }
}
