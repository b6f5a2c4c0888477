//! The report's three tables: its server and ours under the same load, one right after the other.

use std::collections::{BTreeMap, BTreeSet};

use fipsee::load::count_f64;
use fipsee_measure::claim::Claim;
use fipsee_measure::cpus::Cpus;
use fipsee_measure::statistics::is_undecided;
use fipsee_testkit::Scratch;
use serde_json::{Value, json};

use super::figures::{DEVIATION_US, FAIRNESS, Figures, MAX_US, MEAN_US, MIN_US};
use super::ours::{self, Reach};
use super::picture;
use super::split_driver::SplitDriver;
use crate::daemon::Daemon;
use crate::files::FilledFile;
use crate::parts::{Part, Picture};
use crate::place::Placement;
use crate::table::{RATE, Results, Series};
use crate::{Settings, generator, steady};

/// A row of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Row {
    pub(super) slots: u32,
    pub(super) clients: usize,
    pub(super) requests: usize,
    pub(super) mebibytes: usize,
}

const fn row(slots: u32, clients: usize, requests: usize, mebibytes: usize) -> Row {
    Row { slots, clients, requests, mebibytes }
}

pub(super) struct Table {
    pub(super) title: &'static str,
    pub(super) rows: &'static [Row],
    /// What differs between its rows.
    pub(super) varies: fn(&Row) -> f64,
    pub(super) axis: &'static str,
}

static TABLES: [Table; 3] = [
    Table {
        title: "Table 1: slots; 100 clients, 100000 requests, 1 MiB file",
        rows: &[row(10, 100, 100_000, 1), row(100, 100, 100_000, 1), row(1000, 100, 100_000, 1)],
        varies: |row| f64::from(row.slots),
        axis: "slots",
    },
    Table {
        title: "Table 2: clients and requests; 100 slots, 1 MiB file",
        rows: &[
            row(100, 10, 10_000, 1),
            row(100, 10, 100_000, 1),
            row(100, 100, 10_000, 1),
            row(100, 100, 100_000, 1),
            row(100, 1000, 10_000, 1),
            row(100, 1000, 100_000, 1),
        ],
        varies: |row| count_f64(row.clients as u64),
        axis: "clients",
    },
    Table {
        title: "Table 3: file size; 100 slots, 100 clients, 100000 requests",
        rows: &[row(100, 100, 100_000, 1), row(100, 100, 100_000, 10), row(100, 100, 100_000, 100), row(100, 100, 100_000, 500)],
        varies: |row| count_f64(row.mebibytes as u64),
        axis: "MiB",
    },
];

/// As little as possible of each.
static QUICK_TABLES: [Table; 3] = [
    Table { rows: &[row(10, 100, 1000, 1), row(100, 100, 1000, 1)], ..TABLES[0] },
    Table { rows: &[row(100, 10, 1000, 1), row(100, 100, 1000, 1)], ..TABLES[1] },
    Table { rows: &[row(100, 100, 1000, 1), row(100, 100, 1000, 2)], ..TABLES[2] },
];

/// In a round each server serves a row until that has taken so long in all, but not more often than this. The try in the middle counts: not the fastest, of
/// which a server with more tries would have a faster one, and a stop of the machine for as long as most rows take changes one try.
const LEAST_TIME_S: f64 = 0.5;
const MOST_TRIES: usize = 5;
/// Times that a round measures every row, each of which counts as a round of it: the speed of a machine changes within the seconds that a row takes.
const PASSES: usize = 2;

/// Of each client, where their rates are compared.
const FEWEST_REQUESTS: usize = 100;

pub(super) const REPORT: &str = "the report's server";
pub(super) const ONE_QUEUE: &str = "fipseed, one queue";
pub(super) const CONNECTIONS: &str = "fipseed, a connection each";
pub(super) const THREADS: &str = "fipseed, a connection and a thread each";
pub(super) const SERVERS: [&str; 4] = [REPORT, ONE_QUEUE, CONNECTIONS, THREADS];

pub(super) fn candidate(server: &str, row: &Row) -> String {
    let Row { slots, clients, requests, mebibytes } = row;
    format!("{server}: {slots} slots, {clients} clients, {requests} requests, {mebibytes} MiB")
}

pub(super) struct Tables {
    daemon: Daemon,
    split_driver: Option<SplitDriver>,
    placement: Placement,
    files: BTreeMap<usize, FilledFile>,
    tables: &'static [Table],
    cpus: Cpus,
    skips: Vec<(String, String)>,
    _configuration: Scratch,
}

impl Tables {
    /// Whether anything of it is to be measured.
    pub(super) fn are_chosen(settings: &Settings) -> bool {
        rows(tables(settings)).iter().any(|row| SERVERS.iter().any(|server| settings.chooses(&candidate(server, row))))
    }

    pub(super) fn start(settings: &Settings) -> Result<Self, String> {
        let folder = &settings.file_directory;
        std::fs::create_dir_all(folder).map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
        let mut files = BTreeMap::new();
        for mebibytes in rows(tables(settings)).iter().map(|row| row.mebibytes).collect::<BTreeSet<_>>() {
            let path = folder.join(format!("fipsee-bench-scale-{mebibytes}.img"));
            files.insert(mebibytes, FilledFile::create(path, mebibytes)?);
        }
        // Both servers read through the page cache, as the report's does.
        let disk = |(mebibytes, file): (&usize, &FilledFile)| {
            format!("m{mebibytes}=file:{},block=512,direct=off,ro", file.path().display())
        };
        let disks: Vec<String> = files.iter().map(disk).collect();
        let configuration = Scratch::new();
        let path = configuration.file("fipseed.toml", "max_depth = 1024\n");
        let cpus = Cpus::choose();
        let server = cpus.server.to_string();
        let more = ["--workers", "1", "--cpus", &server, "--config", &path.to_string_lossy()];
        let daemon = Daemon::start_program(&Daemon::shipped()?, &disks, &more)?;
        let mut skips = Vec::new();
        let split_driver = SplitDriver::build(&settings.memory_directory)
            .inspect_err(|reason| skips.push((REPORT.to_owned(), reason.clone())))
            .ok();
        let (tables, placement) = (tables(settings), Placement::Free);
        let mut found = Self { daemon, split_driver, placement, files, tables, cpus, skips, _configuration: configuration };
        if settings.is_whole() {
            found.files.values().try_for_each(read_whole)?;
            found.place_report()?;
        }
        Ok(found)
    }

    /// Where the report's server is fastest.
    fn place_report(&mut self) -> Result<(), String> {
        let Some(split_driver) = &self.split_driver else { return Ok(()) };
        let mut best = (0.0, self.placement);
        for placement in Placement::ALL {
            let mut worst = f64::MAX;
            for _ in 0..2 {
                let times = split_driver.run((100, 100, 10_000), self.files[&1].path(), placement, self.cpus)?;
                worst = worst.min(Figures::of(&times)?.rate);
            }
            if worst > best.0 {
                best = (worst, placement);
            }
        }
        self.placement = best.1;
        Ok(())
    }

    /// The tries of each of these servers, by turns.
    fn tries(&self, servers: &[&'static str], row: &Row) -> Result<BTreeMap<String, Vec<Figures>>, String> {
        let mut tries: BTreeMap<String, Vec<Figures>> = BTreeMap::new();
        for _ in 0..MOST_TRIES {
            for server in servers {
                let name = candidate(server, row);
                let before = tries.entry(name.clone()).or_default();
                if before.iter().map(|figures| figures.seconds).sum::<f64>() < LEAST_TIME_S {
                    before.extend(self.one(server, row).map_err(|error| format!("{name}: {error}"))?);
                }
            }
        }
        Ok(tries)
    }

    fn one(&self, server: &str, row: &Row) -> Result<Option<Figures>, String> {
        let load = (row.slots, row.clients, row.requests);
        let ours = |reach| ours::run(&self.daemon.socket(), &format!("m{}", row.mebibytes), load, reach);
        let times = match (server, &self.split_driver) {
            (ONE_QUEUE, _) => ours(Reach::OneQueue)?,
            (CONNECTIONS, _) => ours(Reach::Connections)?,
            (THREADS, _) => ours(Reach::Threads)?,
            (_, Some(split_driver)) => {
                let file = self.files.get(&row.mebibytes).ok_or("no file of this size")?;
                split_driver.run(load, file.path(), self.placement, self.cpus)?
            }
            (_, None) => return Ok(None),
        };
        Figures::of(&times).map(Some)
    }
}

impl Part for Tables {
    /// Every row, all servers one right after the other, in an order that rotates with the pass.
    fn measure(&mut self, settings: &Settings, round: usize, results: &mut Results) -> Result<(), String> {
        let measure = |row: &Row, pass: usize, results: &mut Results| {
            let mut servers = SERVERS;
            servers.rotate_left(pass % SERVERS.len());
            let chosen: Vec<_> = servers.into_iter().filter(|server| settings.chooses(&candidate(server, row))).collect();
            self.files.get(&row.mebibytes).map_or(Ok(()), read_whole)?;
            for (name, tries) in self.tries(&chosen, row)? {
                middle(tries).iter().for_each(|figures| figures.add_to(results, &name));
            }
            Ok(())
        };
        let (rows, passes) = (rows(self.tables), if settings.quick { 1 } else { PASSES });
        let mut all = (0..passes).flat_map(|pass| rows.iter().map(move |row| (row, round * passes + pass)));
        all.try_for_each(|(row, pass)| steady::measure(results, |results| measure(row, pass, results)))
    }

    fn undecided(&self, results: &Results) -> Vec<String> {
        let of_server = |row: &Row, (server, limit): (&str, f64)| {
            let rates = [server, REPORT].map(|server| results.get(&candidate(server, row), RATE));
            matches!(rates, [Some(ours), Some(theirs)] if is_undecided(ours.ratios_to(theirs), limit))
        };
        let undecided = rows(self.tables).into_iter().filter(|row| LEAST.iter().any(|least| of_server(row, *least)));
        undecided.flat_map(|row| SERVERS.map(|server| candidate(server, &row))).collect()
    }

    fn print(&self, results: &Results) {
        for table in self.tables {
            println!("\n{}\n", table.title);
            print!("{:<40} {:>5} {:>7} {:>8} {:>4}", "server", "slots", "clients", "requests", "MiB");
            println!(
                " {:>10} {:>10} {:>8} {:>9} {:>10} {:>8}",
                "max us", "mean us", "min us", "std. dev.", "requests/s", "fairness"
            );
            for row in table.rows {
                SERVERS.iter().for_each(|server| print_row(server, row, results));
            }
        }
    }

    fn claims(&self, _settings: &Settings, results: &Results) -> Vec<Claim> {
        let rows = rows(self.tables);
        let of = |server: &str, row: &Row, metric| results.get(&candidate(server, row), metric);
        let ratio = |server: &'static str| {
            rows.iter().map(move |row| {
                let ratio = of(server, row, RATE).zip(of(REPORT, row, RATE)).map(|(ours, theirs)| ours.ratio_to(theirs));
                (candidate(server, row), ratio)
            })
        };
        // With fewer requests a client's rate is decided by when it had its first turn.
        let long = rows.iter().filter(|row| row.requests >= FEWEST_REQUESTS * row.clients);
        let fairness = long.flat_map(|row| {
            let of_server = move |server: &&str| {
                let index = of(server, row, FAIRNESS).map(Series::median);
                (candidate(server, row), index)
            };
            SERVERS[1..].iter().map(of_server).collect::<Vec<_>>()
        });
        vec![
            Claim::all_at_least(
                LEAST_OF_THREADS,
                "requests/s of sleeping threads over those of the report's server",
                ratio(THREADS),
            ),
            Claim::all_at_least(
                LEAST_OF_CONNECTIONS,
                "requests/s of a connection each over those of the report's server",
                ratio(CONNECTIONS),
            ),
            Claim::all_at_least(0.95, "Jain's index of the clients of every row with 100 requests each", fairness),
        ]
    }

    fn skips(&self) -> &[(String, String)] {
        &self.skips
    }

    fn to_json(&self) -> Option<(&'static str, Value)> {
        let file_system = self.files.values().next().map(|file| generator::file_system(file.path()));
        let placement = self.split_driver.as_ref().map(|_| self.placement.text());
        Some(("tables", json!({ "file_system": file_system, "report_server_place": placement })))
    }

    fn picture(&self, results: &Results, entry: &Value) -> Option<Picture> {
        Some(("scale-tables", picture::tables(self.tables, results, entry)?))
    }
}

/// Requests per second over those of the report's server, at least: of threads that sleep, as the report's do, and of a connection each.
const LEAST_OF_THREADS: f64 = 1.0;
const LEAST_OF_CONNECTIONS: f64 = 5.0;
const LEAST: [(&str, f64); 2] = [(THREADS, LEAST_OF_THREADS), (CONNECTIONS, LEAST_OF_CONNECTIONS)];

/// The rounds of the ratios that do not decide their claim: the median may be on either side of the limit. What is certainly beyond it needs not be known closely.
/// What changes the speed of the machine changes that of both servers; where the report's was not measured, our requests per second are judged.
pub(super) fn undecided(results: &Results) -> Vec<(String, Vec<f64>)> {
    let of_row = |server: &str, limit: f64, row: &Row| {
        let name = candidate(server, row);
        let ours = results.get(&name, RATE)?;
        let Some(theirs) = results.get(&candidate(REPORT, row), RATE) else { return Some((name, ours.values.clone())) };
        let ratios = ours.ratios_to(theirs);
        is_undecided(ratios.clone(), limit).then(|| (format!("{name}, over {REPORT}"), ratios))
    };
    let rows = rows(&TABLES);
    let of_server = |(server, limit)| rows.iter().filter_map(move |row| of_row(server, limit, row));
    LEAST.into_iter().flat_map(of_server).collect()
}

fn print_row(server: &str, row: &Row, results: &Results) {
    let name = candidate(server, row);
    let figure = |metric| results.get(&name, metric).map(Series::median);
    let Some(rate) = figure(RATE) else { return };
    let [max, mean, min, deviation, fairness] =
        [MAX_US, MEAN_US, MIN_US, DEVIATION_US, FAIRNESS].map(|metric| figure(metric).unwrap_or(f64::NAN));
    let Row { slots, clients, requests, mebibytes } = row;
    print!("{server:<40} {slots:>5} {clients:>7} {requests:>8} {mebibytes:>4}");
    println!(" {max:>10.0} {mean:>10.1} {min:>8.2} {deviation:>9.1} {rate:>10.0} {fairness:>8.4}");
}

fn tables(settings: &Settings) -> &'static [Table] {
    if settings.quick { &QUICK_TABLES } else { &TABLES }
}

/// The one with the rate in the middle; of two, the slower.
fn middle(mut tries: Vec<Figures>) -> Option<Figures> {
    tries.sort_unstable_by(|one, other| one.rate.total_cmp(&other.rate));
    tries.get(tries.len().checked_sub(1)? / 2).copied()
}

/// Each row once: the tables have one in common.
fn rows(tables: &[Table]) -> Vec<Row> {
    let mut rows: Vec<Row> = tables.iter().flat_map(|table| table.rows.iter().copied()).collect();
    rows.sort_unstable();
    rows.dedup();
    rows
}

/// Into the page cache, as the file of a server that runs is. A system may page out within a minute what no process uses (DAMON's action `pageout`).
fn read_whole(file: &FilledFile) -> Result<(), String> {
    let failed = |error| format!("cannot read {}: {error}", file.path().display());
    let mut opened = std::fs::File::open(file.path()).map_err(failed)?;
    std::io::copy(&mut opened, &mut std::io::sink()).map(drop).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::figures::ClientTimes;

    #[test]
    fn ratios_are_judged_that_may_be_on_either_side_of_their_limit() {
        let (mut results, rows) = (Results::default(), rows(&TABLES));
        let speeds = [1.0, 0.5, 0.9, 0.6, 0.8, 0.7, 1.0, 0.5];
        for (row, ratios) in rows.iter().zip([[15.0, 30.0], [4.0, 9.0], [1.0, 4.0]]) {
            for (round, speed) in speeds.into_iter().enumerate() {
                results.add(&candidate(REPORT, row), RATE, 100.0 * speed);
                results.add(&candidate(CONNECTIONS, row), RATE, 100.0 * speed * ratios[round % 2]);
                results.add(&candidate(THREADS, row), RATE, 150.0 * speed);
            }
        }
        let either_side = (format!("{}, over the report's server", candidate(CONNECTIONS, &rows[1])), [4.0, 9.0].repeat(4));
        assert_eq!(undecided(&results), std::slice::from_ref(&either_side));
        let without = candidate(CONNECTIONS, &rows[3]);
        results.add(&without, RATE, 1e6);
        assert_eq!(undecided(&results), [either_side, (without, vec![1e6])], "not beside the report's server");
    }

    #[test]
    fn try_in_the_middle_counts_and_of_two_the_slower() {
        let of = |elapsed_ns: u64| {
            let client = ClientTimes { elapsed_ns, latencies_ns: vec![elapsed_ns] };
            Figures::of(&[client]).expect("a request")
        };
        let middle_of = |times: &[u64]| middle(times.iter().map(|time| of(*time)).collect()).map(|figures| figures.seconds);
        assert_eq!(middle_of(&[]), None);
        assert_eq!(middle_of(&[3_000_000_000, 1_000_000_000]), Some(3.0));
        assert_eq!(middle_of(&[9_000_000_000, 1_000_000_000, 2_000_000_000]), Some(2.0));
    }
}
