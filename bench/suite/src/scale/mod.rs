//! `cargo xtask bench scale`: many clients. The tables of the report on the split driver model, with its server beside ours; what
//! greedy users cost the others; workers; notifications; a dedicated disk; rates.

mod automatic;
mod costs;
mod crowd;
mod dedicated;
mod fairness;
mod figures;
mod harness;
mod model;
mod notified;
mod ours;
mod picture;
mod rates;
mod split_driver;
mod tables;
mod workers;

use std::io::Write;
use std::time::Instant;

use fipsee_measure::claim::{self, Claim};
use fipsee_measure::machine::Run;
use fipsee_measure::plot;
use fipsee_measure::results::append;
use serde_json::{Value, json};

use self::automatic::Automatic;
use self::dedicated::Dedicated;
use self::fairness::Fairness;
use self::notified::Notified;
use self::rates::Rates;
use self::tables::{CONNECTIONS, Tables};
use self::workers::Workers;
use crate::Settings;
use crate::table::{RATE, Results, Series};

/// A name of a file, and what belongs into it.
type Picture = (&'static str, Result<String, String>);

/// What is measured once in each round.
trait Part {
    fn measure(&mut self, settings: &Settings, round: usize, results: &mut Results) -> Result<(), String>;

    /// What needs no quiet machine, after the last round.
    fn finish(&mut self, _settings: &Settings, _results: &mut Results) -> Result<(), String> {
        Ok(())
    }

    fn print(&self, results: &Results);

    fn claims(&self, settings: &Settings, results: &Results) -> Vec<Claim>;

    /// What could not be measured, and why.
    fn skips(&self) -> &[(String, String)] {
        &[]
    }

    /// What is no series: a field of the line of results.
    fn to_json(&self) -> Option<(&'static str, Value)> {
        None
    }

    fn picture(&self, _results: &Results, _entry: &Value) -> Option<Picture> {
        None
    }
}

struct Kind {
    /// As `--only` has it.
    name: &'static str,
    /// Is anything of it to be measured?
    is_chosen: fn(&Settings) -> bool,
    start: fn(&Settings) -> Result<Box<dyn Part>, String>,
}

const KINDS: [Kind; 7] = [
    Kind { name: "tables", is_chosen: Tables::are_chosen, start: |settings| Ok(Box::new(Tables::start(settings)?)) },
    Kind { name: "fairness", is_chosen: Fairness::is_chosen, start: |settings| Ok(Box::new(Fairness::start(settings)?)) },
    Kind { name: "workers", is_chosen: Workers::are_chosen, start: |_| Ok(Box::new(Workers::default())) },
    Kind { name: "max-rate", is_chosen: Notified::is_chosen, start: |_| Ok(Box::new(Notified)) },
    Kind { name: "auto", is_chosen: Automatic::is_chosen, start: |settings| Ok(Box::new(Automatic::new(settings))) },
    Kind { name: "dedicated", is_chosen: Dedicated::is_chosen, start: |_| Ok(Box::new(Dedicated::new())) },
    Kind { name: "limits", is_chosen: Rates::are_chosen, start: |_| Ok(Box::new(Rates)) },
];

/// A part, with the settings for it.
struct Chosen {
    name: &'static str,
    settings: Settings,
    part: Box<dyn Part>,
}

fn choose(settings: &Settings) -> Result<Vec<Chosen>, String> {
    let mut chosen = Vec::new();
    for kind in &KINDS {
        let Some(settings) = of_part(settings, kind.name).filter(|settings| (kind.is_chosen)(settings)) else { continue };
        let part = (kind.start)(&settings)?;
        chosen.push(Chosen { name: kind.name, settings, part });
    }
    if chosen.is_empty() {
        let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
        return Err(format!("--only leaves nothing to measure; name a candidate, or a part: {}", names.join(", ")));
    }
    Ok(chosen)
}

/// The settings of a part, which has all its candidates if `--only` names it; `None` if only others are named.
fn of_part(settings: &Settings, name: &str) -> Option<Settings> {
    let mut settings = settings.clone();
    if settings.only.iter().any(|only| only == name) {
        settings.only.clear();
    } else if !settings.only.is_empty() {
        settings.only.retain(|only| KINDS.iter().all(|kind| kind.name != only));
        if settings.only.is_empty() {
            return None;
        }
    }
    Some(settings)
}

pub(crate) fn run(settings: &Settings) -> Result<(), String> {
    let run = Run::begin_in_sight();
    let mut results = Results::default();
    let mut parts = choose(settings)?;
    for round in 0..settings.rounds {
        let mut times = Vec::new();
        for Chosen { name, settings, part } in &mut parts {
            let started = Instant::now();
            part.measure(settings, round, &mut results)?;
            times.push(format!("{name} {:.1} s", started.elapsed().as_secs_f64()));
        }
        let _ = writeln!(std::io::stderr(), "round {} of {}: {}", round + 1, settings.rounds, times.join(", "));
    }
    let (machine, noise) = run.end();
    let mut claims = Vec::new();
    for Chosen { settings, part, .. } in &mut parts {
        part.finish(settings, &mut results)?;
        part.print(&results);
        claims.extend(part.claims(settings, &results));
    }
    let skips: Vec<_> = parts.iter().flat_map(|chosen| chosen.part.skips()).collect();
    skips.iter().for_each(|(name, reason)| println!("skipped: {name}: {reason}"));
    println!("\n{}", claim::table(&claims));
    if settings.markdown {
        println!("{}", claim::markdown(&claims));
    }
    let judged = noise.judge(&quoted(&results));
    let mut entry = json!({
        "suite": "scale",
        "machine": machine,
        "rounds": settings.rounds,
        "seconds": settings.seconds,
        "parts": parts.iter().map(|chosen| chosen.name).collect::<Vec<_>>(),
        "series": results.to_json(),
        "claims": claim::to_json(&claims),
        "skipped": skips.iter().map(|(name, reason)| json!({ "candidate": name, "reason": reason })).collect::<Vec<_>>(),
    });
    for (field, value) in parts.iter().filter_map(|chosen| chosen.part.to_json()) {
        entry[field] = value;
    }
    append(&settings.file("scale", &judged), &entry)?;
    for (name, svg) in parts.iter().filter_map(|chosen| chosen.part.picture(&results, &entry)) {
        plot::save(&settings.file(name, &judged).with_extension("svg"), &svg?)?;
    }
    if settings.is_whole() { judged } else { Ok(()) }
}

/// The rounds of what documents quote first: a connection each.
fn quoted(results: &Results) -> Vec<(String, Vec<f64>)> {
    let is_quoted = |series: &&Series| series.metric == RATE && series.candidate.starts_with(CONNECTIONS);
    results.series.iter().filter(is_quoted).map(|series| (series.candidate.clone(), series.values.clone())).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        settings: Settings,
    }

    fn settings(only: &[&str]) -> Settings {
        let words = ["bench"].into_iter().chain(only.iter().flat_map(|name| ["--only", name]));
        Line::parse_from(words).settings
    }

    #[test]
    fn parts_are_chosen_by_name_and_candidates_within_every_part() {
        let chosen = |only: &[&str]| {
            let settings = settings(only);
            let of_kind = |kind: &&Kind| of_part(&settings, kind.name).is_some_and(|settings| (kind.is_chosen)(&settings));
            KINDS.iter().filter(of_kind).map(|kind| kind.name).collect::<Vec<_>>()
        };
        assert_eq!(chosen(&[]).len(), KINDS.len());
        for kind in &KINDS {
            assert_eq!(chosen(&[kind.name]), [kind.name]);
            assert!(of_part(&settings(&[kind.name]), kind.name).is_some_and(|settings| settings.only.is_empty()));
        }
        assert_eq!(chosen(&["limits", "fipseed, one queue"]), ["tables", "limits"]);
        assert_eq!(chosen(&["no such candidate"]), [""; 0]);
    }
}
