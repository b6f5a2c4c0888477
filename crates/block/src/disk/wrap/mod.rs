//! Disks that wrap another and misbehave on purpose: late, failing, losing what was not flushed. For tests of whoever
//! uses disks.
//!
//! `WRAPPER:OPTIONS:KIND:ARGS`, for example `delay:2ms:memory:1G`. Options are separated by commas. What follows the second
//! colon is any disk, a wrapped one, too.

use std::sync::Arc;
use std::time::Duration;

use super::{AnyDisk, Disk, Faults};

mod delay;
mod error;
mod power_cut;

pub use delay::{DelayDisk, DelayOptions};
pub use error::{ErrorDisk, ErrorOptions};
pub use power_cut::{PowerCutDisk, PowerCutOptions};

/// The faults of a wrapped disk are those of the one at the bottom; of one that has none, the wrapper's own.
fn faults_of(inner: &AnyDisk) -> Arc<Faults> {
    inner.faults().cloned().unwrap_or_default()
}

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
        "us" => Duration::from_micros,
        "ms" => Duration::from_millis,
        "s" => Duration::from_secs,
        _ => return Err(format!("'{text}' is not a time; write an integer with us, ms or s, for example 5ms")),
    };
    count.parse().map(make).map_err(|_| format!("'{text}' is not a time; write an integer with us, ms or s, for example 5ms"))
}

/// splitmix64: the same sequence for the same seed, everywhere.
const fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut value = *state;
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
