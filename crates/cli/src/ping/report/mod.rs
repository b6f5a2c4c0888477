//! `fipsee ping --report DIR`: tables 1 to 7 and figure 6 of the Fip-see report, repeated on this machine with the channel, and
//! with the report's own ring beside it.

mod course;
mod figures;
mod idle;
mod machine;
mod measure;
mod page;
mod place;
mod plots;
mod progress;
mod published;
mod tables;
mod text;

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use fipsee_measure::harness::{Design, rounds};
use fipsee_measure::statistics::States;
use fipsee_topology::matrix::Matrix;
use fipsee_topology::measure as lines;

use self::course::Pace;
use self::idle::Wakings;
use self::machine::MachineInfo;
use self::measure::{Outcome, states_of_pair};
use self::place::ReportDirectory;
use self::progress::Progress;
use super::counter;
use crate::error::Error;
use crate::{output, topology};

/// A little less than the announced ten minutes: the last round may take longer than the others.
pub(super) const DEFAULT_SECONDS: &str = "540";
/// At most one part in this many of the time is spent on wake-ups.
const IDLE_ONE_IN: u32 = 8;

/// The content of the page.
struct Report {
    info: MachineInfo,
    /// The CPUs of all tables but the last; none: there is one for both sides.
    cpus: Option<[usize; 2]>,
    outcomes: Vec<Outcome>,
    wakings: Wakings,
    /// The costs of moving lines, or the reason that they are unknown.
    lines: Result<Matrix, String>,
    /// The choices for those CPUs.
    states: States,
    pace: Pace,
    rounds: u32,
    command: String,
    started: SystemTime,
    elapsed: Duration,
    tsc_hz: u64,
}

/// Measure for `time` and write to `directory`. `wanted`: the CPUs of both sides.
pub(super) fn run(directory: &Path, wanted: Option<[usize; 2]>, time: Duration) -> Result<(), Error> {
    let place = ReportDirectory::prepare(directory)?;
    let (started, clock) = (SystemTime::now(), Instant::now());
    let deadline = clock + time;
    let tsc_hz = rounds::tsc_hz();
    let _ = counter::counter_step(); // Found once, as the rate is: before the other side runs.
    let machine = fipsee_topology::machine::Machine::this();
    let cpus = wanted.or_else(|| course::two_cores(&machine));
    let info = MachineInfo::read(Path::new("/"), cpus.map_or(0, |[_, answerer]| answerer));
    let rows = course::rows(&machine, cpus);
    let measurements = rows.iter().map(|row| row.designs.len()).sum::<usize>();
    eprintln!(
        "measuring {measurements} figures for {:.0} s, again and again in turn; Ctrl-C ends it and leaves {} as it is",
        time.as_secs_f64(),
        directory.display()
    );
    let progress = Progress::start(directory)?;
    // Threads of its own, before this one is bound to a CPU.
    let lines = if cpus.is_some() { lines_of(&machine) } else { Err("there is one CPU to be used here".to_owned()) };
    progress.check()?;
    let wakings = idle::run(&info, cpus, (time / IDLE_ONE_IN).min(idle::expected(&info)), &progress)?;
    let pace = Pace::divide(deadline.saturating_duration_since(Instant::now()), &rows);
    progress.expect(u64::from(pace.rounds) * measurements as u64);
    let (outcomes, rounds) = measure::run(rows, pace, deadline, &progress)?;
    progress.check()?;
    progress.end();
    let states = states_of_pair(&outcomes, cpus);
    let (command, elapsed) = (text::command(), clock.elapsed());
    let report = Report { info, cpus, outcomes, wakings, lines, states, pace, rounds, command, started, elapsed, tsc_hz };
    let page = report.write(place)?;
    output::print(&format!("{}\n", page.display()))
}

fn lines_of(machine: &fipsee_topology::machine::Machine) -> Result<Matrix, String> {
    let measured = lines::course(machine, false).and_then(|course| lines::run(&course));
    measured.map(|measured| measured.matrix).map_err(|error| error.to_string())
}

impl Report {
    /// All files, and where the page is.
    fn write(&self, place: ReportDirectory) -> Result<std::path::PathBuf, Error> {
        let mut files = vec![
            (place::SIZES_PICTURE, plots::sizes(self)?),
            (place::WAITS_PICTURE, plots::waits(self)?),
            (place::FIGURES, format!("{:#}\n", figures::all(self))),
            (place::PAGE, page::render(self)),
        ];
        if let Ok(matrix) = &self.lines {
            files.push((place::LINES_PICTURE, topology::draw(&self.info.machine, matrix)?));
        }
        place.fill(&files)
    }

    /// Too few or too short measurements for figures to be quoted?
    fn is_hasty(&self) -> bool {
        self.pace.is_hasty() || self.rounds < course::LEAST_ROUNDS
    }

    /// The median of `design` where there is room for one figure: [`States::common`].
    fn common(&self, outcome: &Outcome, design: Design) -> Option<f64> {
        self.states.common(outcome.floors(), &outcome.cell(design)?.medians)
    }

    /// The states that an outcome's rounds are parted by; other CPUs than those of the tables have one of their own.
    fn states_of(&self, outcome: &Outcome) -> States {
        if outcome.row.cpus == self.cpus { self.states } else { states_of_pair(&self.outcomes, outcome.row.cpus) }
    }
}
