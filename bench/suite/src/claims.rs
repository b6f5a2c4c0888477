//! What is claimed, and whether this run bears it out.

use fipsee_measure::claim::Claim;

use crate::matrix::{Cell, DEEP, SHALLOW, candidate};
use crate::service::RING;
use crate::small_writes;
use crate::table::{BANDWIDTH, IOPS, P50, Results};
use crate::ways::{
    C_LIBRARY, ENGINE, FIO_NULL, FUSE, LIBRARY, NBDKIT, NBDKIT_UNBOUND, OUR_VHOST_POLLING, PYTHON, QEMU_FUSE, QEMU_NBD,
    QEMU_NBD_UNBOUND, VHOST_POLLING,
};

pub(crate) fn all(results: &Results) -> Vec<Claim> {
    let mut claims = of_the_service(results);
    claims.extend(of_the_doors(results));
    claims.extend(of_virtual_machines(results));
    claims
}

/// Measured in pairs: the median of the ratios holds even if the machine changes in between.
fn paired(results: &Results, ours: &str, theirs: &str, metric: &str) -> Option<f64> {
    Some(results.get(ours, metric)?.ratio_to(results.get(theirs, metric)?))
}

/// What the daemon and the Rust library must show.
fn of_the_service(results: &Results) -> Vec<Claim> {
    let best = |candidate, metric| results.get(candidate, metric).map(|series| series.best());
    let middle = |candidate, metric| results.get(candidate, metric).map(|series| series.median());
    let pairs = |ours, theirs, metric| paired(results, ours, theirs, metric);
    let of_best = |ours, theirs, metric| Some(best(ours, metric)? / best(theirs, metric)?);
    let added = || Some(best("file QD1", P50)? - best("fio io_uring QD1", P50)?);
    let idle = best("daemon with 1000 idle clients", "cpu_percent");
    vec![
        Claim::at_most(350.0, "null disk, QD1: p50 latency in ns, median", middle("null QD1", P50)),
        Claim::at_most(1.1, "null disk, QD1: p50 over a message's round trip, median of pairs", pairs("null QD1", RING, P50)),
        Claim::at_least(25e6, "null disk, QD64: requests per second, median", middle("null QD64", IOPS)),
        Claim::at_least(
            0.8,
            "memory disk, QD64: bandwidth over a plain memcpy loop's",
            of_best("memory QD64", "plain memcpy loop", BANDWIDTH),
        ),
        Claim::at_most(
            1.2,
            "QD1 p50 beside 1000 idle clients over beside 1, median of pairs",
            pairs("null QD1 beside 1000 idle clients", "null QD1 beside 1 idle client", P50),
        ),
        Claim::at_least(0.95, "file disk, QD64: IOPS over fio's, median of pairs", pairs("file QD64", "fio io_uring QD64", IOPS)),
        Claim::at_least(
            0.95,
            "file disk, QD64: IOPS over fio's, best over best",
            of_best("file QD64", "fio io_uring QD64", IOPS),
        ),
        Claim::at_most(1500.0, "file disk, QD1: p50 latency in ns added to fio's", added()),
        Claim::at_most(1.0, "idle daemon, 1000 clients: CPU in percent", idle),
    ]
}

/// Of one way over another under a load: the text of the claim, and the least ratio of requests per second.
const OVER: [(&str, &str, &str, Cell, f64); 10] = [
    ("fio engine, QD64: IOPS over fio's null engine, median of pairs", ENGINE, FIO_NULL, DEEP, 0.75),
    ("fio engine, QD1: IOPS over qemu vhost-user-blk polling, pairs", ENGINE, VHOST_POLLING, SHALLOW, 10.0),
    ("Rust library, QD1: IOPS over qemu vhost-user-blk polling, pairs", LIBRARY, VHOST_POLLING, SHALLOW, 10.0),
    ("fio engine, QD1: IOPS over qemu NBD not bound, median of pairs", ENGINE, QEMU_NBD_UNBOUND, SHALLOW, 30.0),
    ("fio engine, QD1: IOPS over nbdkit not bound, median of pairs", ENGINE, NBDKIT_UNBOUND, SHALLOW, 30.0),
    // Measured, too, against the best place that could be found for them.
    ("fio engine, QD1: IOPS over qemu NBD at its best place, pairs", ENGINE, QEMU_NBD, SHALLOW, 30.0),
    ("fio engine, QD1: IOPS over nbdkit at its best place, pairs", ENGINE, NBDKIT, SHALLOW, 30.0),
    ("C library, QD1: IOPS over the Rust library's, median of pairs", C_LIBRARY, LIBRARY, SHALLOW, 0.95),
    ("FUSE mount, QD1: IOPS over qemu FUSE, median of pairs", FUSE, QEMU_FUSE, SHALLOW, 1.0),
    ("FUSE mount, QD64: IOPS over qemu FUSE, median of pairs", FUSE, QEMU_FUSE, DEEP, 1.0),
];

/// What the ways through which users come must show, beside what they use today.
fn of_the_doors(results: &Results) -> Vec<Claim> {
    let over = |&(text, ours, theirs, cell, limit): &(&str, &str, &str, Cell, f64)| {
        Claim::at_least(limit, text, paired(results, &candidate(ours, cell), &candidate(theirs, cell), IOPS))
    };
    let mut claims: Vec<Claim> = OVER.iter().map(over).collect();
    let c_library = paired(results, &candidate(C_LIBRARY, SHALLOW), &candidate(LIBRARY, SHALLOW), P50);
    claims.extend([
        Claim::at_most(800.0, "fio engine, QD1: p50 latency in ns, median", results.median(ENGINE, SHALLOW, P50)),
        Claim::at_most(1.05, "C library, QD1: p50 over the Rust library's, median of pairs", c_library),
        Claim::at_least(1e6, "Python: requests per second in batches, median", results.median(PYTHON, DEEP, IOPS)),
        Claim::at_most(3000.0, "Python: p50 of single reads in ns, median", results.median(PYTHON, SHALLOW, P50)),
    ]);
    claims
}

/// What an unmodified guest gets, as far as a client of vhost-user-blk can show; `cargo xtask bench vm` has the guests.
fn of_virtual_machines(results: &Results) -> Vec<Claim> {
    let median = |cell, metric| results.median(OUR_VHOST_POLLING, cell, metric);
    vec![
        Claim::at_most(1500.0, "our vhost-user-blk, polling client, QD1: p50 latency in ns, median", median(SHALLOW, P50)),
        Claim::at_least(2.5e6, "our vhost-user-blk, polling client, QD64: requests per second, median", median(DEEP, IOPS)),
    ]
}

/// Writes below a page, on a device that takes them, over fio's: the lower of the ratios to its two ways.
pub(crate) fn of_small_writes(results: &Results) -> Vec<Claim> {
    let over_fio = small_writes::over_fio(results, &small_writes::DISK_512);
    vec![Claim::at_least(0.9, "512 B writes, QD64: requests per second over fio's, median of pairs", over_fio)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(results: &Results, text: &str) -> Option<bool> {
        let claims = all(results);
        claims.iter().find(|claim| claim.text.starts_with(text)).unwrap_or_else(|| panic!("no claim {text}")).holds()
    }

    #[test]
    fn nothing_measured_bears_nothing_out() {
        assert!(all(&Results::default()).iter().all(|claim| claim.holds().is_none()));
    }

    #[test]
    fn peers_are_compared_round_by_round() {
        let mut results = Results::default();
        for (ours, theirs) in [(1000.0, 99.0), (500.0, 49.0), (90.0, 100.0)] {
            results.add_cell(ENGINE, SHALLOW, IOPS, ours);
            results.add_cell(VHOST_POLLING, SHALLOW, IOPS, theirs);
        }
        assert_eq!(verdict(&results, "fio engine, QD1: IOPS over qemu vhost-user-blk"), Some(true));
        results.add_cell(QEMU_NBD, SHALLOW, IOPS, 34.0);
        assert_eq!(verdict(&results, "fio engine, QD1: IOPS over qemu NBD at its best"), Some(false));
        assert_eq!(verdict(&results, "Rust library, QD1: IOPS over qemu"), None);
    }

    #[test]
    fn claims_of_the_service_go_on() {
        let mut results = Results::default();
        for (latency, ring) in [(340.0, 320.0), (200.0, 190.0), (360.0, 300.0)] {
            results.add("null QD1", P50, latency);
            results.add(RING, P50, ring);
        }
        assert_eq!(verdict(&results, "null disk, QD1: p50 latency"), Some(true), "the median round counts");
        assert_eq!(verdict(&results, "null disk, QD1: p50 over"), Some(true), "the median pair counts");
        results.add("null QD1", P50, 400.0);
        results.add("null QD1", P50, 400.0);
        assert_eq!(verdict(&results, "null disk, QD1: p50 latency"), Some(false));
    }
}
