//! `fipsee topology`: the machine's CPUs, the cost of moving a cache line between them, the choices of rings between them, and
//! where workers and clients should run.

mod choices;
mod picture;
mod text;

use std::path::PathBuf;

use fipsee_measure::plot;
use fipsee_topology::cache::Kept;
use fipsee_topology::choose::{self, ByDistance};
use fipsee_topology::machine::{Cpu, Machine};
use fipsee_topology::matrix::Matrix;
use fipsee_topology::measure::Course;
use fipsee_topology::plan::Plan;
use fipsee_topology::{cache, cpu_list, measure};
use serde_json::{Value, json};

use crate::error::Error;
use crate::output;

/// A measurement that takes longer is announced.
const ANNOUNCED_FROM_S: f64 = 1.0;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without options it shows what was measured since the machine was started, and measures if nothing was. fipseed and other commands use \
what was measured: root's for all users (/run/fipsee/topology.json), one's own else ($XDG_CACHE_HOME/fipsee/topology.json).")]
pub(crate) struct Arguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Measure, whatever was measured before
    #[arg(long, conflicts_with = "no_measure")]
    measure: bool,
    /// Do not measure: use what was measured before, else what the kernel says
    #[arg(long)]
    no_measure: bool,
    /// Measure every pair of CPUs, however many there are, instead of a sample of each kind
    #[arg(long, conflicts_with = "no_measure")]
    full: bool,
    /// Recommend CPUs for so many workers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=512))]
    workers: u16,
    /// Draw the costs into this file, .svg
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Read the machine from copies of its /sys and /proc below DIR, and measure nothing
    #[arg(long, value_name = "DIR", conflicts_with_all = ["measure", "full", "plot"])]
    root: Option<PathBuf>,
}

/// The source of a new measurement.
const MEASURED_NOW: &str = "measured now";
/// Choices that another build measured are not kept.
const IS_OPTIMISED: bool = !cfg!(debug_assertions);

/// Costs, and where they come from.
struct Known {
    matrix: Matrix,
    choices: ByDistance,
    source: String,
    is_disturbed: bool,
}

pub(crate) use picture::draw;

/// Everything that is shown.
struct Shown {
    machine: Machine,
    known: Option<Known>,
    plan: Plan,
    /// Are these another machine's files?
    is_recorded: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    if let Some(path) = &arguments.plot {
        plot::check(path)?;
    }
    let (machine, known) = match &arguments.root {
        Some(root) if !root.is_dir() => {
            return Err(Error::at(root.display(), "is no directory; name one that holds sys and proc"));
        }
        Some(root) => (Machine::read(root), None),
        None => {
            let machine = Machine::this();
            let known = look_up(&machine, arguments)?;
            (machine, known)
        }
    };
    let plan = Plan::new(&machine, known.as_ref().map(|known| &known.matrix), arguments.workers.into());
    let shown = Shown { machine, known, plan, is_recorded: arguments.root.is_some() };
    if let Some(path) = &arguments.plot {
        let known = shown.known.as_ref().ok_or("there is nothing to draw: no two CPUs were measured; leave --plot out")?;
        plot::save(path, &draw(&shown.machine, &known.matrix)?)?;
    }
    if arguments.json { output::print_json(&shown.to_json()) } else { output::print(&text::render(&shown)) }
}

fn look_up(machine: &Machine, arguments: &Arguments) -> Result<Option<Known>, Error> {
    let mut earlier = ByDistance::new();
    let must_measure = arguments.measure || arguments.full;
    match cache::load(machine) {
        Ok((_, kept)) if must_measure => earlier = kept.choices,
        Ok((path, Kept { matrix, choices })) => {
            return Ok(Some(Known { matrix, choices, source: path.display().to_string(), is_disturbed: false }));
        }
        Err(cache::Unusable::Refused(_)) if must_measure => {}
        Err(cache::Unusable::Missing) => {}
        Err(refused) => eprintln!("warning: {refused}"),
    }
    if arguments.no_measure || machine.usable.len() < 2 {
        return Ok(None);
    }
    let cannot = |error| Error::io("measure", &error);
    let course = measure::course(machine, arguments.full).map_err(cannot)?;
    announce(machine, &course);
    let measured = measure::run(&course).map_err(cannot)?;
    let choices = choose::choose_all(machine, Some(&measured.matrix), &earlier).map_err(cannot)?;
    // Unoptimised code measures itself rather than the ring: a release build must not use that.
    let kept_choices = if IS_OPTIMISED { choices.clone() } else { earlier };
    keep(machine, &Kept { matrix: measured.matrix.clone(), choices: kept_choices });
    let source = MEASURED_NOW.to_owned();
    Ok(Some(Known { matrix: measured.matrix, choices, source, is_disturbed: measured.is_disturbed }))
}

fn announce(machine: &Machine, course: &Course) {
    let seconds = course.expected.as_secs_f64();
    if course.is_sample {
        let all = machine.usable.len() * (machine.usable.len() - 1) / 2;
        eprintln!(
            "measuring {} of {all} pairs of CPUs, some of each kind, about {seconds:.0} s; --full measures all",
            course.pairs.len()
        );
    } else if seconds > ANNOUNCED_FROM_S {
        let count = course.pairs.len();
        eprintln!("measuring {count} {} of CPUs, about {seconds:.0} s", if count == 1 { "pair" } else { "pairs" });
    }
}

/// Keep the measurement for later commands; a failed write is no reason to fail.
fn keep(machine: &Machine, kept: &Kept) {
    let Some(path) = cache::own_path() else {
        return eprintln!("warning: what was measured is not kept: neither XDG_CACHE_HOME nor HOME is set");
    };
    if let Err(error) = cache::write(&path, machine, kept) {
        eprintln!("warning: what was measured is not kept: cannot write {}: {error}", path.display());
    }
}

impl Shown {
    /// Notes beside the figures.
    fn notes(&self) -> Vec<String> {
        let disturbed = self.known.as_ref().is_some_and(|known| known.is_disturbed);
        let disturbed = disturbed
            .then(|| "other load disturbed the measurement; repeat it with --measure when the machine is quiet".to_owned());
        let is_new = self.known.as_ref().is_some_and(|known| known.source == MEASURED_NOW && !known.choices.is_empty());
        let unoptimised = (is_new && !IS_OPTIMISED).then(|| {
            "this program was built without optimisation: the choices of rings that it measured are not kept".to_owned()
        });
        self.machine.unknown.iter().chain(&self.plan.warnings).cloned().chain(disturbed).chain(unoptimised).collect()
    }

    fn to_json(&self) -> Value {
        let machine = &self.machine;
        let online: Vec<usize> = machine.cpus.iter().map(|cpu| cpu.number).collect();
        let cpu = |cpu: &Cpu| {
            json!({
                "cpu": cpu.number, "core": cpu.core, "socket": cpu.socket, "node": cpu.node,
                "last_level_cache": cpu.cache, "is_small": cpu.is_small,
            })
        };
        let known = self.known.as_ref();
        let measurement = known.map(|known| {
            let matrix = &known.matrix;
            let cost = |((from, to), cost): ((usize, usize), fipsee_topology::matrix::Cost)| {
                json!({
                    "from": from, "to": to, "median_ticks": cost.median_ticks, "least_ticks": cost.least_ticks,
                    "median_ns": matrix.to_ns(cost.median_ticks),
                })
            };
            json!({
                "source": known.source, "tsc_hz": matrix.tsc_hz, "own_ticks": matrix.own_ticks,
                "is_disturbed": known.is_disturbed, "costs": matrix.costs().map(cost).collect::<Vec<_>>(),
            })
        });
        let workers = self
            .plan
            .pollers
            .iter()
            .map(|poller| json!({ "cpu": poller.cpu, "clients": poller.clients, "reason": poller.reason }));
        json!({
            "model": machine.model,
            "online": cpu_list::format(&online),
            "offline": cpu_list::format(&machine.offline),
            "usable": cpu_list::format(&machine.usable),
            "cpus": machine.cpus.iter().map(cpu).collect::<Vec<_>>(),
            "measurement": measurement,
            "choices": if self.is_recorded { Value::Null } else { choices::to_json(machine, known.map(|known| &known.choices)) },
            "workers": workers.collect::<Vec<_>>(),
            "unbound_workers": self.plan.unbound_count,
            "polls": self.plan.polls,
            "notes": self.notes(),
        })
    }
}
