//! The queues of a worker: active ones, visited every pass, and idle ones, sampled.

mod places;
mod slot;

use fipsee_ring::cpu::prefetch_for_read;
use fipsee_ring::wait::Watch;
use fipsee_ring::{AtomicU32, Ordering, clock};

use self::places::Places;
use self::slot::Clock;
pub(crate) use self::slot::Slot;
use crate::due::DueQueues;
use crate::share::{QUANTUM, Schedule, Turn, Visited};
use crate::{Engine, QueueName, Which, turns};

const IDLE_SAMPLES_PER_PASS: usize = 4;
/// A pass that cost so many units delays idle queues: more of them are sampled then. A visit with short requests costs less.
const UNITS_OF_HEAVY_PASS: u32 = QUANTUM / 2;
/// While passes are heavy, every idle queue is sampled once for each so many units.
const UNITS_PER_SWEEP: u64 = 4 * QUANTUM as u64;

/// What a poller needs of an idle queue.
#[derive(Clone, Copy)]
enum Poll {
    /// It is active, or there is none.
    Nothing,
    /// Where the next stamp of a ring will be, and its value.
    Stamp(*const AtomicU32, u32),
    /// Only the queue itself knows where its client will write.
    Ask,
}

/// Active queues with work.
enum Look {
    Nothing,
    One(u32),
    /// Or it was not looked.
    Several,
}

// SAFETY: an address of memory that stays mapped, whichever thread has it (`polled` of the same slot); it is only loaded from,
// atomically.
unsafe impl Send for Poll {}

/// All queues of a worker, by their number.
pub(crate) struct PollSet<E: Engine> {
    pub(crate) slots: Vec<Option<Slot<E>>>,
    polls: Vec<Poll>,
    active: Schedule,
    idle_cursor: usize,
    /// Cost of the last pass.
    units: u32,
    pub(crate) due: DueQueues,
    /// Has a share a limit?
    limited: bool,
    /// Queues that are closing have none.
    lifted: bool,
    /// Distinguishes workers that have a limit together.
    worker: u32,
    places: Places,
    clock: Clock,
}

impl<E: Engine> Default for PollSet<E> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            polls: Vec::new(),
            active: Schedule::default(),
            idle_cursor: 0,
            units: 0,
            due: DueQueues::default(),
            limited: false,
            lifted: false,
            worker: turns::next_worker(),
            places: Places::default(),
            clock: clock::ticks,
        }
    }
}

impl<E: Engine> PollSet<E> {
    pub(crate) fn next_id(&self) -> usize {
        self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len())
    }

    pub(crate) fn add(&mut self, mut slot: Slot<E>) {
        slot.entry = self.places.join(&slot.share, slot.name.client);
        slot.worker = self.worker;
        let id = self.next_id();
        self.limited |= slot.limited;
        if id == self.slots.len() {
            self.slots.push(Some(slot));
            self.polls.push(Poll::Nothing);
        } else {
            self.slots[id] = Some(slot);
        }
        self.changed(id);
        self.activate(id);
    }

    pub(crate) fn remove(&mut self, id: usize) -> Option<Slot<E>> {
        let mut slot = self.slots.get_mut(id)?.take()?;
        self.polls[id] = Poll::Nothing;
        slot.polled = None;
        slot.leave(&mut self.places);
        if slot.active {
            self.active.remove(number(id));
        }
        while self.slots.last().is_some_and(Option::is_none) {
            self.slots.pop();
            self.polls.pop();
        }
        self.idle_cursor = 0;
        Some(slot)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    #[inline(always)]
    pub(crate) const fn has_one(&self) -> bool {
        self.slots.len() == 1 && !self.limited
    }

    /// A limit is not as it was.
    #[cold]
    pub(crate) fn limits_changed(&mut self) {
        self.limited = false;
        for slot in self.slots.iter_mut().flatten() {
            slot.limit_changed(self.lifted);
            self.limited |= slot.limited;
        }
    }

    /// What queues that are closing have left is served without limits from now on.
    #[cold]
    pub(crate) fn lift_limits(&mut self) {
        self.lifted = true;
        self.limits_changed();
    }

    /// Queues are closing now.
    #[cold]
    pub(crate) fn closing(&mut self) {
        if self.lifted {
            self.limits_changed();
        }
    }

    /// Is a queue's limit used up, so that its doorbell is of no interest?
    pub(crate) fn is_throttled(&self, id: usize) -> bool {
        self.slots.get(id).and_then(Option::as_ref).is_some_and(Slot::is_throttled)
    }

    /// When the first queue may go on whose limit is used up.
    pub(crate) fn throttled_until(&self) -> Option<u64> {
        let throttled = |slot: &Slot<E>| slot.is_throttled().then_some(slot.throttled_until);
        if self.limited { self.slots.iter().flatten().filter_map(throttled).min() } else { None }
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, id: usize) -> Option<&mut Slot<E>> {
        self.slots.get_mut(id).and_then(Option::as_mut)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Slot<E>)> {
        self.slots.iter_mut().enumerate().filter_map(|(id, slot)| slot.as_mut().map(|slot| (id, slot)))
    }

    /// The queues that are meant, with their numbers.
    pub(crate) fn meant(&mut self, which: Which) -> impl Iterator<Item = (usize, &mut Slot<E>)> {
        self.iter_mut().filter(move |(_, slot)| which.is_meant(slot.name))
    }

    /// What each queue that worked was served since this was called last.
    pub(crate) fn take_loads(&mut self) -> Vec<(QueueName, u64)> {
        let worked = self.iter_mut().filter(|(_, slot)| slot.load > 0);
        worked.map(|(_, slot)| (slot.name, std::mem::take(&mut slot.load))).collect()
    }

    /// The one place where work can come, if there is one: watched, it is all that ends a wait early. The other queues must be
    /// so few that each is looked at in every pass.
    pub(crate) fn watch(&self) -> Option<Watch<'_>> {
        let id = match (self.active.only(), self.slots.len()) {
            (Some(id), ..=IDLE_SAMPLES_PER_PASS) => id as usize,
            (None, 1) => 0,
            _ => return None,
        };
        let slot = self.slots.get(id)?.as_ref()?;
        (slot.takes_requests() && !slot.is_throttled()).then(|| slot.queue.watch())?
    }

    /// Visit every active queue at most once, as its share permits; returns how many requests were taken.
    #[inline(always)]
    pub(crate) fn visit_active(&mut self, engine: &mut E) -> u32 {
        match self.active.only() {
            Some(id) => self.visit_one(id, engine, Turn::whole(true)),
            None => self.visit_several(engine),
        }
    }

    /// A queue while no other has work, so that nothing is divided.
    #[inline(always)]
    fn visit_one(&mut self, id: u32, engine: &mut E, turn: Turn) -> u32 {
        let Some(slot) = self.slots.get_mut(id as usize).and_then(Option::as_mut) else { return 0 };
        let (taken, stays) = slot.visit(id, engine, turn, self.clock, &mut self.places, &mut self.due);
        if !stays {
            self.polls[id as usize] = slot.make_idle();
            self.active.remove(id);
        }
        self.units = taken.units;
        taken.requests
    }

    #[inline(never)]
    fn visit_several(&mut self, engine: &mut E) -> u32 {
        self.places.begin_pass();
        match self.look_at_few() {
            Look::Nothing => {
                self.units = 0;
                0
            }
            Look::One(id) => self.visit_one(id, engine, Turn::whole(false)),
            Look::Several => self.divide(engine),
        }
    }

    /// Where work is, if the active queues are few, none has a limit, and each was found to have work lately. To divide a pass costs more than these looks.
    #[inline(always)]
    fn look_at_few(&mut self) -> Look {
        let few = self.active.few();
        if few.is_empty() || self.limited {
            return Look::Several;
        }
        let mut found = Look::Nothing;
        for id in few {
            let Some(slot) = self.slots.get_mut(*id as usize).and_then(Option::as_mut) else { return Look::Several };
            if slot.is_quiet() {
                if slot.has_been_empty() {
                    return Look::Several;
                }
            } else if let Look::Nothing = found {
                found = Look::One(*id);
            } else {
                return Look::Several;
            }
        }
        found
    }

    fn divide(&mut self, engine: &mut E) -> u32 {
        let Self { slots, polls, active, places, clock, due, .. } = self;
        let (mut requests, mut units) = (0_u32, 0_u32);
        active.turns(&mut |id| {
            let Some(slot) = slots.get_mut(id as usize).and_then(Option::as_mut) else {
                return Visited { units: 0, stays: false };
            };
            let (taken, stays) = slot.visit(id, engine, Turn::whole(false), *clock, places, due);
            if !stays {
                polls[id as usize] = slot.make_idle();
            }
            // One by one: numbers that were stored apart and are loaded together wait until they have left this CPU.
            requests = requests.saturating_add(taken.requests);
            units = units.saturating_add(taken.units);
            Visited { units: taken.units, stays }
        });
        self.units = units;
        requests
    }

    /// Something has ended that a queue had in flight. A request may have waited for its place.
    pub(crate) fn ended(&mut self, id: usize) {
        if let Some(slot) = self.slots.get_mut(id).and_then(Option::as_mut) {
            slot.recount(&mut self.places);
        }
        self.activate(id);
    }

    pub(crate) fn active_count(&self) -> usize {
        self.active.len()
    }

    #[cold]
    pub(crate) fn activate(&mut self, id: usize) {
        if let Some(slot) = self.slots.get_mut(id).and_then(Option::as_mut) {
            slot.empty_visits = 0;
            if !slot.active && slot.queue.is_visited() {
                slot.active = true;
                self.polls[id] = Poll::Nothing;
                slot.polled = None;
                self.active.add(number(id), slot.name.client, &slot.share);
            }
        }
    }

    #[cold]
    fn samples_after_heavy_pass(&self) -> usize {
        let samples = (self.polls.len() as u64 * u64::from(self.units)).div_ceil(UNITS_PER_SWEEP);
        usize::try_from(samples).unwrap_or(usize::MAX)
    }

    /// Look at a few idle queues; one that has a request becomes active.
    #[inline(always)]
    pub(crate) fn sample_idle(&mut self) -> u32 {
        if self.active.len() == self.slots.len() {
            return 0;
        }
        let mut samples = IDLE_SAMPLES_PER_PASS;
        if self.units >= UNITS_OF_HEAVY_PASS {
            samples += self.samples_after_heavy_pass();
        }
        let mut work = 0;
        for _ in 0..samples.min(self.polls.len()) {
            let id = self.idle_cursor;
            self.idle_cursor = if id + 1 >= self.polls.len() { 0 } else { id + 1 };
            // As a rule for the next pass: decision 0004.
            if let Some(Poll::Stamp(stamp, _)) = self.polls.get(id + IDLE_SAMPLES_PER_PASS) {
                prefetch_for_read(stamp.cast());
            }
            let has_work = match self.polls[id] {
                Poll::Nothing => continue,
                Poll::Stamp(stamp, expected) => {
                    // SAFETY: the address is in memory that `polled` of slot `id` keeps mapped: both are set together, and
                    // `polls[id]` is cleared before `polled` is, when the slot goes or becomes active. Every access to a stamp is
                    // atomic.
                    let stamp = unsafe { &*stamp };
                    stamp.load(Ordering::Acquire) == expected
                }
                Poll::Ask => self.get_mut(id).is_some_and(|slot| slot.takes_requests() && slot.queue.has_work()),
            };
            if has_work {
                self.activate(id);
                work += 1;
            }
        }
        work
    }
}

fn number(id: usize) -> u32 {
    u32::try_from(id).unwrap_or(u32::MAX)
}

// They run for minutes under Miri, and have no unsafe code.
#[cfg(all(test, not(miri)))]
mod fairness_tests;

#[cfg(test)]
mod tests;
