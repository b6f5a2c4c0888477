//! A measurement: a design, its task, and its options.

use fipsee_block::wire::{EVENT_CREDITS, PROFILE};
use fipsee_ring::channel::{MAX_DEPTH, QueueGeometry, RegionLayout};
use fipsee_ring::cpu::StoreVariant;
use fipsee_ring::layout::{COLD_BYTES, SLOT_BYTES};
use fipsee_ring::pace::{Delays, FirstLook};
use fipsee_ring::tuning::{Choices as Advice, Ownership, Touch, Tuning};
use fipsee_ring::wait::WaitMode;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Ways to pass messages between two CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Design {
    /// The channel as the product uses it: region, doorbells, waiting.
    Channel,
    /// Its ring alone: spinning, no doorbells.
    Bare,
    /// The ring of the Fip-see report: the reader writes each slot's flag back.
    Classic,
    /// The same with the stores of Fip-see's ring, instead of words and then the flag.
    ClassicStores,
    /// No ring and no payload: one line, bounced.
    OneLine,
    /// No ring and no payload: a line for each direction.
    TwoLines,
}

impl Design {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Channel => "channel",
            Self::Bare => "bare ring",
            Self::Classic => "classic ring",
            Self::ClassicStores => "classic, our stores",
            Self::OneLine => "one line",
            Self::TwoLines => "two lines",
        }
    }

    /// Does the design carry messages, and so bursts and streams? The others only bounce a line.
    pub(super) const fn is_ring(self) -> bool {
        matches!(self, Self::Channel | Self::Bare | Self::Classic | Self::ClassicStores)
    }
}

/// The task of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Task {
    /// One side sends this many messages and waits for as many answers.
    Queue(u32),
    /// One side sends, the other receives, through a ring of this many slots.
    Stream(u32),
}

/// One named choice of the hot path, switched off or to its alternative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Change {
    Store(Store),
    Ownership(Own),
    Touch(Touched),
    /// Whether ownership is requested ahead in bursts and streams.
    BurstPrefetch(bool),
    /// Requests taken before the first is answered.
    Take(u32),
    /// Ticks that a stream's reader waits after an empty look.
    Gather(u64),
    /// The defaults: the choices of an unknown CPU.
    Usual,
    /// A word of choices (docs/protocol.md section 2.6).
    Advice(u32),
    /// Slots to request ahead; 0: none.
    Prefetch(u32),
    /// Slots that a stream's reader requests ahead; 0: none.
    ReadAhead(u32),
    FirstLookAtOnce,
    /// In ticks: the caller's, the answerer's.
    FirstLookAfter([u64; 2]),
    /// No wait after an empty look while many answers are due.
    AnswersAtOnce,
    NoLockedOperation,
    Demote,
    PublishEach,
    ReleasesPerLap(u32),
    NoPause,
    LookTwice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Store {
    Wide64,
    Split32,
    Wide16,
    Portable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Own {
    PrefetchNext,
    LockedAhead,
    NotAsked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Touched {
    Never,
    Runs,
    Always,
}

impl Change {
    /// Does it say how the slots of lone messages are owned, or whether they are touched?
    pub(super) const fn sets_lone_messages(self) -> bool {
        matches!(self, Self::Usual | Self::Advice(_) | Self::Ownership(_) | Self::Touch(_) | Self::Prefetch(_))
    }
}

impl Store {
    pub(super) const fn variant(self) -> StoreVariant {
        match self {
            Self::Wide64 => StoreVariant::Wide64,
            Self::Split32 => StoreVariant::Split32,
            Self::Wide16 => StoreVariant::Wide16,
            Self::Portable => StoreVariant::Portable,
        }
    }
}

impl Own {
    const fn ownership(self) -> Ownership {
        match self {
            Self::PrefetchNext => Ownership::PrefetchNext,
            Self::LockedAhead => Ownership::LockedAhead,
            Self::NotAsked => Ownership::NotAsked,
        }
    }
}

impl Touched {
    const fn touch(self) -> Touch {
        match self {
            Self::Never => Touch::Never,
            Self::Runs => Touch::Runs,
            Self::Always => Touch::Always,
        }
    }
}

/// One measurement, as the first side sends it to the second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Spec {
    pub(super) design: Design,
    pub(super) task: Task,
    /// The name of a [`WaitMode`].
    pub(super) wait: String,
    /// The answering side waits in this way instead. The report's ring, which otherwise only spins, then waits as each side's
    /// mode says.
    pub(super) answerer_wait: Option<String>,
    /// A PAUSE instruction between two empty looks?
    pub(super) pause: bool,
    /// The two sides share one CPU: an empty look gives it away.
    pub(super) one_cpu: bool,
    pub(super) change: Option<Change>,
    /// The word of choices that was measured for the two CPUs; 0: those of the CPU's family.
    pub(super) measured: u32,
    /// Chooses the start of the rings.
    pub(super) seed: u32,
}

/// The options of the hot path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choices {
    pub(super) tuning: Tuning,
    pub(super) wait: WaitMode,
    pub(super) pause: bool,
    pub(super) one_cpu: bool,
    /// The report's ring waits in the way `wait`, too.
    pub(super) classic_waits: bool,
    /// Execute a locked operation after publishing and look whether the peer sleeps.
    pub(super) doorbells: bool,
    /// Publish a burst and look at the doorbell once, instead of after each message.
    pub(super) batch: bool,
    /// While many answers are due, wait after an empty look.
    pub(super) gather: bool,
    /// Look once more after what was due has come.
    pub(super) look_twice: bool,
}

impl Spec {
    /// Few enough slots for a product's channel.
    pub(super) const MAX_QUEUE: u32 = MAX_DEPTH;

    /// As [`choices`](Self::choices), of the answering side.
    pub(super) fn answerer_choices(&self) -> Result<Choices, Error> {
        let wait = self.answerer_wait.as_ref().unwrap_or(&self.wait).clone();
        Self { wait, ..self.clone() }.choices()
    }

    pub(super) fn choices(&self) -> Result<Choices, Error> {
        let wait = self.wait.parse::<WaitMode>()?;
        let (pause, one_cpu) = (self.pause, self.one_cpu);
        let tuning = Tuning::default().with_choices(Advice::from_word(self.measured));
        let classic_waits = self.answerer_wait.is_some();
        let mut choices = Choices {
            tuning,
            wait,
            pause,
            one_cpu,
            classic_waits,
            doorbells: true,
            batch: true,
            gather: true,
            look_twice: false,
        };
        let tuning = &mut choices.tuning;
        match self.change {
            None => {}
            Some(Change::Store(store)) => tuning.store = store.variant(),
            Some(Change::Ownership(own)) => (tuning.ownership, tuning.first_look) = (own.ownership(), FirstLook::AtOnce),
            Some(Change::Touch(touched)) => *tuning = tuning.with_choices(Advice::NONE.with_touch(touched.touch())),
            Some(Change::BurstPrefetch(asked)) => *tuning = tuning.with_choices(Advice::NONE.with_burst_prefetch(asked)),
            Some(Change::Take(take)) => tuning.take = take,
            Some(Change::Gather(ticks)) => tuning.stream_gather_ticks = ticks,
            Some(Change::Usual) => *tuning = Tuning::usual(),
            Some(Change::Advice(word)) => {
                *tuning = Tuning::usual().with_choices(Advice::from_word(word));
                if tuning.ownership != Ownership::PrefetchNext {
                    tuning.first_look = FirstLook::AtOnce;
                }
            }
            Some(Change::Prefetch(slots)) => {
                tuning.ownership = Ownership::PrefetchNext;
                tuning.prefetch_slots = slots;
                tuning.burst_prefetch_slots = slots;
                tuning.stream_prefetch_slots = slots;
            }
            Some(Change::ReadAhead(slots)) => tuning.stream_read_ahead_slots = slots,
            Some(Change::FirstLookAtOnce) => tuning.first_look = FirstLook::AtOnce,
            Some(Change::FirstLookAfter([caller_ticks, answerer_ticks])) => {
                tuning.first_look = FirstLook::After(Delays { caller_ticks, answerer_ticks });
            }
            Some(Change::AnswersAtOnce) => choices.gather = false,
            // Without it no side may sleep.
            Some(Change::NoLockedOperation) => (choices.doorbells, choices.wait) = (false, "poll".parse()?),
            Some(Change::Demote) => tuning.demote = true,
            Some(Change::PublishEach) => choices.batch = false,
            Some(Change::ReleasesPerLap(count)) => tuning.releases_per_lap = count,
            Some(Change::NoPause) => choices.pause = false,
            Some(Change::LookTwice) => choices.look_twice = true,
        }
        if self.change.is_some_and(Change::sets_lone_messages) && choices.tuning.first_look == FirstLook::Calibrated {
            // The pacing search would choose others.
            choices.tuning.first_look = FirstLook::CalibratedDelays;
        }
        Ok(choices)
    }

    /// The region for this measurement.
    pub(super) fn layout(&self) -> RegionLayout {
        /// The default layout for a client.
        const USUAL_DEPTH: u32 = 64;
        match self.task {
            Task::Queue(queue) => RegionLayout::plan(&PROFILE, 1, queue.max(USUAL_DEPTH), 0, self.seed),
            Task::Stream(slots) => stream_layout(slots, self.seed),
        }
    }
}

/// A region for a stream from the client to the daemon: the other direction is as small as may be.
fn stream_layout(slot_count: u32, seed: u32) -> RegionLayout {
    let mut layout = RegionLayout::plan(&PROFILE, 1, 1, 0, seed);
    let Some(planned) = layout.queues.first().copied() else { return layout };
    let request_offset_bytes = planned.cold_offset_bytes + 2 * COLD_BYTES as u64;
    let completion_offset_bytes = request_offset_bytes + u64::from(slot_count) * SLOT_BYTES as u64;
    let completion_slots = (1 + EVENT_CREDITS).next_power_of_two();
    let end = completion_offset_bytes + u64::from(completion_slots) * SLOT_BYTES as u64;
    layout.pool_offset_bytes = end.next_multiple_of(4096);
    layout.region_bytes = layout.pool_offset_bytes;
    let queue = QueueGeometry {
        request_offset_bytes,
        completion_offset_bytes,
        completion_slots,
        request_slots: slot_count,
        request_start: seed.wrapping_mul(0x9e37_79b1) & (slot_count - 1),
        ..planned
    };
    layout.queues = vec![queue];
    layout
}
