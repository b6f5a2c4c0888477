//! Disks that wrap another and misbehave on purpose: late, failing, losing what was not flushed. For tests of whoever
//! uses disks.
//!
//! `WRAPPER:OPTIONS:KIND:ARGS`, for example `delay:2ms:memory:1G`. Options are separated by commas. What follows the second
//! colon is any disk, a wrapped one, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fipsee_ring::memory::Span;

use super::{AnyDisk, Disk, Engine, Faults, Submitted, Ticket};
use crate::request::Request;
use crate::wire::BlockInfo;

mod delay;
mod error;
mod power_cut;

pub use delay::DelayOptions;
pub use error::ErrorOptions;
use power_cut::PowerCut;
pub use power_cut::PowerCutOptions;

/// A wrapper and its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrapper {
    /// `delay:`
    Delay(DelayOptions),
    /// `error:`
    Error(ErrorOptions),
    /// `powercut:`
    PowerCut(PowerCutOptions),
}

impl Wrapper {
    /// The wrapper of that name with its options; `None`: no wrapper has this name.
    ///
    /// # Errors
    /// The option that is wrong and what to write instead.
    pub(super) fn parse(name: &str, options: &str) -> Option<Result<Self, String>> {
        let parsed = match name {
            "delay" => DelayOptions::parse(options).map(Self::Delay),
            "error" => ErrorOptions::parse(options).map(Self::Error),
            "powercut" => PowerCutOptions::parse(options).map(Self::PowerCut),
            _ => return None,
        };
        Some(parsed.map_err(|problem| format!("{name}: {problem}")))
    }
}

/// A disk that wraps another.
#[derive(Debug)]
pub struct WrappedDisk {
    inner: Arc<AnyDisk>,
    /// Those of the disk at the bottom; of one that has none, the wrapper's own.
    faults: Arc<Faults>,
    manner: Manner,
    /// Requests that were delayed, or could have failed.
    numbered: AtomicU64,
}

#[derive(Debug)]
enum Manner {
    Delay(DelayOptions),
    Error(ErrorOptions),
    PowerCut(Arc<PowerCut>),
}

impl WrappedDisk {
    /// Wrap `inner`.
    ///
    /// # Errors
    /// This machine has no io_uring, whose timers most wrappers use.
    pub(super) fn new(inner: AnyDisk, wrapper: &Wrapper) -> Result<Self, String> {
        let (faults, inner) = (inner.faults().cloned().unwrap_or_default(), Arc::new(inner));
        if !matches!(wrapper, Wrapper::Error(_)) {
            Engine::check()?;
        }
        let manner = match wrapper {
            Wrapper::Delay(options) => Manner::Delay(options.clone()),
            Wrapper::Error(options) => Manner::Error(options.clone()),
            Wrapper::PowerCut(options) => Manner::PowerCut(PowerCut::new(Arc::clone(&inner), options)),
        };
        Ok(Self { inner, faults, manner, numbered: AtomicU64::new(0) })
    }

    fn next_number(&self) -> u64 {
        self.numbered.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn inner(&self) -> &AnyDisk {
        &self.inner
    }

    pub(super) const fn kind(&self) -> &'static str {
        match self.manner {
            Manner::Delay(_) => "delay",
            Manner::Error(_) => "error",
            Manner::PowerCut(_) => "powercut",
        }
    }
}

impl Disk for WrappedDisk {
    const ANSWERS_AT_ONCE: bool = false;

    fn info(&self) -> BlockInfo {
        let info = self.inner.info();
        match self.manner {
            Manner::PowerCut(_) => {
                BlockInfo { max_range_sectors: info.max_range_sectors.min(power_cut::MAX_RANGE_SECTORS), ..info }
            }
            _ => info,
        }
    }

    unsafe fn submit(&self, request: &Request, spans: &[Span], ticket: Ticket, engine: &mut Engine) -> Submitted {
        match &self.manner {
            // SAFETY: the contract is passed on.
            Manner::Delay(options) => unsafe { options.submit(self, request, spans, ticket, engine) },
            Manner::Error(options) => match options.fail(self, request) {
                Some(status) => Submitted::Done(status),
                // SAFETY: as above.
                None => unsafe { self.inner.submit(request, spans, ticket, engine) },
            },
            // SAFETY: as above.
            Manner::PowerCut(core) => unsafe { core.submit(request, spans, ticket, engine) },
        }
    }

    fn resize(&self, sector_count: u64) -> Result<(), String> {
        self.inner.resize(sector_count)?;
        if let Manner::PowerCut(core) = &self.manner {
            core.cut(sector_count);
        }
        Ok(())
    }

    fn faults(&self) -> Option<&Arc<Faults>> {
        if matches!(self.manner, Manner::PowerCut(_)) { self.inner.faults() } else { Some(&self.faults) }
    }
}

/// The options of a wrapper, as `key` and `value`.
fn pairs(options: &str) -> impl Iterator<Item = (&str, &str)> {
    options.split(',').filter(|piece| !piece.is_empty()).map(|piece| piece.split_once('=').unwrap_or((piece, "")))
}

fn number(key: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("{key}={value} is not possible; write {key}= and an integer, for example {key}=100"))
}

/// A duration: an integer with `us`, `ms` or `s`.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = text.split_at(digits);
    let make = match unit {
        "us" => Some(Duration::from_micros as fn(u64) -> Duration),
        "ms" => Some(Duration::from_millis as _),
        "s" => Some(Duration::from_secs as _),
        _ => None,
    };
    let made = make.and_then(|make| count.parse().ok().map(make));
    made.ok_or_else(|| format!("'{text}' is not a time; write an integer with us, ms or s, for example 5ms"))
}

/// splitmix64: the same sequence for the same seed, everywhere.
const fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut value = *state;
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
