//! Rounds: every line of a table is measured once per round, in an order that turns, lines of one task one after the other, so that
//! what the machine does meanwhile hits all alike; lines are compared within a round.

use std::time::Duration;

use fipsee_ring::clock;
use fipsee_ring::pace::Delays;
use serde_json::{Value, json};

use super::changes::Change;
use super::drive::{self, RunLength, STREAM_CHUNK, Sample};
use super::partner::Partner;
use super::plan::{Design, Spec, Task};
use crate::statistics::{Spread, States, middle, to_f64};

/// Before each measurement, not counted: pages are mapped, and the delay of the first look is found (within 20 ms).
const WARM_UP: Duration = Duration::from_millis(30);
/// The floor's part of a measurement's time: one in so many.
const FLOOR_ONE_IN: u32 = 10;
/// A floor that is measured for less says nothing.
const LEAST_FLOOR: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
pub struct Line {
    pub spec: Spec,
    pub rounds: Vec<Sample>,
    /// What one line took beside this task in each round, in ticks; empty where that was not measured.
    pub floors: Vec<f64>,
}

/// Every line is measured for `duration` in all, split over `rounds`; `with_floors`: and before the lines of a task, one line bounced.
pub fn measure(
    partner: &mut Partner,
    specs: Vec<Spec>,
    rounds: u32,
    duration: Duration,
    with_floors: bool,
) -> Result<Vec<Line>, String> {
    let line = |spec| Line { spec, rounds: Vec::new(), floors: Vec::new() };
    let mut lines: Vec<Line> = specs.into_iter().map(line).collect();
    let length = RunLength::of_time(WARM_UP, duration / rounds);
    for round in 0..rounds {
        let mut rows: Vec<&mut [Line]> = lines.chunk_by_mut(|a, b| a.spec.task == b.spec.task).collect();
        turn(&mut rows, round);
        for row in rows {
            let floor = row.first().filter(|_| with_floors).map(|line| {
                let (spec, length) = floor(&line.spec, round, (duration / rounds / FLOOR_ONE_IN).max(LEAST_FLOOR));
                partner.measure(&spec, length).map(|sample| middle(&sample.ticks))
            });
            let floor = floor.transpose()?;
            let mut row: Vec<&mut Line> = row.iter_mut().collect();
            turn(&mut row, round);
            for line in row {
                let sample = partner.measure(&Spec { seed: round, ..line.spec.clone() }, length)?;
                line.rounds.push(sample);
                line.floors.extend(floor);
            }
        }
    }
    Ok(lines)
}

/// Begin with another one in each round.
fn turn<T>(items: &mut [T], round: u32) {
    let first = usize::try_from(round).unwrap_or(0) % items.len().max(1);
    items.rotate_left(first);
}

/// The states in which `lines` were measured, by the floors of all rounds.
pub fn states(lines: &[Line]) -> States {
    // Lines of one task share the floor of a round.
    let rows = lines.chunk_by(|a, b| a.spec.task == b.spec.task);
    States::of(rows.filter_map(<[Line]>::first).flat_map(|line| line.floors.clone()))
}

/// The floor, in one round: one line bounced, as `base` waits. It needs little warming up: there is a line and no more.
pub fn floor(base: &Spec, round: u32, duration: Duration) -> (Spec, RunLength) {
    let spec = Spec { design: Design::OneLine, task: Task::Queue(1), seed: round, ..base.clone() };
    (spec, RunLength::of_time(duration / 3, duration - duration / 3))
}

impl Sample {
    /// Cycles of one message: of a burst, the median burst's, interpolated within the counter's step; of a stream, all of its time.
    pub fn cycles_per_message(&self, task: Task) -> f64 {
        match task {
            Task::Queue(queue) => middle(&self.ticks) / f64::from(queue),
            Task::Stream(_) => to_f64(self.elapsed_ticks) / to_f64(self.messages.max(1)),
        }
    }
}

impl Line {
    /// [`Sample::cycles_per_message`] over the rounds.
    pub fn cycles_per_message(&self) -> Spread {
        Spread::of(self.rounds.iter().map(|sample| sample.cycles_per_message(self.spec.task)).collect())
    }

    /// The ratio of this line's time to `other`'s, round by round.
    pub fn ratio_to(&self, other: &Self) -> Spread {
        let cycles = |sample: &Sample| sample.cycles_per_message(self.spec.task);
        Spread::of(self.rounds.iter().zip(&other.rounds).map(|(own, other)| cycles(own) / cycles(other)).collect())
    }

    /// The rounds in which the machine was near, and those in which it was far.
    pub fn split(self, states: States) -> [Self; 2] {
        let spec = self.spec;
        let (near, far): (Vec<_>, Vec<_>) =
            self.rounds.into_iter().zip(self.floors).partition(|(_, floor)| states.is_near(*floor));
        [near, far].map(|part| {
            let (rounds, floors) = part.into_iter().unzip();
            Self { spec: spec.clone(), rounds, floors }
        })
    }

    /// All rounds as one.
    pub fn total(&self) -> Result<Sample, String> {
        let mut total =
            Sample { ticks: drive::histogram()?, messages: 0, elapsed_ticks: 0, delays: Delays::default(), answerer_cpu_ns: 0 };
        for sample in &self.rounds {
            total.ticks.add(&sample.ticks).map_err(|error| format!("cannot add histograms: {error}; report this"))?;
            total.messages += sample.messages;
            total.elapsed_ticks += sample.elapsed_ticks;
            total.delays = sample.delays;
        }
        Ok(total)
    }

    /// Bursts timed.
    pub fn bursts(&self) -> Result<u64, String> {
        Ok(self.total()?.ticks.len())
    }

    /// Cycles and the share of the bursts that took no more, up to quantile `last`.
    pub fn distribution(&self, last: f64) -> Result<Vec<(f64, f64)>, String> {
        let ticks = self.total()?.ticks;
        let count = to_f64(ticks.len().max(1));
        let mut below = 0;
        let shares = ticks.iter_recorded().map(|step| {
            below += step.count_since_last_iteration();
            (to_f64(step.value_iterated_to()), to_f64(below) / count)
        });
        Ok(shares.take_while(|(_, share)| *share <= last).collect())
    }

    /// The figures of a line that every mode prints.
    pub fn to_json(&self, tsc_hz: u64) -> Result<Value, String> {
        let total = self.total()?;
        let hz = to_f64(tsc_hz);
        let cycles = self.cycles_per_message();
        let mut json = json!({
            "design": self.spec.design,
            "wait": self.spec.wait,
            "pause": self.spec.pause,
            "cycles_per_message": cycles.median,
            "cycles_per_message_min": cycles.min,
            "cycles_per_message_max": cycles.max,
            "ns_per_message": cycles.median * 1e9 / hz,
            "messages": total.messages,
            "messages_per_second": to_f64(total.messages) * hz / to_f64(total.elapsed_ticks.max(1)),
            "rounds": self.rounds.len(),
            "tsc_hz": tsc_hz,
        });
        let (task, per) = match self.spec.task {
            Task::Queue(queue) => {
                json["queue"] = queue.into();
                json["batches"] = total.ticks.len().into();
                json["cycles_per_message_mean"] = (total.ticks.mean() / f64::from(queue)).into();
                json["ns_per_message_mean"] = (total.ticks.mean() / f64::from(queue) * 1e9 / hz).into();
                json["hold_ticks"] = json!([total.delays.caller_ticks, total.delays.answerer_ticks]);
                ("batch", 1.0)
            }
            Task::Stream(slots) => {
                json["slots"] = slots.into();
                json["gigabytes_per_second"] = (64.0 * hz / cycles.median / 1e9).into();
                // Several thousand messages between two time stamps: the quantiles are of such stretches.
                ("stretch_message", to_f64(STREAM_CHUNK))
            }
        };
        let mut put = |name: &str, ticks: f64| {
            json[format!("cycles_per_{task}_{name}")] = (ticks / per).into();
            json[format!("ns_per_{task}_{name}")] = (ticks / per * 1e9 / hz).into();
        };
        put("min", to_f64(total.ticks.min()));
        put("mean", total.ticks.mean());
        for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
            put(name, to_f64(total.ticks.value_at_quantile(quantile)));
        }
        if let Some(change) = self.spec.change {
            json["change"] = change.to_string().into();
        }
        Ok(json)
    }
}

/// The line that does `task` in `design` with `change`.
pub fn find(lines: &[Line], design: Design, task: Task, change: Option<Change>) -> Option<&Line> {
    lines.iter().find(|line| line.spec.design == design && line.spec.task == task && line.spec.change == change)
}

pub fn task_name(task: Task) -> String {
    match task {
        Task::Queue(queue) => format!("queue {queue}"),
        Task::Stream(slots) => format!("stream {slots}"),
    }
}

/// For the head of a table: the unit of the figures.
pub fn cycles_of(tsc_hz: u64) -> String {
    format!("cycles of {} MHz", tsc_hz / 1_000_000)
}

pub fn to_ns(cycles: f64, tsc_hz: u64) -> f64 {
    cycles * 1e9 / to_f64(tsc_hz)
}

/// Ticks per second, measured once: before the second side is bound to a CPU and takes it.
pub fn tsc_hz() -> u64 {
    clock::ticks_per_second()
}
