//! `report.md`: the page.

use std::fmt::Write as _;

use fipsee_measure::harness::{Design, rounds};
use fipsee_measure::statistics::Spread;
use fipsee_ring::wait::WaitMode;
use fipsee_topology::machine::Distance;

use super::measure::{Cell, Outcome};
use super::tables::{self, Content, Table};
use super::text::{hundredths, table, tenths, utc, whole};
use super::{Report, place, published};
use crate::ping::counter;

pub(super) fn render(report: &Report) -> String {
    let mut page = head(report);
    page.push_str(&machine(report));
    for table in tables::all(report) {
        let _ = write!(page, "\n## Table {}: {}\n\nIn the report: {}.\n\n", table.number, table.title, table.published);
        page.push_str(&match (&table.missing, table.content) {
            (Some(reason), _) => format!("Here: {reason}.\n"),
            (None, Content::Sizes) => sizes(report, &table),
            (None, Content::States) => states(report),
            (None, Content::Waits { with_wakings }) => waits(report, &table, with_wakings),
        });
    }
    page.push_str(&matrices(report));
    page.push_str(&pairs(report));
    page.push_str(&lines(report));
    page
}

fn head(report: &Report) -> String {
    let mut text = format!(
        "# Tables 1 to 7 and figure 6 of the Fip-see report, on this machine\n\n\
         Written by `{}` (fipsee {}), {}, in {:.0} s; every figure in {} of {:.0} ms. All figures: [{file}]({file}).\n",
        report.command,
        env!("CARGO_PKG_VERSION"),
        utc(report.started),
        report.elapsed.as_secs_f64(),
        count(report.rounds, "round"),
        report.pace.measured.as_secs_f64() * 1e3,
        file = place::FIGURES,
    );
    if report.is_hasty() {
        text.push_str("\n**This was a hasty run, which shows that everything works: quote none of its figures.**\n");
    }
    let place = report.cpus.map_or_else(
        || "This process may use one CPU, so both sides share it: every message costs a switch between two processes, there are no \
            pairs of CPUs and no figure 6, and nothing here can be compared with the report."
            .to_owned(),
        |[caller, answerer]| format!("The calling side runs on CPU {caller}, the answering side on CPU {answerer}."),
    );
    let _ = write!(
        text,
        "\nTwo processes; a burst of messages of 60 bytes goes to the answering side, and as many answers come back; both sides \
         check every byte. Figures are cycles of the time-stamp counter ({} MHz) from before the first message to after the last \
         answer: the median burst of the median round; minimum, mean and 99th percentile of all rounds together. {place}\n\n\
         - *channel*: as the product uses it, with its doorbells; *report's ring*: the ring of the report, measured right beside \
         it in each round.\n\
         - *ONE LINE*: a word bounced to and fro, the floor of the machine, measured in the same round; median, least and most of \
         the rounds.\n\
         - *TO REPORT'S RING*: the median burst's time as a part of that of the report's ring, round by round; median, least and \
         most.\n{}{}",
        report.tsc_hz / 1_000_000,
        steps(),
        near_and_far(report),
    );
    text
}

/// Steps this wide show in the median of a round trip.
const COARSE_STEP: u64 = 5;

fn steps() -> String {
    match counter::counter_step() {
        step @ COARSE_STEP.. => format!("- The counter counts in steps of {step}; medians are interpolated within a step.\n"),
        _ => String::new(),
    }
}

/// `1 round`, `2 rounds`.
fn count(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn near_and_far(report: &Report) -> String {
    let Some(border) = report.states.border else { return String::new() };
    format!(
        "- *NEAR / FAR*: a line took less than {border:.0} cycles in some rounds and more in others, as if the host had moved the CPUs; \
         medians of the rounds of either kind, in brackets those to the \
         report's ring; a - where there was no such round. All other figures mix both.\n"
    )
}

fn machine(report: &Report) -> String {
    let lines = report.info.lines();
    let rows: Vec<Vec<String>> = lines.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    let mut text = format!("\n## The machine\n\n{}", table(2, &["", ""], &rows));
    for unknown in &report.info.machine.unknown {
        let _ = write!(text, "\nNote: {unknown}.\n");
    }
    text
}

/// Median (least to most).
fn spread(spread: Option<Spread>, digits: usize) -> String {
    spread.map_or_else(
        || "-".to_owned(),
        |Spread { median, min, max }| format!("{median:.digits$} ({min:.digits$} to {max:.digits$})"),
    )
}

const FIGURES: [&str; 6] = ["MIN", "MEAN", "MEDIAN", "P99", "TO REPORT'S RING", "ONE LINE"];

/// The last two columns belong to the channel's line; near and far follow them, if there are two states.
fn figures(report: &Report, outcome: &Outcome, cell: &Cell) -> Vec<String> {
    let mut row: Vec<String> = cell.figures().map(whole).to_vec();
    let is_channel = cell.design == Design::Channel;
    let ratios = outcome.ratios(cell.design, Design::Classic).filter(|_| is_channel);
    row.push(spread(ratios.clone().map(Spread::of), 2));
    row.push(if is_channel { spread(Some(Spread::of(outcome.floors().to_vec())), 0) } else { String::new() });
    if report.states.border.is_some() {
        row.push(split(report, outcome, cell, ratios.as_deref()));
    }
    row
}

/// Near and far, and the ratios to the report's ring in either state.
fn split(report: &Report, outcome: &Outcome, cell: &Cell, ratios: Option<&[f64]>) -> String {
    let states = report.states_of(outcome);
    let Some([near, far]) = states.split(outcome.floors(), &cell.medians) else { return "-".to_owned() };
    let medians = format!("{} / {}", whole(near), whole(far));
    let ratios = ratios.and_then(|ratios| states.split(outcome.floors(), ratios));
    ratios.map_or(medians.clone(), |[near, far]| format!("{medians} ({} / {})", hundredths(near), hundredths(far)))
}

fn headings<'a>(report: &Report, first: &[&'a str], last: &[&'a str]) -> Vec<&'a str> {
    let states: &[&str] = if report.states.border.is_some() { &["NEAR / FAR"] } else { &[] };
    [first, &FIGURES, states, last].concat()
}

/// The two rings, by their names on the page.
const RINGS: [(Design, &str); 2] = [(Design::Channel, "channel"), (Design::Classic, "report's ring")];

fn sizes(report: &Report, shown: &Table<'_>) -> String {
    let mut rows = Vec::new();
    for outcome in &shown.outcomes {
        let queue = outcome.row.queue();
        for (design, name) in RINGS {
            let Some(cell) = outcome.cell(design) else { continue };
            let mut row = vec![queue.to_string(), name.to_owned()];
            row.extend(figures(report, outcome, cell));
            let per_message = cell.median() / f64::from(queue);
            row.push(tenths(per_message));
            row.push(tenths(rounds::to_ns(per_message, report.tsc_hz)));
            let there = published::burst(queue, outcome.row.spec.pause);
            row.push(there.map_or_else(String::new, |there| there.median.to_string()));
            rows.push(row);
        }
    }
    let last = ["MEDIAN PER MESSAGE", "NS PER MESSAGE", "IN THE REPORT"];
    let picture = if shown.number == 1 {
        picture(place::SIZES_PICTURE, "Cycles per message by the size of the burst")
    } else {
        String::new()
    };
    format!("{}{picture}", table(2, &headings(report, &["BURST OF", "WHAT"], &last), &rows))
}

fn picture(file: &str, words: &str) -> String {
    format!("\n![{words}]({file})\n")
}

fn states(report: &Report) -> String {
    let states = &report.info.idle_states;
    if states.is_empty() {
        return "Here: the kernel shows no idle states.\n".to_owned();
    }
    let row = |state: &super::machine::IdleState| {
        let disabled = if state.is_disabled { "disabled" } else { "" };
        vec![
            state.name.clone(),
            state.description.clone(),
            disabled.to_owned(),
            state.latency_us.to_string(),
            state.residency_us.to_string(),
        ]
    };
    let rows: Vec<_> = states.iter().map(row).collect();
    table(3, &["STATE", "DESCRIPTION", "", "US TO LEAVE IT", "SHORTEST STAY THAT PAYS, US"], &rows)
}

fn waits(report: &Report, shown: &Table<'_>, with_wakings: bool) -> String {
    let mut rows = Vec::new();
    for outcome in &shown.outcomes {
        let wait = outcome.row.answerer_wait();
        for (design, name) in RINGS {
            let Some(cell) = outcome.cell(design) else { continue };
            let mut row = vec![wait.to_owned(), name.to_owned()];
            row.extend(figures(report, outcome, cell));
            row.push(whole(rounds::to_ns(cell.median(), report.tsc_hz)));
            rows.push(row);
        }
    }
    let mut text = table(2, &headings(report, &["ANSWERING SIDE", "WHAT"], &["NS"]), &rows);
    let _ = write!(text, "\nBursts of 1: a message and its answer. Not measured: {}.\n", missing_waits());
    if with_wakings {
        text.push_str(&wakings(report));
    }
    text
}

fn wakings(report: &Report) -> String {
    let row = |waking: &super::idle::Waking| {
        let entered: Vec<String> = waking.entered.iter().map(|(state, count)| format!("{state} {count} times")).collect();
        let entered = if entered.is_empty() { "none counted".to_owned() } else { entered.join(", ") };
        let mut row = vec![waking.limit.clone().unwrap_or_else(|| "(no limit)".to_owned()), entered];
        row.extend(waking.figures().map(whole));
        row.push(waking.ns.len().to_string());
        row
    };
    let rows: Vec<Vec<String>> = report.wakings.rows.iter().map(row).collect();
    let mut text =
        "\nOne way, in nanoseconds, to an answering side that sleeps in the kernel after a millisecond of silence, by the \
                    slowest idle state that its CPU may enter:\n\n"
            .to_owned();
    text.push_str(&table(2, &["SLOWEST STATE", "ENTERED", "MIN", "MEAN", "MEDIAN", "P99", "COUNT"], &rows));
    if let Some(missing) = &report.wakings.missing {
        let _ = write!(text, "\nNot measured: {missing}.\n");
    }
    text
}

fn matrices(report: &Report) -> String {
    let mut text = format!(
        "\n## One side waits differently from the other\n\nMedian cycles of a message and its answer{}: the calling side waits as \
         the row says, the answering side as the column says.\n",
        report.states.common_words(),
    );
    for (design, name) in RINGS {
        let modes = WaitMode::ALL.map(WaitMode::name);
        let headings: Vec<&str> = std::iter::once("").chain(modes).collect();
        let cell = |caller, answerer| {
            let found = tables::waiting(report, caller, answerer);
            let median = found.and_then(|outcome| report.common(outcome, design));
            median.map_or_else(|| "-".to_owned(), whole)
        };
        let row = |caller: WaitMode| {
            let cells = WaitMode::ALL.map(|answerer| cell(caller, answerer));
            std::iter::once(caller.name().to_owned()).chain(cells).collect::<Vec<_>>()
        };
        let _ = write!(text, "\nThe {name}:\n\n{}", table(1, &headings, &WaitMode::ALL.map(row)));
    }
    let _ = write!(text, "\nA - is not measured: {}.\n", missing_waits());
    text.push_str(&picture(place::WAITS_PICTURE, "Round trips by the ways in which both sides wait"));
    text
}

/// The wait modes that were not measured, and the reasons.
fn missing_waits() -> String {
    let missing = WaitMode::ALL.into_iter().filter_map(|mode| Some((mode, mode.available().err()?.missing())));
    let missing = missing.map(|(mode, missing)| format!("{mode}: this CPU has {missing}"));
    let no_doorbell = "sleep and adaptive with the report's ring: it has no doorbell, so no side can sleep there".to_owned();
    missing.chain([no_doorbell]).collect::<Vec<_>>().join("; ")
}

fn pairs(report: &Report) -> String {
    let mut text = format!("\n## Pairs of CPUs\n\nIn the report: {}.\n\n", published::LINES);
    let outcomes = tables::pairs(report);
    if outcomes.is_empty() {
        text.push_str("Here: not measured, there is one CPU to be used.\n");
        return text;
    }
    let mut rows = Vec::new();
    for outcome in &outcomes {
        let Some([caller, answerer]) = outcome.row.cpus else { continue };
        for (design, name) in RINGS {
            let Some(cell) = outcome.cell(design) else { continue };
            let distance = report.info.machine.distance(caller, answerer).text();
            let queue = outcome.row.queue().to_string();
            let mut row = vec![distance.to_owned(), format!("{caller} to {answerer}"), queue, name.to_owned()];
            row.extend(figures(report, outcome, cell));
            rows.push(row);
        }
    }
    text.push_str(&table(4, &headings(report, &["DISTANCE", "CPUS", "BURST OF", "WHAT"], &[]), &rows));
    let has = |distance| {
        outcomes.iter().filter_map(|outcome| outcome.row.cpus).any(|[a, b]| report.info.machine.distance(a, b) == distance)
    };
    let absent = [(Distance::SameCore, "two threads of one core"), (Distance::OtherSocket, "several sockets")];
    let absent: Vec<&str> = absent.into_iter().filter(|(distance, _)| !has(*distance)).map(|(_, name)| name).collect();
    if !absent.is_empty() {
        let _ = write!(text, "\nThis machine shows this process no {}.\n", absent.join(" and no "));
    }
    text
}

fn lines(report: &Report) -> String {
    let mut text = format!("\n## Figure 6: moving a modified line between two CPUs\n\nIn the report: {}.\n", published::LINES);
    let matrix = match &report.lines {
        Ok(matrix) => matrix,
        Err(reason) => {
            let _ = write!(text, "\nHere: not measured: {reason}.\n");
            return text;
        }
    };
    let at = |distance: Distance| {
        let cost = matrix.at_distance(&report.info.machine, distance)?;
        let (median, least) = (whole(cost.median_ticks), whole(cost.least_ticks));
        Some(vec![distance.text().to_owned(), median, least, whole(matrix.to_ns(cost.median_ticks))])
    };
    let rows: Vec<Vec<String>> = Distance::ALL.into_iter().filter_map(at).collect();
    let _ = write!(text, "\n{}", table(1, &["DISTANCE", "MEDIAN CYCLES", "LEAST", "NS"], &rows));
    text.push_str(&picture(place::LINES_PICTURE, "What moving a modified line costs, from each CPU to each other"));
    text
}
