//! The names of the strategies, and which of them this CPU has.

use core::fmt;
use std::str::FromStr;

use crate::cpu;

/// A way to wait for messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitMode {
    /// Pause, then have the CPU watch the line where it can, yield, and sleep on the doorbell in the end.
    #[default]
    Adaptive,
    /// Never sleep: a PAUSE between two looks, and an occasional yield so that other threads of this CPU run.
    Pause,
    /// As `Pause`, without the PAUSE.
    Spin,
    /// Never sleep: yield between two looks.
    Yield,
    /// Sleep on the doorbell at once.
    Sleep,
    /// Never sleep: have the CPU watch the line (UMONITOR, UMWAIT), and yield occasionally.
    Umwait,
    /// Never sleep: a TPAUSE between two looks, and an occasional yield.
    Tpause,
    /// Never sleep: have the CPU watch the line (MONITORX, MWAITX), and yield occasionally.
    Monitorx,
}

impl WaitMode {
    /// Every strategy.
    pub const ALL: [Self; 8] =
        [Self::Adaptive, Self::Pause, Self::Spin, Self::Yield, Self::Sleep, Self::Umwait, Self::Tpause, Self::Monitorx];

    /// The name it is chosen by.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Pause => "pause",
            Self::Spin => "spin",
            Self::Yield => "yield",
            Self::Sleep => "sleep",
            Self::Umwait => "umwait",
            Self::Tpause => "tpause",
            Self::Monitorx => "monitorx",
        }
    }

    /// May it be chosen on this CPU?
    pub fn available(self) -> Result<(), Unavailable> {
        let is_there = match self {
            Self::Umwait | Self::Tpause => cpu::features().has_waitpkg,
            Self::Monitorx => cpu::features().has_monitorx,
            _ => true,
        };
        if is_there { Ok(()) } else { Err(Unavailable(self)) }
    }
}

impl fmt::Display for WaitMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for WaitMode {
    type Err = String;

    /// By its name; `poll` is another name of `pause`. Does not check what the CPU has: see [`available`](Self::available).
    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = if text == "poll" { "pause" } else { text };
        let mode = Self::ALL.into_iter().find(|mode| mode.name() == wanted);
        mode.ok_or_else(|| format!("unknown wait mode '{text}'; use {}", alternatives(&Self::ALL)))
    }
}

fn alternatives(modes: &[WaitMode]) -> String {
    let names: Vec<_> = modes.iter().map(|mode| mode.name()).collect();
    match names.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} or {last}", before.join(", ")),
        _ => names.concat(),
    }
}

/// A strategy that this CPU lacks the instructions for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable(WaitMode);

impl Unavailable {
    /// What is missing, in short.
    pub const fn missing(&self) -> &'static str {
        match self.0 {
            WaitMode::Umwait => "no UMWAIT (CPUID leaf 7, ECX bit 5, WAITPKG)",
            WaitMode::Tpause => "no TPAUSE (CPUID leaf 7, ECX bit 5, WAITPKG)",
            WaitMode::Monitorx => "no MONITORX (CPUID leaf 8000_0001, ECX bit 29)",
            _ => "nothing",
        }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others: Vec<_> = WaitMode::ALL.into_iter().filter(|mode| mode.available().is_ok()).collect();
        write!(f, "wait mode {}: this CPU has {}; use {}", self.0, self.missing(), alternatives(&others))
    }
}

impl core::error::Error for Unavailable {}
