//! The report of a run: the table, the verdicts, a line of JSON, a picture.

mod claims;
mod picture;
mod table;

use std::io::Write;
use std::path::Path;

use fipsee_measure::claim::{self, Claim};
use fipsee_measure::plot;
use fipsee_measure::results::append;
use serde_json::{Value, json};

use crate::mechanisms::Entry;
use crate::results::Results;

pub(crate) struct Run {
    pub(crate) entries: Vec<Entry>,
    pub(crate) results: Results,
    pub(crate) machine: Value,
    pub(crate) rounds: usize,
    pub(crate) cpus: [usize; 2],
}

/// Print the run, append it to `stem`.jsonl, draw it; `false` when a mechanism failed.
pub(crate) fn write(run: &Run, stem: &Path, as_json: bool) -> Result<bool, String> {
    let claims = claims::all(&run.entries, &run.results);
    let entry = to_json(run, &claims);
    let mut text = String::new();
    if as_json {
        text = format!("{entry}\n");
    } else {
        table::write(&mut text, run);
        text = format!("{text}\n{}", claim::table(&claims));
    }
    std::io::stdout().lock().write_all(text.as_bytes()).map_err(|error| format!("cannot print: {error}"))?;
    append(&stem.with_extension("jsonl"), &entry)?;
    let svg = stem.with_extension("svg");
    plot::save(&svg, &picture::draw(run)?)?;
    eprintln!("plot: {}", svg.display());
    Ok(run.results.errors().next().is_none())
}

fn to_json(run: &Run, claims: &[Claim]) -> Value {
    let missing = run.entries.iter().filter_map(|entry| Some(json!({ "mechanism": entry.name, "reason": entry.missing? })));
    let failed = run.results.errors().map(|(name, error)| json!({ "mechanism": name, "error": error }));
    json!({
        "suite": "ipc",
        "rounds": run.rounds,
        "cpus": run.cpus,
        "machine": run.machine,
        "series": run.results.to_json(),
        "claims": claim::to_json(claims),
        "missing": missing.collect::<Vec<_>>(),
        "failed": failed.collect::<Vec<_>>(),
    })
}
