//! What was measured, for who looks at it and for docs/reliability.md.

use fipsee_hostile::lie::Lie;

use super::{ALONE, LIAR, RELEASED, TWIN, named, share};
use crate::table::{IOPS, IOPS_OF_OWN, P99, Results};

fn median(results: &Results, lie: &Lie, of: &str, metric: &str) -> f64 {
    results.get(&named(lie, of), metric).map_or(f64::NAN, |series| series.median())
}

fn percent_of_twin(results: &Results, lie: &Lie, metric: &str) -> f64 {
    100.0 * share(results, lie, TWIN, metric).unwrap_or(f64::NAN)
}

/// A line for each lie.
pub(super) fn print(lies: &[&Lie], results: &Results) {
    println!("\nthe victim's requests, in thousands: per second of its own processor time, and per second; medians of rounds\n");
    println!(
        "{:<50} {:>9} {:>9} {:>9} {:>8} | {:>9} {:>9} {:>8} | {:>9} {:>9} | {:>11}",
        "lie", "alone", "twin", "liar", "of twin", "twin", "liar", "of twin", "p99 twin", "p99 liar", "released ms"
    );
    for lie in lies {
        let thousands = |of: &str, metric: &str| median(results, lie, of, metric) / 1e3;
        println!(
            "{:<50} {:>9.1} {:>9.1} {:>9.1} {:>7.1}% | {:>9.1} {:>9.1} {:>7.1}% | {:>9.0} {:>9.0} | {:>11.1}",
            lie.name,
            thousands(ALONE, IOPS_OF_OWN),
            thousands(TWIN, IOPS_OF_OWN),
            thousands(LIAR, IOPS_OF_OWN),
            percent_of_twin(results, lie, IOPS_OF_OWN),
            thousands(TWIN, IOPS),
            thousands(LIAR, IOPS),
            percent_of_twin(results, lie, IOPS),
            median(results, lie, TWIN, P99),
            median(results, lie, LIAR, P99),
            median(results, lie, LIAR, RELEASED),
        );
    }
}

/// The rows of the table in docs/reliability.md.
pub(super) fn print_markdown(lies: &[&Lie], results: &Results) {
    println!("\n| fault | the peer gets | victim, of beside baseline | its p99, beside baseline, peer | all released after |");
    println!("|---|---|---|---|---|");
    for lie in lies {
        let microseconds = |of: &str| median(results, lie, of, P99) / 1e3;
        println!(
            "| {} | {} | {:.0} % | {:.0} us, {:.0} us | {:.1} ms |",
            lie.name,
            lie.gets,
            percent_of_twin(results, lie, IOPS_OF_OWN),
            microseconds(TWIN),
            microseconds(LIAR),
            median(results, lie, LIAR, RELEASED),
        );
    }
}
