//! What greedy users cost the others.
//!
//! The victim has one request in flight. Beside it are n users with a connection each, and in it 16 queues full of requests of a
//! mebibyte. One thread drives all of them, the daemon's only worker has the other CPU: what the victim waits for is the daemon,
//! not a CPU that its neighbours have.

use std::path::Path;
use std::time::{Duration, Instant};

use fipsee::load::count_f64;
use fipsee_block::client::{Buffer, Disk, Queue};
use fipsee_block::wire::SECTOR_BYTES;
use fipsee_measure::claim::Claim;
use fipsee_measure::cpus::Cpus;
use fipsee_measure::statistics::is_undecided;
use fipsee_ring::clock;
use fipsee_testkit::is_root;
use hdrhistogram::Histogram;
use serde_json::Value;

use super::crowd::{Crowd, FIRST_USER, GREEDIEST, GREEDY, LONG, ORDINARY, Shape, attach};
use super::figures::{FAIRNESS, jain};
use super::picture;
use crate::daemon::Daemon;
use crate::generator::Random;
use crate::parts::{Part, Picture};
use crate::place::on;
use crate::service::MEMORY_BYTES;
use crate::table::{P50, P99, RATE, Results, Series};
use crate::{Settings, generator, steady};

/// The longest wait, in nanoseconds, and in requests of the others that were answered meanwhile.
pub(super) const WORST: &str = "latency_ns_max";
const SERVED: &str = "others_requests_served_meanwhile_max";

/// Waits that do not count, because the thread that looks did not have its CPU at their beginning or end.
const LOST: &str = "waits_without_cpu";

const USERS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const QUICK_USERS: [usize; 2] = [1, 2];
/// Beside so many the victim is also silent between two requests: longer than its queue stays active, even with so few.
const SILENT_USERS: usize = 1;
const SILENCE: Duration = Duration::from_secs(2);
const SILENT_SAMPLES: usize = 3;
/// Of every round at least: the worst hundredth is a request.
const SAMPLES: usize = 100;
const QUICK_SAMPLES: usize = 5;
/// p99 of the wait beside n users, over n times that beside one.
const MOST_P99_PER_USER: f64 = 2.0;
const CLIENTS: usize = 1000;
/// Each neighbour of so many clients is there so often in a round.
const TURNS: usize = 3;
const QUICK_CLIENTS: usize = 50;
/// What a wait may last for each of the users, in cost units (decision 0033: the bound a), and what a request of 1 MiB costs.
const UNITS_PER_USER: f64 = 12_304.0;
const UNITS: f64 = 2048.0 + 8.0;
/// Requests that were answered before this one was published, or after its answer, are counted if they were found only meanwhile. In so long at most
/// two of 1 MiB are: if it took longer, another thread, or the host, had the CPU.
const MOST_UNSURE: Duration = Duration::from_micros(40);
const LONGEST_NS: u64 = 1 << 40;
const TIMEOUT: Duration = Duration::from_secs(60);

const ONE_QUEUE: &str = "depth 1 beside 1 user with 1 full queue";
const SILENT: &str = "depth 1, silent before, beside 1 user with 16 full queues";
const BESIDE_GREEDY: &str = "others beside a greedy user with 16 full queues";
const BESIDE_ORDINARY: &str = "others beside one more like them";
const BESIDE_LONG: &str = "others beside one with 1 MiB at a time";

pub(super) fn beside(users: usize) -> String {
    format!("depth 1 beside {users} user{} with 16 full queues", if users == 1 { "" } else { "s" })
}

pub(super) struct Fairness {
    daemon: Daemon,
    users: &'static [usize],
    samples: usize,
    clients: usize,
    cpus: Cpus,
    skips: Vec<(String, String)>,
}

/// Of a request.
struct Wait {
    ticks: u64,
    /// Requests of the others that were found meanwhile, or at most a look at every queue later.
    served: u64,
    /// Some of them may have been answered so long before this one was published, or after its answer.
    unsure_ticks: u64,
}

struct Victim {
    disk: Disk,
    queue: Queue,
    buffer: Buffer,
    random: Random,
}

impl Victim {
    fn attach(socket: &Path) -> Result<Self, String> {
        let (disk, mut queues, buffer) = attach(socket, FIRST_USER, ORDINARY)?;
        let queue = queues.pop().ok_or("no queue")?;
        Ok(Self { disk, queue, buffer, random: Random::default() })
    }

    /// Ask for one block while the crowd goes on.
    fn ask(&mut self, crowd: &mut Crowd) -> Result<Wait, String> {
        let begun_ticks = clock::ticks();
        // What was answered before is no part of it.
        crowd.round()?;
        let sectors = ORDINARY.bytes / SECTOR_BYTES;
        let sector = self.random.below(self.disk.info().sector_count / sectors) * sectors;
        let segment = self.buffer.segment(0, ORDINARY.bytes);
        self.queue.read(sector, segment, 0).map_err(|_| "a queue with room is full".to_owned())?;
        let started_ticks = clock::ticks();
        self.queue.submit();
        let (mut served, since, mut looks) = (0, Instant::now(), 0_u32);
        let (mut looked_ticks, mut in_vain_ticks) = (clock::ticks(), started_ticks);
        while self.queue.reap(&mut |_| {}).map_err(|error| error.to_string())? == 0 {
            in_vain_ticks = looked_ticks;
            served += crowd.turn()?;
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(1 << 16) && since.elapsed() > TIMEOUT {
                return Err(format!("the victim has no answer after {TIMEOUT:?}"));
            }
            looked_ticks = clock::ticks();
        }
        let ticks = clock::ticks().wrapping_sub(started_ticks);
        served += crowd.round()?;
        let unsure_ticks = started_ticks.wrapping_sub(begun_ticks) + clock::ticks().wrapping_sub(in_vain_ticks);
        Ok(Wait { ticks, served, unsure_ticks })
    }
}

impl Fairness {
    pub(super) fn is_chosen(settings: &Settings) -> bool {
        let named = [ONE_QUEUE, SILENT, BESIDE_GREEDY, BESIDE_ORDINARY, BESIDE_LONG];
        let beside = users(settings).iter().map(|users| beside(*users));
        beside.chain(named.map(str::to_owned)).any(|name| settings.chooses(&name))
    }

    pub(super) fn start(settings: &Settings) -> Result<Self, String> {
        let cpus = Cpus::choose();
        let clients = if settings.quick { QUICK_CLIENTS } else { CLIENTS };
        let mut more = vec!["--workers".to_owned(), "1".to_owned(), "--cpus".to_owned(), cpus.server.to_string()];
        for user in (FIRST_USER..).take(clients.max(128)) {
            more.extend(["--allow-uid".to_owned(), user.to_string()]);
        }
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        let disk = format!("m=memory:{MEMORY_BYTES},shared");
        let daemon = Daemon::start_program(&Daemon::shipped()?, &[disk], &more)?;
        let mut skips = Vec::new();
        if !is_root() {
            skips.push(("users".to_owned(), "needs root: all clients are of one user".to_owned()));
        }
        let samples = if settings.quick { QUICK_SAMPLES } else { SAMPLES };
        Ok(Self { daemon, users: users(settings), samples, clients, cpus, skips })
    }

    fn waits(
        &self,
        name: &str,
        (users, shape): (usize, Shape),
        seconds: f64,
        silence: Option<Duration>,
        results: &mut Results,
    ) -> Result<(), String> {
        let mut victim = Victim::attach(&self.daemon.socket())?;
        let mut crowd = Crowd::new();
        for user in (FIRST_USER + 1..).take(users) {
            crowd.join(&self.daemon.socket(), user, shape)?;
        }
        let mut ticks = Histogram::<u64>::new_with_bounds(1, LONGEST_NS, 3).map_err(|error| error.to_string())?;
        // Full queues are served before the first that counts.
        victim.ask(&mut crowd)?;
        let (started, mut count, mut worst_served, mut lost) = (Instant::now(), 0, 0, 0);
        let samples = if silence.is_some() { SILENT_SAMPLES } else { self.samples };
        while count < samples || (silence.is_none() && started.elapsed().as_secs_f64() < seconds) {
            if let Some(silence) = silence {
                crowd.run(silence)?;
            }
            let Wait { ticks: waited, served, unsure_ticks } = victim.ask(&mut crowd)?;
            // Such a wait says nothing about the daemon. On a machine where most are like that it counts nevertheless.
            if unsure_ticks > clock::duration_to_ticks(MOST_UNSURE) && lost < samples {
                lost += 1;
                continue;
            }
            ticks.record(waited.min(LONGEST_NS)).map_err(|error| error.to_string())?;
            worst_served = worst_served.max(served);
            count += 1;
        }
        let ns = |ticks| count_f64(clock::ticks_to_ns(ticks));
        results.add(name, P50, ns(ticks.value_at_quantile(0.5)));
        results.add(name, P99, ns(ticks.value_at_quantile(0.99)));
        results.add(name, WORST, ns(ticks.max()));
        results.add(name, SERVED, count_f64(worst_served));
        results.add(name, LOST, count_f64(lost as u64));
        Ok(())
    }

    /// One of a thousand clients, each of another user, changes: what the others get beside it.
    fn thousand(&self, settings: &Settings, results: &mut Results) -> Result<(), String> {
        let socket = self.daemon.socket();
        let mut crowd = Crowd::new();
        for user in (FIRST_USER + 1..).take(self.clients - 1) {
            crowd.join(&socket, user, ORDINARY)?;
        }
        let mut neighbours = [(BESIDE_ORDINARY, ORDINARY), (BESIDE_GREEDY, GREEDIEST), (BESIDE_LONG, LONG)];
        for _ in 0..TURNS {
            for (name, shape) in neighbours.iter().filter(|(name, _)| settings.chooses(name)) {
                crowd.join(&socket, FIRST_USER, *shape)?;
                crowd.run(Duration::from_secs_f64(settings.seconds / 5.0))?;
                let (seconds, completed) = crowd.run(Duration::from_secs_f64(settings.seconds / 2.0))?;
                crowd.leave();
                let others: Vec<f64> = completed.iter().take(self.clients - 1).map(|count| count_f64(*count) / seconds).collect();
                results.add(name, RATE, others.iter().sum());
                results.add(name, FAIRNESS, jain(others.into_iter()));
            }
            neighbours.reverse();
        }
        Ok(())
    }
}

impl Part for Fairness {
    fn measure(&mut self, settings: &Settings, _round: usize, results: &mut Results) -> Result<(), String> {
        // In each round: hosts page out what nothing has used for minutes, and then the first row had 17 ms for each MiB.
        generator::fill(&self.daemon.socket(), "m", MEMORY_BYTES)?;
        on(self.cpus.client, || {
            let waits = |name: &str, users, shape, silence, results: &mut Results| {
                if !settings.chooses(name) {
                    return Ok(());
                }
                let waits = |results: &mut Results| self.waits(name, (users, shape), settings.seconds, silence, results);
                steady::measure(results, waits).map_err(|error| format!("{name}: {error}"))
            };
            waits(ONE_QUEUE, 1, GREEDY, None, results)?;
            for users in self.users {
                waits(&beside(*users), *users, GREEDIEST, None, results)?;
            }
            if !settings.quick || !settings.only.is_empty() {
                waits(SILENT, SILENT_USERS, GREEDIEST, Some(SILENCE), results)?;
            }
            if [BESIDE_GREEDY, BESIDE_ORDINARY, BESIDE_LONG].iter().any(|name| settings.chooses(name)) {
                steady::measure(results, |results| self.thousand(settings, results))?;
            }
            Ok(())
        })
    }

    fn undecided(&self, results: &Results) -> Vec<String> {
        let undecided = |users: &&usize| {
            let [one, all] = [1, **users].map(|users| results.get(&beside(users), P99));
            let limit = MOST_P99_PER_USER * count_f64(**users as u64);
            matches!((one, all), (Some(one), Some(all)) if is_undecided(all.ratios_to(one), limit))
        };
        let mut names: Vec<String> = self.users.iter().filter(undecided).map(|users| beside(*users)).collect();
        if !names.is_empty() {
            names.push(beside(1));
        }
        names
    }

    fn print(&self, results: &Results) {
        println!("\n{:<60} {:>9} {:>9} {:>9} {:>16}", "wait of a client", "p50 us", "p99 us", "max us", "others' requests");
        let named = [ONE_QUEUE.to_owned()].into_iter().chain(self.users.iter().map(|users| beside(*users)));
        for name in named.chain([SILENT.to_owned()]) {
            let figure = |metric, figure: fn(&Series) -> f64| results.get(&name, metric).map_or(f64::NAN, figure);
            let [p50, p99] = [P50, P99].map(|metric| figure(metric, Series::median));
            let [max, served] = [WORST, SERVED].map(|metric| figure(metric, Series::most));
            if !p50.is_nan() {
                println!("{name:<60} {:>9.1} {:>9.1} {:>9.1} {served:>16.0}", p50 / 1e3, p99 / 1e3, max / 1e3);
            }
        }
        println!("\n{:<60} {:>12} {:>9}", format!("what {} clients get", self.clients - 1), "requests/s", "fairness");
        for name in [BESIDE_ORDINARY, BESIDE_GREEDY, BESIDE_LONG] {
            if let Some((rate, fairness)) = results.get(name, RATE).zip(results.get(name, FAIRNESS)) {
                println!("{name:<60} {:>12.0} {:>9.4}", rate.median(), fairness.median());
            }
        }
    }

    fn claims(&self, _settings: &Settings, results: &Results) -> Vec<Claim> {
        claims(self.users, self.clients, results, is_root())
    }

    fn skips(&self) -> &[(String, String)] {
        &self.skips
    }

    fn picture(&self, results: &Results, entry: &Value) -> Option<Picture> {
        Some(("scale-fairness", picture::waits(self.users, results, entry)?))
    }
}

const fn users(settings: &Settings) -> &'static [usize] {
    if settings.quick { &QUICK_USERS } else { &USERS }
}

/// `has_users`: without other users nothing was measured that is claimed.
fn claims(users: &[usize], clients: usize, results: &Results, has_users: bool) -> Vec<Claim> {
    let get = |name: &str, metric| results.get(name, metric).filter(|_| has_users);
    let median = |name: &str, metric| get(name, metric).map(Series::median);
    let per_user = |metric, figure: fn(&Series) -> f64, unit: Option<f64>| {
        let of = |users: &usize| Some(figure(get(&beside(*users), metric)?) / count_f64(*users as u64) / unit?);
        users.iter().map(of).collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::max)
    };
    let ratio = |one: &str, other: &str, metric| Some(get(one, metric)?.ratio_to(get(other, metric)?));
    let n = users.last().copied().unwrap_or(1);
    vec![
        Claim::at_most(
            UNITS_PER_USER,
            format!("cost units served to others in the worst wait of all rounds, per user, 1 to {n} users"),
            per_user(SERVED, Series::most, Some(1.0 / UNITS)),
        ),
        Claim::at_most(
            UNITS_PER_USER,
            "cost units served to the other in the worst wait of all rounds of a client that was silent",
            get(SILENT, SERVED).map(|served| served.most() * UNITS),
        ),
        Claim::at_most(
            MOST_P99_PER_USER,
            format!("p99 of the wait per user, over p99 beside one, 1 to {n} users"),
            per_user(P99, Series::median, median(&beside(1), P99)),
        ),
        Claim::at_most(1.5, "p50 beside one user with 16 full queues over beside one with 1", ratio(&beside(1), ONE_QUEUE, P50)),
        Claim::at_least(
            0.95,
            format!("requests/s of {} clients beside a greedy user over beside one more like them", clients - 1),
            ratio(BESIDE_GREEDY, BESIDE_ORDINARY, RATE),
        ),
        Claim::at_least(
            0.95,
            format!("requests/s of {} clients beside a greedy user over beside one with 1 MiB at a time", clients - 1),
            ratio(BESIDE_GREEDY, BESIDE_LONG, RATE),
        ),
        Claim::at_least(
            0.95,
            format!("Jain's index of {} clients beside a greedy user", clients - 1),
            median(BESIDE_GREEDY, FAIRNESS),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_wait_of_all_rounds_is_judged() {
        let mut results = Results::default();
        for served in [1.0, 9.0, 2.0] {
            for (name, times) in [(beside(1), 1.0), (beside(2), 3.0), (SILENT.to_owned(), 5.0)] {
                results.add(&name, SERVED, served * times);
            }
        }
        let claims = claims(&[1, 2], 10, &results, true);
        // Of two users each has half of it.
        assert_eq!([claims[0].value, claims[1].value], [Some(13.5 * UNITS), Some(45.0 * UNITS)]);
    }
}
