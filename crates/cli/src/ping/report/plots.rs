//! The pictures of the page but figure 6, which is the topology's.

use fipsee_measure::harness::Design;
use fipsee_measure::plot::curves::{self, Curve, Panel, Points};
use fipsee_measure::plot::heat::{Map, Picture};
use fipsee_measure::plot::{BASELINE, FLOOR, OURS, THEIRS};
use fipsee_measure::statistics::Spread;
use fipsee_ring::wait::WaitMode;

use super::course::{Part, QUEUES};
use super::measure::Outcome;
use super::{Report, published, tables};
use crate::error::Error;

/// Tables 1, 5 and 6: cycles of a message by the size of its burst.
pub(super) fn sizes(report: &Report) -> Result<String, Error> {
    let panels = [true, false].map(|pause| Panel {
        title: format!("Cycles per message, {} PAUSE", if pause { "with" } else { "without" }),
        names: ["messages per burst", "cycles"],
        is_logarithmic: [true, false],
        curves: vec![
            Curve::new("in the report, on its machine", BASELINE, there(pause)),
            Curve::new("one line bounced", FLOOR, floor(report, pause)),
            Curve::new("report's ring, here", THEIRS, here(report, Design::Classic, pause)),
            Curve::new("channel", OURS, here(report, Design::Channel, pause)),
        ],
        label: curves::plain,
    });
    Ok(curves::draw(&panels, &[&head(report)], &[])?)
}

fn head(report: &Report) -> String {
    let place = report.cpus.map_or_else(|| "one CPU".to_owned(), |[a, b]| format!("CPUs {a} and {b}"));
    format!(
        "{}, {place}; cycles of {} MHz, medians{}",
        report.info.machine.model,
        report.tsc_hz / 1_000_000,
        report.states.common_words()
    )
}

fn here(report: &Report, design: Design, pause: bool) -> Points {
    let point = |outcome: &Outcome| {
        let queue = f64::from(outcome.row.queue());
        Some((queue, report.common(outcome, design)? / queue))
    };
    of_sizes(report, pause).filter_map(point).collect()
}

fn of_sizes(report: &Report, pause: bool) -> impl Iterator<Item = &Outcome> {
    report.outcomes.iter().filter(move |outcome| outcome.row.part == Part::Sizes && outcome.row.spec.pause == pause)
}

/// One height for all sizes: the median of the floors beside them.
fn floor(report: &Report, pause: bool) -> Points {
    let floor = |outcome: &Outcome| report.common(outcome, Design::OneLine);
    let Spread { median, .. } = Spread::of(of_sizes(report, pause).filter_map(floor).collect());
    let ends = QUEUES.first().into_iter().chain(QUEUES.last()).filter(|_| median.is_finite());
    ends.map(|queue| (f64::from(*queue), median)).collect()
}

fn there(pause: bool) -> Points {
    let point =
        |queue| published::burst(queue, pause).map(|there| (f64::from(queue), f64::from(there.median) / f64::from(queue)));
    QUEUES.into_iter().filter_map(point).collect()
}

/// Round trips by the ways in which both sides wait.
pub(super) fn waits(report: &Report) -> Result<String, Error> {
    // Wait modes that this CPU lacks would be grey stripes.
    let modes: Vec<WaitMode> = WaitMode::ALL.into_iter().filter(|mode| mode.available().is_ok()).collect();
    let names: Vec<String> = modes.iter().map(|mode| mode.name().to_owned()).collect();
    let map = |(design, title): (Design, &str)| {
        let figure = |caller, answerer| {
            let outcome = tables::waiting(report, caller, answerer)?;
            report.common(outcome, design)
        };
        let row = |caller: &WaitMode| modes.iter().map(|answerer| figure(*caller, *answerer)).collect();
        Map { title: title.to_owned(), figures: modes.iter().map(row).collect() }
    };
    let maps = [(Design::Channel, "Channel"), (Design::Classic, "Report's ring")].map(map);
    let picture = Picture {
        head: ["Cycles of a message and its answer", &head(report)],
        columns: "how the answering side waits",
        names: &names,
        maps: &maps,
        is_logarithmic: true,
        legend: None,
        foot: &["Rows: how the calling side waits. Darker: more cycles, by the logarithm, the same scale for all. Grey: not measured."
            .to_owned()],
    };
    Ok(picture.draw()?)
}
