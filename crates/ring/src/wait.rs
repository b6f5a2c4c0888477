//! How long to look before sleeping.

use std::str::FromStr;
use std::time::Duration;

use crate::{clock, cpu};

/// A way to wait for messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitMode {
    /// Never sleep: pause, and yield now and then so that other threads of this CPU run.
    Poll,
    /// Pause, then yield, then sleep on the doorbell.
    #[default]
    Adaptive,
    /// Sleep on the doorbell at once.
    Sleep,
}

impl FromStr for WaitMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "poll" => Ok(Self::Poll),
            "adaptive" => Ok(Self::Adaptive),
            "sleep" => Ok(Self::Sleep),
            other => Err(format!("unknown wait mode '{other}'; use poll, adaptive or sleep")),
        }
    }
}

/// What to do after a look that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Look again.
    Look,
    /// Arm the doorbell, look once more, and sleep.
    Sleep,
}

/// How long adaptive waiting looks for something that may come, unless set otherwise. About ten wake-ups' cost (5-20 us
/// each): a request that comes within this time finds us awake, and what an idle spell wastes at most is this.
pub const DEFAULT_LOOK: Duration = Duration::from_micros(200);
/// How many times longer it looks for what must come: the answer to a request, the end of a disk operation. A batch of
/// 64 reads takes a virtual disk 650 us, and sleeping through it cost 27 us at its end, for every batch; a disk that
/// takes 10 ms costs a tenth of a CPU.
pub const EXPECTED_LOOK_FACTOR: u64 = 5;

/// Empty looks with a pause between them before the first yield: microseconds. Longer, and a peer on the same CPU
/// waits for us to see that nothing can come while we run.
const PAUSES_BEFORE_YIELD: u32 = 256;
/// In poll mode, yield once in so many looks after that.
const POLL_LOOKS_PER_YIELD: u32 = 64;

/// Counts empty looks and says when to sleep.
#[derive(Clone, Debug)]
pub struct Backoff {
    mode: WaitMode,
    pauses_before_yield: u32,
    look_ticks: u64,
    empty_looks: u32,
    started_ticks: u64,
}

impl Backoff {
    /// A fresh count; `look` is how long adaptive mode looks before sleeping.
    #[must_use]
    pub fn new(mode: WaitMode, look: Duration) -> Self {
        // On a single CPU nothing can come while we run. (A thread bound to one of several still has a peer elsewhere.)
        let pauses_before_yield = if cpu::is_only_one() { 0 } else { PAUSES_BEFORE_YIELD };
        let look_ticks = clock::duration_to_ticks(look);
        Self { mode, pauses_before_yield, look_ticks, empty_looks: 0, started_ticks: 0 }
    }

    /// The mode it was made with.
    #[must_use]
    pub const fn mode(&self) -> WaitMode {
        self.mode
    }

    /// Work was found.
    #[inline(always)]
    pub const fn reset(&mut self) {
        self.empty_looks = 0;
    }

    /// Nothing was found: pause or yield, and say what next. `expected`: something must come, sooner or later.
    #[inline(always)]
    pub fn step(&mut self, expected: bool) -> Next {
        if self.mode == WaitMode::Sleep {
            return Next::Sleep;
        }
        if self.empty_looks < self.pauses_before_yield {
            self.empty_looks += 1;
            core::hint::spin_loop();
            return Next::Look;
        }
        self.step_slowly(expected)
    }

    #[cold]
    fn step_slowly(&mut self, expected: bool) -> Next {
        if self.empty_looks == self.pauses_before_yield {
            self.started_ticks = clock::ticks();
        }
        self.empty_looks = self.empty_looks.saturating_add(1);
        if self.mode == WaitMode::Poll {
            core::hint::spin_loop();
            if self.empty_looks.is_multiple_of(POLL_LOOKS_PER_YIELD) {
                std::thread::yield_now();
            }
            return Next::Look;
        }
        std::thread::yield_now();
        let look_ticks = if expected { self.look_ticks.saturating_mul(EXPECTED_LOOK_FACTOR) } else { self.look_ticks };
        if clock::ticks().wrapping_sub(self.started_ticks) >= look_ticks { Next::Sleep } else { Next::Look }
    }
}
