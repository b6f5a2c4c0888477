//! A measurement: a design, its task, and its options.

use fipsee_ring::channel::{FEATURES, MAX_DEPTH, Profile, QueueGeometry, RegionLayout};
use fipsee_ring::layout::{COLD_BYTES, SLOT_BYTES};
use fipsee_ring::tuning::{Choices, Tuning};
use fipsee_ring::wait::WaitMode;
use serde::{Deserialize, Serialize};

use super::changes::Change;

/// What services of the product add to a channel.
pub const PROFILE: Profile = Profile { features: FEATURES, event_credits: 2, flags: &[] };

/// Ways to pass messages between two CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Design {
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
    pub const fn name(self) -> &'static str {
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
    pub const fn is_ring(self) -> bool {
        matches!(self, Self::Channel | Self::Bare | Self::Classic | Self::ClassicStores)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// One side sends this many messages and waits for as many answers.
    Queue(u32),
    /// One side sends, the other receives, through a ring of this many slots.
    Stream(u32),
}

/// One measurement, as the first side sends it to the second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    pub design: Design,
    pub task: Task,
    pub wait: String,
    /// The answering side waits in this way instead. The report's ring, which otherwise only spins, then waits as each side's
    /// mode says.
    pub answerer_wait: Option<String>,
    /// A PAUSE instruction between two empty looks?
    pub pause: bool,
    /// The two sides share one CPU: each yields it after an empty poll.
    pub one_cpu: bool,
    pub change: Option<Change>,
    /// The word of choices that was measured for the two CPUs; 0: those of the CPU's family.
    pub measured: u32,
    /// Chooses the start of the rings.
    pub seed: u32,
    /// If set: one call after each idle period of so many microseconds; also records the answerer's wake-up time.
    pub silence_us: Option<u64>,
    /// Messages of a stream published together, with one check of the doorbell.
    pub batch: u32,
}

impl Default for Spec {
    /// A message and its answer through the channel as it is.
    fn default() -> Self {
        Self {
            design: Design::Channel,
            task: Task::Queue(1),
            wait: WaitMode::default().name().to_owned(),
            answerer_wait: None,
            pause: true,
            one_cpu: false,
            change: None,
            measured: 0,
            seed: 0,
            silence_us: None,
            batch: 16,
        }
    }
}

/// The options of the hot path.
#[derive(Clone, Copy, Debug)]
pub struct HotPathOptions {
    pub tuning: Tuning,
    pub wait: WaitMode,
    /// A PAUSE instruction between two empty looks?
    pub pause: bool,
    /// The two sides share one CPU.
    pub one_cpu: bool,
    /// The report's ring waits in the way `wait`, too.
    pub classic_waits: bool,
    /// Execute a locked operation after publishing and look whether the peer sleeps.
    pub doorbells: bool,
    /// Publish a burst and look at the doorbell once, instead of after each message.
    pub batch: bool,
    /// While many answers are due, wait after an empty look.
    pub gather: bool,
    /// Look once more after what was due has come.
    pub look_twice: bool,
}

impl Spec {
    /// Maximum depth of a channel.
    pub const MAX_QUEUE: u32 = MAX_DEPTH;

    /// As [`options`](Self::options), of the answering side.
    pub fn answerer_options(&self) -> Result<HotPathOptions, String> {
        let wait = self.answerer_wait.as_ref().unwrap_or(&self.wait).clone();
        Self { wait, ..self.clone() }.options()
    }

    /// The options of the calling side.
    pub fn options(&self) -> Result<HotPathOptions, String> {
        let wait = self.wait.parse::<WaitMode>()?;
        let (pause, one_cpu) = (self.pause, self.one_cpu);
        let mut options = HotPathOptions {
            tuning: Tuning::default().with_choices(Choices::from_word(self.measured)),
            wait,
            pause,
            one_cpu,
            classic_waits: self.answerer_wait.is_some(),
            doorbells: true,
            batch: true,
            gather: true,
            look_twice: false,
        };
        if let Some(change) = self.change {
            change.apply(&mut options);
        }
        Ok(options)
    }

    /// The region for this measurement.
    pub fn layout(&self) -> RegionLayout {
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
    let completion_slots = (1 + PROFILE.event_credits).next_power_of_two();
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
