//! The time-stamp counter's steps.

use std::sync::LazyLock;

use fipsee_ring::clock;

/// Steps in which the time-stamp counter counts: on many machines more than one cycle.
pub(super) fn counter_step() -> u64 {
    static STEP: LazyLock<u64> = LazyLock::new(|| {
        const READINGS: u32 = 1000;
        let mut last = clock::ticks_fenced();
        let differences = (0..READINGS).map(|_| {
            let now = clock::ticks_fenced();
            now.saturating_sub(std::mem::replace(&mut last, now))
        });
        differences.fold(0, greatest_common_divisor).max(1)
    });
    *STEP
}

const fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_of_a_counter_divides_every_difference() {
        assert_eq!([52, 26, 130, 0].into_iter().fold(0, greatest_common_divisor), 26);
        let (from, step) = (clock::ticks_fenced(), counter_step());
        assert!((clock::ticks_fenced() - from).is_multiple_of(step), "{step}");
    }
}
