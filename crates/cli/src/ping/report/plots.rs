//! The pictures of the page but figure 6, which is the topology's.

use fipsee_ring::wait::WaitMode;
use plotters::style::RGBColor;

use super::course::{Part, QUEUES};
use super::heat::{self, Map};
use super::{Report, published, tables};
use crate::error::Error;
use crate::ping::picture::{self, MIDDLE, Panel, Points, TAIL};
use crate::ping::plan::Design;

/// The report's own figures, and the floor: there to be compared with.
const FAINT: RGBColor = RGBColor(0x9a, 0xa4, 0xac);
const FLOOR: RGBColor = RGBColor(0x4d, 0x8b, 0x31);

/// Tables 1, 5 and 6: cycles of a message by the size of its burst.
pub(super) fn sizes(report: &Report) -> Result<String, Error> {
    let panels = [true, false].map(|pause| Panel {
        title: format!("Cycles per message, median, {} PAUSE", if pause { "with" } else { "without" }),
        x_name: "messages per burst",
        y_name: "cycles",
        logarithmic_x: true,
        curves: vec![
            ("in the report, on its machine", FAINT, there(pause)),
            ("one line bounced (bursts of 1)", FLOOR, here(report, Design::OneLine, pause)),
            ("report's ring, here", TAIL, here(report, Design::Classic, pause)),
            ("channel", MIDDLE, here(report, Design::Channel, pause)),
        ],
    });
    picture::render(&panels, &head(report))
}

fn head(report: &Report) -> String {
    let place = report.cpus.map_or_else(|| "one CPU".to_owned(), |[a, b]| format!("CPUs {a} and {b}"));
    format!("{}, {place}; cycles of {} MHz", report.facts.machine.model, report.tsc_hz / 1_000_000)
}

fn here(report: &Report, design: Design, pause: bool) -> Points {
    let rows = report.outcomes.iter().filter(|outcome| outcome.row.part == Part::Sizes && outcome.row.spec.pause == pause);
    let point = |outcome: &super::measure::Outcome| {
        let queue = f64::from(outcome.row.queue());
        let messages = if design == Design::OneLine { 1.0 } else { queue };
        Some((queue, outcome.cell(design)?.median() / messages))
    };
    rows.filter_map(point).collect()
}

fn there(pause: bool) -> Points {
    let point =
        |queue| published::burst(queue, pause).map(|there| (f64::from(queue), f64::from(there.median) / f64::from(queue)));
    QUEUES.into_iter().filter_map(point).collect()
}

/// Round trips by the ways in which both sides wait.
pub(super) fn waits(report: &Report) -> Result<String, Error> {
    // Ways that this CPU lacks would be grey stripes.
    let modes: Vec<WaitMode> = WaitMode::ALL.into_iter().filter(|mode| mode.available().is_ok()).collect();
    let names: Vec<&str> = modes.iter().map(|mode| mode.name()).collect();
    let map = |(design, title): (Design, &str)| {
        let figure = |caller, answerer| {
            let outcome = tables::waiting(report, caller, answerer)?;
            Some(outcome.cell(design)?.median())
        };
        let row = |caller: &WaitMode| modes.iter().map(|answerer| figure(*caller, *answerer)).collect();
        Map { title: title.to_owned(), figures: modes.iter().map(row).collect() }
    };
    let maps = [(Design::Channel, "Channel"), (Design::Classic, "Report's ring")].map(map);
    let head = format!("Median cycles of a message and its answer; {}", head(report));
    let sides = ["Rows: how the calling side waits", "how the answering side waits"];
    heat::draw(&head, sides, &names, &maps)
}
