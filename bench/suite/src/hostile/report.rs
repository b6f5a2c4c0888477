//! What was measured, for the terminal and for docs/reliability.md.

use super::injected::Case;
use super::{ALONE, BASELINE, FAULTY, RELEASED, named, share};
use crate::table::{IOPS, IOPS_OF_OWN, P99, Results};

fn median(results: &Results, case: &Case, of: &str, metric: &str) -> f64 {
    results.get(&named(case, of), metric).map_or(f64::NAN, |series| series.median())
}

fn percent_of_baseline(results: &Results, case: &Case, metric: &str) -> f64 {
    100.0 * share(results, case, BASELINE, metric).unwrap_or(f64::NAN)
}

/// A line for each fault.
pub(super) fn print(cases: &[Case], results: &Results) {
    println!(
        "\nthe victim's requests or frames, in thousands: per second of its own processor time, and per second; medians of rounds\n"
    );
    println!(
        "{:<70} {:>9} {:>9} {:>9} {:>8} | {:>9} {:>9} {:>8} | {:>9} {:>9} | {:>11}",
        "fault", "alone", "base", "faulty", "of base", "base", "faulty", "of base", "p99 base", "p99 fault", "released ms"
    );
    for case in cases {
        let thousands = |of: &str, metric: &str| median(results, case, of, metric) / 1e3;
        println!(
            "{:<70} {:>9.1} {:>9.1} {:>9.1} {:>7.1}% | {:>9.1} {:>9.1} {:>7.1}% | {:>9.0} {:>9.0} | {:>11.1}",
            case.name(),
            thousands(ALONE, IOPS_OF_OWN),
            thousands(BASELINE, IOPS_OF_OWN),
            thousands(FAULTY, IOPS_OF_OWN),
            percent_of_baseline(results, case, IOPS_OF_OWN),
            thousands(BASELINE, IOPS),
            thousands(FAULTY, IOPS),
            percent_of_baseline(results, case, IOPS),
            median(results, case, BASELINE, P99),
            median(results, case, FAULTY, P99),
            median(results, case, FAULTY, RELEASED),
        );
    }
}

/// The rows of the table in docs/reliability.md.
pub(super) fn print_markdown(cases: &[Case], results: &Results) {
    println!("\n| fault | the peer gets | victim, of beside baseline | its p99, beside baseline, peer | all released after |");
    println!("|---|---|---|---|---|");
    for case in cases {
        let microseconds = |of: &str| median(results, case, of, P99) / 1e3;
        println!(
            "| {} | {} | {:.0} % | {:.0} us, {:.0} us | {:.1} ms |",
            case.name(),
            case.fault.gets(),
            percent_of_baseline(results, case, IOPS_OF_OWN),
            microseconds(BASELINE),
            microseconds(FAULTY),
            median(results, case, FAULTY, RELEASED),
        );
    }
}
