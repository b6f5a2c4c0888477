//! The needs of disks from the daemon's confinement, and their counters.

use std::sync::Arc;

use fipsee_block::disk::{AnyDisk, Disk};
use fipsee_block::stats::{Distribution, QueueCounters};
use fipsee_ring::clock;
use fipsee_serve::{Argument, FileUse, Metric, Needs};

use crate::config::Config;
use crate::confine::calls;
use crate::export::{AttachedClient, Export, Kind};
use crate::live::Served;
use crate::totals::{Counts, FinishedClient, Sum};

const BLKSSZGET: u32 = 0x1268;
const BLKGETSIZE64: u32 = 0x8008_1272;

/// System calls for opening, resizing and serving disks; kernel rings belong to the runtime.
pub(super) fn needs(config: &Config) -> Needs {
    let calls = calls! {
        SYS_fadvise64 SYS_fallocate SYS_fdatasync SYS_flock SYS_fstatfs SYS_fsync SYS_ftruncate SYS_mlock SYS_mlock2
        SYS_munlock SYS_pread64 SYS_pwrite64 SYS_pwritev2 SYS_statfs
    };
    let calls_with = [BLKSSZGET, BLKGETSIZE64].map(|request| (libc::SYS_ioctl, vec![Argument::int(1, request)]));
    // The folder that the unit gives the daemon; the present disks and those that a reload adds beside them.
    let state = std::env::var_os("STATE_DIRECTORY");
    let kept = state.iter().flat_map(std::env::split_paths).map(|folder| (folder, FileUse::Write));
    let disks = config.disks.iter().filter_map(|disk| Some((disk.spec.kind.file()?.to_owned(), FileUse::WriteBeside)));
    Needs { calls: calls.to_vec(), calls_with: calls_with.into(), files: kept.chain(disks).collect() }
}

/// `errors`, by operation, and `stalled`; `None` for a disk that has none.
pub(crate) fn faults(disk: &AnyDisk) -> Option<[(&'static str, Metric); 2]> {
    let faults = disk.faults()?;
    let errors = faults.counts().map(|(operation, count)| (operation, count.into())).collect();
    Some([("errors", Metric::Named(errors)), ("stalled", faults.stalled_now().into())])
}

/// `disks`, with what their clients have done, and `queues`, of clients and virtual machines.
pub(super) fn metrics(served: &Served) -> Vec<(&'static str, Metric)> {
    let disks = served.exports.iter().map(|export| disk_metrics(export));
    let queues = served.exports.iter().flat_map(|export| {
        let of_client = |client: AttachedClient| {
            let queues = client.queues.iter().zip(0_u64..);
            queues.map(|(counters, queue)| queue_metrics(export.name(), &client, queue, counters)).collect::<Vec<_>>()
        };
        export.attached().into_iter().flat_map(of_client)
    });
    vec![("disks", Metric::List(disks.collect())), ("queues", Metric::List(queues.collect()))]
}

fn disk_metrics(export: &Export) -> Metric {
    let (totals, attached) = (export.totals(), export.attached());
    let named_counts = |counts: Counts| counts.named().map(|(name, count)| (name, Metric::from(count)));
    let named_sum = |sum: Sum| std::iter::once(("clients", Metric::from(sum.clients))).chain(named_counts(sum.counts));
    let user = |(uid, sum): (&u32, &Sum)| {
        Metric::Named(std::iter::once(("uid", Metric::from(u64::from(*uid)))).chain(named_sum(*sum)).collect())
    };
    let client = |state: &str, client: u64, kind: Kind, (pid, uid): (i32, u32), counts: Counts| {
        let about: [(&'static str, Metric); 5] = [
            ("client", client.into()),
            ("state", state.into()),
            ("kind", kind.name().into()),
            ("pid", u64::from(pid.unsigned_abs()).into()),
            ("uid", u64::from(uid).into()),
        ];
        about.into_iter().chain(named_counts(counts)).collect::<Vec<_>>()
    };
    let present = attached.iter().map(|attached| {
        let state = if attached.leaving { "leaving" } else { "attached" };
        let mut named = client(state, attached.client, attached.kind, (attached.pid, attached.uid), attached.counts());
        named.push(("queues", u64::try_from(attached.queues.len()).unwrap_or(u64::MAX).into()));
        named.push(("busy_ns", attached.busy_ns().into()));
        named.extend(service_times(&attached.latency()));
        Metric::Named(named)
    });
    let gone = totals.finished.iter().rev();
    let gone = gone.map(|&FinishedClient { client: number, kind, pid, uid, counts }| {
        Metric::Named(client("gone", number, kind, (pid, uid), counts))
    });
    let mut named: Vec<(&'static str, Metric)> = vec![("disk", export.name().into())];
    named.push(("throttled", export.limiter.throttled().into()));
    named.extend(faults(&export.disk).into_iter().flatten());
    named.extend([
        ("totals", Metric::Named(named_sum(totals.all).collect())),
        ("users", Metric::List(totals.users.iter().map(user).collect())),
        ("other_users", Metric::Named(named_sum(totals.other_users).collect())),
        ("clients", Metric::List(present.chain(gone).collect())),
    ]);
    Metric::Named(named)
}

fn queue_metrics(disk: &str, client: &AttachedClient, queue: u64, counters: &Arc<QueueCounters>) -> Metric {
    let bucket = |(ticks, count): (u64, u64)| Metric::List(vec![clock::ticks_to_ns(ticks).into(), count.into()]);
    let mut named: Vec<(&'static str, Metric)> = vec![
        ("disk", disk.into()),
        ("client", client.client.into()),
        ("kind", client.kind.name().into()),
        ("pid", u64::from(client.pid.unsigned_abs()).into()),
        ("queue", queue.into()),
        ("busy_ns", counters.busy_ns.get().into()),
    ];
    named.extend(counters.worker().map(|worker| ("worker", worker.into())));
    named.extend(Counts::of(std::slice::from_ref(counters)).named().map(|(name, count)| (name, count.into())));
    named.extend(service_times(&Distribution::of([&counters.latency])));
    named.push(("service_ns_histogram", Metric::List(counters.latency.buckets().map(bucket).collect())));
    Metric::Named(named)
}

fn service_times(times: &Distribution) -> [(&'static str, Metric); 4] {
    let quantile = |numerator, denominator| clock::ticks_to_ns(times.quantile(numerator, denominator)).into();
    [
        ("service_samples", times.count().into()),
        ("service_ns_p50", quantile(50, 100)),
        ("service_ns_p99", quantile(99, 100)),
        ("service_ns_p999", quantile(999, 1000)),
    ]
}
