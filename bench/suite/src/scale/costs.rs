//! What the steps of a worker and of its clients cost (`harness`), and the one value that is fitted.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use fipsee::load::count_f64;
use fipsee_block::disk::{AnyDisk, Engine};
use fipsee_block::wire::SECTOR_BYTES;
use fipsee_ring::clock;
use fipsee_serve::Worker;
use serde_json::Value;

use super::crowd::{Crowd, Shape};
use super::harness::{join, serve, serve_untimed, under_load, worker};
use super::model::{Machine, simulate};
use crate::steady;

/// In two measurements so many requests are in flight in each queue: their difference is the cost of one more in a visit.
const DEPTHS: [u32; 2] = [1, 8];
/// Nanoseconds: what is less than the cost of a time stamp cannot be timed by one, and no step takes no time.
const LEAST: f64 = 1.0;
pub(super) const LONGEST_STEP: Duration = Duration::from_micros(100);
/// Empty visits after which a queue is idle, with some to spare.
const PASSES_TO_IDLE: u32 = 1100;
pub(super) const TIMED_PASSES: u32 = 5000;
/// Passes of active queues that are timed: fewer than make them idle.
const ACTIVE_PASSES: u32 = 800;
const TRIES: u32 = 8;
/// Of the time that is measured, the fastest counts.
pub(super) const SLICE: Duration = Duration::from_millis(40);
/// Nanoseconds, in both directions: what moving a cache line between two cores takes. With more ahead, requests in flight overlap more than real ones.
const MOST_AHEAD: f64 = 200.0;
const FITTING_STEPS: u32 = 8;
const FITTED_SECONDS: f64 = 0.005;

/// In nanoseconds, with so many queues on each side.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Costs {
    pub(super) queues: f64,
    /// Of a pass that found nothing, without its visits and samples, and of the pause after it.
    pub(super) idle_pass: f64,
    /// Of one idle queue.
    pub(super) sample: f64,
    /// Of a visit that finds nothing; of one that finds something, without its requests; of each request. With what it costs to
    /// choose the queue.
    pub(super) empty_visit: f64,
    pub(super) visit: f64,
    pub(super) request: f64,
    /// The client's: a look that finds nothing; one that finds something, and publishes again; each completion.
    pub(super) look: f64,
    pub(super) take: f64,
    pub(super) completion: f64,
    /// Of both sides: the other one sees what a step publishes so long before the step ends, or, if negative, after that. Fitted, not
    /// timed.
    pub(super) ahead: f64,
}

/// Rounds over queues that found something, in slices of time: the fastest counts, as what disturbs the machine makes others slower.
#[derive(Clone, Debug, Default)]
pub(super) struct Rounds(Vec<Slice>);

/// Their time, and at how many queues they found nothing and something.
#[derive(Clone, Copy, Debug, Default)]
struct Slice {
    ticks: u64,
    empty: u64,
    full: u64,
    requests: u64,
}

/// What one round found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    pub(super) empty: u64,
    pub(super) full: u64,
    pub(super) requests: u64,
}

impl Rounds {
    /// Not one during which the CPU was taken away.
    pub(super) fn add(&mut self, ticks: u64, found: Found) {
        if found.full == 0 || is_disturbed(ticks, found) {
            return;
        }
        match self.0.last_mut().filter(|slice| slice.ticks < *SLICE_TICKS) {
            Some(slice) => slice.add(ticks, found),
            None => {
                let mut slice = Slice::default();
                slice.add(ticks, found);
                self.0.push(slice);
            }
        }
    }

    /// Those of another time.
    fn extend(&mut self, more: Self) {
        self.0.extend(more.0);
    }

    /// Nanoseconds of a step that found something, and how many requests it had.
    fn of_full(&self, empty_ns: f64) -> (f64, f64) {
        // The last one of a time is shorter than the others.
        let most = self.0.iter().map(|slice| slice.ticks).max().unwrap_or(0);
        let all = self.0.iter().filter(|slice| slice.ticks >= most.min(*SLICE_TICKS)).map(|slice| slice.of_full(empty_ns));
        all.min_by(|one, other| (one.0 / one.1).total_cmp(&(other.0 / other.1))).unwrap_or((LEAST, 1.0))
    }
}

static SLICE_TICKS: LazyLock<u64> = LazyLock::new(|| clock::duration_to_ticks(SLICE));

impl Slice {
    fn add(&mut self, ticks: u64, found: Found) {
        self.ticks += without_reading(ticks);
        self.empty += found.empty;
        self.full += found.full;
        self.requests += found.requests;
    }

    fn of_full(&self, empty_ns: f64) -> (f64, f64) {
        let full = count_f64(self.full.max(1));
        (((ns(self.ticks) - count_f64(self.empty) * empty_ns) / full).max(LEAST), count_f64(self.requests) / full)
    }
}

/// An interval without what reading the counter adds to it.
fn without_reading(ticks: u64) -> u64 {
    static READING_TICKS: LazyLock<u64> = LazyLock::new(|| {
        let read = |_| {
            let before = clock::ticks();
            clock::ticks().wrapping_sub(before)
        };
        (0..10_000).map(read).min().unwrap_or(0)
    });
    ticks.saturating_sub(*READING_TICKS)
}

/// No round over so many queues, with so many requests, takes as long: another thread had the CPU meanwhile.
fn is_disturbed(ticks: u64, Found { empty, full, requests }: Found) -> bool {
    static LONGEST_TICKS: LazyLock<u64> = LazyLock::new(|| clock::duration_to_ticks(LONGEST_STEP));
    ticks > *LONGEST_TICKS * (1 + (empty + full + requests) / 10)
}

pub(super) fn ns(ticks: u64) -> f64 {
    count_f64(ticks) * 1e9 / count_f64(clock::ticks_per_second())
}

/// Nanoseconds that each of `count` steps takes, without most of those during which the CPU was taken away: the least of several tries.
pub(super) fn least_ns(count: u32, mut step: impl FnMut() -> Result<(), String>) -> Result<f64, String> {
    let mut least = f64::MAX;
    for _ in 0..TRIES {
        let started = Instant::now();
        (0..count).try_for_each(|_| step())?;
        least = least.min(started.elapsed().as_secs_f64() * 1e9 / f64::from(count));
    }
    Ok(least)
}

/// Nanoseconds of what finds nothing, with so many queues: a visit, a pass without its visits but with the pause after it, a sample of an idle
/// queue, and a client's look.
fn in_vain(disk: &Arc<AnyDisk>, queues: usize, shape: Shape) -> Result<[f64; 4], String> {
    let (mut worker, handle) = worker()?;
    let mut crowd = Crowd::silent();
    let pass = |worker: &mut Worker<Engine>| {
        let _ = worker.pass();
        Ok(())
    };
    let without = least_ns(TIMED_PASSES, || pass(&mut worker))?;
    join(&mut crowd, &handle, disk, (queues, shape))?;
    // The first adds the queues, which are active for a thousand passes.
    pass(&mut worker)?;
    let (all, sampled) = (count_f64(queues as u64), count_f64(SAMPLES_PER_PASS.min(queues) as u64));
    let visits = least_ns(ACTIVE_PASSES / 2 / TRIES, || pass(&mut worker))?;
    // Fewer than those after which it would yield.
    worker.worked();
    let with_pauses = least_ns(ACTIVE_PASSES / 2 / TRIES, || {
        worker.rest(None);
        pass(&mut worker)
    })?;
    (0..PASSES_TO_IDLE).try_for_each(|_| pass(&mut worker))?;
    let samples = least_ns(TIMED_PASSES, || pass(&mut worker))?;
    let looks = least_ns(ACTIVE_PASSES, || crowd.round().map(drop))?;
    let of_one = [(visits - without) / all, with_pauses - visits + without, (samples - without) / sampled, looks / all];
    Ok(of_one.map(|ns| ns.max(LEAST)))
}

/// Idle queues that a worker looks at in a pass (decision 0004).
pub(super) const SAMPLES_PER_PASS: usize = 4;

/// What the steps of a worker and of its clients took, with so many queues, before it is split into costs: more can be added at another time, when the
/// machine may be less disturbed.
#[derive(Clone, Debug)]
pub(super) struct Timed {
    queues: usize,
    bytes: u64,
    /// Of a worker's passes and the clients' rounds, with each of [`DEPTHS`] in flight.
    loads: [(Rounds, Rounds); 2],
    /// As `in_vain` has them, but the second with one queue: with more it is lost in the time of the visits.
    in_vain: [f64; 4],
    /// Requests per second without time stamps, one in flight in each queue.
    rates: Vec<f64>,
}

impl Timed {
    /// Of a worker and clients with a CPU each.
    pub(super) fn apart(disk: &Arc<AnyDisk>, (queues, bytes): (usize, u64), seconds: f64) -> Result<Self, String> {
        let load = |depth| (disk, queues, Shape { queues: 1, depth, bytes }, seconds);
        let timed = Self::of(disk, (queues, bytes), |depth| under_load(load(depth), serve, Crowd::run_timed))?;
        steady::look();
        let ((), rates) = under_load(load(1), serve_untimed, |crowd, duration| crowd.rates(duration, SLICE))?;
        Ok(Self { rates, ..timed })
    }

    /// Of whatever takes these times with a number of requests in flight.
    pub(super) fn of(
        disk: &Arc<AnyDisk>,
        (queues, bytes): (usize, u64),
        timed: impl Fn(u32) -> Result<(Rounds, Rounds), String>,
    ) -> Result<Self, String> {
        let loads = [timed(DEPTHS[0])?, timed(DEPTHS[1])?];
        let shape = Shape { queues: 1, depth: 1, bytes };
        let [_, idle_pass, ..] = in_vain(disk, 1, shape)?;
        let [empty_visit, _, sample, look] = in_vain(disk, queues, shape)?;
        Ok(Self { queues, bytes, loads, in_vain: [empty_visit, idle_pass, sample, look], rates: Vec::new() })
    }

    /// The same, measured once more.
    pub(super) fn add(&mut self, more: Self) {
        for ((passes, rounds), (more_passes, more_rounds)) in self.loads.iter_mut().zip(more.loads) {
            passes.extend(more_passes);
            rounds.extend(more_rounds);
        }
        self.in_vain.iter_mut().zip(more.in_vain).for_each(|(least, more)| *least = least.min(more));
        self.rates.extend(more.rates);
    }

    /// The costs, with what is fitted if there is something to fit it to.
    pub(super) fn costs(&self) -> Result<Costs, String> {
        let [empty_visit, idle_pass, sample, look] = self.in_vain;
        let [(one, one_rounds), (more, more_rounds)] = &self.loads;
        let (visit, request) = split(one, more, empty_visit);
        let (take, completion) = split(one_rounds, more_rounds, look);
        let queues = count_f64(self.queues as u64);
        let costs = Costs { queues, idle_pass, sample, empty_visit, visit, request, look, take, completion, ahead: 0.0 };
        let fastest = self.rates.iter().copied().reduce(f64::max);
        fastest.map_or(Ok(costs), |rate| costs.fitted(self.queues, self.bytes, rate))
    }
}

/// Of rounds with few and with many requests: a full step without its requests, a request.
fn split(few: &Rounds, many: &Rounds, empty_ns: f64) -> (f64, f64) {
    let ((few_ns, few_requests), (many_ns, many_requests)) = (few.of_full(empty_ns), many.of_full(empty_ns));
    let differ = many_requests - few_requests;
    let request = if differ > 0.5 { ((many_ns - few_ns) / differ).clamp(0.0, few_ns / few_requests.max(1.0)) } else { 0.0 };
    (few_ns - request * few_requests, request)
}

impl Costs {
    /// Those for any number of queues: between two that were measured in proportion to the logarithm, beyond the ends as there.
    pub(super) fn at(measured: &[Self], queues: f64) -> Self {
        let above = measured.iter().position(|costs| costs.queues >= queues);
        match (above, measured) {
            (Some(0), [first, ..]) => Self { queues, ..*first },
            (None, [.., last]) => Self { queues, ..*last },
            (Some(index), _) => {
                let (low, high) = (&measured[index - 1], &measured[index]);
                let share = (queues / low.queues).ln() / (high.queues / low.queues).ln();
                let between = |of: fn(&Self) -> f64| of(low) + (of(high) - of(low)) * share;
                Self {
                    queues,
                    idle_pass: between(|costs| costs.idle_pass),
                    sample: between(|costs| costs.sample),
                    empty_visit: between(|costs| costs.empty_visit),
                    visit: between(|costs| costs.visit),
                    request: between(|costs| costs.request),
                    look: between(|costs| costs.look),
                    take: between(|costs| costs.take),
                    completion: between(|costs| costs.completion),
                    ahead: between(|costs| costs.ahead),
                }
            }
            (None, []) => Self::default(),
        }
    }

    /// With the `ahead` with which a simulated worker answers as many requests per second as a real one with so many queues, one request
    /// in each, has answered.
    fn fitted(self, queues: usize, bytes: u64, rate: f64) -> Result<Self, String> {
        let machine = Machine { workers: 1, drivers: 1, shared: None, queues, depth: 1, blocks: bytes / SECTOR_BYTES };
        let (mut least, mut most) = (-MOST_AHEAD, self.visit.min(self.take).min(MOST_AHEAD));
        for _ in 0..FITTING_STEPS {
            let middle = f64::midpoint(least, most);
            let is_slow = simulate(&machine, &[Self { ahead: middle, ..self }], FITTED_SECONDS)? < rate;
            (least, most) = if is_slow { (middle, most) } else { (least, middle) };
        }
        Ok(Self { ahead: least, ..self })
    }

    pub(super) const NAMES: [&str; 9] =
        ["idle pass", "sample", "empty visit", "visit", "request", "look", "take", "completion", "ahead"];

    pub(super) const fn values(&self) -> [f64; 9] {
        let Self { queues: _, idle_pass, sample, empty_visit, visit, request, look, take, completion, ahead } = *self;
        [idle_pass, sample, empty_visit, visit, request, look, take, completion, ahead]
    }

    pub(super) fn to_json(self) -> Value {
        let key = |name: &str| format!("{}_ns", name.replace(' ', "_"));
        let mut all: serde_json::Map<String, Value> =
            Self::NAMES.iter().zip(self.values()).map(|(name, value)| (key(name), value.into())).collect();
        all.insert("queues".to_owned(), self.queues.into());
        all.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_between_two_measured_ones_are_in_between() {
        let at = |queues, visit| Costs { queues, visit, ..Costs::default() };
        let measured = [at(1.0, 100.0), at(100.0, 300.0)];
        let visit = |queues| Costs::at(&measured, queues).visit;
        assert!((visit(10.0) - 200.0).abs() < 1e-9 && visit(0.5) == 100.0 && visit(5000.0) == 300.0);
    }

    #[test]
    fn a_long_round_counts_if_it_had_the_requests_for_it() {
        let mut rounds = Rounds::default();
        let ticks = clock::duration_to_ticks(Duration::from_millis(12));
        rounds.add(ticks, Found { empty: 0, full: 1000, requests: 8000 });
        assert_eq!(rounds.0.len(), 1, "1000 queues of a memory disk with 8 requests of 16 KiB take 12 ms and more");
        let mut rounds = Rounds::default();
        rounds.add(ticks, Found { empty: 0, full: 1000, requests: 100 });
        assert_eq!(rounds.0.len(), 0, "another thread had the CPU");
    }

    #[test]
    fn a_request_costs_what_one_more_of_it_costs() {
        let rounds = |ticks, full, requests| Rounds(vec![Slice { ticks, empty: 1000, full, requests }]);
        let ns_per_tick = 1e9 / count_f64(clock::ticks_per_second());
        // A thousand empty steps of 100 ticks, a thousand full ones of 500 and 500 for each request.
        let (few, many) = (rounds(1_100_000, 1000, 1000), rounds(3_100_000, 1000, 5000));
        let (visit, request) = split(&few, &many, 100.0 * ns_per_tick);
        assert!((request / ns_per_tick - 500.0).abs() < 1.0 && (visit / ns_per_tick - 500.0).abs() < 1.0, "{visit} {request}");
    }
}
