//! Numbers in human-readable form.

/// A size or count of bytes, in powers of 1024; exact sizes stay exact.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(unit, _)| count >= *unit) {
        Some((unit, name)) if count.is_multiple_of(*unit) => format!("{} {name}", count / unit),
        Some((unit, name)) => format!("{}.{} {name}", count / unit, count % unit * 10 / unit),
        None => format!("{count} B"),
    }
}

/// A count or a rate, in powers of 1000 with three digits.
pub(crate) fn count(value: f64) -> String {
    const UNITS: [(f64, &str); 3] = [(1e9, " G"), (1e6, " M"), (1e3, " k")];
    let (scaled, unit) = UNITS.iter().find(|(unit, _)| value >= *unit).map_or((value, ""), |(unit, name)| (value / unit, *name));
    let digits = if unit.is_empty() || scaled >= 100.0 {
        0
    } else if scaled >= 10.0 {
        1
    } else {
        2
    };
    format!("{scaled:.digits$}{unit}")
}

/// A time, from nanoseconds.
pub(crate) fn nanoseconds(ns: u64) -> String {
    let (whole, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (1_000, "us"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    format!("{}.{} {unit}", ns / whole, ns % whole * 10 / whole)
}

/// `count` over `seconds`.
pub(crate) fn per_second(count: u64, seconds: f64) -> f64 {
    to_f64(count) / seconds.max(f64::MIN_POSITIVE)
}

/// Counters stay far below 2^53, where the conversion is exact.
pub(crate) const fn to_f64(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_keep_their_exact_form_when_they_have_one() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1 << 30), "1 GiB");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(u64::MAX), "16777215.9 TiB");
    }

    #[test]
    fn rates_have_three_digits() {
        assert_eq!(count(999.0), "999");
        assert_eq!(count(15_340_000.0), "15.3 M");
        assert_eq!(count(1_500.0), "1.50 k");
    }

    #[test]
    fn times_choose_their_unit() {
        assert_eq!(nanoseconds(999), "999 ns");
        assert_eq!(nanoseconds(1_550), "1.5 us");
        assert_eq!(nanoseconds(2_000_000_000), "2.0 s");
    }
}
