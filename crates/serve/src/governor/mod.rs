//! How many workers serve, and which queues are to go to another worker. A state machine without I/O or clock: how busy workers and queues
//! were goes in, [`Action`]s come out (docs/decisions/0035-governor.md).
//!
//! A worker is added when one is overloaded by queues that can be served apart from each other, and the workers in use have no room for
//! them. One is removed when all that is served has been little enough for the others for a while. What has room for adding is decided by
//! the same division of queues among workers, with a higher limit, so that a constant load never does both. Where workers wait for CPUs,
//! what was served decides whether the change stays (`trial`).

mod division;
mod mode;
#[cfg(test)]
mod tests;
mod trial;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

pub use self::division::Move;
use self::division::{Division, Part, fullest_shared};
pub use self::mode::{Mode, NotAMode};
use self::trial::{Trials, Verdict};
use crate::QueueName;

/// How often a sample is to be taken while workers are busy: an overload is found in the third after it began, and the queues of
/// the last are known in the fourth.
pub const TICK: Duration = Duration::from_millis(20);
/// The same while workers are hardly busy: nothing follows from it soon.
pub const SLOW_TICK: Duration = Duration::from_millis(100);

/// A worker is overloaded when it is busy for at least this share of two samples in a row.
const OVERLOAD: f64 = 0.9;
/// Then one is added, unless all that is served can be divided so that none is busy for this share: an overloaded worker serves less than
/// what is asked of it, so that measured loads are low.
const ROOM_BY_DIVIDING: f64 = 0.75;
/// A worker is removed when the others are to be busy for this share at most, or have a single queue each that works.
const ROOM: f64 = 0.6;
/// For so long.
const ROOM_FOR: Duration = Duration::from_millis(2000);
/// Queues change their worker when this lowers the share of one by this much, for so long: several times as long as loads are averaged,
/// because those of before the last move are no guide.
const MARGIN: f64 = 0.1;
const UNEVEN_FOR: Duration = Duration::from_millis(1000);
/// Each time doubles the next, as long as the same queues work: what they want is not known while workers are full, so that two divisions
/// may each look better than the other. At most so often.
const MOST_DOUBLINGS: u32 = 8;
/// Loads are averaged over about so long for what is not urgent.
const AVERAGED_OVER: Duration = Duration::from_millis(250);
/// Samples between the end of the last move and the next decision.
const FRESH_SAMPLES: u32 = 2;
/// The rest of a worker's queues, beside the one with most, that is worth a worker.
const WORTH_A_WORKER: f64 = 0.05;
/// A queue with less is forgotten.
const NEGLIGIBLE: f64 = 1e-5;

/// What was measured since the last sample.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// On any clock.
    pub now: Duration,
    /// The busy share of each worker, by its number, from 0 to 1.
    pub busy: &'a [f64],
    /// For which share of the time all workers together waited for a CPU.
    pub waited: f64,
    /// Queues that worked, their workers, and what they were served, in any unit.
    pub loads: &'a [(QueueName, usize, u64)],
    /// The clients among them whose queues stay at their workers.
    pub fixed: &'a BTreeSet<u64>,
    /// The loads are those since the last sample, not since longer ago.
    pub is_exact: bool,
    /// The workers that may be used, in the order in which they are.
    pub usable: &'a [usize],
    /// Queues are on their way: nothing is decided.
    pub is_moving: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// So many of the usable workers serve from now on. The queues of a worker that is not among them go elsewhere.
    Use(usize),
    Move(Move),
}

/// What a queue takes of its worker.
#[derive(Clone, Copy, Debug)]
struct Load {
    worker: usize,
    /// It stays there.
    is_fixed: bool,
    /// In the last two samples.
    last: f64,
    before: f64,
    /// Averaged over a longer time.
    average: f64,
}

impl Load {
    const fn now(&self) -> f64 {
        f64::midpoint(self.last, self.before)
    }
}

#[derive(Debug)]
pub struct Governor {
    mode: Mode,
    /// Usable workers in use.
    count: usize,
    /// Those that were when the mode became this one: with `off` as many are in use, or all that are usable.
    kept: usize,
    loads: HashMap<QueueName, Load>,
    /// What its queues take of each worker.
    sums: Vec<f64>,
    /// Busy shares of workers in the last two samples.
    busy: Vec<(f64, f64)>,
    last_sample: Option<Duration>,
    fresh_samples: u32,
    /// Since when there is room to remove a worker, and since when queues are to be divided anew.
    has_room_since: Option<Duration>,
    is_uneven_since: Option<Duration>,
    /// How often the same queues were divided anew.
    evened_out: u32,
    trials: Trials,
}

impl Governor {
    /// For so many workers; as many as the mode has at least are in use.
    pub fn new(mode: Mode, workers: usize) -> Self {
        let count = mode.bounds(workers).map_or(workers, |(least, _)| least);
        Self {
            mode,
            count,
            kept: count,
            loads: HashMap::new(),
            sums: Vec::new(),
            busy: Vec::new(),
            last_sample: None,
            fresh_samples: 0,
            has_room_since: None,
            is_uneven_since: None,
            evened_out: 0,
            trials: Trials::default(),
        }
    }

    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// How many of the usable workers are in use.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// From the next sample on.
    pub fn set_mode(&mut self, mode: Mode) {
        (self.mode, self.kept) = (mode, self.count);
        (self.has_room_since, self.is_uneven_since) = (None, None);
        self.trials.forget();
    }

    /// May a queue go to this worker because that has fewer? One that does not work may, and one that does not make it busier than the
    /// queue's own worker is.
    pub fn may_move(&self, queue: QueueName, to: usize) -> bool {
        let Some(load) = self.loads.get(&queue) else { return true };
        let sum = |worker: usize| self.sums.get(worker).copied().unwrap_or(0.0);
        sum(to) + load.now() <= sum(load.worker)
    }

    /// Did a queue work in the last two samples?
    fn has_worked(&self) -> bool {
        self.loads.values().any(|load| load.last.max(load.before) > NEGLIGIBLE)
    }

    /// No queue worked in the last two samples, and no worker is to be removed: what the next sample is about can wait until one works.
    pub fn is_at_rest(&self, usable: usize) -> bool {
        !self.has_worked() && self.mode.bounds(usable).is_none_or(|(least, _)| self.count == least)
    }

    pub fn sample(&mut self, sample: &Sample<'_>) -> Vec<Action> {
        self.measure(sample);
        let actions = self.decide(sample);
        self.sums = vec![0.0; sample.busy.len()];
        self.loads.values().for_each(|load| self.sums[load.worker] += load.now());
        actions
    }

    fn decide(&mut self, sample: &Sample<'_>) -> Vec<Action> {
        let most_usable = sample.usable.len();
        let Some((least, most)) = self.mode.bounds(most_usable) else {
            // As many as there were, if there still are, or are again.
            return self.use_workers(self.kept.clamp(1, most_usable.max(1)), sample);
        };
        if self.count < least || self.count > most {
            self.trials.cancel();
            return self.use_workers(self.count.clamp(least, most), sample);
        }
        if sample.is_moving {
            self.fresh_samples = 0;
        }
        if self.fresh_samples < FRESH_SAMPLES {
            return Vec::new();
        }
        match self.trials.judge(self.fresh_samples, self.loads.len(), sample.now) {
            Verdict::NotYet => return Vec::new(),
            Verdict::Revert(count) => return self.use_workers(count, sample),
            Verdict::Keep => {}
        }
        let may_try = self.trials.may_begin(self.loads.len(), sample.now);
        if self.count < most && may_try && self.is_overloaded(sample) {
            return self.try_workers(self.count + 1, sample);
        }
        if self.trials.wants_fewer(may_try && self.count > least, sample.now) {
            return self.try_workers(self.count - 1, sample);
        }
        let has_room = self.count > least && self.has_room(self.count - 1);
        if lasts(&mut self.has_room_since, has_room, sample.now, ROOM_FOR) {
            return self.use_workers(self.count - 1, sample);
        }
        // Not while none works: no sample may follow until one does, and the time between would count as uneven.
        let may_divide = self.count > 1 && self.has_worked();
        let moves = if may_divide { self.division(sample, |load| load.average).even_out() } else { Vec::new() };
        let how_long = UNEVEN_FOR * (1 << self.evened_out);
        if lasts(&mut self.is_uneven_since, !moves.is_empty(), sample.now, how_long) {
            self.evened_out = (self.evened_out + 1).min(MOST_DOUBLINGS);
            return self.carry_out(moves);
        }
        Vec::new()
    }

    fn measure(&mut self, sample: &Sample<'_>) {
        let elapsed = sample.now.saturating_sub(self.last_sample.unwrap_or(sample.now));
        self.last_sample = Some(sample.now);
        self.fresh_samples = self.fresh_samples.saturating_add(1);
        self.busy.resize(sample.busy.len(), (0.0, 0.0));
        for ((last, before), now) in self.busy.iter_mut().zip(sample.busy) {
            (*last, *before) = (*now, *last);
        }
        let units = sample.loads.iter().map(|(_, _, units)| units).sum();
        self.trials.measure(elapsed, sample.is_exact.then_some(units), sample.waited);
        let mut served = vec![0_u64; sample.busy.len()];
        sample.loads.iter().for_each(|(_, worker, units)| served[*worker] += units);
        // Of a worker that reported nothing, the queues have the shares that they had.
        let mut had = vec![0.0; sample.busy.len()];
        self.loads.values().for_each(|load| had[load.worker] += load.last);
        for load in self.loads.values_mut() {
            let (worker, was) = (load.worker, load.last);
            let kept = served[worker] == 0 && had[worker] > 0.0;
            load.before = was;
            load.last = if kept { sample.busy[worker] * was / had[worker] } else { 0.0 };
        }
        let known = self.loads.len();
        for &(queue, worker, units) in sample.loads.iter().filter(|(_, _, units)| *units > 0) {
            let is_fixed = sample.fixed.contains(&queue.client);
            let new = Load { worker, is_fixed, last: 0.0, before: 0.0, average: 0.0 };
            let load = self.loads.entry(queue).or_insert(new);
            load.worker = worker;
            #[allow(clippy::cast_precision_loss, reason = "a share needs few digits")]
            let share = units as f64 / served[worker].max(1) as f64;
            load.last = sample.busy[worker] * share;
        }
        let has_new = self.loads.len() > known;
        let weight = 1.0 - (-elapsed.as_secs_f64() / AVERAGED_OVER.as_secs_f64()).exp();
        self.loads.retain(|_, load| {
            load.average += weight * (load.last - load.average);
            load.last.max(load.before).max(load.average) > NEGLIGIBLE
        });
        if has_new || self.loads.len() < known {
            self.evened_out = 0;
        }
    }

    /// Is a worker overloaded by several queues, and is there no room for them at the others?
    fn is_overloaded(&self, sample: &Sample<'_>) -> bool {
        let (in_use, parts) = (&sample.usable[..self.count], self.parts(Load::now));
        let is_full = |worker: usize| {
            let on_it = || parts.iter().filter(|(of, _)| *of == worker).map(|(_, load)| load);
            let (last, before) = self.busy[worker];
            last.min(before) >= OVERLOAD && on_it().sum::<f64>() - on_it().copied().fold(0.0, f64::max) >= WORTH_A_WORKER
        };
        if !in_use.iter().any(|worker| is_full(*worker)) {
            return false;
        }
        let fullest = fullest_shared(parts.iter().map(|(_, load)| *load).collect(), self.count);
        let cannot_be_relieved = || self.division(sample, Load::now).even_out().is_empty();
        fullest >= ROOM_BY_DIVIDING || fullest > ROOM && cannot_be_relieved()
    }

    /// Would so many workers have room for all that was served?
    fn has_room(&self, workers: usize) -> bool {
        let parts = self.parts(|load| load.average.max(load.now()));
        fullest_shared(parts.into_iter().map(|(_, load)| load).collect(), workers) <= ROOM
    }

    /// What can be served apart from each other, with its worker: each queue; of those that stay at a worker, all together.
    fn parts(&self, of: impl Fn(&Load) -> f64) -> Vec<(usize, f64)> {
        let mut fixed = vec![0.0; self.busy.len()];
        self.loads.values().filter(|load| load.is_fixed).for_each(|load| fixed[load.worker] += of(load));
        let others = self.loads.values().filter(|load| !load.is_fixed).map(|load| (load.worker, of(load)));
        others.chain(fixed.into_iter().enumerate().filter(|(_, load)| *load > 0.0)).collect()
    }

    /// Have so many workers serve, and see whether that is better.
    fn try_workers(&mut self, count: usize, sample: &Sample<'_>) -> Vec<Action> {
        self.trials.begin(self.count, count);
        self.use_workers(count, sample)
    }

    /// Have so many workers serve. The queues that work are divided anew; the others follow as the workers are emptied.
    fn use_workers(&mut self, count: usize, sample: &Sample<'_>) -> Vec<Action> {
        let is_new = count != self.count;
        self.count = count;
        if !is_new {
            return Vec::new();
        }
        self.evened_out = 0;
        let moves = self.division(sample, Load::now).even_out();
        let mut actions = vec![Action::Use(count)];
        actions.extend(self.carry_out(moves));
        actions
    }

    fn carry_out(&mut self, moves: Vec<Move>) -> Vec<Action> {
        for Move { queue, to } in &moves {
            self.loads.entry(*queue).and_modify(|load| load.worker = *to);
        }
        (self.fresh_samples, self.has_room_since, self.is_uneven_since) = (0, None, None);
        moves.into_iter().map(Action::Move).collect()
    }

    fn division(&self, sample: &Sample<'_>, of: impl Fn(&Load) -> f64) -> Division {
        let in_use = &sample.usable[..self.count.min(sample.usable.len())];
        let busy: Vec<f64> = self.busy.iter().map(|(last, before)| last.min(*before)).collect();
        let queue = |(queue, load): (&QueueName, &Load)| Part {
            queue: *queue,
            worker: load.worker,
            load: of(load),
            may_move: !load.is_fixed,
        };
        let mut queues: Vec<_> = self.loads.iter().map(queue).collect();
        // Reproducible, whatever the order of the map.
        queues.sort_unstable_by_key(|Part { queue, .. }| (queue.client, queue.index));
        Division::new(in_use, &busy, &queues)
    }
}

/// Has this been so for so long? `since` is kept up to date.
fn lasts(since: &mut Option<Duration>, is_so: bool, now: Duration, how_long: Duration) -> bool {
    if !is_so {
        *since = None;
        return false;
    }
    now.saturating_sub(*since.get_or_insert(now)) >= how_long
}
