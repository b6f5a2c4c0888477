//! `cargo xtask bench scale`: many clients. The tables of the report on the split driver model, with its server beside ours; what
//! greedy users cost the others.

mod costs;
mod crowd;
mod fairness;
mod figures;
mod model;
mod notified;
mod ours;
mod picture;
mod split_driver;
mod tables;
mod workers;

use std::io::Write;

use fipsee_measure::claim;
use fipsee_measure::machine::Run;
use fipsee_measure::plot;
use fipsee_measure::results::append;
use serde_json::{Value, json};

use self::fairness::Fairness;
use self::figures::RATE;
use self::tables::{CONNECTIONS, Tables};
use self::workers::Workers;
use crate::Settings;
use crate::table::Results;

pub(crate) fn run(settings: &Settings) -> Result<(), String> {
    let run = Run::begin_in_sight();
    let (mut results, mut claims, mut skips) = (Results::default(), Vec::new(), Vec::new());
    let tables = if Tables::are_chosen(settings) { Some(Tables::start(settings)?) } else { None };
    let fairness = if Fairness::is_chosen(settings) { Some(Fairness::start(settings)?) } else { None };
    let mut workers = Workers::are_chosen(settings).then(Workers::default);
    for round in 0..settings.rounds {
        if let Some(tables) = &tables {
            tables.measure(settings, round, &mut results)?;
        }
        if let Some(fairness) = &fairness {
            fairness.measure(settings, &mut results)?;
        }
        if let Some(workers) = &mut workers {
            workers.measure(settings, &mut results)?;
        }
        if notified::is_chosen(settings) {
            notified::measure(settings, &mut results)?;
        }
        let _ = writeln!(std::io::stderr(), "round {} of {}", round + 1, settings.rounds);
    }
    let (machine, noise) = run.end();
    if let Some(workers) = &mut workers {
        workers.simulate_larger(settings, &mut results)?;
    }
    if let Some(tables) = &tables {
        tables.print(&results);
        claims.extend(tables.claims(&results));
        skips.extend(tables.skips.iter().cloned());
    }
    if let Some(fairness) = &fairness {
        fairness.print(&results);
        claims.extend(fairness.claims(&results));
        skips.extend(fairness.skips.iter().cloned());
    }
    if let Some(workers) = &workers {
        workers.print(&results);
        claims.extend(workers.claims(settings, &results));
    }
    if notified::is_chosen(settings) {
        notified::print(&results);
        claims.extend(notified::claims(&results));
    }
    if results.series.is_empty() {
        return Err("--only leaves nothing to measure".to_owned());
    }
    skips.iter().for_each(|(name, reason)| println!("skipped: {name}: {reason}"));
    println!("\n{}", claim::table(&claims));
    let judged = noise.judge(&quoted(&results));
    let entry = json!({
        "suite": "scale",
        "machine": machine,
        "rounds": settings.rounds,
        "seconds": settings.seconds,
        "tables": tables.as_ref().map_or(Value::Null, Tables::to_json),
        "costs": workers.as_ref().map_or(Value::Null, Workers::to_json),
        "series": results.to_json(),
        "claims": claim::to_json(&claims),
        "skipped": skips.iter().map(|(name, reason)| json!({ "candidate": name, "reason": reason })).collect::<Vec<_>>(),
    });
    append(&settings.file("scale", &judged), &entry)?;
    let pictures = [
        ("scale-tables", tables.and_then(|tables| picture::tables(tables.tables, &results, &entry))),
        ("scale-fairness", fairness.and_then(|fairness| picture::waits(fairness.users, &results, &entry))),
        ("scale-workers", workers.and_then(|workers| picture::workers(&workers, &results, &entry))),
    ];
    for (name, svg) in pictures.into_iter().filter_map(|(name, svg)| Some((name, svg?))) {
        plot::save(&settings.file(name, &judged).with_extension("svg"), &svg?)?;
    }
    if settings.is_whole() { judged } else { Ok(()) }
}

/// The rounds of what documents quote first: a connection each.
fn quoted(results: &Results) -> Vec<(String, Vec<f64>)> {
    let is_quoted = |series: &&crate::table::Series| series.metric == RATE && series.candidate.starts_with(CONNECTIONS);
    results.series.iter().filter(is_quoted).map(|series| (series.candidate.clone(), series.values.clone())).collect()
}
