//! `report.json`: every figure of the page (docs/ping.md).

use fipsee_measure::harness::{Design, rounds};
use fipsee_measure::statistics::Spread;
use serde_json::{Value, json};

use super::course::Part;
use super::measure::{Cell, Outcome};
use super::tables::{self, Content, Table};
use super::{Report, place, published, text};
use crate::ping::counter;

pub(super) fn all(report: &Report) -> Value {
    let table = |table: &Table<'_>| {
        let outcomes = table.outcomes.iter().flat_map(|outcome| rows(report, outcome));
        let rows = match table.content {
            Content::States => report.info.to_json(report.tsc_hz)["idle_states"].take(),
            Content::Sizes | Content::Waits { .. } => outcomes.collect(),
        };
        let mut json = json!({
            "table": table.number, "title": table.title, "in_the_report": table.published, "rows": rows, "missing": table.missing,
        });
        if table.content == (Content::Waits { with_wakings: true }) && table.missing.is_none() {
            json["wake_ups"] = report.wakings.rows.iter().map(super::idle::Waking::to_json).collect();
            json["wake_ups_missing"] = json!(report.wakings.missing);
        }
        json
    };
    let of = |part: Part| {
        let outcomes = report.outcomes.iter().filter(move |outcome| outcome.row.part == part);
        outcomes.flat_map(|outcome| rows(report, outcome)).collect::<Vec<_>>()
    };
    json!({
        "report": place::KIND,
        "version": env!("CARGO_PKG_VERSION"),
        "command": report.command,
        "started": text::utc(report.started),
        "elapsed_s": report.elapsed.as_secs_f64(),
        "rounds": report.rounds,
        "seconds_per_measurement": report.pace.measured.as_secs_f64(),
        "is_hasty": report.is_hasty(),
        "cpus": report.cpus,
        "near_below_cycles": report.states.border,
        "tsc_hz": report.tsc_hz,
        "tsc_step": counter::counter_step(),
        "machine": report.info.to_json(report.tsc_hz),
        "tables": tables::all(report).iter().map(table).collect::<Vec<_>>(),
        "waits": of(Part::Waits),
        "pairs": of(Part::Pairs),
        "figure_6": lines(report),
    })
}

/// An object for each design of an outcome, and for each that is missing.
fn rows(report: &Report, outcome: &Outcome) -> Vec<Value> {
    let designs = [Design::OneLine, Design::Channel, Design::Classic];
    let row = |design: Design| {
        let spec = &outcome.row.spec;
        let mut json = json!({
            "design": design, "queue": outcome.row.queue(), "pause": spec.pause, "cpus": outcome.row.cpus,
            "caller_wait": spec.wait, "answerer_wait": outcome.row.answerer_wait(),
        });
        if design == Design::OneLine {
            json["queue"] = 1.into(); // A line holds one message.
        } else if let (Part::Sizes, Some(there)) = (outcome.row.part, published::burst(outcome.row.queue(), spec.pause)) {
            json["in_the_report"] = json!({ "min": there.min, "mean": there.mean, "median": there.median });
        }
        match outcome.cell(design) {
            Some(cell) => put_figures(&mut json, report, outcome, cell),
            None => json["unavailable"] = outcome.row.missing.unwrap_or("not measured").into(),
        }
        json
    };
    designs.into_iter().map(row).collect()
}

fn put_figures(json: &mut Value, report: &Report, outcome: &Outcome, cell: &Cell) {
    let (figures, states) = (cell.figures(), report.states_of(outcome));
    for (name, cycles) in ["min", "mean", "p50", "p99"].into_iter().zip(figures) {
        json[format!("cycles_per_batch_{name}")] = cycles.into();
        json[format!("ns_per_batch_{name}")] = rounds::to_ns(cycles, report.tsc_hz).into();
    }
    let [_, _, median, _] = figures;
    let queue = json["queue"].as_f64().unwrap_or(1.0);
    json["cycles_per_message"] = (median / queue).into();
    json["ns_per_message"] = rounds::to_ns(median / queue, report.tsc_hz).into();
    json["batches"] = cell.ticks.len().into();
    for (name, other) in [("ratio_to_classic", Design::Classic), ("ratio_to_one_line", Design::OneLine)] {
        let Some(ratios) = outcome.ratios(cell.design, other) else { continue };
        json[name] = Spread::of(ratios.clone()).to_json();
        if let Some([near, far]) = states.split(outcome.floors(), &ratios) {
            json[name]["near"] = near.into();
            json[name]["far"] = far.into();
        }
    }
    if let Some([near, far]) = states.split(outcome.floors(), &cell.medians) {
        // A state that no round of this row was in is null.
        json["cycles_per_batch_near"] = near.into();
        json["cycles_per_batch_far"] = far.into();
    }
    let rounds = cell.medians.iter().zip(outcome.floors());
    json["rounds"] = rounds.map(|(cycles, floor)| json!({ "cycles_per_batch_p50": cycles, "one_line_cycles": floor })).collect();
}

fn lines(report: &Report) -> Value {
    let matrix = match &report.lines {
        Ok(matrix) => matrix,
        Err(reason) => return json!({ "in_the_report": published::LINES, "missing": reason, "costs": [] }),
    };
    let cost = |((from, to), cost): ((usize, usize), fipsee_topology::matrix::Cost)| {
        json!({
            "from": from, "to": to, "distance": report.info.machine.distance(from, to).text(),
            "median_cycles": cost.median_ticks, "least_cycles": cost.least_ticks, "median_ns": matrix.to_ns(cost.median_ticks),
        })
    };
    json!({
        "in_the_report": published::LINES, "missing": null, "own_cycles": matrix.own_ticks,
        "costs": matrix.costs().map(cost).collect::<Vec<_>>(),
    })
}
