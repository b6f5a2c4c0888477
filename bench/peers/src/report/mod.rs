//! What is said of a run: the table, the verdicts, a line of JSON, a picture.

mod claims;
mod plot;
mod table;

use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};

use crate::mechanisms::Entry;
use crate::results::Results;

/// A run and its results.
pub(crate) struct Run {
    pub(crate) entries: Vec<Entry>,
    pub(crate) results: Results,
    pub(crate) machine: Value,
    pub(crate) rounds: usize,
    pub(crate) cpus: [usize; 2],
    /// All mechanisms, all rounds: its results are kept under the name of the benchmark.
    pub(crate) is_whole: bool,
}

/// Print the run, append it to the results, draw it; `false` when a mechanism failed.
pub(crate) fn write(run: &Run, folder: &Path, as_json: bool) -> Result<bool, String> {
    let claims = claims::all(&run.entries, &run.results);
    let entry = to_json(run, &claims);
    let mut text = String::new();
    if as_json {
        text = format!("{entry}\n");
    } else {
        table::write(&mut text, run);
        claims::write(&mut text, &claims);
    }
    std::io::stdout().lock().write_all(text.as_bytes()).map_err(|error| format!("cannot print: {error}"))?;
    let stem = folder.join(if run.is_whole { "ipc" } else { "ipc-part" });
    append(&stem.with_extension("jsonl"), &entry)?;
    eprintln!("{}", plot::write(&stem, run)?);
    Ok(run.results.errors().next().is_none())
}

fn to_json(run: &Run, claims: &[claims::Claim]) -> Value {
    let missing = run.entries.iter().filter_map(|entry| Some(json!({ "mechanism": entry.name, "reason": entry.missing? })));
    let failed = run.results.errors().map(|(name, error)| json!({ "mechanism": name, "error": error }));
    json!({
        "suite": "ipc",
        "rounds": run.rounds,
        "cpus": run.cpus,
        "machine": run.machine,
        "series": run.results.to_json(),
        "claims": claims.iter().map(claims::Claim::to_json).collect::<Vec<_>>(),
        "missing": missing.collect::<Vec<_>>(),
        "failed": failed.collect::<Vec<_>>(),
    })
}

fn append(path: &Path, entry: &Value) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).map_err(failed)?;
    writeln!(file, "{entry}").map_err(failed)
}
