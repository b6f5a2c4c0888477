//! Rates of disks and of clients, as a client sees them: how far from the limit is each second?
//!
//! All limits are tried at the same time, each on a disk of its own, by clients that keep 32 requests in flight and are driven by
//! one thread. The last two are changed while they run.

use std::time::Duration;

use fipsee::load::count_f64;
use fipsee_measure::claim::Claim;
use fipsee_measure::cpus::Cpus;
use fipsee_ring::wait::WaitMode;
use serde_json::{Value, json};

use super::crowd::{Crowd, Shape, attach_to};
use crate::Settings;
use crate::daemon::Daemon;
use crate::parts::Part;
use crate::place::on;
use crate::table::{RATE, Results, Series};

/// The farthest of a round's seconds, over the limit: 0.01 is 1 % off, in either direction; and upwards alone.
const FARTHEST: &str = "farthest_window";
const HIGHEST: &str = "highest_window";

const DEPTH: u32 = 32;
const WINDOWS: usize = 3;
const LIMIT: f64 = 0.02;
/// Until the first requests, for which there was no limit yet, are gone.
const SETTLED: f64 = 0.5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Disk,
    Client,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rate {
    Requests(u64),
    Bytes(u64),
}

#[derive(Clone, Copy, Debug)]
struct Case {
    of: Of,
    rate: Rate,
    bytes: u64,
    clients: usize,
    /// The limit was another one before, and changes while requests are in flight.
    before: Option<Rate>,
}

const fn case(of: Of, rate: Rate, bytes: u64, clients: usize) -> Case {
    Case { of, rate, bytes, clients, before: None }
}

const CASES: [Case; 8] = [
    case(Of::Disk, Rate::Requests(1000), 4096, 1),
    case(Of::Disk, Rate::Requests(20_000), 4096, 2),
    case(Of::Disk, Rate::Requests(100_000), 4096, 1),
    case(Of::Disk, Rate::Bytes(100_000_000), 64 << 10, 1),
    case(Of::Client, Rate::Requests(5000), 4096, 1),
    case(Of::Client, Rate::Bytes(20_000_000), 16 << 10, 1),
    Case { before: Some(Rate::Requests(5000)), ..case(Of::Disk, Rate::Requests(15_000), 4096, 1) },
    Case { before: Some(Rate::Bytes(80_000_000)), ..case(Of::Client, Rate::Bytes(40_000_000), 64 << 10, 1) },
];

impl Case {
    fn name(&self) -> String {
        let of = if self.of == Of::Disk { "disk" } else { "client" };
        let before = self.before.map(|before| format!(", {} before", text(before))).unwrap_or_default();
        let clients = if self.clients == 1 { String::new() } else { format!(" x {}", self.clients) };
        format!("limit of a {of}: {}{before}, {} KiB, QD{DEPTH}{clients}", text(self.rate), self.bytes >> 10)
    }

    /// Requests per second.
    fn limit(&self) -> f64 {
        match self.rate {
            Rate::Requests(count) => count_f64(count),
            Rate::Bytes(count) => count_f64(count) / count_f64(self.bytes),
        }
    }
}

fn text(rate: Rate) -> String {
    match rate {
        Rate::Requests(count) => format!("{count} iops"),
        Rate::Bytes(count) => format!("{} MB/s", count / 1_000_000),
    }
}

fn disk(index: usize) -> String {
    format!("d{index}")
}

/// Set one of the rates of the disk of this number, or of its only client.
fn set(daemon: &Daemon, index: usize, of: Of, rate: Rate) -> Result<(), String> {
    let mut request = match rate {
        Rate::Requests(count) => json!({ "iops": count }),
        Rate::Bytes(count) => json!({ "bytes_per_second": count }),
    };
    request["method"] = "limit.set".into();
    match of {
        Of::Disk => request["disk"] = disk(index).into(),
        Of::Client => {
            let info: Value = daemon.ask(&json!({ "method": "disk.info", "disk": disk(index) }))?;
            request["client"] = info["clients"][0]["client"].clone();
        }
    }
    daemon.ask(&request).map(|_| ())
}

/// The part.
pub(super) struct Rates;

impl Rates {
    pub(super) fn are_chosen(settings: &Settings) -> bool {
        CASES.iter().any(|case| settings.chooses(&case.name()))
    }
}

/// The rate of each case in each second.
fn windows(crowd: &mut Crowd, cases: &[(usize, Case)], seconds: f64) -> Result<Vec<Vec<f64>>, String> {
    let mut rates = vec![Vec::new(); cases.len()];
    for _ in 0..WINDOWS {
        let (elapsed, completed) = crowd.run(Duration::from_secs_f64(seconds))?;
        let mut rest = completed.as_slice();
        for ((_, case), rates) in cases.iter().zip(&mut rates) {
            let (own, others) = rest.split_at(case.clients);
            rates.push(count_f64(own.iter().sum()) / elapsed);
            rest = others;
        }
    }
    Ok(rates)
}

/// Of the rates to the limit: the one that is farthest in either direction, and how far the highest is above.
fn off(rates: &[f64], limit: f64) -> (f64, f64) {
    let off = rates.iter().map(|rate| rate / limit - 1.0);
    (off.clone().map(f64::abs).fold(0.0, f64::max), off.fold(f64::NEG_INFINITY, f64::max))
}

impl Part for Rates {
    fn measure(&mut self, settings: &Settings, _round: usize, results: &mut Results) -> Result<(), String> {
        let all = CASES.into_iter().enumerate();
        let cases: Vec<(usize, Case)> = all.filter(|(_, case)| settings.chooses(&case.name())).collect();
        let cpus = Cpus::choose();
        let disks: Vec<String> = cases.iter().map(|(index, _)| format!("{}=null:1G,shared", disk(*index))).collect();
        let more = ["--workers", "1", "--cpus", &cpus.server.to_string()];
        let daemon = Daemon::start_program(&Daemon::shipped()?, &disks, &more)?;
        let user = rustix::process::geteuid().as_raw();
        on(cpus.client, || {
            let mut crowd = Crowd::new();
            for (index, case) in &cases {
                let shape = Shape { queues: 1, depth: DEPTH, bytes: case.bytes };
                for _ in 0..case.clients {
                    crowd.join_with(attach_to(&daemon.socket(), &disk(*index), user, shape, WaitMode::Adaptive)?, shape);
                }
                set(&daemon, *index, case.of, case.before.unwrap_or(case.rate))?;
            }
            // A second is what the limit is about, whatever a candidate has.
            let seconds = if settings.quick { settings.seconds } else { 1.0 };
            crowd.run(Duration::from_secs_f64(SETTLED * seconds))?;
            for (index, case) in cases.iter().filter(|(_, case)| case.before.is_some()) {
                set(&daemon, *index, case.of, case.rate)?;
            }
            for ((_, case), rates) in cases.iter().zip(windows(&mut crowd, &cases, seconds)?) {
                let (name, (farthest, highest)) = (case.name(), off(&rates, case.limit()));
                results.add(&name, RATE, rates.iter().sum::<f64>() / count_f64(rates.len() as u64));
                results.add(&name, FARTHEST, farthest);
                results.add(&name, HIGHEST, highest);
            }
            Ok(())
        })
    }

    fn print(&self, results: &Results) {
        let [limit, rate] = ["limit req/s", "requests/s"];
        println!("\n{:<72} {limit:>12} {rate:>12} {:>12} {:>10}", "windows of 1 s", "farthest %", "highest %");
        for case in &CASES {
            let name = case.name();
            let [rate, farthest, highest] = [RATE, FARTHEST, HIGHEST].map(|metric| results.get(&name, metric));
            if let (Some(rate), Some(farthest), Some(highest)) = (rate, farthest, highest) {
                let (limit, rate, farthest) = (case.limit(), rate.median(), 100.0 * farthest.median());
                println!("{name:<72} {limit:>12.1} {rate:>12.1} {farthest:>12.2} {:>10.2}", 100.0 * highest.most());
            }
        }
    }

    fn claims(&self, _settings: &Settings, results: &Results) -> Vec<Claim> {
        let of = |metric, figure: fn(&Series) -> f64| {
            CASES.iter().map(move |case| (case.name(), results.get(&case.name(), metric).map(figure))).collect::<Vec<_>>()
        };
        vec![
            Claim::all_at_most(LIMIT, "off the limit in the farthest second, median of rounds", of(FARTHEST, Series::median)),
            Claim::all_at_most(LIMIT, "above the limit in the highest second of all rounds", of(HIGHEST, Series::most)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_that_is_farthest_from_the_limit_counts() {
        let (farthest, highest) = off(&[1000.0, 970.0, 1010.0], 1000.0);
        assert!((farthest - 0.03).abs() < 1e-9 && (highest - 0.01).abs() < 1e-9, "{farthest} {highest}");
        let (farthest, highest) = off(&[990.0], 1000.0);
        assert!((farthest - 0.01).abs() < 1e-9 && (highest + 0.01).abs() < 1e-9, "{farthest} {highest}");
    }

    #[test]
    fn limit_of_bytes_is_one_of_requests_by_their_size() {
        let [requests, bytes] = [Rate::Requests(1000), Rate::Bytes(4_096_000)].map(|rate| case(Of::Disk, rate, 4096, 1).limit());
        assert_eq!([requests, bytes], [1000.0, 1000.0]);
    }
}
