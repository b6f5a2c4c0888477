//! The choices of the hot path that cost or gain time and never change what is on the wire. Which are best depends on the CPU and
//! on where the two sides run: they are measured (`fipsee topology`), or are the defaults of the CPU's family (docs/how-fast.md).

mod choices;

use std::sync::LazyLock;

pub use self::choices::Choices;
use crate::cpu::{self, StoreVariant};

/// How the writer comes to own the slot of the next message that travels alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ownership {
    /// PREFETCHW of the next slot after each message; the full fence is a locked operation on the stack.
    #[default]
    PrefetchNext,
    /// The full fence is a locked operation on the stamp of the writer's own slot two ahead, which leaves its value as it is; after
    /// a short burst, one on each of as many slots. For CPUs where PREFETCHW brings a shared copy only.
    LockedAhead,
    /// Nothing: the store brings it.
    NotAsked,
}

/// Which messages' stamps the reader stores once more after it has copied them and before it gives their slots back. The value
/// does not change; the line is then modified in the reader's cache, which on some CPUs halves the cost of its next write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Touch {
    /// None.
    #[default]
    Never,
    /// Those that followed another without an empty look between.
    Runs,
    /// All.
    Always,
}

/// Two delays of the first look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// Of the caller after a call, in ticks of the time-stamp counter.
    pub caller_ticks: u64,
    /// Of the answerer after an answer, in ticks.
    pub answerer_ticks: u64,
}

/// How the first look is delayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirstLook {
    /// By the delay that the channel's own exchanges show to be best, which may be none.
    #[default]
    Calibrated,
    /// Likewise, while the slots of lone messages are owned and touched as the tuning says; for measurements.
    CalibratedDelays,
    /// Not at all.
    AtOnce,
    /// By this much, at most [`MAX_HOLD_TICKS`](crate::pace::MAX_HOLD_TICKS); for measurements.
    After(Delays),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// How a message is put into its slot. A variant that this CPU lacks is replaced by the best it has.
    pub store: StoreVariant,
    pub ownership: Ownership,
    /// With [`Ownership::PrefetchNext`]: ask for the slot this far ahead, 1 being the very next; 0: do not ask. Beyond 1
    /// the reader's own prefetcher, which sees one slot after the other, takes back what was asked for.
    pub prefetch_slots: u32,
    /// The same within a burst, where the transfers of several slots overlap.
    pub burst_prefetch_slots: u32,
    /// The same in a stream, at most an eighth of the ring: further would take slots from the reader.
    pub stream_prefetch_slots: u32,
    /// A stream's reader asks for the slot this far ahead of the one it takes, at most a 16th of the ring: further would take
    /// slots from the writer. 0: do not ask. One that lets messages gather asks in rings that are too short for that only.
    pub stream_read_ahead_slots: u32,
    pub touch: Touch,
    /// Under continuous load a stream's reader that has found its ring empty waits this long, once, for more to gather: one that
    /// follows the writer closely takes each line away while the next is written. At most two ticks for each slot of the ring.
    pub stream_gather_ticks: u64,
    /// Requests that an answerer takes from its ring before it answers the first of them.
    pub take: u32,
    /// Push each message out of this CPU's own cache after publishing it (CLDEMOTE, where the CPU has it).
    pub demote: bool,
    /// A stream's reader returns slots once it has received this fraction of the ring (1/n).
    pub releases_per_lap: u32,
    /// When call and reply look first for what must come.
    pub first_look: FirstLook,
    /// Were these choices measured on this machine?
    pub measured: bool,
}

impl Tuning {
    /// Good enough on every CPU: the choices where nothing else was measured.
    pub fn usual() -> Self {
        Self {
            store: usual_store(),
            ownership: Ownership::PrefetchNext,
            prefetch_slots: 1,
            burst_prefetch_slots: BURST_PREFETCH_SLOTS,
            stream_prefetch_slots: STREAM_PREFETCH_SLOTS,
            stream_read_ahead_slots: STREAM_READ_AHEAD_SLOTS,
            touch: Touch::Never,
            stream_gather_ticks: 0,
            take: TAKE_MANY,
            demote: false,
            releases_per_lap: 4,
            first_look: FirstLook::Calibrated,
            measured: false,
        }
    }

    /// The best choices for CPUs of this family, measured on one of each (docs/how-fast.md).
    pub fn for_family(vendor: &[u8; 12], family: u32, model: u32) -> Self {
        let usual = Self::usual();
        match (vendor, family, model) {
            // Zen 4, server and desktop.
            (b"AuthenticAMD", 0x19, 0x10..=0x1f | 0x60..=0xaf) => usual.with_choices(
                Choices::NONE
                    .with_ownership(Ownership::LockedAhead)
                    .with_touch(Touch::Always)
                    .with_store(StoreVariant::Split32)
                    .with_burst_prefetch(false),
            ),
            // Zen 5.
            (b"AuthenticAMD", 0x1a, _) => usual.with_choices(
                Choices::NONE.with_ownership(Ownership::NotAsked).with_touch(Touch::Runs).with_burst_prefetch(false),
            ),
            _ => usual,
        }
    }

    /// These, overridden by `advice`. Advice that this CPU cannot follow is left out.
    #[must_use]
    pub fn with_choices(mut self, advice: Choices) -> Self {
        if let Some(ownership) = advice.ownership() {
            self.ownership = ownership;
        }
        if let Some(touch) = advice.touch() {
            self.touch = touch;
            // What the touch gains in a stream is lost by a reader that follows the writer closely.
            self.stream_gather_ticks = if touch == Touch::Never { 0 } else { STREAM_GATHER_TICKS };
        }
        if let Some(store) = advice.store() {
            self.store = store.or_best_below(cpu::features().store);
        }
        if let Some(prefetch) = advice.burst_prefetch() {
            let slots = |slots: u32| if prefetch { slots } else { 0 };
            self.burst_prefetch_slots = slots(BURST_PREFETCH_SLOTS);
            self.stream_prefetch_slots = slots(STREAM_PREFETCH_SLOTS);
        }
        if let Some(take) = advice.take() {
            self.take = take;
        }
        self.measured |= advice.is_measured();
        self
    }

    /// What of this can be advised to another program.
    pub fn to_choices(&self) -> Choices {
        let choices = Choices::NONE
            .with_ownership(self.ownership)
            .with_touch(self.touch)
            .with_burst_prefetch(self.burst_prefetch_slots != 0)
            .with_take(self.take)
            .with_store(self.store);
        if self.measured { choices.as_measured() } else { choices }
    }

    /// May the pacing search try other ways to own a slot than this one? Not where no measurement says what they bring.
    pub fn searches_methods(&self) -> bool {
        self.first_look == FirstLook::Calibrated && (self.measured || self.ownership != Ownership::PrefetchNext)
    }

    /// How long the reader of a stream of `slot_count` slots lets messages gather, and how far ahead it asks for slots.
    pub(crate) fn gather_and_read_ahead(&self, slot_count: u32) -> (u64, u32) {
        if self.stream_gather_ticks != 0 && slot_count >= LEAST_GATHERING_SLOTS {
            return (self.stream_gather_ticks.min(2 * u64::from(slot_count)), 0);
        }
        (0, self.stream_read_ahead_slots.min(slot_count / 16))
    }

    /// Slots that a stream's reader of a ring of `slot_count` gives back at a time.
    pub(crate) const fn release_slots(&self, slot_count: u32) -> u32 {
        let parts = if self.releases_per_lap == 0 { 1 } else { self.releases_per_lap };
        let slots = slot_count / parts;
        if slots == 0 { 1 } else { slots }
    }
}

const BURST_PREFETCH_SLOTS: u32 = 4;
const STREAM_PREFETCH_SLOTS: u32 = 8;
const STREAM_READ_AHEAD_SLOTS: u32 = 16;
const STREAM_GATHER_TICKS: u64 = 2000;
/// In shorter rings there is no room for messages to gather.
const LEAST_GATHERING_SLOTS: u32 = 256;
/// Requests taken before the first is answered, where answers are not given singly.
pub const TAKE_MANY: u32 = 16;

/// One store where the CPU makes it visible at once, else quarters.
fn usual_store() -> StoreVariant {
    match cpu::features().store {
        StoreVariant::Split32 => StoreVariant::Wide16,
        best => best,
    }
}

impl Default for Tuning {
    fn default() -> Self {
        static OWN: LazyLock<Tuning> = LazyLock::new(|| {
            let cpu = cpu::features();
            // The models must not depend on the machine on which they run.
            if cfg!(loom) { Tuning::usual() } else { Tuning::for_family(&cpu.vendor, cpu.family, cpu.model) }
        });
        *OWN
    }
}
