//! `workers = "1..2"` beside fixed numbers of workers, while clients come and go: one daemon, whose number of workers is set at run time,
//! so that all settings have the same connections and memory, one right after the other.

use std::time::Duration;

use fipsee::load::count_f64;
use fipsee_measure::claim::Claim;
use fipsee_measure::cpus::Cpus;
use fipsee_measure::statistics::is_undecided;
use serde_json::json;

use super::crowd::{Crowd, Shape};
use super::workers::{CPU_PERCENT, IDLE};
use crate::daemon::Daemon;
use crate::idle::daemon_usage;
use crate::parts::Part;
use crate::place::on;
use crate::service::MEMORY_BYTES;
use crate::table::{RATE, Results, Series};
use crate::{Settings, generator, steady};

/// Clients of a memory disk.
const SHAPE: Shape = Shape { queues: 1, depth: 4, bytes: 16_384 };
const LOAD: &str = "memory disk, 16 KiB, QD4";
/// From 1 to 16 and back.
const STEPS: [Step; 9] = [up(1), up(2), up(4), up(8), up(16), back(8), back(4), back(2), back(1)];
const QUICK_STEPS: [Step; 3] = [up(1), up(4), back(1)];

const AUTOMATIC: &str = "1..2";
const FIXED: [&str; 2] = ["1", "2"];
/// Of the seconds for a candidate, but longer than it takes to try another number of workers. Of rounds with half a second one ratio was 0.85 to 1.14.
const MEASURED: f64 = 0.5;
const LEAST_MEASURED: f64 = 1.0;
/// After a change of the load or of the setting the daemon has a second to find out how many workers are best, however long it is measured.
const SETTLES: f64 = 1.0;
const FIXED_SETTLES: f64 = 0.2;
const QUICK_SETTLES: f64 = 0.05;
const LIMIT: f64 = 0.95;
/// Of `1..2`, at the end.
const IN_USE: &str = "workers_in_use";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    clients: usize,
    is_back: bool,
}

const fn up(clients: usize) -> Step {
    Step { clients, is_back: false }
}

const fn back(clients: usize) -> Step {
    Step { clients, is_back: true }
}

impl Step {
    fn load(self) -> String {
        let Self { clients, is_back } = self;
        format!("{LOAD}, {clients} client{}{}", if clients == 1 { "" } else { "s" }, if is_back { ", back" } else { "" })
    }

    fn candidate(self, setting: &str) -> String {
        format!("{setting} workers set: {}", self.load())
    }

    fn is_chosen(self, settings: &Settings) -> bool {
        FIXED.iter().chain([&AUTOMATIC]).any(|setting| settings.chooses(&self.candidate(setting)))
    }

    /// Of `1..2` to the better of the fixed settings.
    fn ratio(self, results: &Results) -> Option<f64> {
        let get = |setting| results.get(&self.candidate(setting), RATE);
        let automatic = get(AUTOMATIC)?;
        let ratios = FIXED.map(|setting| get(setting).map(|fixed| automatic.ratio_to(fixed)));
        ratios[0].zip(ratios[1]).map(|(one, two)| one.min(two))
    }
}

fn idle() -> String {
    format!("idle: {AUTOMATIC} workers")
}

const fn steps(settings: &Settings) -> &'static [Step] {
    if settings.quick { &QUICK_STEPS } else { &STEPS }
}

pub(super) struct Governed;

impl Governed {
    pub(super) fn is_chosen(settings: &Settings) -> bool {
        steps(settings).iter().any(|step| step.is_chosen(settings))
    }
}

/// Requests per second after this setting has come into force.
fn rate(daemon: &Daemon, crowd: &mut Crowd, setting: &str, settings: &Settings) -> Result<f64, String> {
    daemon.ask(&json!({ "method": "workers.set", "workers": setting }))?;
    let (settles, measured) = match setting {
        _ if settings.quick => (QUICK_SETTLES, 0.0),
        AUTOMATIC => (SETTLES, LEAST_MEASURED),
        _ => (FIXED_SETTLES, LEAST_MEASURED),
    };
    crowd.run(Duration::from_secs_f64(settles))?;
    let (seconds, completed) = crowd.run(Duration::from_secs_f64(measured.max(settings.seconds * MEASURED)))?;
    Ok(count_f64(completed.iter().sum()) / seconds)
}

fn in_use(daemon: &Daemon) -> Result<f64, String> {
    let answer = daemon.ask(&json!({ "method": "workers" }))?;
    let workers = answer["workers"].as_array().ok_or("no list of workers")?;
    Ok(count_f64(workers.iter().filter(|worker| worker["state"] == "in use").count() as u64))
}

/// `1..2` before and after the fixed settings, and each of these twice: what changes slowly in the machine is of no account.
fn compare(daemon: &Daemon, crowd: &mut Crowd, step: Step, settings: &Settings, results: &mut Results) -> Result<(), String> {
    let before = (rate(daemon, crowd, AUTOMATIC, settings)?, in_use(daemon)?);
    let mut fixed = [0.0; FIXED.len()];
    for index in [0, 1, 1, 0] {
        fixed[index] += rate(daemon, crowd, FIXED[index], settings)? / 2.0;
    }
    for (setting, rate) in FIXED.into_iter().zip(fixed) {
        results.add(&step.candidate(setting), RATE, rate);
    }
    let after = (rate(daemon, crowd, AUTOMATIC, settings)?, in_use(daemon)?);
    results.add(&step.candidate(AUTOMATIC), RATE, f64::midpoint(before.0, after.0));
    results.add(&step.candidate(AUTOMATIC), IN_USE, f64::midpoint(before.1, after.1));
    Ok(())
}

impl Part for Governed {
    fn measure(&mut self, settings: &Settings, _round: usize, results: &mut Results) -> Result<(), String> {
        let cpus = Cpus::choose();
        let list = format!("{},{}", cpus.server, cpus.client);
        let disks = [format!("m=memory:{MEMORY_BYTES},shared")];
        let daemon = Daemon::start_program(&Daemon::shipped()?, &disks, &["--workers", AUTOMATIC, "--cpus", &list])?;
        generator::fill(&daemon.socket(), "m", MEMORY_BYTES)?;
        let (percent, _) = daemon_usage(&daemon, if settings.quick { IDLE / 20 } else { IDLE })?;
        results.add(&idle(), CPU_PERCENT, percent);
        let user = rustix::process::geteuid().as_raw();
        on(cpus.client, || {
            let mut crowd = Crowd::new();
            // The second worker has the same CPU.
            crowd.yields = true;
            for step in steps(settings) {
                while crowd.lanes.len() < step.clients {
                    crowd.join(&daemon.socket(), user, SHAPE)?;
                }
                while crowd.lanes.len() > step.clients {
                    crowd.leave();
                }
                if step.is_chosen(settings) {
                    steady::measure(results, |results| compare(&daemon, &mut crowd, *step, settings, results))?;
                }
            }
            Ok(())
        })
    }

    fn undecided(&self, results: &Results) -> Vec<String> {
        let undecided = |step: &&Step| {
            let get = |setting| results.get(&step.candidate(setting), RATE);
            let ratios = |fixed| Some(get(AUTOMATIC)?.ratios_to(get(fixed)?));
            FIXED.iter().filter_map(|fixed| ratios(fixed)).any(|ratios| is_undecided(ratios, LIMIT))
        };
        STEPS.iter().filter(undecided).map(|step| step.candidate(AUTOMATIC)).collect()
    }

    fn print(&self, results: &Results) {
        let names = [FIXED[0], FIXED[1], AUTOMATIC];
        println!(
            "\n{:<50} {:>12} {:>12} {:>12} {:>7} {:>6}",
            "requests/s, number of workers", names[0], names[1], names[2], "ratio", "in use"
        );
        for step in &STEPS {
            let Some(ratio) = step.ratio(results) else { continue };
            let median = |setting| results.get(&step.candidate(setting), RATE).map_or(f64::NAN, Series::median);
            let [one, two, automatic] = names.map(median);
            let in_use = results.get(&step.candidate(AUTOMATIC), IN_USE).map_or(f64::NAN, Series::median);
            println!("{:<50} {one:>12.0} {two:>12.0} {automatic:>12.0} {ratio:>7.3} {in_use:>6.1}", step.load());
        }
    }

    fn claims(&self, settings: &Settings, results: &Results) -> Vec<Claim> {
        let over_better = steps(settings).iter().map(|step| (step.candidate(AUTOMATIC), step.ratio(results)));
        let text = "requests/s of 1..2 workers over the better of 1 and 2, 1 to 16 clients and back";
        let idle = results.get(&idle(), CPU_PERCENT).map(Series::median);
        vec![
            Claim::all_at_least(LIMIT, text, over_better),
            Claim::at_most(1.0, "% of a CPU of the idle daemon, 1..2 workers", idle),
        ]
    }
}
