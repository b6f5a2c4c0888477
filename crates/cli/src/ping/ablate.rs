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
const CHANGES: [Change; 39] = [
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
    Change::AnswersAtOnce,
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
    /// Does it change anything of `base` at this task, on this CPU?
    fn concerns(self, task: Task, base: &Tuning) -> bool {
        let is_stream = matches!(task, Task::Stream(_));
        match self {
            Self::Store(store) => store.variant() != base.store && store.variant() >= cpu::features().store,
            Self::Ownership(_) => task == Task::Queue(1),
            Self::Gather(_) => is_stream,
            Self::Take(_) => !is_stream && task != Task::Queue(1),
            Self::BurstPrefetch(_) => task != Task::Queue(1),
            Self::Demote => cpu::features().has_demote,
            Self::FirstLookAtOnce | Self::FirstLookAfter(_) => task == Task::Queue(1),
            Self::ReleasesPerLap(_) | Self::ReadAhead(_) => is_stream,
            Self::LookTwice => !is_stream,
            Self::AnswersAtOnce => matches!(task, Task::Queue(9..)),
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
            Self::AnswersAtOnce => f.write_str("no wait for answers to gather"),
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
pub(super) fn specs(base: &Spec, words: &[u32]) -> Result<Vec<Spec>, Error> {
    let tuning = base.choices()?.tuning;
    let changes: Vec<Option<Change>> = if words.is_empty() {
        std::iter::once(None).chain(CHANGES.map(Some)).collect()
    } else {
        std::iter::once(None).chain(words.iter().map(|word| Some(Change::Advice(*word)))).collect()
    };
    let all = TASKS.into_iter().flat_map(|task| {
        changes.iter().map(move |change| Spec { design: Design::Channel, task, change: *change, ..base.clone() })
    });
    Ok(all.filter(|spec| spec.change.is_none_or(|change| change.concerns(spec.task, &tuning))).collect())
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

#[cfg(test)]
mod tests {
    use fipsee_ring::cpu::StoreVariant;
    use fipsee_ring::tuning::{Choices, FirstLook, Ownership, Touch};

    use super::*;

    /// A base with choices that were measured, so that the pacing search would try other ways to own a slot.
    fn measured(ownership: Ownership, touch: Touch) -> Spec {
        let word = Choices::NONE.with_ownership(ownership).with_touch(touch).with_burst_prefetch(false).as_measured().word();
        Spec { measured: word, ..crate::ping::report::base_spec(None) }
    }

    #[test]
    fn what_a_change_sets_is_fixed_on_both_sides() {
        let advice = [0x1_1231, 0x11_1231, 0x1f_2232, 0x10_0011, 0x10_0010].map(Change::Advice);
        for base in [measured(Ownership::PrefetchNext, Touch::Never), measured(Ownership::LockedAhead, Touch::Always)] {
            let as_it_is = base.choices().expect("a known way to wait").tuning;
            assert!(as_it_is.searches_methods(), "else there is nothing to fix");
            for change in CHANGES.into_iter().chain(advice) {
                let spec = Spec { change: Some(change), ..base.clone() };
                let sides = [spec.choices(), spec.answerer_choices()].map(|choices| choices.expect("a known way to wait").tuning);
                assert_eq!(sides[0], sides[1], "{change}");
                let [tuning, _] = sides;
                let lone = |tuning: Tuning| (tuning.ownership, tuning.prefetch_slots, tuning.touch);
                assert!(!tuning.searches_methods() || lone(tuning) == lone(as_it_is), "{change}");
                assert!(!change.sets_lone_messages() || !tuning.searches_methods(), "{change}");
                assert!(change.sets_lone_messages() || tuning.first_look != FirstLook::CalibratedDelays, "{change}");
            }
        }
    }

    #[test]
    fn stores_are_tried_against_the_one_that_was_measured() {
        let stores = [Store::Wide64, Store::Split32, Store::Wide16, Store::Portable].map(|store| (store, store.variant()));
        let measured = StoreVariant::Wide16.or_best_below(cpu::features().store);
        let base = Tuning { store: measured, ..Tuning::usual() };
        for (store, variant) in stores {
            let is_tried = Change::Store(store).concerns(Task::Queue(1), &base);
            assert_eq!(is_tried, variant != measured && variant >= cpu::features().store, "{store:?}");
        }
    }
}
