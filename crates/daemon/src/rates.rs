//! How much a disk, a user, a group or a client may do per second, and the weight of its share, as configured or set.

use std::num::{NonZeroU16, NonZeroU32, NonZeroU64};
use std::time::Duration;

use fipsee_serve::limit::Rates;
use fipsee_serve::share::DEFAULT_WEIGHT;
use serde::{Deserialize, Serialize};

use crate::disk_limits::Limit;

/// More than any machine does; the limiter calculates with these without overflow.
pub const MAX_IOPS: u64 = 1_000_000_000;
pub const MAX_BYTES_PER_SECOND: u64 = 1 << 40;
/// A minute.
pub const MAX_BURST_MS: u32 = 60_000;
pub const MAX_WEIGHT: u16 = 1000;

/// `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RateLimits {
    /// Requests per second.
    pub iops: Option<NonZeroU64>,
    pub bytes_per_second: Option<NonZeroU64>,
    /// What was not used in this time may be used at once.
    pub burst_ms: Option<NonZeroU32>,
}

/// Of a user, group, virtual machine or client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShareSettings {
    /// `None`: the usual one.
    pub weight: Option<NonZeroU16>,
    pub rates: RateLimits,
    /// A worker is for its queues alone.
    #[serde(skip_serializing_if = "is_false")]
    pub dedicated: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants it")]
const fn is_false(value: &bool) -> bool {
    !*value
}

impl ShareSettings {
    pub(crate) fn weight_in_force(&self) -> u32 {
        self.weight.map_or(DEFAULT_WEIGHT, |weight| weight.get().into())
    }
}

/// Changes of those.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RateChanges {
    pub(crate) iops: Option<Limit<NonZeroU64>>,
    pub(crate) bytes_per_second: Option<Limit<NonZeroU64>>,
    pub(crate) burst_ms: Option<Limit<NonZeroU32>>,
}

impl RateLimits {
    pub(crate) const fn is_off(&self) -> bool {
        self.iops.is_none() && self.bytes_per_second.is_none()
    }

    /// For the limiter. What was checked is possible.
    pub(crate) fn in_force(&self) -> Rates {
        let burst = self.burst_ms.filter(|_| !self.is_off()).map(|ms| Duration::from_millis(ms.get().into()));
        let (iops, bytes) = (self.iops.map(NonZeroU64::get), self.bytes_per_second.map(NonZeroU64::get));
        Rates::new(iops, bytes, burst).unwrap_or_default()
    }

    /// With these changes. Without a rate there is no burst.
    pub(crate) fn changed(mut self, changes: RateChanges) -> Result<Self, String> {
        let RateChanges { iops, bytes_per_second, burst_ms } = changes;
        Limit::apply(iops, &mut self.iops);
        Limit::apply(bytes_per_second, &mut self.bytes_per_second);
        Limit::apply(burst_ms, &mut self.burst_ms);
        if self.is_off() && burst_ms.is_none() {
            self.burst_ms = None;
        }
        self.check().map(|()| self)
    }

    /// # Errors
    /// Which of them are impossible or contradict each other, and what to write.
    pub fn check(&self) -> Result<(), String> {
        let Self { iops, bytes_per_second, burst_ms } = *self;
        let (iops, bytes) = (iops.map_or(0, NonZeroU64::get), bytes_per_second.map_or(0, NonZeroU64::get));
        if iops > MAX_IOPS {
            return Err(format!(
                "iops {iops} is more than can be limited; write at most {MAX_IOPS}, or leave it out for no limit"
            ));
        }
        if bytes > MAX_BYTES_PER_SECOND {
            return Err(format!(
                "bytes_per_second {bytes} is more than can be limited; write at most {MAX_BYTES_PER_SECOND} (1T), or leave it out for no limit"
            ));
        }
        if bytes > 0 && bytes < 512 {
            return Err(format!("bytes_per_second {bytes} is less than a block of 512 bytes; write at least 512"));
        }
        let Some(burst) = burst_ms.map(NonZeroU32::get) else { return Ok(()) };
        if self.is_off() {
            return Err("a burst belongs to iops or bytes_per_second; set one of them, too, or leave out the burst".to_owned());
        }
        if burst > MAX_BURST_MS {
            return Err(format!("a burst of {burst} ms is too long; write at most {MAX_BURST_MS} ms"));
        }
        let least_ms = |amount: u64, per_second: u64| (amount * 1000).div_ceil(per_second);
        if iops > 0 && u64::from(burst) < least_ms(1, iops) {
            return Err(format!(
                "a burst of {burst} ms at {iops} iops is less than one request; write at least {} ms",
                least_ms(1, iops)
            ));
        }
        if bytes > 0 && u64::from(burst) < least_ms(512, bytes) {
            return Err(format!(
                "a burst of {burst} ms at {bytes} bytes per second is less than a block of 512 bytes; write at least {} ms",
                least_ms(512, bytes)
            ));
        }
        Ok(())
    }

    /// As keys of the configuration file.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&'static str, String)> {
        let number = |value: NonZeroU64| value.to_string();
        let keys = [
            ("iops", self.iops.map(number)),
            ("bytes_per_second", self.bytes_per_second.map(number)),
            ("burst", self.burst_ms.map(|burst| format!("\"{burst}ms\""))),
        ];
        keys.into_iter().filter_map(|(key, value)| Some((key, value?)))
    }
}

/// A burst: a time with its unit.
///
/// # Errors
/// What to write.
pub fn parse_burst(text: &str) -> Result<NonZeroU32, String> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let factor = match unit {
        "ms" => Some(1),
        "s" => Some(1000),
        _ => None,
    };
    let ms = factor.and_then(|factor| digits.parse::<u32>().ok()?.checked_mul(factor)).and_then(NonZeroU32::new);
    ms.ok_or_else(|| format!("'{text}' is no time from 1ms on; write a number with ms or s, for example 100ms"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(iops: u64, bytes_per_second: u64, burst_ms: u32) -> RateLimits {
        let (iops, bytes_per_second) = (NonZeroU64::new(iops), NonZeroU64::new(bytes_per_second));
        RateLimits { iops, bytes_per_second, burst_ms: NonZeroU32::new(burst_ms) }
    }

    #[test]
    fn rates_that_are_possible_are_accepted() {
        for possible in
            [(0, 0, 0), (1, 0, 0), (1, 0, 1000), (0, 512, 1000), (MAX_IOPS, MAX_BYTES_PER_SECOND, 1), (1000, 1 << 20, 1)]
        {
            let rates = rates(possible.0, possible.1, possible.2);
            assert_eq!(rates.check(), Ok(()), "{possible:?}");
            let in_force = rates.in_force();
            assert_eq!(in_force.iops().unwrap_or(0), possible.0);
            assert_eq!(in_force.bytes_per_second().unwrap_or(0), possible.1);
        }
    }

    #[test]
    fn rates_that_are_impossible_or_contradict_each_other_are_named_with_what_to_write() {
        for (wrong, piece) in [
            ((MAX_IOPS + 1, 0, 0), "write at most 1000000000"),
            ((0, MAX_BYTES_PER_SECOND + 1, 0), "write at most 1099511627776"),
            ((0, 511, 0), "write at least 512"),
            ((0, 0, 5), "set one of them"),
            ((1, 0, 60_001), "write at most 60000 ms"),
            ((3, 0, 333), "less than one request; write at least 334 ms"),
            ((0, 1000, 511), "less than a block of 512 bytes; write at least 512 ms"),
        ] {
            let text = rates(wrong.0, wrong.1, wrong.2).check().expect_err(piece);
            assert!(text.contains(piece), "{text}");
        }
    }

    #[test]
    fn a_burst_is_a_time_with_a_unit() {
        assert_eq!(parse_burst("100ms").map(NonZeroU32::get), Ok(100));
        assert_eq!(parse_burst("2s").map(NonZeroU32::get), Ok(2000));
        for wrong in ["", "100", "0ms", "1.5s", "ms", "-1ms", "5m", "4294967296ms", "5000000s"] {
            assert!(parse_burst(wrong).expect_err(wrong).contains("for example 100ms"), "{wrong}");
        }
    }

    #[test]
    fn what_is_off_has_no_burst_left() {
        let off = RateChanges { iops: Some(Limit::Off(crate::disk_limits::Off::Off)), ..RateChanges::default() };
        assert_eq!(rates(1000, 0, 50).changed(off), Ok(RateLimits::default()));
        assert_eq!(rates(1000, 4096, 500).changed(off), Ok(rates(0, 4096, 500)));
        let burst = RateChanges { burst_ms: NonZeroU32::new(7).map(Limit::To), ..RateChanges::default() };
        assert!(RateLimits::default().changed(burst).is_err());
    }
}
