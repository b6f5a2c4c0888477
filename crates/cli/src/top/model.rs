//! From two answers of the daemon to rows: what happened between them, per second. No clock, no terminal.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use crate::admin::{list, number, text};
use crate::units;

/// Names, then what every kind of client has.
macro_rules! headings {
    ($($name:literal),+) => {
        [$($name),+, "IOPS", "READ/s", "WRITTEN/s", "ERR/s", "P50", "P99", "DOORBELLS/s", "SUPPRESSED/s"]
    };
}

/// What is shown: a table each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum View {
    Disks,
    Clients,
    Queues,
    Workers,
    Ports,
}

impl View {
    pub(super) const ALL: [Self; 5] = [Self::Disks, Self::Clients, Self::Queues, Self::Workers, Self::Ports];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Disks => "disks",
            Self::Clients => "clients",
            Self::Queues => "queues",
            Self::Workers => "workers",
            Self::Ports => "ports",
        }
    }

    /// How many columns on the left are names.
    pub(super) const fn names(self) -> usize {
        match self {
            Self::Disks | Self::Queues | Self::Ports => 1,
            Self::Clients => 2,
            Self::Workers => 0,
        }
    }

    pub(super) const fn headings(self) -> &'static [&'static str] {
        match self {
            Self::Disks => &headings!["DISK", "CLIENTS", "QUEUES"],
            Self::Clients => &headings!["DISK", "KIND", "CLIENT", "PID", "UID", "QUEUES"],
            Self::Queues => &headings!["DISK", "CLIENT", "PID", "QUEUE", "WORKER", "BUSY%"],
            Self::Workers => &["WORKER", "CPU", "STATE", "QUEUES", "BUSY%", "CPU%", "SLEEPS/s"],
            Self::Ports => &["PORT", "CLIENT", "SENT/s", "BYTES/s", "RECEIVED/s", "BYTES/s", "DROPPED/s", "REFUSED/s"],
        }
    }

    /// The column that rows are sorted by unless another is chosen: the busiest first.
    pub(super) fn usual_sort(self) -> usize {
        let heading = match self {
            Self::Workers => "CPU%",
            Self::Ports => "SENT/s",
            _ => "IOPS",
        };
        self.headings().iter().position(|other| *other == heading).unwrap_or(0)
    }
}

/// One value of a row.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Text(String),
    Count(u64),
    Rate(f64),
    Bytes(f64),
    Nanoseconds(u64),
    /// Of 100.
    Percent(f64),
    /// The daemon does not say, or there was nothing to measure.
    None,
}

impl Cell {
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(count) => count.to_string(),
            Self::Rate(rate) => units::count(*rate),
            Self::Bytes(rate) => units::byte_rate(*rate),
            Self::Nanoseconds(ns) => units::nanoseconds(*ns),
            Self::Percent(percent) => format!("{percent:.1}"),
            Self::None => "-".to_owned(),
        }
    }

    fn number(&self) -> Option<f64> {
        match self {
            Self::Count(count) | Self::Nanoseconds(count) => Some(units::to_f64(*count)),
            Self::Rate(value) | Self::Bytes(value) | Self::Percent(value) => Some(*value),
            Self::Text(_) | Self::None => None,
        }
    }

    /// Texts in their order, then numbers, the largest first, then what is not known.
    fn compare(&self, other: &Self) -> Ordering {
        match (self, other, self.number(), other.number()) {
            (Self::Text(one), Self::Text(other), ..) => one.cmp(other),
            (_, _, Some(one), Some(other)) => other.total_cmp(&one),
            _ => self.rank().cmp(&other.rank()),
        }
    }

    const fn rank(&self) -> u8 {
        match self {
            Self::Text(_) => 0,
            Self::None => 2,
            _ => 1,
        }
    }
}

pub(super) type Row = Vec<Cell>;

/// What is chosen of a view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Choice {
    /// A column.
    pub(super) sort: usize,
    pub(super) reversed: bool,
    /// A row is shown if one of its names has this.
    pub(super) filter: String,
}

/// Two answers, and the time between them.
pub(super) struct Interval<'a> {
    pub(super) before: &'a Value,
    pub(super) now: &'a Value,
    pub(super) seconds: f64,
}

/// Service times of one interval: bucket and count.
type Times = BTreeMap<u64, u64>;

impl Interval<'_> {
    pub(super) fn rows(&self, view: View, choice: &Choice) -> Vec<Row> {
        let mut rows = match view {
            View::Disks => self.disks(),
            View::Clients => self.clients(),
            View::Queues => self.queues(),
            View::Workers => self.workers(),
            View::Ports => self.ports(),
        };
        let names = view.headings().iter().position(|heading| ["IOPS", "BUSY%", "SENT/s"].contains(heading)).unwrap_or(0);
        rows.retain(|row| row.iter().take(names).any(|cell| cell.shown().contains(&choice.filter)));
        rows.sort_by(|one, other| match (one.get(choice.sort), other.get(choice.sort)) {
            (Some(one), Some(other)) if choice.reversed => other.compare(one),
            (Some(one), Some(other)) => one.compare(other),
            _ => Ordering::Equal,
        });
        rows
    }

    fn disks(&self) -> Vec<Row> {
        let times = self.times_by(|queue| text(queue, "disk").to_owned());
        let before = by(self.before, "disks", |disk| text(disk, "disk").to_owned());
        let row = |disk: &Value| {
            let name = text(disk, "disk").to_owned();
            let attached = list(disk, "clients").iter().filter(|client| text(client, "state") != "gone");
            let queues = attached.clone().map(|client| number(client, "queues")).sum();
            let old = before.get(&name).map_or(&Value::Null, |disk| &disk["totals"]);
            let counts = self.counts(old, &disk["totals"], times.get(&name));
            let count = u64::try_from(attached.count()).unwrap_or(u64::MAX);
            [vec![Cell::Text(name), Cell::Count(count), Cell::Count(queues)], counts].concat()
        };
        list(self.now, "disks").iter().map(row).collect()
    }

    fn clients(&self) -> Vec<Row> {
        let times = self.times_by(|queue| number(queue, "client"));
        let old_disks = list(self.before, "disks");
        let old = old_disks.iter().flat_map(|disk| list(disk, "clients"));
        let old: HashMap<u64, &Value> = old.map(|client| (number(client, "client"), client)).collect();
        let mut rows = Vec::new();
        for disk in list(self.now, "disks") {
            for client in list(disk, "clients").iter().filter(|client| text(client, "state") != "gone") {
                let name = number(client, "client");
                let names = ["client", "pid", "uid", "queues"].map(|key| Cell::Count(number(client, key)));
                let words = [text(disk, "disk"), text(client, "kind")].map(|word| Cell::Text(word.to_owned()));
                let old = old.get(&name).copied().unwrap_or(&Value::Null);
                rows.push([&words[..], &names, &self.counts(old, client, times.get(&name))].concat());
            }
        }
        rows
    }

    fn queues(&self) -> Vec<Row> {
        let times = self.times_by(identity);
        let before = by(self.before, "queues", identity);
        let measured = self.queues_measured();
        let row = |queue: &Value| {
            let name = identity(queue);
            let names = ["client", "pid", "queue"].map(|key| Cell::Count(number(queue, key)));
            let old = before.get(&name).copied().unwrap_or(&Value::Null);
            let disk = [Cell::Text(text(queue, "disk").to_owned())];
            let worker = queue.get("worker").and_then(Value::as_u64);
            let measured = worker.and_then(|worker| measured.get(&worker).copied()).filter(|measured| *measured > 0.0);
            let share = |measured: f64| Cell::Percent((self.rate(old, queue, "busy_ns") / measured * 100.0).min(100.0));
            let of_worker = [worker.map_or(Cell::None, Cell::Count), measured.map_or(Cell::None, share)];
            [&disk[..], &names, &of_worker, &self.counts(old, queue, times.get(&name))].concat()
        };
        list(self.now, "queues").iter().map(row).collect()
    }

    /// For how long, per second, the times of each worker's queues were counted.
    fn queues_measured(&self) -> HashMap<u64, f64> {
        let before = by(self.before, "workers", |worker| number(worker, "worker"));
        let measured = |worker: &Value| {
            let index = number(worker, "worker");
            let old = before.get(&index).copied().unwrap_or(&Value::Null);
            (index, self.rate(old, worker, "queues_measured_ns"))
        };
        list(self.now, "workers").iter().map(measured).collect()
    }

    fn workers(&self) -> Vec<Row> {
        let before = by(self.before, "workers", |worker| number(worker, "worker"));
        let row = |worker: &Value| {
            let old = before.get(&number(worker, "worker")).copied().unwrap_or(&Value::Null);
            let cpu = worker.get("cpu").and_then(Value::as_u64).map_or_else(|| Cell::Text("any".to_owned()), Cell::Count);
            let [busy, measured] = ["busy_ns", "measured_ns"].map(|key| self.rate(old, worker, key));
            let busy = if measured > 0.0 { Cell::Percent(busy / measured * 100.0) } else { Cell::None };
            let state = Cell::Text(crate::workers::state(worker));
            let has_time = [old, worker].iter().all(|worker| worker.get("cpu_time_ns").is_some_and(Value::is_u64));
            let time = if has_time { Cell::Percent(self.rate(old, worker, "cpu_time_ns") / 1e7) } else { Cell::None };
            let sleeps = Cell::Rate(self.rate(old, worker, "sleeps"));
            let [index, queues] = ["worker", "queues"].map(|key| Cell::Count(number(worker, key)));
            vec![index, cpu, state, queues, busy, time, sleeps]
        };
        list(self.now, "workers").iter().map(row).collect()
    }

    fn ports(&self) -> Vec<Row> {
        let before: HashMap<String, &Value> = ports(self.before).collect();
        let row = |(name, port): (String, &Value)| {
            let old = before.get(&name).copied().unwrap_or(&Value::Null);
            let client = port.get("client").and_then(Value::as_u64).map_or(Cell::None, Cell::Count);
            let [sent, received, dropped] = ["sent", "received", "dropped"].map(|key| Cell::Rate(self.rate(old, port, key)));
            let [sent_bytes, received_bytes] = ["sent_bytes", "received_bytes"].map(|key| Cell::Bytes(self.rate(old, port, key)));
            let refused = refused(port).saturating_sub(refused(old));
            let refused = Cell::Rate(units::per_second(refused, self.seconds));
            vec![Cell::Text(name), client, sent, sent_bytes, received, received_bytes, dropped, refused]
        };
        ports(self.now).map(row).collect()
    }

    /// What every kind of client has: rates, then service times.
    fn counts(&self, old: &Value, now: &Value, times: Option<&Times>) -> Vec<Cell> {
        let rate = |key| self.rate(old, now, key);
        let requests = ["reads", "writes", "others"].map(rate).iter().sum();
        let time = |percent| times.and_then(|times| quantile(times, percent)).map_or(Cell::None, Cell::Nanoseconds);
        let suppressed = if now.get("suppressed").is_some() { Cell::Rate(rate("suppressed")) } else { Cell::None };
        vec![
            Cell::Rate(requests),
            Cell::Bytes(rate("read_bytes")),
            Cell::Bytes(rate("written_bytes")),
            Cell::Rate(rate("errors")),
            time(50),
            time(99),
            Cell::Rate(rate("doorbells")),
            suppressed,
        ]
    }

    fn rate(&self, old: &Value, now: &Value, key: &str) -> f64 {
        units::per_second(number(now, key).saturating_sub(number(old, key)), self.seconds)
    }

    /// Service times of this interval, of all queues of the same name.
    fn times_by<N: std::hash::Hash + Eq>(&self, name: impl Fn(&Value) -> N) -> HashMap<N, Times> {
        let before = by(self.before, "queues", identity);
        let mut all = HashMap::<N, Times>::new();
        for queue in list(self.now, "queues") {
            let times = all.entry(name(queue)).or_default();
            let old: Times = before.get(&identity(queue)).map(|queue| buckets(queue).collect()).unwrap_or_default();
            for (ns, count) in buckets(queue) {
                let count = count.saturating_sub(old.get(&ns).copied().unwrap_or(0));
                if count > 0 {
                    *times.entry(ns).or_default() += count;
                }
            }
        }
        all
    }
}

/// The ports of all networks, by their whole names.
fn ports(stat: &Value) -> impl Iterator<Item = (String, &Value)> {
    list(stat, "networks").iter().flat_map(|network| {
        let whole = |port| (format!("{}/{}", text(network, "network"), text(port, "port")), port);
        list(network, "ports").iter().map(whole)
    })
}

/// Frames that were refused, for whatever reason.
fn refused(port: &Value) -> u64 {
    let reasons = port.get("refused").and_then(Value::as_object);
    reasons.into_iter().flat_map(|reasons| reasons.values()).filter_map(Value::as_u64).sum()
}

/// A queue's name for as long as its client is attached.
fn identity(queue: &Value) -> (u64, u64) {
    (number(queue, "client"), number(queue, "queue"))
}

fn by<'a, N: std::hash::Hash + Eq>(stat: &'a Value, key: &str, name: impl Fn(&Value) -> N) -> HashMap<N, &'a Value> {
    list(stat, key).iter().map(|item| (name(item), item)).collect()
}

fn buckets(queue: &Value) -> impl Iterator<Item = (u64, u64)> {
    let buckets = list(queue, "service_ns_histogram").iter();
    buckets.filter_map(|bucket| Some((bucket.get(0)?.as_u64()?, bucket.get(1)?.as_u64()?)))
}

/// The bucket of the time that so many percent do not exceed.
fn quantile(times: &Times, percent: u64) -> Option<u64> {
    let total: u64 = times.values().sum();
    let rank = (total * percent).div_ceil(100).max(1);
    let mut seen = 0;
    times.iter().find_map(|(ns, count)| {
        seen += count;
        (seen >= rank).then_some(*ns)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stat(reads: u64, cpu_time_ns: u64, times: &Value) -> Value {
        let counts = json!({ "reads": reads, "writes": 10, "others": 0, "errors": 1, "read_bytes": reads * 512, "doorbells": 4 });
        let with = |more: Value| {
            let mut all = counts.as_object().expect("an object").clone();
            all.extend(more.as_object().expect("an object").clone());
            Value::Object(all)
        };
        let client = with(json!({ "client": 7, "state": "attached", "kind": "ring", "pid": 42, "uid": 1000, "queues": 2 }));
        let gone = with(json!({ "client": 3, "state": "gone", "kind": "ring", "pid": 41, "uid": 1000 }));
        let queue = with(
            json!({ "disk": "a", "client": 7, "pid": 42, "queue": 0, "worker": 0, "busy_ns": cpu_time_ns / 5, "service_ns_histogram": times }),
        );
        json!({
            "workers": [{
                "worker": 0, "cpu": 1, "state": "in use", "queues": 2, "sleeps": 5,
                "cpu_time_ns": cpu_time_ns, "busy_ns": cpu_time_ns / 2, "measured_ns": 7 + 2 * cpu_time_ns,
                "queues_measured_ns": 5 + cpu_time_ns,
            }],
            "disks": [{ "disk": "a", "totals": counts, "clients": [client, gone] }, { "disk": "b", "totals": {}, "clients": [] }],
            "queues": [queue],
            "networks": [{ "network": "lan", "ports": [
                { "port": "a", "client": 9, "sent": reads, "sent_bytes": reads * 64, "received": 4, "received_bytes": 256, "dropped": 2,
                  "refused": { "invalid": reads / 100, "limited": 7 } },
                { "port": "b", "sent": 0, "sent_bytes": 0, "received": reads, "received_bytes": reads * 64, "dropped": reads / 10,
                  "refused": {} },
            ] }],
        })
    }

    fn rows(view: View, choice: &Choice) -> Vec<Vec<String>> {
        let (before, now) =
            (stat(100, 0, &json!([[100, 5]])), stat(300, 1_000_000_000, &json!([[100, 5], [900, 98], [5000, 2]])));
        let interval = Interval { before: &before, now: &now, seconds: 2.0 };
        interval.rows(view, choice).iter().map(|row| row.iter().map(Cell::shown).collect()).collect()
    }

    #[test]
    fn rows_are_what_happened_between_two_answers() {
        let usual = |view: View| Choice { sort: view.usual_sort(), ..Choice::default() };
        let counts = ["100", "50 KiB/s", "0 B/s", "0", "900 ns", "5 us", "0", "-"];
        let disks = rows(View::Disks, &usual(View::Disks));
        assert_eq!(disks[0], [&["a", "1", "2"][..], &counts].concat());
        assert_eq!(disks[1][..4], ["b", "0", "0", "0"]);
        let clients = rows(View::Clients, &usual(View::Clients));
        assert_eq!(
            clients,
            [[&["a", "ring", "7", "42", "1000", "2"][..], &counts].concat()],
            "those that are gone are not shown"
        );
        let queues = rows(View::Queues, &usual(View::Queues));
        assert_eq!(queues, [[&["a", "7", "42", "0", "0", "20.0"][..], &counts].concat()]);
        assert_eq!(rows(View::Workers, &usual(View::Workers)), [["0", "1", "in use", "2", "25.0", "50.0", "0"]]);
        assert_eq!(
            rows(View::Ports, &usual(View::Ports)),
            [
                ["lan/a", "9", "100", "6.25 KiB/s", "0", "0 B/s", "0", "1"],
                ["lan/b", "-", "0", "0 B/s", "100", "6.25 KiB/s", "10", "0"]
            ]
        );
        for view in View::ALL {
            assert!(rows(view, &usual(view)).iter().all(|row| row.len() == view.headings().len()), "{view:?}");
        }
    }

    #[test]
    fn rows_are_sorted_and_filtered_as_chosen() {
        let names = |sort, reversed, filter: &str| {
            let rows = rows(View::Disks, &Choice { sort, reversed, filter: filter.to_owned() });
            rows.into_iter().map(|row| row[0].clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(0, false, ""), ["a", "b"]);
        assert_eq!(names(0, true, ""), ["b", "a"]);
        assert_eq!(names(3, false, ""), ["a", "b"], "the largest first");
        assert_eq!(names(3, true, ""), ["b", "a"]);
        assert_eq!(names(0, false, "b"), ["b"]);
        assert_eq!(names(0, false, "900"), Vec::<String>::new(), "only names are compared");
        assert_eq!(names(99, false, ""), ["a", "b"]);
    }

    #[test]
    fn what_was_not_measured_is_not_shown() {
        let mut now = stat(0, 0, &json!([]));
        now["workers"][0]["cpu_time_ns"] = Value::Null;
        let interval = Interval { before: &now, now: &now, seconds: 1.0 };
        assert_eq!(interval.rows(View::Workers, &Choice::default())[0][4..6], [Cell::None, Cell::None]);
        let disk = &interval.rows(View::Disks, &Choice::default())[0];
        assert_eq!(disk[7..9], [Cell::None, Cell::None], "no request has ended");
    }
}
