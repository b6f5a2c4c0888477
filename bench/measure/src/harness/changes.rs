//! Every choice of the channel's hot path, changed by itself.

use std::fmt;

use fipsee_ring::cpu::{self, StoreVariant};
use fipsee_ring::pace::{Delays, FirstLook};
use fipsee_ring::tuning::{Choices, Ownership, Touch, Tuning};
use fipsee_ring::wait::WaitMode;
use serde::{Deserialize, Serialize};

use super::plan::{HotPathOptions, Task};

/// A change that one side can name to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    Row(usize),
    /// A word of choices (docs/protocol.md section 2.6).
    Choices(u32),
    /// Delays of the first look in ticks: the caller's, the answerer's.
    FirstLookAfter([u64; 2]),
}

/// When a change makes a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affects {
    All,
    /// At every task; it sets how the slots of lone messages are owned, or whether they are touched.
    LoneMessages,
    /// At every task, if the CPU has this store and another one is in force.
    Store(StoreVariant),
    /// One message at a time; it sets how its slot is owned.
    Ownership,
    RoundTrips,
    /// Several at a time, and streams.
    NotRoundTrips,
    Calls,
    Bursts,
    /// More than eight messages with answers.
    LongBursts,
    Streams,
    Demoting,
}

#[derive(Debug)]
pub struct Row {
    text: &'static str,
    /// When it is worth measuring.
    pub affects: Affects,
    apply: fn(&mut HotPathOptions),
}

const fn row(text: &'static str, affects: Affects, apply: fn(&mut HotPathOptions)) -> Row {
    Row { text, affects, apply }
}

fn own(options: &mut HotPathOptions, ownership: Ownership) {
    (options.tuning.ownership, options.tuning.first_look) = (ownership, FirstLook::AtOnce);
}

fn choose(options: &mut HotPathOptions, choices: Choices) {
    options.tuning = options.tuning.with_choices(choices);
}

fn prefetch(options: &mut HotPathOptions, slots: u32) {
    let tuning = &mut options.tuning;
    tuning.ownership = Ownership::PrefetchNext;
    (tuning.prefetch_slots, tuning.burst_prefetch_slots, tuning.stream_prefetch_slots) = (slots, slots, slots);
}

fn look_after(options: &mut HotPathOptions, [caller_ticks, answerer_ticks]: [u64; 2]) {
    options.tuning.first_look = FirstLook::After(Delays { caller_ticks, answerer_ticks });
}

use Affects::{All, Bursts, Calls, Demoting, LoneMessages, LongBursts, NotRoundTrips, RoundTrips, Streams};

/// Every change, in the order of the table.
pub const CHANGES: [Row; 39] = [
    row("choices of an unknown CPU", LoneMessages, |all| all.tuning = Tuning::usual()),
    row("first look at once, prefetch of the next slot", Affects::Ownership, |all| own(all, Ownership::PrefetchNext)),
    row("first look at once, locked operation two slots ahead", Affects::Ownership, |all| own(all, Ownership::LockedAhead)),
    row("first look at once, ownership not asked for", Affects::Ownership, |all| own(all, Ownership::NotAsked)),
    row("store of 64 bytes", Affects::Store(StoreVariant::Wide64), |all| all.tuning.store = StoreVariant::Wide64),
    row("store in parts of 32, 16 and 16 bytes", Affects::Store(StoreVariant::Split32), |all| {
        all.tuning.store = StoreVariant::Split32;
    }),
    row("store in four parts of 16 bytes", Affects::Store(StoreVariant::Wide16), |all| all.tuning.store = StoreVariant::Wide16),
    row("store in parts of 8 bytes", Affects::Store(StoreVariant::Portable), |all| all.tuning.store = StoreVariant::Portable),
    row("reader touches nothing", LoneMessages, |all| choose(all, Choices::NONE.with_touch(Touch::Never))),
    row("reader touches runs", LoneMessages, |all| choose(all, Choices::NONE.with_touch(Touch::Runs))),
    row("reader touches every message", LoneMessages, |all| choose(all, Choices::NONE.with_touch(Touch::Always))),
    row("no gathering", Streams, |all| all.tuning.stream_gather_ticks = 0),
    row("gathering for 1000 ticks", Streams, |all| all.tuning.stream_gather_ticks = 1000),
    row("gathering for 4000 ticks", Streams, |all| all.tuning.stream_gather_ticks = 4000),
    row("answers given singly", Bursts, |all| all.tuning.take = 1),
    row("16 taken before the first answer", Bursts, |all| all.tuning.take = 16),
    row("no prefetch in bursts and streams", NotRoundTrips, |all| choose(all, Choices::NONE.with_burst_prefetch(false))),
    row("prefetch in bursts and streams", NotRoundTrips, |all| choose(all, Choices::NONE.with_burst_prefetch(true))),
    row("no prefetch", LoneMessages, |all| prefetch(all, 0)),
    row("prefetch 1 ahead", LoneMessages, |all| prefetch(all, 1)),
    row("prefetch 2 ahead", LoneMessages, |all| prefetch(all, 2)),
    row("prefetch 4 ahead", LoneMessages, |all| prefetch(all, 4)),
    row("prefetch 8 ahead", LoneMessages, |all| prefetch(all, 8)),
    row("prefetch 16 ahead", LoneMessages, |all| prefetch(all, 16)),
    row("no read ahead", Streams, |all| all.tuning.stream_read_ahead_slots = 0),
    row("read ahead of 4", Streams, |all| all.tuning.stream_read_ahead_slots = 4),
    row("read ahead of 8", Streams, |all| all.tuning.stream_read_ahead_slots = 8),
    row("first look at once", RoundTrips, |all| all.tuning.first_look = FirstLook::AtOnce),
    row("first look after 60 and 100 ticks", RoundTrips, |all| look_after(all, [60, 100])),
    row("first look after 100 and 200 ticks", RoundTrips, |all| look_after(all, [100, 200])),
    row("no wait for answers to gather", LongBursts, |all| all.gather = false),
    // Without it no side may sleep.
    row("no locked operation, no doorbell", All, |all| (all.doorbells, all.wait) = (false, WaitMode::Pause)),
    row("CLDEMOTE after publishing", Demoting, |all| all.tuning.demote = true),
    row("doorbell looked at for each message", NotRoundTrips, |all| all.batch = false),
    row("slots returned 64 times a lap", Streams, |all| all.tuning.releases_per_lap = 64),
    row("slots returned 8 times a lap", Streams, |all| all.tuning.releases_per_lap = 8),
    row("slots returned 2 times a lap", Streams, |all| all.tuning.releases_per_lap = 2),
    row("no PAUSE", All, |all| all.pause = false),
    row("look again after what was due", Calls, |all| all.look_twice = true),
];

impl Change {
    const fn affects(self) -> Affects {
        match self {
            Self::Row(index) if index < CHANGES.len() => CHANGES[index].affects,
            Self::Row(_) => All,
            Self::Choices(_) => LoneMessages,
            Self::FirstLookAfter(_) => RoundTrips,
        }
    }

    /// Does it set how the slots of lone messages are owned, or whether they are touched?
    pub const fn sets_lone_messages(self) -> bool {
        matches!(self.affects(), LoneMessages | Affects::Ownership)
    }

    /// Does it change anything of `base` at this task, on this CPU?
    pub fn concerns(self, task: Task, base: &Tuning) -> bool {
        let (is_stream, is_round_trip) = (matches!(task, Task::Stream(_)), task == Task::Queue(1));
        match self.affects() {
            All | LoneMessages => true,
            Affects::Store(store) => store != base.store && store >= cpu::features().store,
            Affects::Ownership | RoundTrips => is_round_trip,
            NotRoundTrips => !is_round_trip,
            Calls => !is_stream,
            Bursts => !is_stream && !is_round_trip,
            LongBursts => matches!(task, Task::Queue(9..)),
            Streams => is_stream,
            Demoting => cpu::features().has_demote,
        }
    }

    pub(super) fn apply(self, options: &mut HotPathOptions) {
        match self {
            Self::Row(index) => CHANGES.get(index).into_iter().for_each(|row| (row.apply)(options)),
            Self::FirstLookAfter(ticks) => look_after(options, ticks),
            Self::Choices(word) => {
                options.tuning = Tuning::usual().with_choices(Choices::from_word(word));
                if options.tuning.ownership != Ownership::PrefetchNext {
                    options.tuning.first_look = FirstLook::AtOnce;
                }
            }
        }
        if self.sets_lone_messages() && options.tuning.first_look == FirstLook::Calibrated {
            // Else the pacing search would replace what the change sets.
            options.tuning.first_look = FirstLook::CalibratedDelays;
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Row(index) => f.write_str(CHANGES.get(*index).map_or("no such change", |row| row.text)),
            Self::Choices(word) => write!(f, "choices {word:#x}"),
            Self::FirstLookAfter([caller, answerer]) => write!(f, "first look after {caller} and {answerer} ticks"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Spec;
    use super::*;

    /// A base with choices that were measured, so that the pacing search would try other ways to own a slot.
    fn measured(ownership: Ownership, touch: Touch) -> Spec {
        let word = Choices::NONE.with_ownership(ownership).with_touch(touch).with_burst_prefetch(false).as_measured().word();
        Spec { measured: word, ..Spec::default() }
    }

    #[test]
    fn what_a_change_sets_is_fixed_on_both_sides() {
        let words = [0x1_1231, 0x11_1231, 0x1f_2232, 0x10_0011, 0x10_0010].map(Change::Choices);
        for base in [measured(Ownership::PrefetchNext, Touch::Never), measured(Ownership::LockedAhead, Touch::Always)] {
            let as_it_is = base.options().expect("a known way to wait").tuning;
            assert!(as_it_is.searches_methods(), "else there is nothing to fix");
            for change in (0..CHANGES.len()).map(Change::Row).chain(words) {
                let spec = Spec { change: Some(change), ..base.clone() };
                let sides = [spec.options(), spec.answerer_options()].map(|options| options.expect("a known way to wait").tuning);
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
        let measured = StoreVariant::Wide16.or_best_below(cpu::features().store);
        let base = Tuning { store: measured, ..Tuning::usual() };
        let mut stores = 0;
        for (index, row) in CHANGES.iter().enumerate() {
            let Affects::Store(variant) = row.affects else { continue };
            stores += 1;
            let is_tried = Change::Row(index).concerns(Task::Queue(1), &base);
            assert_eq!(is_tried, variant != measured && variant >= cpu::features().store, "{variant:?}");
        }
        assert_eq!(stores, 4);
    }
}
