//! `cargo xtask bench block`: every way to a disk, ours and those of others, in one run.

use std::path::PathBuf;
use std::time::Duration;

use fipsee_measure::claim::{self, Claim};
use fipsee_measure::cpus::Cpus;
use fipsee_measure::machine::Run;
use fipsee_measure::plot;
use fipsee_measure::quiet::Noise;
use fipsee_measure::results::append;
use serde_json::{Value, json};

use crate::cost::{Meter, per_request_ns};
use crate::fio::Fio;
use crate::matrix::{CELLS, Cell, DEEP, SHALLOW, candidate};
use crate::place::Placement;
use crate::service::{self, CANDIDATES, Service};
use crate::table::{CPU, IOPS, MACHINE_CPU, P50, P99, Results};
use crate::ways::{Entry, Measured, Site, TUNING, WAYS, Way};
use crate::{Settings, claims, headline, idle, picture, steady};

/// Size of null disks, ours and those of others.
const NULL_BYTES: u64 = 1 << 30;

/// A way that is there, and where its server runs when one request is in flight, and when many are.
struct Open {
    entry: &'static Entry,
    way: Box<dyn Way>,
    shallow: Placement,
    deep: Placement,
}

impl Open {
    /// Measure it once, its server where it belongs under this load.
    fn run(&mut self, cell: Cell, seconds: f64, cpus: Cpus) -> Result<Measured, String> {
        let placement = if cell.depth == 1 { self.shallow } else { self.deep };
        self.way.placeable().into_iter().try_for_each(|pid| placement.apply(pid, cpus))?;
        self.way.measure(cell, seconds)
    }

    /// Likewise, with the processor time that it took.
    fn measure(&mut self, cell: Cell, (seconds, cpus): (f64, Cpus), results: &mut Results) -> Result<(), String> {
        let servers = self.way.servers();
        let meter = Meter::start(&servers)?;
        let measured = self.run(cell, seconds, cpus)?;
        let cost = meter.stop()?;
        let (entry, start_cost) = (self.entry, self.way.start_cost());
        let mut add = |metric, value| results.add_cell(entry.name, cell, metric, value);
        if let Some(iops) = measured.iops {
            add(IOPS, iops);
        }
        if let Some((p50, p99)) = measured.latency_ns {
            add(P50, p50);
            add(P99, p99);
        }
        if let Some(requests) = measured.requests {
            add(CPU, per_request_ns(cost.processes.saturating_sub(start_cost), requests));
            add(MACHINE_CPU, per_request_ns(cost.machine.saturating_sub(start_cost), requests));
        }
        Ok(())
    }
}

/// One thing to measure in a round.
#[derive(Clone, Copy)]
enum Item {
    Service(usize),
    Matrix(usize, Cell),
}

/// What was not measured, and why.
struct Skip {
    name: String,
    reason: String,
    /// It was there, but went wrong.
    failed: bool,
}

struct Bench {
    settings: Settings,
    // Ways end before the daemon does: a mount of it must not outlive it.
    ways: Vec<Open>,
    service: Service,
    cpus: Cpus,
    results: Results,
    skips: Vec<Skip>,
}

/// Run everything, print the tables and the claims, draw the plot, append the results.
pub(crate) fn run(settings: Settings) -> Result<(), String> {
    let run = Run::begin_in_sight();
    steady::begin(settings.quick);
    let mut bench = Bench::start(settings)?;
    let items = bench.items();
    if items.is_empty() {
        return Err("--only leaves nothing to measure".to_owned());
    }
    let idle = bench.idle_servers()?;
    if !bench.settings.quick {
        bench.choose_places();
    }
    for round in 0..bench.settings.rounds {
        for place in 0..items.len() {
            bench.measure(items[(place + round) % items.len()]);
        }
        eprintln!("round {} of {}", round + 1, bench.settings.rounds);
    }
    if !bench.settings.tune && bench.settings.chooses("idle") {
        bench.service.idle_clients(bench.settings.rounds, &mut bench.results)?;
    }
    bench.results.keep(steady::usual());
    bench.results.print();
    let (machine, noise) = run.end();
    bench
        .skips
        .iter()
        .for_each(|skip| println!("{}: {}: {}", if skip.failed { "FAILED" } else { "skipped" }, skip.name, skip.reason));
    if !bench.settings.tune {
        bench.conclude(&machine, &noise, idle)?;
    }
    match bench.skips.iter().filter(|skip| skip.failed).count() {
        0 => Ok(()),
        count => Err(format!("{count} candidates failed; their reasons are above")),
    }
}

impl Bench {
    fn start(settings: Settings) -> Result<Self, String> {
        let (cpus, fio) = (Cpus::choose(), Fio::find());
        let service = Service::start(NULL_BYTES, &settings.file_directory, settings.seconds, cpus, fio.clone().ok())?;
        service.prepare(CANDIDATES.iter().any(|(name, _)| name.contains("file") && settings.chooses(name)))?;
        let site = Site {
            socket: service.daemon.socket(),
            daemon_pid: service.daemon.pid(),
            vhost_user: service.daemon.vhost_user(),
            directory: service.daemon.directory().to_owned(),
            memory_directory: settings.memory_directory.clone(),
            dist: std::env::var_os("FIPSEE_DIST").map(PathBuf::from),
            cpus,
            fio,
            memory_bytes: service::MEMORY_BYTES,
            null_bytes: NULL_BYTES,
            used_names: std::cell::Cell::new(0),
        };
        let mut bench = Self { settings, ways: Vec::new(), service, cpus, results: Results::default(), skips: Vec::new() };
        let ways: &'static [Entry] = if bench.settings.tune { &TUNING } else { &WAYS };
        for entry in ways {
            if bench.cells(entry).next().is_none() {
                continue;
            }
            match (entry.open)(&site) {
                Ok(way) => bench.ways.push(Open { entry, way, shallow: Placement::Free, deep: Placement::Free }),
                Err(reason) => {
                    println!("{} ... skipped: {reason}", entry.name);
                    bench.skips.push(Skip { name: entry.name.to_owned(), reason, failed: false });
                }
            }
        }
        Ok(bench)
    }

    /// The loads that this run puts on a way.
    fn cells<'a>(&'a self, entry: &'a Entry) -> impl Iterator<Item = Cell> + 'a {
        let is_wanted = |cell: Cell| !self.settings.claims || cell.is_claimed();
        let takes =
            move |cell: &Cell| is_wanted(*cell) && (entry.takes)(*cell) && self.settings.chooses(&candidate(entry.name, *cell));
        CELLS.into_iter().filter(takes)
    }

    /// Load by load, so that ways that are compared run one after the other.
    fn items(&self) -> Vec<Item> {
        let is_wanted = |index: &usize| !self.settings.tune && self.settings.chooses(CANDIDATES[*index].0);
        let service = (0..CANDIDATES.len()).filter(is_wanted).map(Item::Service);
        let matrix = CELLS.into_iter().flat_map(|cell| {
            let ways = self.ways.iter().enumerate();
            ways.filter(move |(_, open)| self.cells(open.entry).any(|taken| taken == cell))
                .map(move |(index, _)| Item::Matrix(index, cell))
        });
        service.chain(matrix).collect()
    }

    /// No process that waits may disturb the measured ones.
    fn idle_servers(&self) -> Result<Value, String> {
        let named = self.ways.iter().flat_map(|open| open.way.servers().into_iter().map(|pid| (open.entry.name, pid)));
        let mut servers: Vec<(&str, u32)> = vec![("fipseed", self.service.daemon.pid())];
        servers.extend(named.filter(|(_, pid)| *pid != self.service.daemon.pid()));
        let pids: Vec<u32> = servers.iter().map(|(_, pid)| *pid).collect();
        let shares = idle::server_shares(&pids, Duration::from_secs(1))?;
        let mut said = Vec::new();
        for ((name, _), percent) in servers.iter().zip(shares) {
            if percent > 1.0 {
                println!("warning: idle, the server of '{name}' takes {percent:.1} % of a CPU from the others");
            }
            said.push(json!({ "server": name, "cpu_percent": percent }));
        }
        Ok(said.into())
    }

    /// Give every server that does not choose for itself the place where it does most, one request at a time and many.
    fn choose_places(&mut self) {
        for index in 0..self.ways.len() {
            let wanted: Vec<Cell> = self.cells(self.ways[index].entry).collect();
            for cell in [SHALLOW, DEEP] {
                if wanted.iter().any(|wanted| wanted.depth == cell.depth) && !self.ways[index].way.placeable().is_empty() {
                    self.choose_place(index, cell);
                }
            }
        }
    }

    /// The worse of two rounds counts: a place that is good only when the scheduler happens to do right is none.
    fn choose_place(&mut self, index: usize, cell: Cell) {
        let (open, seconds) = (&mut self.ways[index], self.settings.seconds);
        let mut worse = [f64::INFINITY; Placement::ALL.len()];
        for trial in 0..2 * worse.len() {
            let place = trial % worse.len();
            *(if cell.depth == 1 { &mut open.shallow } else { &mut open.deep }) = Placement::ALL[place];
            // What goes wrong here goes wrong again where it is measured, and is said there.
            let iops = open.run(cell, seconds, self.cpus).ok().and_then(|measured| measured.iops).unwrap_or(0.0);
            worse[place] = worse[place].min(iops);
        }
        let best = Placement::ALL.into_iter().zip(worse).max_by(|a, b| a.1.total_cmp(&b.1));
        let (placement, iops) = best.unwrap_or((Placement::Free, 0.0));
        *(if cell.depth == 1 { &mut open.shallow } else { &mut open.deep }) = placement;
        println!("{}, QD{}: server on {} ({:.0} k)", open.entry.name, cell.depth, placement.text(), iops / 1e3);
    }

    fn measure(&mut self, item: Item) {
        let name = match item {
            Item::Service(index) => CANDIDATES[index].0.to_owned(),
            Item::Matrix(index, cell) => candidate(self.ways[index].entry.name, cell),
        };
        if self.skips.iter().any(|skip| skip.name == name) {
            return;
        }
        let Self { service, ways, settings, cpus, results, .. } = self;
        let outcome = steady::measure(results, |results| match item {
            Item::Service(index) => CANDIDATES[index].1(service, &name, results),
            Item::Matrix(index, cell) => ways[index].measure(cell, (settings.seconds, *cpus), results),
        });
        if let Err(reason) = outcome {
            println!("{name} ... FAILED: {reason}");
            self.skips.push(Skip { name, reason, failed: true });
        }
    }

    /// Say what it means and keep it. Documents show a run of everything on a quiet machine only.
    fn conclude(&self, machine: &Value, noise: &Noise, idle: Value) -> Result<(), String> {
        let claims = claims::all(&self.results);
        steady::text().into_iter().for_each(|text| println!("\n{text}"));
        println!("\n{}", claim::table(&claims));
        let entry = self.entry(machine, idle, &claims);
        let judged = headline::judge(&self.results, noise);
        let file = self.settings.file("block", &judged);
        append(&file, &entry)?;
        let svg = file.with_extension("svg");
        match picture::draw(&self.results, &entry).and_then(|text| plot::save(&svg, &text)) {
            Ok(()) => println!("plot: {}", svg.display()),
            Err(reason) => println!("no plot: {reason}"),
        }
        match &self.settings.readme {
            Some(readme) => judged.and_then(|()| headline::write(readme, &self.results, machine)),
            None if self.settings.is_whole() => judged,
            None => Ok(()),
        }
    }

    fn entry(&self, machine: &Value, idle: Value, claims: &[Claim]) -> Value {
        let place = |open: &Open| json!({ "way": open.entry.name, "QD1": open.shallow.text(), "QD64": open.deep.text() });
        let placed = self.ways.iter().filter(|open| !open.way.placeable().is_empty());
        let skip = |skip: &Skip| json!({ "candidate": skip.name, "reason": skip.reason, "failed": skip.failed });
        json!({
            "suite": "block",
            "machine": machine,
            "rounds": self.settings.rounds,
            "seconds": self.settings.seconds,
            "state": steady::to_json(),
            "series": self.results.to_json(),
            "claims": claim::to_json(claims),
            "skipped": self.skips.iter().map(skip).collect::<Vec<_>>(),
            "idle_servers": idle,
            "server_places": placed.map(place).collect::<Vec<_>>(),
        })
    }
}
