//! Numbers for people, the same in all output: bytes in powers of 1024, as in the progress bar; counts in powers of 1000; times.
//! And times from people.

use std::time::Duration;

use unit_prefix::NumberPrefix;

/// A number of bytes. What is a whole number of its unit has no decimals.
pub(crate) fn bytes(count: u64) -> String {
    scaled(NumberPrefix::binary(to_f64(count)), "B")
}

/// A number of bytes, and which it is exactly.
pub(crate) fn exact_bytes(count: u64) -> String {
    if count < 1024 { format!("{count} bytes") } else { format!("{} ({count} bytes)", bytes(count)) }
}

/// Bytes per second.
pub(crate) fn byte_rate(bytes_per_second: f64) -> String {
    scaled(NumberPrefix::binary(bytes_per_second), "B/s")
}

/// A count or a rate of anything else.
pub(crate) fn count(value: f64) -> String {
    scaled(NumberPrefix::decimal(value), "")
}

/// A time, from nanoseconds.
pub(crate) fn nanoseconds(ns: u64) -> String {
    let (unit_ns, unit) = match ns {
        0..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "us"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    format!("{} {unit}", three_digits(to_f64(ns) / to_f64(unit_ns)))
}

fn scaled(number: NumberPrefix<f64>, unit: &str) -> String {
    let (value, prefix) = match number {
        NumberPrefix::Standalone(value) => (value, ""),
        NumberPrefix::Prefixed(prefix, value) => (value, prefix.symbol()),
    };
    let text = format!("{} {prefix}{unit}", three_digits(value));
    text.trim_end().to_owned()
}

fn three_digits(value: f64) -> String {
    let decimals = match value {
        _ if value.fract() == 0.0 => 0,
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

/// `count` over `seconds`.
pub(crate) fn per_second(count: u64, seconds: f64) -> f64 {
    to_f64(count) / seconds.max(f64::MIN_POSITIVE)
}

/// Counters stay far below 2^53, where the conversion is exact.
pub(crate) const fn to_f64(value: u64) -> f64 {
    value as f64
}

/// The value of an option: a time.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0 && *seconds < 1e6);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| "write a number of seconds above 0, for example 0.5 or 10".to_owned())
}

/// The value of an option: a time that may be 0.
pub(crate) fn parse_timeout(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(0.0) => Ok(Duration::ZERO),
        _ => parse_seconds(text).map_err(|_| "write a number of seconds, for example 0.5 or 10; 0 tries once".to_owned()),
    }
}

/// The value of an option: whole seconds, which may be 0.
pub(crate) fn parse_whole_seconds(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "write a whole number of seconds, for example 10".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_keep_their_exact_form_when_they_have_one() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1 << 30), "1 GiB");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(bytes((1 << 30) + 512), "1.00 GiB");
        assert_eq!(bytes(u64::MAX), "16 EiB");
        assert_eq!(exact_bytes(100), "100 bytes");
        assert_eq!(exact_bytes(1536), "1.50 KiB (1536 bytes)");
    }

    #[test]
    fn rates_have_three_digits() {
        assert_eq!(count(999.4), "999");
        assert_eq!(count(0.0), "0");
        assert_eq!(count(15_340_000.0), "15.3 M");
        assert_eq!(count(1_500.0), "1.50 k");
        assert_eq!(byte_rate(1.5 * 1024.0 * 1024.0), "1.50 MiB/s");
    }

    #[test]
    fn times_choose_their_unit() {
        assert_eq!(nanoseconds(999), "999 ns");
        assert_eq!(nanoseconds(1_551), "1.55 us");
        assert_eq!(nanoseconds(41_260_000), "41.3 ms");
        assert_eq!(nanoseconds(2_000_000_000), "2 s");
    }
}
