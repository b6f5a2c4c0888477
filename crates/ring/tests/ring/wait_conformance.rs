//! What every way to wait must do, written once and run for each: no message is missed, whatever the delay; a peer on the same
//! CPU gets its turn; a peer that is gone is noticed; spurious doorbells do no harm; deadlines are kept.
//!
//! A strategy with instructions that the CPU lacks is reported as skipped, and then run with the instructions carried out by
//! a signal handler (`emulator`): that tests our use of them, not the CPU's.

use std::fmt;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Doorbell, Random, assert_is_numbered, bind_to_first_cpu, numbered, one_at_a_time, ring_pair, yield_to_peer};
use crate::emulator;
use fipsee_ring::Message;
use fipsee_ring::clock;
use fipsee_ring::cpu;
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::ring::{Cursor, Reader, Writer};
use fipsee_ring::tuning::Tuning;
use fipsee_ring::wait::instructions::Instructions;
use fipsee_ring::wait::{Backoff, Next, WaitMode};
use rustix::event::{PollFd, PollFlags, Timespec};

/// Exchanges with delays, per strategy.
const EXCHANGES: u64 = 1000;
/// How long adaptive waiting looks: short, so that the delays reach every stage of it.
const LOOK: Duration = Duration::from_micros(50);
/// A message that is there after this long asleep means that a wake-up was lost.
const LOST_AFTER: Duration = Duration::from_secs(10);
/// The number of the message that ends the answering side.
const LAST: u64 = u64::MAX;

/// A mode with the instructions it may execute.
#[derive(Clone, Copy)]
struct Strategy {
    mode: WaitMode,
    instructions: Instructions,
    is_emulated: bool,
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.mode, if self.is_emulated { " (emulated instructions)" } else { "" })
    }
}

impl Strategy {
    fn backoff(&self) -> Backoff {
        Backoff::with_instructions(self.mode, LOOK, self.instructions)
    }

    const fn may_sleep(&self) -> bool {
        matches!(self.mode, WaitMode::Adaptive | WaitMode::Sleep)
    }
}

/// Those that have instructions carried out by the emulator, adaptive waiting with either kind among them.
fn emulated() -> Vec<Strategy> {
    let with = |mode, instructions| Strategy { mode, instructions, is_emulated: true };
    let mut strategies = Vec::new();
    if !cpu::features().has_waitpkg {
        let modes = [WaitMode::Umwait, WaitMode::Tpause, WaitMode::Adaptive];
        strategies.extend(modes.map(|mode| with(mode, emulator::waitpkg())));
    }
    if let Some(monitorx) = (!cpu::features().has_monitorx).then(emulator::monitorx).flatten() {
        strategies.extend([WaitMode::Monitorx, WaitMode::Adaptive].map(|mode| with(mode, monitorx)));
    }
    strategies
}

/// All that can be run here; those that the CPU lacks are reported as skipped, once.
fn strategies() -> Vec<Strategy> {
    static REPORT: Once = Once::new();
    REPORT.call_once(|| {
        for (mode, unavailable) in WaitMode::ALL.iter().filter_map(|mode| Some((mode, mode.available().err()?))) {
            crate::common::skip(&format!("wait mode {mode} on this CPU"), unavailable.missing());
        }
        if !cpu::features().has_monitorx && emulator::monitorx().is_none() {
            crate::common::skip("wait mode monitorx, emulated", "the hypervisor carries MONITORX out, so it cannot be emulated");
        }
    });
    let here = WaitMode::ALL.into_iter().filter(|mode| mode.available().is_ok());
    let here = here.map(|mode| Strategy { mode, instructions: Instructions::detect(), is_emulated: false });
    here.chain(emulated()).collect()
}

/// One side of a channel: what it waits for, and what its peer waits for.
struct Side<'a, B> {
    reader: Reader<MappedRing>,
    writer: Writer<MappedRing>,
    doorbell: &'a B,
    ring_peer: &'a (dyn Fn() + Sync),
    backoff: Backoff,
}

#[derive(Debug)]
enum Received {
    Message(Message),
    PeerGone,
    TimedOut,
}

impl<'a, B: Doorbell> Side<'a, B> {
    /// It waits by `strategy`.
    fn new(strategy: &Strategy, from: MappedRing, to: MappedRing, doorbell: &'a B, ring_peer: &'a (dyn Fn() + Sync)) -> Self {
        let (start, tuning) = (Cursor::at_start(2), Tuning::default());
        let (reader, writer) = (Reader::new(from, start, &tuning), Writer::new(to, start, &tuning));
        Self { reader, writer, doorbell, ring_peer, backoff: strategy.backoff() }
    }

    fn send(&mut self, number: u64) {
        self.writer.publish(&numbered(number));
        if self.writer.reader_needs_doorbell() {
            (self.ring_peer)();
        }
    }

    /// As the clients of the product wait.
    fn receive(&mut self, deadline: Option<Instant>) -> Received {
        let mut message = Message::ZERO;
        let mut looks = 0_u32;
        loop {
            if self.reader.receive(&mut message) {
                self.backoff.reset();
                return Received::Message(message);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.backoff.reset();
                return Received::TimedOut;
            }
            let is_alive = match self.backoff.step_watching(false, || Some(self.reader.watch())) {
                Next::Look => {
                    looks += 1;
                    !looks.is_multiple_of(1024) || self.is_alive()
                }
                Next::Sleep => self.sleep(deadline),
            };
            if !is_alive && !self.reader.has_message() {
                return Received::PeerGone;
            }
        }
    }

    fn is_alive(&self) -> bool {
        yield_to_peer();
        self.doorbell.take_all()
    }

    fn sleep(&mut self, deadline: Option<Instant>) -> bool {
        if !self.reader.arm_and_work_remains() {
            let most = deadline.map_or(LOST_AFTER, |deadline| deadline.saturating_duration_since(Instant::now()));
            let timeout = Timespec::try_from(most).expect("seconds");
            let ready = rustix::event::poll(&mut [PollFd::new(self.doorbell, PollFlags::IN)], Some(&timeout));
            let is_lost = ready == Ok(0) && deadline.is_none() && self.reader.has_message();
            assert!(!is_lost, "a wake-up was lost: a message waits and its doorbell was not rung");
        }
        self.reader.disarm();
        self.backoff.reset();
        self.is_alive()
    }

    fn expect(&mut self, number: u64) {
        match self.receive(None) {
            Received::Message(message) => assert_is_numbered(&message, number),
            other => panic!("instead of message {number}: {other:?}"),
        }
    }

    /// Answer until the last message.
    fn answer_all(&mut self, mut before_answer: impl FnMut()) {
        for number in 0.. {
            let Received::Message(message) = self.receive(None) else { panic!("the asking side is gone") };
            if message.word(0) == numbered(LAST).word(0) {
                return;
            }
            assert_is_numbered(&message, number);
            before_answer();
            self.send(!number);
        }
    }

    /// Send a message and receive its answer.
    fn call(&mut self, number: u64) {
        self.send(number);
        self.expect(!number);
    }
}

/// Two sides that wait by `strategy`, on threads of their own, with the doorbells of the product; meanwhile `also` is given what
/// rings both doorbells.
fn between(
    strategy: &Strategy,
    ask: impl FnOnce(Side<'_, SocketDoorbell>) + Send,
    answer: impl FnOnce(Side<'_, EventDoorbell>) + Send,
    also: impl FnOnce(&dyn Fn()),
) {
    let store = cpu::features().store;
    let ((calls_to, calls_from), (answers_to, answers_from)) = (ring_pair(4, store), ring_pair(4, store));
    let event = EventDoorbell::new().expect("an eventfd");
    let (daemon_end, client_end) = SocketDoorbell::pair().expect("a socket pair");
    let (ring_daemon, ring_client) = (|| event.ring(), || daemon_end.ring());
    let (client_doorbell, daemon_doorbell) = (&client_end, &event);
    let (ring_daemon, ring_client): (&(dyn Fn() + Sync), &(dyn Fn() + Sync)) = (&ring_daemon, &ring_client);
    thread::scope(|scope| {
        scope.spawn(move || {
            answer(Side::new(strategy, calls_from, answers_to, daemon_doorbell, ring_client));
        });
        let asking = scope.spawn(move || {
            ask(Side::new(strategy, answers_from, calls_to, client_doorbell, ring_daemon));
        });
        also(&|| {
            ring_daemon();
            ring_client();
        });
        asking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Let about `delay` pass; the CPU stays with this thread unless it is long.
fn pass(delay: Duration) {
    if delay >= Duration::from_millis(1) {
        return thread::sleep(delay); // tidy: allow sleep, the silence is what is tested
    }
    let started = Instant::now();
    while started.elapsed() < delay {
        std::hint::spin_loop();
    }
}

/// From nothing to beyond the time that adaptive waiting looks, short ones more often.
fn random_delay(random: &mut Random) -> Duration {
    let most_ns = [0, 300, 2_000, 10_000, 40_000][(random.next() % 5) as usize];
    let is_long = random.next().is_multiple_of(500);
    Duration::from_nanos(if is_long { 200_000 } else { random.next() % (most_ns + 1) })
}

fn exchange_with_delays(strategy: &Strategy, exchanges: u64) {
    let ask = move |mut side: Side<'_, SocketDoorbell>| {
        let mut random = Random(0x5eed);
        for number in 0..exchanges {
            pass(random_delay(&mut random));
            side.call(number);
        }
        side.send(LAST);
    };
    let answer = |mut side: Side<'_, EventDoorbell>| {
        let mut random = Random(0xface);
        side.answer_all(|| pass(random_delay(&mut random)));
    };
    between(strategy, ask, answer, |_| {});
}

#[test]
fn no_message_is_missed_after_random_delays_in_both_directions() {
    let _alone = one_at_a_time();
    for strategy in strategies() {
        emulator::reset(false);
        exchange_with_delays(&strategy, EXCHANGES);
    }
}

#[test]
fn every_watched_line_wakes_without_the_help_of_a_deadline() {
    let _alone = one_at_a_time();
    for strategy in emulated() {
        let watches = strategy.mode != WaitMode::Tpause;
        emulator::reset(watches);
        exchange_with_delays(&strategy, EXCHANGES);
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        println!(
            "{strategy}: {} armed, {} waits, {} pauses",
            count(&emulator::ARMED),
            count(&emulator::WAITED),
            count(&emulator::PAUSED)
        );
        assert_eq!(count(&emulator::LOST), 0, "{strategy}: waited for a write that had already come");
        assert_eq!(count(&emulator::UNARMED), 0, "{strategy}: waited without watching a line");
        assert_eq!(count(&emulator::MISUSED), 0, "{strategy}: operands that mean something else");
        let waits = count(if watches { &emulator::WAITED } else { &emulator::PAUSED });
        assert!(waits > EXCHANGES / 100, "{strategy}: only {waits} waits, so nothing was tested");
        assert!(!watches || count(&emulator::ARMED) >= waits, "{strategy}: every wait is armed anew");
        let furthest = Duration::from_nanos(clock::ticks_to_ns(count(&emulator::FURTHEST_TICKS)));
        // A client checks for the daemon's end every 4096 looks and must notice it within 100 ms.
        // tidy: allow time, it is what the waits asked for, not what they took
        assert!(furthest * 4096 < Duration::from_millis(100), "{strategy}: a wait of up to {furthest:?}");
    }
}

#[test]
fn message_after_any_silence_is_seen() {
    let _alone = one_at_a_time();
    let silences = [0, 1, 50, 1000, 20_000].map(Duration::from_micros);
    for strategy in strategies() {
        emulator::reset(false);
        let ask = move |mut side: Side<'_, SocketDoorbell>| {
            for (number, silence) in (0..).zip(silences.iter().cycle().take(10 * silences.len())) {
                pass(*silence);
                side.call(number);
            }
            side.send(LAST);
        };
        let answer = |mut side: Side<'_, EventDoorbell>| {
            let mut answered = 0;
            side.answer_all(|| {
                answered += 1;
                pass(silences[answered % silences.len()] / 4);
            });
        };
        between(&strategy, ask, answer, |_| {});
    }
}

#[test]
fn both_sides_on_one_cpu_get_their_turn() {
    let _alone = one_at_a_time();
    for strategy in strategies() {
        emulator::reset(false);
        let ask = |mut side: Side<'_, SocketDoorbell>| {
            bind_to_first_cpu();
            (0..200).for_each(|number| side.call(number));
            side.send(LAST);
        };
        let answer = |mut side: Side<'_, EventDoorbell>| {
            bind_to_first_cpu();
            side.answer_all(|| {});
        };
        between(&strategy, ask, answer, |_| {});
    }
}

#[test]
fn peer_that_is_gone_is_noticed_and_its_last_message_still_counts() {
    let _alone = one_at_a_time();
    for strategy in strategies() {
        emulator::reset(false);
        for delay_us in [0, 5, 100, 2000] {
            let (_, ring) = ring_pair(4, cpu::features().store);
            let (to, from) = ring_pair(4, cpu::features().store);
            let (theirs, ours) = SocketDoorbell::pair().expect("a socket pair");
            thread::scope(|scope| {
                scope.spawn(move || {
                    let mut writer = Writer::new(to, Cursor::at_start(2), &Tuning::default());
                    writer.publish(&numbered(0));
                    if writer.reader_needs_doorbell() {
                        theirs.ring();
                    }
                    pass(Duration::from_micros(delay_us));
                    drop(theirs); // As the kernel closes what an ended process had open.
                });
                let mut side = Side::new(&strategy, from, ring, &ours, &|| {});
                side.expect(0);
                let then = side.receive(None);
                assert!(matches!(then, Received::PeerGone), "{strategy}: {then:?}");
            });
        }
    }
}

#[test]
fn spurious_doorbells_are_harmless() {
    let _alone = one_at_a_time();
    for strategy in strategies() {
        emulator::reset(false);
        let is_done = &AtomicBool::new(false);
        let ask = |mut side: Side<'_, SocketDoorbell>| {
            let mut random = Random(1);
            for number in 0..300 {
                pass(random_delay(&mut random));
                side.call(number);
            }
            side.send(LAST);
            is_done.store(true, Ordering::Relaxed);
        };
        between(
            &strategy,
            ask,
            |mut side| side.answer_all(|| {}),
            |ring_both| {
                while !is_done.load(Ordering::Relaxed) {
                    ring_both();
                    yield_to_peer();
                }
            },
        );
    }
}

#[test]
fn wait_ends_at_its_deadline_and_not_before() {
    let _alone = one_at_a_time();
    for strategy in strategies() {
        emulator::reset(false);
        let (_, ring) = ring_pair(4, cpu::features().store);
        let (_to, from) = ring_pair(4, cpu::features().store);
        let (_theirs, ours) = SocketDoorbell::pair().expect("a socket pair");
        let mut side = Side::new(&strategy, from, ring, &ours, &|| {});
        for wait in [0, 3, 100, 3000].map(Duration::from_micros) {
            let started = Instant::now();
            let received = side.receive(Some(started + wait));
            assert!(matches!(received, Received::TimedOut), "{strategy}: {received:?}");
            assert!(started.elapsed() >= wait, "{strategy}: gave up after {:?} of {wait:?}", started.elapsed());
        }
    }
}

#[test]
fn only_adaptive_and_sleep_ever_ask_for_the_doorbell() {
    let _alone = one_at_a_time();
    emulator::reset(false);
    let (_to, from) = ring_pair(4, cpu::features().store);
    let reader = Reader::new(from, Cursor::at_start(0), &Tuning::default());
    for strategy in strategies() {
        let mut backoff = Backoff::with_instructions(strategy.mode, Duration::ZERO, strategy.instructions);
        let sleeps = (0..2000).any(|_| backoff.step_watching(true, || Some(reader.watch())) == Next::Sleep);
        assert_eq!(sleeps, strategy.may_sleep(), "{strategy}");
        let mut backoff = Backoff::with_instructions(strategy.mode, Duration::ZERO, strategy.instructions);
        let sleeps = (0..2000).any(|_| backoff.step(true) == Next::Sleep);
        assert_eq!(sleeps, strategy.may_sleep(), "{strategy} with no line to watch");
    }
}
