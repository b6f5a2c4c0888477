//! What several tests of the ring share.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use fipsee_ring::Message;
use fipsee_ring::cpu::{self, StoreVariant};
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::region::Region;
use fipsee_ring::ring::{Reader, RingMemory};
use fipsee_ring::tuning::{Ownership, Touch, Tuning};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::thread::CpuSet;

/// After this long without a doorbell the state of the ring is checked: a message that waits there is a lost wake-up.
const WAKE_UP_TIMEOUT_S: i64 = 10;

/// Delays, and races that are to be run, want a CPU for each side; and the emulator of instructions counts for the whole process.
pub(crate) fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stay on the lowest CPU this thread may use.
pub(crate) fn bind_to_first_cpu() {
    let allowed = rustix::thread::sched_getaffinity(None).expect("affinity");
    let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).expect("one at least");
    let mut set = CpuSet::new();
    set.set(first);
    rustix::thread::sched_setaffinity(None, &set).expect("one of the allowed ones");
}

static ANY_THREAD_PANICKED: AtomicBool = AtomicBool::new(false);

/// Note panics, so that the threads which wait for the one that failed end too and the test fails instead of hanging.
fn watch_for_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            ANY_THREAD_PANICKED.store(true, Ordering::Relaxed);
            print(panic);
        }));
    });
}

/// Yield the CPU while waiting for the peer; fail when a thread of this program has failed.
pub(crate) fn yield_to_peer() {
    assert!(!ANY_THREAD_PANICKED.load(Ordering::Relaxed), "gave up waiting: another thread failed");
    std::thread::yield_now();
}

/// The variants that this CPU may use; the widest only where detection allows it.
pub(crate) fn store_variants() -> Vec<StoreVariant> {
    let all = [StoreVariant::Wide64, StoreVariant::Split32, StoreVariant::Wide16, StoreVariant::Portable];
    all.into_iter().filter(|variant| *variant >= cpu::features().store).collect()
}

/// The default choices, and those that add accesses to slots: the writer's locked operation two slots ahead,
/// the reader's touch of every message.
pub(crate) fn tunings() -> [Tuning; 2] {
    let busiest =
        Tuning { ownership: Ownership::LockedAhead, touch: Touch::Always, stream_gather_ticks: 1000, ..Tuning::usual() };
    [Tuning::usual(), busiest]
}

/// Report to `cargo xtask test`, past libtest's capture, that a check could not run here.
pub(crate) fn skip(what: &str, reason: &str) {
    use std::io::Write;
    // In one piece: other tests write, too.
    let line = format!("fipsee-skip: {what}: {reason}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
}

/// Both ends' views of a fresh ring.
pub(crate) fn ring_pair(slot_count: u32, store: StoreVariant) -> (MappedRing, MappedRing) {
    watch_for_panics();
    let region = Arc::new(Region::create("fipsee-test", 128 + 64 * u64::from(slot_count)).expect("memory for a ring"));
    let end = || MappedRing::new(&region, 128, slot_count, 0).expect("the ring fits").with_store(store);
    (end(), end())
}

/// A message of which every byte depends on `number`, so that a mixture of two messages is no message.
pub(crate) fn numbered(number: u64) -> Message {
    let mut state = number;
    Message::from_words(std::array::from_fn(|_| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ mixed >> 27
    }))
}

/// Fail unless `message` is exactly message `number`, but for the stamp.
pub(crate) fn assert_is_numbered(message: &Message, number: u64) {
    let mut expected = numbered(number);
    expected.set_word(7, expected.word(7) & 0xffff_ffff | message.word(7) & !0xffff_ffff);
    assert_eq!(message, &expected, "message {number} arrived torn or out of order");
}

/// The sleeping end of a doorbell.
pub(crate) trait Doorbell: AsFd + Send {
    /// Take back all rings so far; `false`: the peer closed its end.
    fn take_all(&self) -> bool;
}

impl Doorbell for EventDoorbell {
    fn take_all(&self) -> bool {
        let mut count = [0_u8; 8];
        match rustix::io::read(self, &mut count) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => true,
            Err(error) => panic!("cannot read an eventfd: {error}"),
        }
    }
}

impl Doorbell for SocketDoorbell {
    fn take_all(&self) -> bool {
        self.drain()
    }
}

/// Sleep until the doorbell rings. Fails when it does not although a message is there.
pub(crate) fn sleep_on<M: RingMemory>(doorbell: &impl Doorbell, reader: &Reader<M>) {
    loop {
        let timeout = Timespec { tv_sec: WAKE_UP_TIMEOUT_S, tv_nsec: 0 };
        match rustix::event::poll(&mut [PollFd::new(doorbell, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => {
                assert!(!reader.has_message(), "a wake-up was lost: a message waits and its doorbell was not rung");
                yield_to_peer();
            }
            Ok(_) => return,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("poll: {error}"),
        }
    }
}

/// Receive one message, sleeping whenever there is none; counts the sleeps.
pub(crate) fn receive_sleeping<M: RingMemory>(reader: &mut Reader<M>, doorbell: &impl Doorbell, sleeps: &mut u64) -> Message {
    let mut message = Message::ZERO;
    while !reader.receive(&mut message) {
        reader.release_all();
        if !reader.arm_and_work_remains() {
            *sleeps += 1;
            sleep_on(doorbell, reader);
            // Silenced only after a sleep, never between arming and sleeping: that would swallow the ring we wait for.
            assert!(doorbell.take_all(), "the peer closed its end of the doorbell");
        }
        reader.disarm();
    }
    message
}

/// A small deterministic generator (xorshift), for delays and hostile bytes.
pub(crate) struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
