//! What the metrics are: their names, labels and values. A scrape sees the counters of one moment, and takes no lock that a request to
//! the admin socket holds.
//!
//! How many time series there are is bounded: those of disks by the configuration, those of users and clients as in
//! [`Totals`](crate::totals::Totals).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use fipsee_block::disk::Disk;
use fipsee_net::wire::SERVICE_NET;
use fipsee_ring::clock;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use crate::export::{AttachedClient, Export};
use crate::latency::Latency;
use crate::live::Live;
use crate::scaling::Scaling;
use crate::services::Registry;
use crate::totals::{Counts, Totals};
use crate::worker::{WorkerHandle, cpu_time};

/// Attached clients that have metrics of their own: those that attached first.
const MAX_CLIENTS: usize = 128;

/// Where the values are.
pub(crate) struct Sources {
    live: Arc<Live>,
    workers: Vec<WorkerHandle>,
    scaling: Arc<Scaling>,
    registry: Registry,
    started: SystemTime,
    /// The most that was shown of each worker.
    busy_ticks: Vec<AtomicU64>,
}

type Labels = Vec<(&'static str, String)>;

#[derive(Clone, Debug)]
pub(super) enum Value {
    Number(u64),
    Seconds(Duration),
    Histogram(Box<Latency>),
    Info,
}

/// Values of one name.
#[derive(Clone, Debug)]
pub(super) struct Family {
    /// Without prefix and unit.
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) unit: Option<Unit>,
    pub(super) kind: MetricType,
    pub(super) samples: Vec<(Labels, Value)>,
}

impl Family {
    pub(super) const fn new(name: &'static str, unit: Option<Unit>, kind: MetricType, help: &'static str) -> Self {
        Self { name, help, unit, kind, samples: Vec::new() }
    }

    pub(super) const fn counter(name: &'static str, help: &'static str) -> Self {
        Self::new(name, None, MetricType::Counter, help)
    }

    pub(super) const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self::new(name, None, MetricType::Gauge, help)
    }

    pub(super) fn push(&mut self, labels: &[(&'static str, &str)], value: u64) {
        self.add(labels, Value::Number(value));
    }

    fn add(&mut self, labels: &[(&'static str, &str)], value: Value) {
        let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        self.samples.push((labels, value));
    }
}

impl Sources {
    pub(crate) fn new(live: Arc<Live>, workers: Vec<WorkerHandle>, scaling: Arc<Scaling>, registry: Registry) -> Self {
        let busy_ticks = workers.iter().map(|_| AtomicU64::new(0)).collect();
        Self { live, workers, scaling, registry, started: SystemTime::now(), busy_ticks }
    }

    pub(super) fn families(&self) -> Vec<Family> {
        let served = self.live.now();
        let disks: Vec<_> = served.exports.iter().map(|export| (&**export, export.totals())).collect();
        let mut families = Vec::from(self.process());
        families.extend(of_disks(&disks));
        families.extend(of_users(&disks));
        families.extend(of_clients(&served.exports));
        families.extend(super::networks::families(&self.registry.metrics_of(SERVICE_NET)));
        families.extend(self.of_workers());
        families
    }

    fn process(&self) -> [Family; 2] {
        let mut build = Family::new("build", None, MetricType::Info, "The version of fipseed");
        build.add(&[("version", crate::VERSION)], Value::Info);
        let help = "When the daemon was started, since the epoch; a takeover starts another";
        let mut start = Family::new("start_time", Some(Unit::Seconds), MetricType::Gauge, help);
        start.add(&[], Value::Seconds(self.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()));
        [build, start]
    }

    fn of_workers(&self) -> [Family; 5] {
        let mut queues = Family::gauge("worker_queues", "Queues that a worker serves");
        let mut sleeps = Family::counter("worker_sleeps", "Times that a worker found no work for a while and slept");
        let help = "Processor time of a worker; one that looks for work takes a whole CPU";
        let mut cpu = Family::new("worker_cpu", Some(Unit::Seconds), MetricType::Counter, help);
        let help = "Time that a worker had work; over fipsee_worker_measured_seconds, its busy share";
        let mut busy = Family::new("worker_busy", Some(Unit::Seconds), MetricType::Counter, help);
        let help = "Time over which fipsee_worker_busy_seconds is counted";
        let mut measured = Family::new("worker_measured", Some(Unit::Seconds), MetricType::Counter, help);
        for (index, worker) in self.workers.iter().enumerate() {
            let labels = [("worker", &*index.to_string())];
            queues.push(&labels, worker.counters.queues.load(Ordering::Relaxed));
            sleeps.push(&labels, worker.counters.sleeps.load(Ordering::Relaxed));
            let (busy_ticks, measured_ticks) = self.scaling.busy_ticks(index);
            // What a worker finds out to have been idle is taken off later: a counter must not fall, or it seems to begin anew.
            let busy_ticks = self.busy_ticks[index].fetch_max(busy_ticks, Ordering::Relaxed).max(busy_ticks);
            for (family, ticks) in [(&mut busy, busy_ticks), (&mut measured, measured_ticks)] {
                family.add(&labels, Value::Seconds(Duration::from_nanos(clock::ticks_to_ns(ticks))));
            }
            if let Some(time) = cpu_time(worker) {
                cpu.add(&labels, Value::Seconds(time));
            }
        }
        [queues, sleeps, cpu, busy, measured]
    }
}

/// What has the same names for disks, users and clients, with a prefix.
struct Counted {
    requests: Family,
    bytes: Family,
    errors: Family,
    doorbells: Family,
}

impl Counted {
    fn push(&mut self, labels: &[(&'static str, &str)], counts: Counts) {
        for (operation, count) in counts.by_operation() {
            self.requests.push(&[labels, &[("op", operation)]].concat(), count);
        }
        for (operation, count) in counts.bytes() {
            self.bytes.push(&[labels, &[("op", operation)]].concat(), count);
        }
        self.errors.push(labels, counts.errors());
        self.doorbells.push(labels, counts.doorbells());
    }

    fn into_families(self) -> [Family; 4] {
        [self.requests, self.bytes, self.errors, self.doorbells]
    }
}

fn of_disks(disks: &[(&Export, Totals)]) -> Vec<Family> {
    let bytes = Family::new("transferred", Some(Unit::Bytes), MetricType::Counter, "Bytes of reads and writes of a disk");
    let mut counted = Counted {
        requests: Family::counter("requests", "Requests of all clients of a disk, those that are gone included"),
        bytes,
        errors: Family::counter("request_errors", "Requests that were answered with an error"),
        doorbells: Family::counter("doorbells", "Times that a client slept and was woken for its answers"),
    };
    let help = "Time in the daemon, from taking a request to answering it: all of a file disk, a sample of others";
    let mut durations = Family::new("request_duration", Some(Unit::Seconds), MetricType::Histogram, help);
    let help =
        "Times that completions were published and the sleeping client was not woken, because of the policy of notifications";
    let mut suppressed = Family::counter("suppressed_notifications", help);
    let mut spurious = Family::counter("spurious_doorbells", "Times that a client woke the daemon and there was no request");
    let mut size = Family::new("disk_size", Some(Unit::Bytes), MetricType::Gauge, "Size of a disk");
    let mut attached = Family::gauge("attached_clients", "Clients that are attached to a disk");
    let mut clients = Family::counter("clients", "Clients that have had a queue at a disk, those that are attached included");
    let mut faults = Family::counter("disk_faults", "Requests that failed below a disk, at its file");
    let mut stalled = Family::gauge("stalled_requests", "Requests that have been in flight for more than 30 s");
    for (export, totals) in disks {
        let disk = ("disk", export.name());
        counted.push(&[disk], totals.all.counts);
        durations.add(&[disk], Value::Histogram(Box::new(totals.latency.clone())));
        suppressed.push(&[disk], totals.all.counts.suppressed());
        spurious.push(&[disk], totals.all.counts.spurious());
        size.push(&[disk], export.info(false).size_bytes());
        attached.push(&[disk], u64::try_from(export.attached().len()).unwrap_or(u64::MAX));
        clients.push(&[disk], totals.all.clients);
        if let Some(of_disk) = export.disk.faults() {
            for (operation, count) in of_disk.counts() {
                faults.push(&[disk, ("op", &operation.replace('-', "_"))], count);
            }
            stalled.push(&[disk], of_disk.stalled_now());
        }
    }
    [counted.into_families().into(), vec![durations, size, attached, clients, faults, stalled, suppressed, spurious]].concat()
}

fn of_users(disks: &[(&Export, Totals)]) -> [Family; 4] {
    let bytes = Family::new("user_transferred", Some(Unit::Bytes), MetricType::Counter, "Bytes of reads and writes of a user");
    let mut counted = Counted {
        requests: Family::counter("user_requests", "Requests of a user's clients; uid other: of all users beyond the first 128"),
        bytes,
        errors: Family::counter("user_request_errors", "Requests of a user that were answered with an error"),
        doorbells: Family::counter("user_doorbells", "Times that a user's client slept and was woken for its answers"),
    };
    for (export, totals) in disks {
        for (uid, sum) in &totals.users {
            counted.push(&[("disk", export.name()), ("uid", &uid.to_string())], sum.counts);
        }
        if totals.other_users.clients > 0 {
            counted.push(&[("disk", export.name()), ("uid", "other")], totals.other_users.counts);
        }
    }
    counted.into_families()
}

fn of_clients(exports: &[Arc<Export>]) -> [Family; 6] {
    let bytes =
        Family::new("client_transferred", Some(Unit::Bytes), MetricType::Counter, "Bytes of reads and writes of a client");
    let mut counted = Counted {
        requests: Family::counter("client_requests", "Requests of an attached client; only of the 128 that attached first"),
        bytes,
        errors: Family::counter("client_request_errors", "Requests of an attached client that were answered with an error"),
        doorbells: Family::counter("client_doorbells", "Times that an attached client slept and was woken for its answers"),
    };
    let mut queues = Family::gauge("client_queues", "Queues of an attached client");
    let help = "Time that workers were busy with the queues of an attached client; its rate is their share of a worker";
    let mut busy = Family::new("client_busy", Some(Unit::Seconds), MetricType::Counter, help);
    let attached = exports.iter().flat_map(|export| export.attached().into_iter().map(|client| (export.name(), client)));
    let mut clients: Vec<(&str, AttachedClient)> = attached.collect();
    // Numbers are given in the order of connections.
    clients.sort_by_key(|(_, client)| client.client);
    for (disk, client) in clients.iter().take(MAX_CLIENTS) {
        let (number, uid) = (client.client.to_string(), client.uid.to_string());
        let labels = [("disk", *disk), ("client", &number), ("uid", &uid), ("kind", client.kind.name())];
        counted.push(&labels, client.counts());
        busy.add(&labels, Value::Seconds(Duration::from_nanos(client.busy_ns())));
        queues.push(&labels, u64::try_from(client.queues.len()).unwrap_or(u64::MAX));
    }
    let [requests, bytes, errors, doorbells] = counted.into_families();
    [requests, bytes, errors, doorbells, queues, busy]
}

#[cfg(test)]
mod tests {
    use fipsee_block::disk::DiskSpec;
    use fipsee_serve::session::Credentials;

    use super::*;
    use crate::config::DiskConfig;
    use crate::export::{AllowList, Kind, Role};

    #[test]
    fn clients_beyond_the_limit_have_no_metrics_of_their_own() {
        let spec = DiskSpec::parse("a=null:1M").expect("a disk");
        let export = Export::open(&DiskConfig::new(spec, AllowList::default())).expect("open");
        for client in (0..1000).rev() {
            export.keep(Kind::Ring, client, &Credentials::default(), (false, Role::Reader));
        }
        let families = of_clients(&[Arc::clone(&export)]);
        let [requests, bytes, errors, doorbells, queues, busy] = families.each_ref().map(|family| family.samples.len());
        assert_eq!([requests, bytes], [6, 2].map(|operations| operations * MAX_CLIENTS));
        assert_eq!([errors, doorbells, queues, busy], [MAX_CLIENTS; 4]);
        let numbers = families[4].samples.iter().map(|(labels, _)| labels[1].1.clone());
        assert!(numbers.eq((0..MAX_CLIENTS).map(|number| number.to_string())), "those that attached first");
        let attached = &of_disks(&[(&*export, export.totals())])[6];
        assert!(matches!(attached.samples[0].1, Value::Number(1000)), "{attached:?}");
    }
}
