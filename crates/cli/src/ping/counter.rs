//! The time-stamp counter's steps, and medians within them.

use std::sync::LazyLock;

use fipsee_ring::clock;
use hdrhistogram::Histogram;

use crate::units;

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

/// The median, interpolated within the counter's step (or the histogram's, where that is wider): bursts of some 300 cycles would else
/// all have one of a few medians.
pub(super) fn middle(ticks: &Histogram<u64>) -> f64 {
    let half = units::to_f64(ticks.len()) / 2.0;
    let mut below = 0.0;
    for step in ticks.iter_recorded() {
        let count = units::to_f64(step.count_since_last_iteration());
        if below + count >= half {
            let value = step.value_iterated_to();
            let width = units::to_f64(ticks.equivalent_range(value).max(counter_step()));
            return units::to_f64(ticks.median_equivalent(value)) + width * ((half - below) / count - 0.5);
        }
        below += count;
    }
    f64::NAN
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ping::drive;

    #[test]
    fn a_median_lies_within_half_a_step_of_the_recorded_one() {
        let mut ticks = drive::histogram().expect("a histogram");
        let step = counter_step();
        let recorded = 40 * step;
        for value in [39 * step, recorded, recorded, recorded, 41 * step, 900 * step] {
            ticks.record(value).expect("in range");
        }
        let (found, recorded) = (middle(&ticks), units::to_f64(recorded));
        assert!((found - recorded).abs() <= units::to_f64(step.max(2)) / 2.0, "{found} beside {recorded}");
        assert!(middle(&drive::histogram().expect("a histogram")).is_nan(), "of nothing");
    }

    #[test]
    fn the_step_of_a_counter_divides_every_difference() {
        assert_eq!([52, 26, 130, 0].into_iter().fold(0, greatest_common_divisor), 26);
        let (from, step) = (clock::ticks_fenced(), counter_step());
        assert!((clock::ticks_fenced() - from).is_multiple_of(step), "{step}");
    }
}
