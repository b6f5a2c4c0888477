//! A median that does not move in steps.

use fipsee::load::count_f64;

/// The median of ticks that were recorded so often each, in ascending order.
///
/// On Zen the time-stamp counter moves in steps of 26, so that the middle value stays for a change of 5 % or jumps by as much.
/// Within the step that holds the median, the counts say how much of it is below: as if its requests were spread evenly from the
/// middle between this value and the one before to the middle between it and the next.
pub(super) fn within_step(counts: &[(u64, u64)]) -> Option<f64> {
    let half = count_f64(counts.iter().map(|(_, count)| count).sum()) / 2.0;
    let mut below = 0.0;
    for (index, (ticks, count)) in counts.iter().enumerate() {
        let (ticks, count) = (count_f64(*ticks), count_f64(*count));
        if count > 0.0 && below + count >= half {
            let neighbour = |index: Option<usize>| index.and_then(|index| counts.get(index)).map(|(ticks, _)| count_f64(*ticks));
            let (before, after) = (neighbour(index.checked_sub(1)), neighbour(Some(index + 1)));
            // At an end, as wide as on the other side.
            let down = before.or(after).map_or(0.0, |other| (ticks - other).abs() / 2.0);
            let up = after.or(before).map_or(0.0, |other| (ticks - other).abs() / 2.0);
            return Some(ticks - down + (down + up) * (half - below) / count);
        }
        below += count;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// What a counter in steps of 26 makes of times around `middle`, from 40 below it to 40 above.
    fn recorded(middle: u64) -> Vec<(u64, u64)> {
        let mut counts = BTreeMap::new();
        for time in middle - 40..=middle + 40 {
            // Start and end fall anywhere in their steps.
            for start in 0..26 {
                *counts.entry((start + time) / 26 * 26).or_insert(0) += 1;
            }
        }
        counts.into_iter().collect()
    }

    #[test]
    fn a_change_within_a_step_is_seen_as_large_as_it_is() {
        for middle in 500..600 {
            let found = within_step(&recorded(middle)).expect("some");
            assert!((found - count_f64(middle)).abs() < 1.0, "{found} of {middle}");
        }
    }

    #[test]
    fn the_middle_of_a_single_value_is_the_value_and_of_none_there_is_none() {
        assert_eq!(within_step(&[(520, 7)]), Some(520.0));
        assert_eq!(within_step(&[(494, 0), (520, 7)]), Some(520.0));
        assert_eq!(within_step(&[]), None);
        // A quarter of the requests is below: the median is a third into the step from 507 to 533.
        assert_eq!(within_step(&[(494, 25), (520, 75)]), Some(507.0 + 26.0 / 3.0));
    }
}
