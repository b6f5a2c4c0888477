use super::*;

fn pair(floors_ns: [f64; 3], ratio: f64) -> Pair {
    Pair { floors_ns, old_ns: 100.0, new_ns: 100.0 * ratio, new_first: false }
}

fn estimate(ratio: f64, from: f64, to: f64) -> Estimate {
    Estimate { ratio, interval: (from, to) }
}

/// The numbers from 1 to `count`, out of order.
fn numbers(count: u32) -> Vec<f64> {
    (0..count).map(|index| f64::from(index * 7 % count + 1)).collect()
}

#[test]
fn interval_is_that_of_the_exact_distribution_of_resampled_medians() {
    // The median of a sample of n drawn from n is at most the k-th value as often as Binomial(n, k/n) is n/2 and more: of 11
    // values 0.007 for k = 2 and 0.051 for k = 3, of 41 0.018 for k = 14 and 0.039 for k = 15.
    assert_eq!(Estimate::of(&numbers(11)), Some(estimate(6.0, 3.0, 9.0)));
    assert_eq!(Estimate::of(&numbers(41)), Some(estimate(21.0, 15.0, 27.0)));
}

#[test]
fn interval_of_equal_ratios_is_a_point_and_the_same_pairs_give_the_same() {
    assert_eq!(Estimate::of(&[1.25; 10]), Some(estimate(1.25, 1.25, 1.25)));
    assert_eq!(Estimate::of(&numbers(20)), Estimate::of(&numbers(20)));
    assert_eq!(Estimate::of(&[1.25; LEAST_PAIRS - 1]), None, "too few to say anything");
}

#[test]
fn interval_covers_the_true_median_about_95_times_of_100() {
    let mut random = Random(1);
    let covered = (0..200).filter(|_| {
        let ratios: Vec<f64> = (0..25).map(|_| f64::from(u32::try_from(random.index(2001)).unwrap()) / 1000.0).collect();
        let (from, to) = Estimate::of(&ratios).unwrap().interval;
        from <= 1.0 && 1.0 <= to
    });
    let covered = covered.count();
    assert!((180..=199).contains(&covered), "{covered} of 200");
}

#[test]
fn median_of_ratios_is_the_same_whichever_way_they_are_taken() {
    assert_eq!(median(&[4.0, 1.0]), Some(2.0));
    assert_eq!(median(&[0.25, 1.0]), Some(0.5));
    assert_eq!(median(&[3.0, 9.0, 1.0]), Some(3.0));
    assert_eq!(median(&[]), None);
}

#[test]
fn slower_means_beyond_the_limit_with_the_whole_interval() {
    let verdict = |ratio, from, to| Verdict::of(Some(&estimate(ratio, from, to)));
    assert_eq!(verdict(1.03, 1.021, 1.04), Verdict::Slower);
    assert_eq!(verdict(1.03, 1.01, 1.05), Verdict::Same, "part of the interval is within it");
    assert_eq!(verdict(1.03, 1.02, 1.04), Verdict::Same, "the limit itself is not beyond it");
    assert_eq!(verdict(2.0, 1.5, 3.0), Verdict::Slower, "however wide");
    assert_eq!(verdict(0.95, 0.94, 0.98), Verdict::Faster);
    assert_eq!(verdict(0.98, 0.97, 0.99), Verdict::Same);
    assert_eq!(verdict(1.0, 0.9, 1.01), Verdict::Undecided);
    assert_eq!(Verdict::of(None), Verdict::Undecided);
}

#[test]
fn ratio_is_of_new_to_old_whichever_was_measured_first() {
    let old_first = Pair::of(false, [100.0, 150.0], [110.0; 3]);
    let new_first = Pair::of(true, [150.0, 100.0], [110.0; 3]);
    assert_eq!([old_first.ratio(), new_first.ratio()], [1.5, 1.5]);
    assert_eq!([old_first.new_first, new_first.new_first], [false, true]);
}

#[test]
fn interval_is_narrow_when_neither_end_is_2_percent_off() {
    assert!(estimate(1.0, 0.981, 1.019).is_narrow());
    assert!(!estimate(1.0, 0.979, 1.0).is_narrow());
    assert!(!estimate(1.0, 1.0, 1.021).is_narrow());
    assert!(estimate(10.0, 9.81, 10.19).is_narrow(), "of the ratio, not of 1");
}

#[test]
fn pair_whose_machine_changed_meanwhile_has_no_state() {
    let states = States::with_border(Some(200.0));
    assert_eq!(state_of(states, &pair([110.0, 112.0, 115.0], 1.0)), Some(State::Near));
    assert_eq!(state_of(states, &pair([460.0, 450.0, 455.0], 1.0)), Some(State::Far));
    assert_eq!(state_of(states, &pair([110.0, 112.0, 460.0], 1.0)), None, "after");
    assert_eq!(state_of(states, &pair([110.0, 460.0, 112.0], 1.0)), None, "between");
    for across in [[190.0, 205.0, 207.0], [190.0, 205.0, 190.0], [190.0, 190.0, 205.0]] {
        assert_eq!(state_of(states, &pair(across, 1.0)), None, "across the boundary: {across:?}");
    }
    assert_eq!(state_of(states, &pair([110.0, 140.0, 112.0], 1.0)), None, "a fourth more is not the same");
}

#[test]
fn only_pairs_of_the_commoner_state_are_compared() {
    let near = std::iter::repeat_n(pair([110.0; 3], 1.0), 12);
    let far = std::iter::repeat_n(pair([450.0; 3], 2.0), 11);
    let mixed = std::iter::repeat_n(pair([110.0, 110.0, 450.0], 3.0), 20);
    let pairs: Vec<Pair> = far.chain(near).chain(mixed).collect();
    let states = States::of(pairs.iter().flat_map(|pair| pair.floors_ns));
    let summary = Summary::of(&pairs, states);
    assert_eq!((summary.state, summary.used.len(), summary.verdict), (State::Near, 12, Verdict::Same));
    assert_eq!(summary.median_of(|pair| pair.floors_ns[0]), Some(110.0));
    assert_eq!(Summary::of(&[], states).verdict, Verdict::Undecided);
}

#[test]
fn a_slowdown_of_5_percent_is_found_under_noise_of_3() {
    let mut random = Random(7);
    let mut noisy = |ratio: f64| {
        let noise = f64::from(u32::try_from(random.index(601)).unwrap()) / 10_000.0 - 0.03;
        pair([110.0; 3], ratio * (1.0 + noise))
    };
    let slower: Vec<Pair> = (0..40).map(|_| noisy(1.05)).collect();
    let same: Vec<Pair> = (0..40).map(|_| noisy(1.0)).collect();
    let states = States::with_border(None);
    assert_eq!(Summary::of(&slower, states).verdict, Verdict::Slower);
    assert_eq!(Summary::of(&same, states).verdict, Verdict::Same);
}
