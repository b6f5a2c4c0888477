//! Two threads on two CPUs, and the rings between them.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fipsee_ring::layout::{COLD_BYTES, SLOT_BYTES};
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::region::Region;
use fipsee_ring::ring::{Cursor, RingMemory as _};
use fipsee_ring::tuning::{Choices, Tuning};
use fipsee_ring::{AtomicU32, Ordering, PeerFault, clock};

use super::decide::{Measure, Task};
use super::sides::{Caller, answer, messages_of};
use crate::matrix::to_f64;
use crate::other_side::{self, LOOKS_PER_YIELD, TIMEOUT};

/// Slots of the rings for calls and for answers, as a client's usual queue has them.
pub(super) const CALL_SLOTS: u32 = 64;
pub(super) const STREAM_SLOTS: [u32; 2] = [1024, 64];

const PAGE_BYTES: u64 = 4096;
const CALLS_OFFSET_BYTES: u64 = PAGE_BYTES;
const ANSWERS_OFFSET_BYTES: u64 = CALLS_OFFSET_BYTES + CALL_SLOTS as u64 * SLOT_BYTES as u64;
const STREAM_OFFSET_BYTES: u64 = ANSWERS_OFFSET_BYTES + CALL_SLOTS as u64 * SLOT_BYTES as u64;
const SHORT_STREAM_OFFSET_BYTES: u64 = STREAM_OFFSET_BYTES + STREAM_SLOTS[0] as u64 * SLOT_BYTES as u64;
const LENGTH_BYTES: u64 = SHORT_STREAM_OFFSET_BYTES + STREAM_SLOTS[1] as u64 * SLOT_BYTES as u64;
/// Answers begin elsewhere in their page than calls, as in a channel: both rings would otherwise compete for the same cache sets.
pub(super) const ANSWERS_START: u32 = 21;

/// Slots from one turn's start to the next: some 0.38 of the ring (the golden section), and odd.
const START_STEP: u32 = 25;

/// After this long, ratios that are close get no more turns: by the pieces' own time, which other load does not make longer,
const MORE_TURNS_WITHIN: Duration = Duration::from_millis(5);
/// or by the clock, on a machine with other load.
const MORE_TURNS_UNTIL: Duration = Duration::from_millis(200);

/// A word in a pair of lines of its own.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Line(pub(super) AtomicU32);

/// What the second side is to do next, and how far it is.
#[derive(Default)]
pub(super) struct Orders {
    /// Counts orders; [`ENDED`]: one side has failed, or there are no more.
    number: Line,
    choices: Line,
    /// Index in [`Task::ALL`], or [`FLOOR`].
    task: Line,
    /// Slot at which calls begin.
    start: Line,
    done: Line,
    /// The one line of the floor.
    pub(super) bounced: Line,
}

/// Not a task: the floor.
const FLOOR: u32 = u32::MAX;
const ENDED: u32 = u32::MAX;

pub(super) struct Rings {
    region: Arc<Region>,
}

fn io_error(fault: PeerFault) -> io::Error {
    io::Error::other(fault)
}

impl Rings {
    fn new() -> io::Result<Self> {
        Ok(Self { region: Arc::new(Region::create("fipsee-choose", LENGTH_BYTES)?) })
    }

    fn ring(&self, offset_bytes: u64, slots: u32, cold: u64, tuning: &Tuning) -> io::Result<MappedRing> {
        let ring = MappedRing::new(&self.region, offset_bytes, slots, cold * COLD_BYTES as u64).map_err(io_error)?;
        Ok(ring.with_store(tuning.store))
    }

    pub(super) fn calls(&self, tuning: &Tuning) -> io::Result<MappedRing> {
        self.ring(CALLS_OFFSET_BYTES, CALL_SLOTS, 0, tuning)
    }

    pub(super) fn answers(&self, tuning: &Tuning) -> io::Result<MappedRing> {
        self.ring(ANSWERS_OFFSET_BYTES, CALL_SLOTS, 1, tuning)
    }

    /// One of the two streams, by its index in [`STREAM_SLOTS`].
    pub(super) fn stream(&self, which: usize, tuning: &Tuning) -> io::Result<MappedRing> {
        match which {
            0 => self.ring(STREAM_OFFSET_BYTES, STREAM_SLOTS[0], 2, tuning),
            _ => self.ring(SHORT_STREAM_OFFSET_BYTES, STREAM_SLOTS[1], 3, tuning),
        }
    }
}

/// The cursor at `position` of a ring that began at slot 0.
pub(super) fn cursor(position: u32, slots: u32) -> Cursor {
    Cursor::at(position % slots, position / slots + 1)
}

/// Waits for the other side by polling, and gives up in the end.
pub(super) struct Idle<'a> {
    looks: u32,
    since: Option<Instant>,
    orders: &'a Orders,
    cpu: usize,
}

impl Idle<'_> {
    #[inline(always)]
    pub(super) fn step(&mut self) -> io::Result<()> {
        std::hint::spin_loop();
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS_PER_YIELD) { self.is_late() } else { Ok(()) }
    }

    #[inline(always)]
    pub(super) const fn reset(&mut self) {
        self.looks = 0;
    }

    #[cold]
    fn is_late(&mut self) -> io::Result<()> {
        if self.orders.number.0.load(Ordering::Acquire) == ENDED {
            return Err(other_side::ended());
        }
        if self.looks == LOOKS_PER_YIELD {
            self.since = Some(Instant::now());
        }
        if self.since.is_some_and(|since| since.elapsed() > TIMEOUT) {
            return Err(other_side::timed_out(self.cpu));
        }
        std::thread::yield_now();
        Ok(())
    }
}

/// The first side, which gives orders and measures.
pub(super) struct Fixture<'a> {
    orders: &'a Orders,
    number: u32,
    caller: Caller<'a>,
    started: Instant,
    /// Ticks of all pieces, had every window taken as long as their median.
    spent_ticks: f64,
}

impl Fixture<'_> {
    fn order(&mut self, task: u32, choices: Choices) -> io::Result<()> {
        self.orders.choices.0.store(choices.word(), Ordering::Relaxed);
        self.orders.task.0.store(task, Ordering::Relaxed);
        // Unless the other side has ended meanwhile, which must not be overwritten.
        let number = &self.orders.number.0;
        let given = number.compare_exchange(self.number, self.number + 1, Ordering::Release, Ordering::Relaxed);
        self.number += 1;
        given.map(|_| ()).map_err(|_| other_side::ended())
    }

    /// Wait until the second side has carried out its order and no longer looks at the rings.
    fn await_done(&mut self) -> io::Result<()> {
        while self.orders.done.0.load(Ordering::Acquire) != self.number {
            self.caller.idle.step()?;
        }
        self.caller.idle.reset();
        Ok(())
    }

    /// A word bounced on one line, there and back, in ticks.
    pub(super) fn floor(&mut self) -> io::Result<f64> {
        self.order(FLOOR, Choices::NONE)?;
        let ticks = self.caller.bounce(&self.orders.bounced.0)?;
        self.await_done()?;
        Ok(ticks)
    }
}

impl Measure for Fixture<'_> {
    fn measure(&mut self, choices: Choices, task: Task, turn: usize) -> io::Result<f64> {
        let tuning = tuning(choices);
        let start = start_of(turn);
        self.orders.start.0.store(start, Ordering::Relaxed);
        self.caller.start_calls_at(start);
        if let Some(which) = task.stream() {
            // A stream's writer begins with nothing released.
            self.caller.rings.stream(which, &tuning)?.released().store(0, Ordering::Relaxed);
        }
        let index = Task::ALL.iter().position(|known| *known == task).and_then(|index| u32::try_from(index).ok());
        self.order(index.unwrap_or(FLOOR), choices)?;
        let ticks = self.caller.run(task, &tuning)?;
        self.await_done()?;
        self.spent_ticks += ticks * f64::from(messages_of(task));
        Ok(ticks)
    }

    fn has_time(&self) -> bool {
        let spent = Duration::from_secs_f64(self.spent_ticks / to_f64(clock::ticks_per_second()));
        spent < MORE_TURNS_WITHIN && self.started.elapsed() < MORE_TURNS_UNTIL
    }
}

/// The slot at which calls begin in a turn: everywhere in the ring, in an order that leaves no part out for long.
fn start_of(turn: usize) -> u32 {
    u32::try_from(turn).unwrap_or(0).wrapping_mul(START_STEP) % CALL_SLOTS
}

fn tuning(choices: Choices) -> Tuning {
    Tuning::usual().with_choices(choices)
}

/// The second side: carries out orders until there are no more.
fn carry_out(orders: &Orders, rings: &Rings, cpu: usize) -> io::Result<()> {
    other_side::bind(cpu)?;
    let mut side = Caller::new(rings, Idle { looks: 0, since: None, orders, cpu });
    let mut done = 0;
    loop {
        let number = match orders.number.0.load(Ordering::Acquire) {
            ENDED => return Ok(()),
            number if number == done => {
                side.idle.step().or_else(|error| match error.kind() {
                    io::ErrorKind::Interrupted => Ok(()),
                    _ => Err(error),
                })?;
                continue;
            }
            number => number,
        };
        side.idle.reset();
        let index = usize::try_from(orders.task.0.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        let choices = Choices::from_word(orders.choices.0.load(Ordering::Relaxed));
        match Task::ALL.get(index) {
            Some(task) => {
                side.start_calls_at(orders.start.0.load(Ordering::Relaxed));
                answer(&mut side, *task, &tuning(choices))?;
            }
            None => side.bounce_back(&orders.bounced.0)?,
        }
        done = number;
        orders.done.0.store(done, Ordering::Release);
    }
}

/// Run `work` with a fixture between two CPUs, the first of which calls.
pub(super) fn run<T: Send>(pair: (usize, usize), work: impl FnOnce(&mut Fixture<'_>) -> io::Result<T> + Send) -> io::Result<T> {
    let (orders, rings) = (Orders::default(), Rings::new()?);
    let end = || orders.number.0.store(ENDED, Ordering::Release);
    let first = || {
        let caller = Caller::new(&rings, Idle { looks: 0, since: None, orders: &orders, cpu: pair.0 });
        let mut fixture = Fixture { orders: &orders, number: 0, caller, started: Instant::now(), spent_ticks: 0.0 };
        let outcome = other_side::bind(pair.0).and_then(|()| work(&mut fixture));
        end();
        outcome
    };
    let second = || carry_out(&orders, &rings, pair.1);
    other_side::run_both("fip-choose", pair, first, second, &end).map(|(value, ())| value)
}
