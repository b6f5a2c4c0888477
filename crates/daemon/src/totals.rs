//! What the clients of a disk have done since the daemon serves it. It outlives them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use fipsee_block::stats::QueueCounters;
use serde::{Deserialize, Serialize};

use crate::export::{AttachedClient, Kind};
use crate::latency::Latency;

/// Users with totals of their own; what those do that come later is added up. A user may have as many ids as it likes.
const MAX_USERS: usize = 128;
/// Clients that are gone and still shown: the newest.
const MAX_FINISHED: usize = 32;

/// What the queues of a client, or of several, have counted: requests, those of them with an error, bytes, visits and doorbells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts([u64; COUNTERS]);

/// Of a queue.
const COUNTERS: usize = 13;

impl Counts {
    pub(crate) fn of(queues: &[Arc<QueueCounters>]) -> Self {
        let mut counts = Self::default();
        for queue in queues {
            counts.add(Self(queue.plain().map(|(_, counter)| counter.get())));
        }
        counts
    }

    fn add(&mut self, other: Self) {
        for (sum, value) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(value);
        }
    }

    /// As the answers of the admin socket have them: `others` are all requests that are neither reads nor writes.
    pub(crate) fn named(self) -> impl Iterator<Item = (&'static str, u64)> {
        let [
            reads,
            writes,
            flushes,
            discards,
            write_zeroes,
            rest,
            errors,
            read_bytes,
            written_bytes,
            visits,
            doorbells,
            suppressed,
            spurious,
        ] = self.0;
        let others = [flushes, discards, write_zeroes, rest].into_iter().fold(0, u64::saturating_add);
        [
            ("reads", reads),
            ("writes", writes),
            ("others", others),
            ("errors", errors),
            ("read_bytes", read_bytes),
            ("written_bytes", written_bytes),
            ("flushes", flushes),
            ("discards", discards),
            ("write_zeroes", write_zeroes),
            ("visits", visits),
            ("doorbells", doorbells),
            ("suppressed", suppressed),
            ("spurious", spurious),
        ]
        .into_iter()
    }

    /// Requests by operation, as metrics name them. Each only grows, also while queues are served: no one is a difference of others.
    pub(crate) const fn by_operation(self) -> [(&'static str, u64); 6] {
        let [reads, writes, flushes, discards, write_zeroes, rest, ..] = self.0;
        [
            ("read", reads),
            ("write", writes),
            ("flush", flushes),
            ("discard", discards),
            ("write_zeroes", write_zeroes),
            ("other", rest),
        ]
    }

    pub(crate) const fn errors(self) -> u64 {
        self.0[6]
    }

    pub(crate) const fn bytes(self) -> [(&'static str, u64); 2] {
        [("read", self.0[7]), ("write", self.0[8])]
    }

    pub(crate) const fn doorbells(self) -> u64 {
        self.0[10]
    }
}

/// Of several clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sum {
    pub(crate) clients: u64,
    pub(crate) counts: Counts,
}

impl Sum {
    fn add(&mut self, client: Counts) {
        self.clients += 1;
        self.counts.add(client);
    }
}

/// A client that is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FinishedClient {
    pub(crate) client: u64,
    pub(crate) kind: Kind,
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    pub(crate) counts: Counts,
}

/// Of one disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Totals {
    pub(crate) all: Sum,
    pub(crate) users: BTreeMap<u32, Sum>,
    /// Of users beyond the limit.
    pub(crate) other_users: Sum,
    /// The oldest first.
    pub(crate) finished: VecDeque<FinishedClient>,
    /// Service times of all clients.
    pub(crate) latency: Latency,
}

impl Totals {
    /// A client that is gone, unless it never had a queue.
    pub(crate) fn finish(&mut self, client: &AttachedClient) {
        if client.counted.is_empty() {
            return;
        }
        self.add(client);
        let &AttachedClient { client: number, kind, pid, uid, .. } = client;
        if self.finished.len() >= MAX_FINISHED {
            self.finished.pop_front();
        }
        self.finished.push_back(FinishedClient { client: number, kind, pid, uid, counts: client.counts() });
    }

    /// Add what a client has done so far to the sums.
    pub(crate) fn add(&mut self, client: &AttachedClient) {
        let counts = client.counts();
        self.all.add(counts);
        self.latency.add(&client.latency());
        let is_known = self.users.len() < MAX_USERS || self.users.contains_key(&client.uid);
        let user = if is_known { self.users.entry(client.uid).or_default() } else { &mut self.other_users };
        user.add(counts);
    }
}

#[cfg(test)]
mod tests {
    use fipsee_serve::session::Credentials;

    use super::*;
    use crate::export::Role;
    use crate::latency::BOUNDS_NS;

    fn client(number: u64, uid: u32, reads: u64) -> AttachedClient {
        let mut client =
            AttachedClient::new(Kind::Ring, number, &Credentials { uid, ..Credentials::default() }, false, Role::Reader);
        let counters = Arc::<QueueCounters>::default();
        counters.reads.add(reads);
        client.counted = vec![counters];
        client
    }

    #[test]
    fn names_are_those_of_the_counters() {
        let counters = QueueCounters::default();
        for ((_, counter), value) in counters.plain().iter().zip(0..) {
            counter.add(1 << value);
        }
        let named: BTreeMap<_, _> = Counts::of(&[Arc::new(counters)]).named().collect();
        for ((name, _), value) in QueueCounters::default().plain().iter().zip(0..) {
            let expected = if *name == "rest" { None } else { Some(1 << value) };
            assert_eq!(named.get(name).copied(), expected, "{name}");
        }
        assert_eq!(named["others"], 0b111_100);
    }

    #[test]
    fn service_times_are_of_all_clients_and_stay() {
        let (one, other) = (client(1, 1, 0), client(2, 2, 0));
        one.counted[0].latency.record(1 << 20, 3);
        other.counted[0].latency.record(1 << 30, 4);
        let mut totals = Totals::default();
        totals.finish(&one);
        totals.add(&other);
        let counts: Vec<_> = totals.latency.counts.into_iter().filter(|count| *count > 0).collect();
        assert_eq!(counts, [3, 4]);
        assert!(totals.latency.sum_ns > 0);
    }

    #[test]
    fn sums_hold_every_client_and_lists_are_bounded() {
        let mut totals = Totals::default();
        for number in 0..1000 {
            totals.finish(&client(number.into(), number, 2));
        }
        totals.finish(&client(1000, 5, 7));
        assert_eq!((totals.all.clients, totals.all.counts.0[0]), (1001, 2007));
        assert_eq!((totals.users.len(), totals.users[&5].counts.0[0]), (MAX_USERS, 9));
        assert_eq!(totals.other_users.clients, 1000 - MAX_USERS as u64);
        let numbers: Vec<u64> = totals.finished.iter().map(|finished| finished.client).collect();
        assert_eq!(numbers, (1001 - MAX_FINISHED as u64..=1000).collect::<Vec<_>>());
    }

    /// The packet of a takeover that holds them, as a text, has 64 KiB.
    #[test]
    fn totals_of_any_numbers_fit_a_packet() {
        let most = Sum { clients: u64::MAX, counts: Counts([u64::MAX; COUNTERS]) };
        let finished =
            FinishedClient { client: u64::MAX, kind: Kind::VhostUser, pid: i32::MIN, uid: u32::MAX, counts: most.counts };
        let totals = Totals {
            all: most,
            users: (0..MAX_USERS).map(|index| (u32::MAX - u32::try_from(index).expect("few"), most)).collect(),
            other_users: most,
            finished: std::iter::repeat_n(finished, MAX_FINISHED).collect(),
            latency: Latency { counts: [u64::MAX; BOUNDS_NS.len() + 1], sum_ns: u64::MAX },
        };
        let text = serde_json::to_string(&totals).expect("numbers");
        assert_eq!(serde_json::from_str::<Totals>(&text).expect("the same"), totals);
        let in_a_packet = serde_json::to_string(&text).expect("a text").len();
        assert!(in_a_packet < 60 << 10, "{in_a_packet} bytes");
    }
}
