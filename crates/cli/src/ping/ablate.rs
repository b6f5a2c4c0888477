//! `fipsee ping --ablate`: each choice of the channel's hot path changed by itself, against the channel as it is.

use std::fmt;

use fipsee_ring::cpu;
use fipsee_ring::tuning::Tuning;

use super::plan::{Change, Design, Own, Spec, Store, Task, Touched};
use super::rounds::{self, Line, Spread};
use crate::error::Error;
use crate::output::{self, Table};

const TASKS: [Task; 6] =
    [Task::Queue(1), Task::Queue(8), Task::Queue(64), Task::Stream(64), Task::Stream(1024), Task::Stream(8192)];

/// Every change, in the order of the table.
const CHANGES: [Change; 38] = [
    Change::Usual,
    Change::Ownership(Own::PrefetchNext),
    Change::Ownership(Own::LockedAhead),
    Change::Ownership(Own::NotAsked),
    Change::Store(Store::Wide64),
    Change::Store(Store::Split32),
    Change::Store(Store::Wide16),
    Change::Store(Store::Portable),
    Change::Touch(Touched::Never),
    Change::Touch(Touched::Runs),
    Change::Touch(Touched::Always),
    Change::Gather(0),
    Change::Gather(1000),
    Change::Gather(4000),
    Change::Take(1),
    Change::Take(16),
    Change::BurstPrefetch(false),
    Change::BurstPrefetch(true),
    Change::Prefetch(0),
    Change::Prefetch(1),
    Change::Prefetch(2),
    Change::Prefetch(4),
    Change::Prefetch(8),
    Change::Prefetch(16),
    Change::ReadAhead(0),
    Change::ReadAhead(4),
    Change::ReadAhead(8),
    Change::FirstLookAtOnce,
    Change::FirstLookAfter([60, 100]),
    Change::FirstLookAfter([100, 200]),
    Change::NoLockedOperation,
    Change::Demote,
    Change::PublishEach,
    Change::ReleasesPerLap(64),
    Change::ReleasesPerLap(8),
    Change::ReleasesPerLap(2),
    Change::NoPause,
    Change::LookTwice,
];

impl Change {
    /// Does the change have an effect at this task, on this CPU?
    fn concerns(self, task: Task) -> bool {
        let is_stream = matches!(task, Task::Stream(_));
        match self {
            Self::Store(store) => store.variant() != Tuning::default().store && store.variant() >= cpu::features().store,
            Self::Ownership(_) => task == Task::Queue(1),
            Self::Gather(_) => is_stream,
            Self::Take(_) => !is_stream && task != Task::Queue(1),
            Self::BurstPrefetch(_) => task != Task::Queue(1),
            Self::Demote => cpu::features().has_demote,
            Self::FirstLookAtOnce | Self::FirstLookAfter(_) => task == Task::Queue(1),
            Self::ReleasesPerLap(_) | Self::ReadAhead(_) => is_stream,
            Self::LookTwice => !is_stream,
            Self::PublishEach => task != Task::Queue(1),
            Self::Usual | Self::Advice(_) | Self::Touch(_) | Self::Prefetch(_) | Self::NoLockedOperation | Self::NoPause => true,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usual => f.write_str("choices of an unknown CPU"),
            Self::Advice(word) => write!(f, "choices {word:#x}"),
            Self::Ownership(Own::PrefetchNext) => f.write_str("first look at once, prefetch of the next slot"),
            Self::Ownership(Own::LockedAhead) => f.write_str("first look at once, locked operation two slots ahead"),
            Self::Ownership(Own::NotAsked) => f.write_str("first look at once, ownership not asked for"),
            Self::Touch(Touched::Never) => f.write_str("reader touches nothing"),
            Self::Touch(Touched::Runs) => f.write_str("reader touches runs"),
            Self::Touch(Touched::Always) => f.write_str("reader touches every message"),
            Self::Gather(0) => f.write_str("no gathering"),
            Self::Gather(ticks) => write!(f, "gathering for {ticks} ticks"),
            Self::Take(1) => f.write_str("answers given singly"),
            Self::Take(count) => write!(f, "{count} taken before the first answer"),
            Self::BurstPrefetch(true) => f.write_str("prefetch in bursts and streams"),
            Self::BurstPrefetch(false) => f.write_str("no prefetch in bursts and streams"),
            Self::Store(Store::Wide64) => f.write_str("store of 64 bytes"),
            Self::Store(Store::Split32) => f.write_str("store in parts of 32, 16 and 16 bytes"),
            Self::Store(Store::Wide16) => f.write_str("store in four parts of 16 bytes"),
            Self::Store(Store::Portable) => f.write_str("store in parts of 8 bytes"),
            Self::Prefetch(0) => f.write_str("no prefetch"),
            Self::Prefetch(slots) => write!(f, "prefetch {slots} ahead"),
            Self::ReadAhead(0) => f.write_str("no read ahead"),
            Self::ReadAhead(slots) => write!(f, "read ahead of {slots}"),
            Self::FirstLookAtOnce => f.write_str("first look at once"),
            Self::FirstLookAfter([caller, answerer]) => write!(f, "first look after {caller} and {answerer} ticks"),
            Self::NoLockedOperation => f.write_str("no locked operation, no doorbell"),
            Self::Demote => f.write_str("CLDEMOTE after publishing"),
            Self::PublishEach => f.write_str("doorbell looked at for each message"),
            Self::ReleasesPerLap(count) => write!(f, "slots returned {count} times a lap"),
            Self::NoPause => f.write_str("no PAUSE"),
            Self::LookTwice => f.write_str("look again after what was due"),
        }
    }
}

/// `words`: compare these words of choices instead.
pub(super) fn specs(base: &Spec, words: &[u32]) -> Vec<Spec> {
    let changes: Vec<Option<Change>> = if words.is_empty() {
        std::iter::once(None).chain(CHANGES.map(Some)).collect()
    } else {
        std::iter::once(None).chain(words.iter().map(|word| Some(Change::Advice(*word)))).collect()
    };
    let all = TASKS.into_iter().flat_map(|task| {
        changes.iter().map(move |change| Spec { design: Design::Channel, task, change: *change, ..base.clone() })
    });
    all.filter(|spec| spec.change.is_none_or(|change| change.concerns(spec.task))).collect()
}

pub(super) fn report(lines: &[Line], head: &str, tsc_hz: u64, json: bool) -> Result<(), Error> {
    let as_it_is = |line: &Line| rounds::find(lines, Design::Channel, line.spec.task, None);
    if json {
        return lines.iter().try_for_each(|line| {
            let mut object = line.to_json(tsc_hz)?;
            if let Some(channel) = as_it_is(line) {
                object["ratio_to_channel"] = line.ratio_to(channel).to_json();
            }
            output::print_json(&object)
        });
    }
    let mut table = Table::new(2, &["TASK", "CHANGE", "CYCLES/MSG", "SPREAD", "NS/MSG", "/CHANNEL", "SPREAD"]);
    for line in lines {
        let cycles = line.cycles_per_message();
        let ratio = as_it_is(line).map(|channel| line.ratio_to(channel));
        let Spread { median, min, max } = ratio.unwrap_or(Spread { median: f64::NAN, min: f64::NAN, max: f64::NAN });
        table.push(vec![
            rounds::task_name(line.spec.task),
            line.spec.change.map_or_else(|| "(as it is)".to_owned(), |change| change.to_string()),
            format!("{:.1}", cycles.median),
            format!("{:.1}-{:.1}", cycles.min, cycles.max),
            format!("{:.1}", rounds::to_ns(cycles.median, tsc_hz)),
            format!("{median:.2}"),
            format!("{min:.2}-{max:.2}"),
        ]);
    }
    output::print(&format!("{head}{}", table.render()))
}
