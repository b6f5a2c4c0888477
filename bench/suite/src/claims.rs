//! What is claimed, and whether this run bears it out.

use crate::matrix::{Cell, DEEP, SHALLOW, candidate};
use crate::service::RING;
use crate::small_writes;
use crate::table::{BANDWIDTH, Claim, IOPS, P50, Results};
use crate::ways::{
    C_LIBRARY, ENGINE, FIO_NULL, FUSE, LIBRARY, NBDKIT, NBDKIT_UNBOUND, OUR_VHOST_POLLING, PYTHON, QEMU_FUSE, QEMU_NBD,
    QEMU_NBD_UNBOUND, VHOST_POLLING,
};

/// All of them.
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
    let over_ring = paired(results, "null QD1", RING, P50);
    let ratio = |a: Option<f64>, b: Option<f64>| Some(a? / b?);
    let claim = |text, value, at_most, limit| Claim { text, value, limit, at_most };
    let added = || Some(best("file QD1", P50)? - best("fio io_uring QD1", P50)?);
    let beside = paired(results, "null QD1 beside 1000 idle clients", "null QD1 beside 1 idle client", P50);
    let over_fio = paired(results, "file QD64", "fio io_uring QD64", IOPS);
    vec![
        claim("null disk, QD1: p50 latency in ns, median", middle("null QD1", P50), true, 350.0),
        claim("null disk, QD1: p50 over a message's round trip, median of pairs", over_ring, true, 1.1),
        claim("null disk, QD64: requests per second, median", middle("null QD64", IOPS), false, 25e6),
        claim(
            "memory disk, QD64: bandwidth over a plain memcpy loop's",
            ratio(best("memory QD64", BANDWIDTH), best("plain memcpy loop", BANDWIDTH)),
            false,
            0.8,
        ),
        claim("QD1 p50 beside 1000 idle clients over beside 1, median of pairs", beside, true, 1.2),
        claim("file disk, QD64: IOPS over fio's, median of pairs", over_fio, false, 0.95),
        claim(
            "file disk, QD64: IOPS over fio's, best over best",
            ratio(best("file QD64", IOPS), best("fio io_uring QD64", IOPS)),
            false,
            0.95,
        ),
        claim("file disk, QD1: p50 latency in ns added to fio's", added(), true, 1500.0),
        claim("idle daemon, 1000 clients: CPU in percent", best("daemon with 1000 idle clients", "cpu_percent"), true, 1.0),
    ]
}

/// What the ways through which users come must show, beside what they use today.
fn of_the_doors(results: &Results) -> Vec<Claim> {
    let over = |text, ours, theirs, cell: Cell, limit| Claim {
        text,
        value: paired(results, &candidate(ours, cell), &candidate(theirs, cell), IOPS),
        limit,
        at_most: false,
    };
    let median =
        |text, way, cell, metric, at_most, limit| Claim { text, value: results.median(way, cell, metric), limit, at_most };
    vec![
        over("fio engine, QD64: IOPS over fio's null engine, median of pairs", ENGINE, FIO_NULL, DEEP, 0.75),
        median("fio engine, QD1: p50 latency in ns, median", ENGINE, SHALLOW, P50, true, 800.0),
        over("fio engine, QD1: IOPS over qemu vhost-user-blk polling, pairs", ENGINE, VHOST_POLLING, SHALLOW, 10.0),
        over("Rust library, QD1: IOPS over qemu vhost-user-blk polling, pairs", LIBRARY, VHOST_POLLING, SHALLOW, 10.0),
        over("fio engine, QD1: IOPS over qemu NBD not bound, median of pairs", ENGINE, QEMU_NBD_UNBOUND, SHALLOW, 30.0),
        over("fio engine, QD1: IOPS over nbdkit not bound, median of pairs", ENGINE, NBDKIT_UNBOUND, SHALLOW, 30.0),
        // Measured, too, against the best place that could be found for them.
        over("fio engine, QD1: IOPS over qemu NBD at its best place, pairs", ENGINE, QEMU_NBD, SHALLOW, 30.0),
        over("fio engine, QD1: IOPS over nbdkit at its best place, pairs", ENGINE, NBDKIT, SHALLOW, 30.0),
        Claim {
            text: "C library, QD1: p50 over the Rust library's, median of pairs",
            value: paired(results, &candidate(C_LIBRARY, SHALLOW), &candidate(LIBRARY, SHALLOW), P50),
            limit: 1.05,
            at_most: true,
        },
        over("C library, QD1: IOPS over the Rust library's, median of pairs", C_LIBRARY, LIBRARY, SHALLOW, 0.95),
        median("Python: requests per second in batches, median", PYTHON, DEEP, IOPS, false, 1e6),
        median("Python: p50 of single reads in ns, median", PYTHON, SHALLOW, P50, true, 3000.0),
        over("FUSE mount, QD1: IOPS over qemu FUSE, median of pairs", FUSE, QEMU_FUSE, SHALLOW, 1.0),
        over("FUSE mount, QD64: IOPS over qemu FUSE, median of pairs", FUSE, QEMU_FUSE, DEEP, 1.0),
    ]
}

/// What an unmodified guest gets, as far as a client of vhost-user-blk can show; `cargo xtask bench vm` has the guests.
fn of_virtual_machines(results: &Results) -> Vec<Claim> {
    let median = |text, cell, metric, at_most, limit| Claim {
        text,
        value: results.median(OUR_VHOST_POLLING, cell, metric),
        limit,
        at_most,
    };
    vec![
        median("our vhost-user-blk, polling client, QD1: p50 latency in ns, median", SHALLOW, P50, true, 1500.0),
        median("our vhost-user-blk, polling client, QD64: requests per second, median", DEEP, IOPS, false, 2.5e6),
    ]
}

/// Writes below a page, on a device that takes them, over fio's: the lower of the ratios to its two ways.
pub(crate) fn of_small_writes(results: &Results) -> Vec<Claim> {
    vec![Claim {
        text: "512 B writes, QD64: requests per second over fio's, median of pairs",
        value: small_writes::over_fio(results, &small_writes::DISK_512),
        limit: 0.9,
        at_most: false,
    }]
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
