//! What to do between two looks, and when to sleep.

use std::cell::Cell;
use std::time::Duration;

use super::instructions::{Instructions, Monitorx, Waitpkg};
use super::{WaitMode, Watch};
use crate::{clock, cpu};

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
/// A reader that never sleeps yields once in this many looks with a PAUSE between them, some five microseconds: the longest that
/// a peer on the same CPU waits for its turn. The counts that follow come to about the same time.
const PAUSES_PER_YIELD: u32 = 64;
/// Looks without anything between them take a nanosecond or two.
const SPINS_PER_YIELD: u32 = 4096;
const TPAUSES_PER_YIELD: u32 = 12;
/// One TPAUSE: a quarter of a microsecond or more goes by in leaving its state, so a shorter one is no more than a PAUSE.
/// A message waits for half of it on average.
const TPAUSE: Duration = Duration::from_nanos(400);
/// Longest wait for a write to a line. Bounds the delay of whatever makes no write there: a deadline, other queues, a
/// command, a peer that died (clients check for it every 4096 looks), a thread of the same CPU.
const WATCH: Duration = Duration::from_micros(5);

thread_local! {
    static HAS_WOKEN: Cell<bool> = const { Cell::new(false) };
}

/// This thread has woken another one, which the scheduler may have put on this CPU: the next wait that would pause begins with a yield.
pub fn has_woken_thread() {
    HAS_WOKEN.set(true);
}

/// Counts empty looks and says when to sleep.
#[derive(Clone, Debug)]
pub struct Backoff {
    mode: WaitMode,
    pauses_before_yield: u32,
    empty_looks: u32,
    look_ticks: u64,
    started_ticks: u64,
    /// Only what the mode uses.
    waitpkg: Option<Waitpkg>,
    monitorx: Option<Monitorx>,
    watch_ticks: u64,
    tpause_ticks: u64,
}

impl Backoff {
    /// A fresh count; `look` is how long adaptive mode looks before sleeping. A mode that this CPU does not have
    /// ([`WaitMode::available`]) waits as `pause`.
    pub fn new(mode: WaitMode, look: Duration) -> Self {
        Self::with_instructions(mode, look, Instructions::detect())
    }

    /// As [`new`](Self::new), with the instructions that may be executed.
    pub fn with_instructions(mode: WaitMode, look: Duration, instructions: Instructions) -> Self {
        // On a single CPU nothing can come while we run. (A thread bound to one of several still has a peer elsewhere.)
        let pauses = matches!(mode, WaitMode::Adaptive | WaitMode::Pause) && !cpu::is_only_one();
        let uses_waitpkg = matches!(mode, WaitMode::Umwait | WaitMode::Tpause | WaitMode::Adaptive);
        let uses_monitorx = matches!(mode, WaitMode::Monitorx | WaitMode::Adaptive);
        Self {
            mode,
            pauses_before_yield: if pauses { PAUSES_BEFORE_YIELD } else { 0 },
            empty_looks: 0,
            look_ticks: clock::duration_to_ticks(look),
            started_ticks: 0,
            waitpkg: instructions.waitpkg.filter(|_| uses_waitpkg),
            monitorx: instructions.monitorx.filter(|_| uses_monitorx),
            watch_ticks: clock::duration_to_ticks(WATCH),
            tpause_ticks: clock::duration_to_ticks(TPAUSE),
        }
    }

    /// Work was found.
    #[inline(always)]
    pub const fn reset(&mut self) {
        self.empty_looks = 0;
    }

    /// Nothing was found: wait a little, and say what next. `expected`: something must come, sooner or later.
    #[inline(always)]
    pub fn step(&mut self, expected: bool) -> Next {
        self.step_watching(expected, || None)
    }

    /// As [`step`](Self::step), for a caller that waits for one message and can say where its stamp will be; asked only when it
    /// is needed. `None`: what comes may come elsewhere. Then `umwait` waits as `tpause`, and `monitorx` as `pause`.
    #[inline(always)]
    pub fn step_watching<'a>(&mut self, expected: bool, watch: impl FnOnce() -> Option<Watch<'a>>) -> Next {
        if self.empty_looks < self.pauses_before_yield {
            if self.empty_looks == 0 && HAS_WOKEN.take() {
                std::thread::yield_now();
            }
            self.empty_looks += 1;
            core::hint::spin_loop();
            return Next::Look;
        }
        self.step_slowly(expected, watch)
    }

    #[cold]
    fn step_slowly<'a>(&mut self, expected: bool, watch: impl FnOnce() -> Option<Watch<'a>>) -> Next {
        if self.empty_looks == self.pauses_before_yield {
            self.started_ticks = clock::ticks();
        }
        self.empty_looks = self.empty_looks.checked_add(1).unwrap_or(self.pauses_before_yield + 1);
        match self.mode {
            WaitMode::Sleep => return Next::Sleep,
            WaitMode::Spin => self.yield_once_in(SPINS_PER_YIELD),
            WaitMode::Pause | WaitMode::Tpause => self.pause(),
            WaitMode::Yield => std::thread::yield_now(),
            WaitMode::Umwait | WaitMode::Monitorx => {
                if self.watch(watch()) {
                    std::thread::yield_now();
                } else {
                    self.pause();
                }
            }
            WaitMode::Adaptive => {
                std::thread::yield_now();
                self.watch(watch());
                let factor = if expected { EXPECTED_LOOK_FACTOR } else { 1 };
                if clock::ticks().wrapping_sub(self.started_ticks) >= self.look_ticks.saturating_mul(factor) {
                    return Next::Sleep;
                }
            }
        }
        Next::Look
    }

    fn yield_once_in(&self, looks: u32) {
        if self.empty_looks.is_multiple_of(looks) {
            std::thread::yield_now();
        }
    }

    /// Until about when it is worth looking again.
    fn pause(&self) {
        if let Some(waitpkg) = self.waitpkg {
            waitpkg.tpause(clock::ticks().saturating_add(self.tpause_ticks));
            self.yield_once_in(TPAUSES_PER_YIELD);
        } else {
            core::hint::spin_loop();
            self.yield_once_in(PAUSES_PER_YIELD);
        }
    }

    /// Until the line is written, if there is one and it can be watched; `false`: not waited.
    fn watch(&self, watch: Option<Watch<'_>>) -> bool {
        let Some(watch) = watch else { return false };
        if let Some(waitpkg) = self.waitpkg {
            let wait = || waitpkg.umwait(clock::ticks().saturating_add(self.watch_ticks));
            watch.wait(|stamp| waitpkg.umonitor(stamp), wait);
        } else if let Some(monitorx) = self.monitorx {
            let ticks = u32::try_from(self.watch_ticks).unwrap_or(u32::MAX);
            watch.wait(|stamp| monitorx.monitorx(stamp), || monitorx.mwaitx(ticks));
        } else {
            return false;
        }
        true
    }
}
