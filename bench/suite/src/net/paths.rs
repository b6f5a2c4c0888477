//! Messages of every size on every way, and the null disk, all in the same round.

use fipsee::cpus::CpuChoice;
use fipsee::load::{self, count_f64};
use fipsee_measure::claim::Claim;
use fipsee_measure::cpus::Cpus;
use serde_json::Value;

use super::exchange::{Exchange, Measured, QUICK_SIZES, SIZES, SMALLEST, candidate};
use super::kernel::Program;
use super::picture;
use super::ports::{self, Ports};
use super::taps::Taps;
use crate::daemon::Daemon;
use crate::matrix::SHALLOW;
use crate::parts::{Part, Picture};
use crate::table::{P50, Results, Series};
use crate::{Settings, generator, steady, table};

pub(super) const OURS: &str = "two ports";
pub(super) const NULL: &str = "null disk QD1";
pub(super) const MMAP: &str = "veth, PACKET_MMAP";
pub(super) const MMAP_TWO: &str = "veth, PACKET_MMAP, two CPUs";

/// Of the time for each candidate of other suites: there are many.
const SHARE: f64 = 0.2;

/// A way that is ready to be measured. What it started ends with it.
pub(super) trait Way {
    fn takes(&self, _exchange: Exchange) -> bool {
        true
    }

    fn measure(&mut self, exchange: Exchange, bytes: usize, seconds: f64, cpus: Cpus) -> Result<Measured, String>;
}

/// Two TAP ports of ours.
const TAPS: &str = "two TAP ports, AF_PACKET";
/// The kernel's: a name, that in the program, the threads of the ends.
const KERNEL: [(&str, &str, usize); 10] = [
    ("TCP loopback", "tcp", 1),
    ("UDP loopback", "udp", 1),
    ("veth, AF_PACKET", "packet", 1),
    (MMAP, "mmap", 1),
    ("veth, AF_XDP copy mode", "xdp", 1),
    ("TCP loopback, two CPUs", "tcp", 2),
    ("UDP loopback, two CPUs", "udp", 2),
    ("veth, AF_PACKET, two CPUs", "packet", 2),
    (MMAP_TWO, "mmap", 2),
    ("veth, AF_XDP copy mode, two CPUs", "xdp", 2),
];

/// The part.
pub(super) struct Paths {
    daemon: Daemon,
    cpus: Cpus,
    sizes: &'static [usize],
    ways: Vec<(&'static str, Box<dyn Way>)>,
    skips: Vec<(String, String)>,
}

fn names() -> impl Iterator<Item = &'static str> {
    [OURS, TAPS].into_iter().chain(KERNEL.iter().map(|(name, ..)| *name))
}

fn is_way_chosen(settings: &Settings, way: &str) -> bool {
    SIZES.iter().any(|bytes| Exchange::ALL.iter().any(|exchange| settings.chooses(&candidate(way, *exchange, *bytes))))
}

impl Paths {
    pub(super) fn are_chosen(settings: &Settings) -> bool {
        settings.chooses(NULL) || names().any(|way| is_way_chosen(settings, way))
    }

    pub(super) fn start(settings: &Settings) -> Result<Self, String> {
        let cpus = Cpus::choose();
        let daemon = ports::daemon(cpus, ["a", "b"].map(str::to_owned))?;
        let (mut ways, mut skips) = (Vec::new(), Vec::new());
        let mut keep = |name: &'static str, way: Result<Box<dyn Way>, String>| match way {
            Ok(way) => ways.push((name, way)),
            Err(reason) => skips.push((name.to_owned(), reason)),
        };
        if is_way_chosen(settings, OURS) {
            keep(OURS, Ok(Ports::open(daemon.socket(), cpus)?));
        }
        if names().any(|name| name != OURS && is_way_chosen(settings, name)) {
            let program = Program::build();
            let program = program.as_ref().map_err(Clone::clone);
            if is_way_chosen(settings, TAPS) {
                keep(TAPS, program.clone().and_then(|program| Taps::open(program, cpus)));
            }
            for (name, way, threads) in KERNEL.iter().filter(|(name, ..)| is_way_chosen(settings, name)) {
                keep(name, program.clone().and_then(|program| program.open(way, *threads)));
            }
        }
        let sizes = if settings.quick { &QUICK_SIZES[..] } else { &SIZES };
        Ok(Self { daemon, cpus, sizes, ways, skips })
    }

    fn null(&self, settings: &Settings, results: &mut Results) -> Result<(), String> {
        let cpus = CpuChoice::List(vec![self.cpus.client]);
        let load = generator::settings(&self.daemon.socket(), "n", SHALLOW, settings.seconds * SHARE, cpus);
        let report = load::run(&load).map_err(|error| error.to_string())?;
        results.add(NULL, P50, count_f64(report.latency_ns(0.5)));
        Ok(())
    }
}

impl Part for Paths {
    /// All ways one right after the other, size by size, in an order that rotates with the round; the null disk beside ours.
    fn measure(&mut self, settings: &Settings, round: usize, results: &mut Results) -> Result<(), String> {
        for bytes in self.sizes {
            for place in 0..self.ways.len() {
                let index = (place + round) % self.ways.len();
                if self.ways[index].0 == OURS && *bytes == SMALLEST && settings.chooses(NULL) {
                    steady::measure(results, |results| self.null(settings, results))?;
                }
                let (name, way) = &mut self.ways[index];
                for exchange in Exchange::ALL {
                    let candidate = candidate(name, exchange, *bytes);
                    if way.takes(exchange) && settings.chooses(&candidate) {
                        steady::measure(results, |results| {
                            let measured = way.measure(exchange, *bytes, settings.seconds * SHARE, self.cpus);
                            measured.map_err(|error| format!("{candidate}: {error}"))?.add_to(results, &candidate, *bytes);
                            Ok(())
                        })?;
                    }
                }
            }
        }
        Ok(())
    }

    fn print(&self, results: &Results) {
        for exchange in Exchange::ALL {
            println!(
                "\n{}, medians ({})\n",
                exchange.name(),
                if exchange == Exchange::Rate { "thousands of messages/s" } else { "p50, ns" }
            );
            println!(
                "{:<34}{}",
                "way",
                self.sizes.iter().map(|bytes| format!("{:>11}", super::exchange::size(*bytes))).collect::<String>()
            );
            for way in names() {
                let (metric, divisor) = if exchange == Exchange::Rate { (table::FRAMES, 1e3) } else { (P50, 1.0) };
                let figure = |bytes: &usize| {
                    let median = results.get(&candidate(way, exchange, *bytes), metric).map(Series::median);
                    median.map_or_else(|| format!("{:>11}", "-"), |median| format!("{:>11.1}", median / divisor))
                };
                let figures: Vec<String> = self.sizes.iter().map(figure).collect();
                if figures.iter().any(|figure| !figure.trim().starts_with('-')) {
                    println!("{way:<34}{}", figures.concat());
                }
            }
        }
        let null = results.get(NULL, P50).map_or(f64::NAN, Series::median);
        println!("\n{NULL}: p50 {null:.0} ns");
    }

    fn claims(&self, _settings: &Settings, results: &Results) -> Vec<Claim> {
        let of = |way: &str, exchange| results.get(&candidate(way, exchange, SMALLEST), P50);
        let over_null = |exchange| of(OURS, exchange).zip(results.get(NULL, P50)).map(|(ours, null)| ours.ratio_to(null));
        let over_ours = |way: &'static str| {
            let ratio =
                of(way, Exchange::RoundTrip).zip(of(OURS, Exchange::RoundTrip)).map(|(theirs, ours)| theirs.ratio_to(ours));
            (way.to_owned(), ratio)
        };
        vec![
            Claim::at_most(1.5, "64 B one way: p50 over the null disk's at QD1", over_null(Exchange::OneWay)),
            Claim::at_most(3.0, "64 B round trip: p50 over the null disk's at QD1", over_null(Exchange::RoundTrip)),
            Claim::at_least(5.0, "64 B round trip: p50 of PACKET_MMAP spinning on two CPUs over ours", over_ours(MMAP_TWO).1),
            Claim::at_least(5.0, "64 B round trip: p50 of PACKET_MMAP spinning in one thread over ours", over_ours(MMAP).1),
        ]
    }

    fn skips(&self) -> &[(String, String)] {
        &self.skips
    }

    fn picture(&self, results: &Results, entry: &Value) -> Option<Picture> {
        Some(("net", picture::paths(&names().collect::<Vec<_>>(), self.sizes, results, entry)?))
    }
}
