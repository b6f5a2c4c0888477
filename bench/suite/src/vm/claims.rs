//! What is claimed of the guest's driver, and whether a run bears it out.

use fipsee_measure::claim::Claim;

use super::causes::Causes;
use super::plan::{Condition, FIP, HOST, Load, QEMU, VIRTIO, WATCH_BESIDE, WATCH_IDLE};
use super::results::{Figures, Results};
use super::{DAEMON, GUEST, PEER};

/// All of them, each a median of pairs of the same round.
pub(super) fn all(results: &Results) -> Vec<Claim> {
    let reads = |device, depth| Load::reads(device, depth);
    let over = |one, other| results.loads.paired(&one, &other, |one, other| one.iops / other.iops);
    let over_best = |one, others: [Load; 2]| results.loads.over_best(&one, &others, |figures| figures.iops);
    let (ours, host) = (reads(FIP, 64), reads(HOST, 64));
    let bare = |load: Load| load.without_iostats();
    let originals = |depth| [reads(QEMU, depth), reads(VIRTIO, depth)];
    let added = |one: &Figures, other: &Figures| one.p50_ns - other.p50_ns;
    let of_wakes = results.wakes.paired(&FIP.label, &VIRTIO.label, |ours, theirs| ours / theirs);
    let at_least = |text: &str, value, limit| Claim::at_least(limit, text, value);
    let at_most = |text: &str, value, limit| Claim::at_most(limit, text, value);
    vec![
        at_least("fip_blk, QD64: requests per second over null_blk's (irqmode=0)", over(ours, host), 1.0),
        at_least("the same, both polled for and batched", over(ours.polled(), host.polled()), 0.95),
        at_least("the same, iostats off on both", over(bare(ours), bare(host)), 1.0),
        at_least(
            "the same, iostats off on both, both polled for and batched",
            over(bare(ours).polled(), bare(host).polled()),
            0.95,
        ),
        at_least("fip_blk, QD64: over the best of virtio_blk, any back end", over_best(ours, originals(64)), 5.0),
        at_least("fip_blk, QD1: over the best of virtio_blk, any back end", over_best(reads(FIP, 1), originals(1)), 30.0),
        at_most(
            "fip_blk, QD1: p50 in ns added to null_blk's",
            results.loads.paired(&reads(FIP, 1), &reads(HOST, 1), added),
            450.0,
        ),
        at_most("idle guest with five disks: CPU of the daemon in percent", results.percent(WATCH_IDLE, DAEMON), 1.0),
        at_most("idle guest with five disks: CPU of the guest in percent", results.percent(WATCH_IDLE, GUEST), 1.0),
        at_most("while null_blk is measured: CPU of the daemon in percent", results.percent(WATCH_BESIDE, DAEMON), 1.0),
        at_most("while null_blk is measured: CPU of qemu-storage-daemon in percent", results.percent(WATCH_BESIDE, PEER), 1.0),
        at_most(
            "fip_blk, QD1, both sides poll: doorbells, interrupts and IPIs per request",
            results.causes.get("causes:fnull:1").map(Causes::notifications),
            0.01,
        ),
        at_most("the same, QD64", results.causes.get("causes:fnull:64").map(Causes::notifications), 0.01),
        at_most("first read after idling, fip_blk over virtio_blk (fipseed)", of_wakes, 1.0),
    ]
}

/// Of the machine whose speed is no claim's subject.
pub(super) fn of_exits(results: &Results) -> Vec<Claim> {
    [1, 64]
        .map(|depth| {
            let name = format!("causes:{}:{depth}{}", FIP.label, Condition::OneCpu.words()[0]);
            let exits = results.causes.get(&name).and_then(Causes::exits);
            Claim::at_most(
                0.01,
                format!("fip_blk, QD{depth}, one CPU, both sides poll: exits per request, but the timer's"),
                exits,
            )
        })
        .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_measured_bears_nothing_out() {
        assert!(all(&Results::default()).iter().all(|claim| claim.holds().is_none()));
        assert!(of_exits(&Results::default()).iter().all(|claim| claim.holds().is_none()));
    }

    #[test]
    fn added_latency_is_a_difference() {
        let mut results = Results::default();
        for (label, p50) in [("fnull", 700), ("host", 200)] {
            let fields = "block=4096 write=0 depth=1 polled=0 requests=1 errors=0 unpolled=0 iops=1 mean_ns=1 p99_ns=1";
            results.take(&format!("run 0 {label} {fields} p50_ns={p50}")).expect("a report");
        }
        let claims = all(&results);
        let added = claims.iter().find(|claim| claim.text.contains("added")).expect("that claim");
        assert_eq!((added.value, added.holds()), (Some(500.0), Some(false)));
    }
}
