//! The pictures of a run: the report's tables, and what greedy users cost another.

use fipsee_measure::machine;
use fipsee_measure::plot::curves::{Curve, Panel, Points, draw};
use fipsee_measure::plot::{FLOOR, KERNEL, OURS, RGBColor, THEIRS, duration, rate};
use serde_json::Value;

use super::fairness;
use super::tables::{SERVERS, Table, candidate};
use super::workers::{self, Workers};
use crate::table::{P50, P99, RATE, Results, Series};

const COLORS: [RGBColor; 4] = [THEIRS, KERNEL, OURS, FLOOR];
/// Of the rows of a table that differ in two things, those with so many requests are drawn, or all if there are none.
const REQUESTS: usize = 100_000;

/// Requests per second of every server over what a table varies.
pub(super) fn tables(tables: &[Table], results: &Results, entry: &Value) -> Option<Result<String, String>> {
    let curves = |table: &Table| {
        let drawn = |server: &'static str| {
            let has_many = table.rows.iter().any(|row| row.requests == REQUESTS);
            let rows = table.rows.iter().filter(|row| !has_many || row.requests == REQUESTS);
            let point = |row| Some(((table.varies)(row), results.get(&candidate(server, row), RATE)?.median()));
            rows.filter_map(point).collect::<Points>()
        };
        SERVERS.iter().zip(COLORS).map(|(server, color)| Curve::new(server, color, drawn(server))).collect::<Vec<_>>()
    };
    let panel = |table: &Table| Panel {
        title: table.title.split(';').next().unwrap_or_default().to_owned(),
        names: [table.axis, "requests per second"],
        is_logarithmic: [true, true],
        curves: curves(table),
        label: rate,
    };
    let panels: Vec<Panel<'_>> = tables.iter().map(panel).filter(has_points).collect();
    drawing(&panels, "The report's tables: random reads of 512 B from a file in the page cache, each client one at a time", entry)
}

/// The wait of a client beside users with full queues.
pub(super) fn waits(users: &[usize], results: &Results, entry: &Value) -> Option<Result<String, String>> {
    let points = |metric, figure: fn(&Series) -> f64| {
        let of = |users: &usize| results.get(&fairness::beside(*users), metric).map(figure);
        users.iter().filter_map(|users| Some((fipsee::load::count_f64(*users as u64), of(users)?))).collect()
    };
    let panel = Panel {
        title: "A request of 4 KiB beside users with 16 queues full of requests of 1 MiB".to_owned(),
        names: ["users", "wait"],
        is_logarithmic: [true, true],
        curves: vec![
            Curve::new("p50", OURS, points(P50, Series::median)),
            Curve::new("p99", KERNEL, points(P99, Series::median)),
            Curve::new("worst", THEIRS, points(fairness::WORST, Series::most)),
        ],
        label: duration,
    };
    let panels: Vec<Panel<'_>> = [panel].into_iter().filter(has_points).collect();
    drawing(&panels, "One worker; the waiting client and all users are driven by one thread on the other CPU", entry)
}

/// Requests per second of real workers beside the model of them, and of the model of larger machines.
pub(super) fn workers(workers: &Workers, results: &Results, entry: &Value) -> Option<Result<String, String>> {
    let loads = Workers::curves(results);
    let color = |index: usize| COLORS[index % COLORS.len()];
    let both = |(index, (name, [real, model])): (usize, &(&'static str, [Points; 2]))| {
        let dashed = Curve { is_dashed: true, ..Curve::new("simulated", color(index), model.clone()) };
        [Curve::new(name, color(index), real.clone()), dashed]
    };
    let measured = Panel {
        title: "Measured (lines) and simulated (dashes)".to_owned(),
        names: ["clients", "requests per second"],
        is_logarithmic: [true, true],
        curves: loads.iter().enumerate().flat_map(both).collect(),
        label: rate,
    };
    let counts = workers::QUEUES;
    let names = counts.map(|count| format!("{count} clients"));
    let of = |count: usize| workers.larger().filter(move |(_, queues, _)| *queues == count);
    let points = |count| of(count).map(|(cpus, _, rate)| (fipsee::load::count_f64(cpus as u64), rate)).collect();
    let larger = Panel {
        title: "Simulated: null disk, QD1, best number of workers".to_owned(),
        names: ["CPUs", "requests per second"],
        is_logarithmic: [true, true],
        curves: counts.iter().enumerate().map(|(index, count)| Curve::new(&names[index], color(index), points(*count))).collect(),
        label: rate,
    };
    let panels: Vec<Panel<'_>> = [measured, larger].into_iter().filter(has_points).collect();
    drawing(
        &panels,
        "Costs of each step are measured on this machine's two CPUs; larger machines are simulated with these",
        entry,
    )
}

fn has_points(panel: &Panel<'_>) -> bool {
    panel.curves.iter().any(|curve| !curve.points.is_empty())
}

fn drawing(panels: &[Panel<'_>], head: &str, entry: &Value) -> Option<Result<String, String>> {
    let conditions = format!("Medians of {} rounds, interleaved in one run.", entry["rounds"]);
    (!panels.is_empty()).then(|| draw(panels, &[head], &[conditions, machine::of_revision(&entry["machine"])]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_measured_is_drawn_and_nothing_is_no_picture() {
        let mut results = Results::default();
        let entry = json!({ "rounds": 3, "machine": { "cpu": "A CPU" } });
        let users = [1, 2];
        assert!(waits(&users, &results, &entry).is_none());
        for (count, ns) in [(1, 1e5), (2, 2e5)] {
            results.add(&fairness::beside(count), P50, ns);
            results.add(&fairness::beside(count), P99, ns * 2.0);
            results.add(&fairness::beside(count), fairness::WORST, ns * 3.0);
        }
        let svg = waits(&users, &results, &entry).expect("there is something").expect("a picture");
        for words in ["p50", "p99", "worst", "users", "3 rounds", "A CPU"] {
            assert!(svg.contains(words), "{words} is missing");
        }
    }
}
