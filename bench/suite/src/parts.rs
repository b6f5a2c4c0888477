//! Suites of several parts, which are measured one after the other in each round: which are chosen, the run, and its results.

use std::io::Write;
use std::time::Instant;

use fipsee_measure::claim::{self, Claim};
use fipsee_measure::machine::Run;
use fipsee_measure::plot;
use fipsee_measure::results::append;
use serde_json::{Value, json};

use crate::table::Results;
use crate::{Settings, steady};

/// A name of a file, and what belongs into it.
pub(crate) type Picture = (&'static str, Result<String, String>);

/// What is measured once in each round.
pub(crate) trait Part {
    fn measure(&mut self, settings: &Settings, round: usize, results: &mut Results) -> Result<(), String>;

    /// Candidates of which a claim may or may not hold, as far as what was measured so far shows: each is measured once more while there is time.
    fn undecided(&self, _results: &Results) -> Vec<String> {
        Vec::new()
    }

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

pub(crate) struct Kind {
    /// As `--only` has it.
    pub(crate) name: &'static str,
    /// Is anything of it to be measured?
    pub(crate) is_chosen: fn(&Settings) -> bool,
    pub(crate) start: fn(&Settings) -> Result<Box<dyn Part>, String>,
}

/// A part, with the settings for it.
struct Chosen {
    name: &'static str,
    settings: Settings,
    part: Box<dyn Part>,
}

fn choose(kinds: &[Kind], settings: &Settings) -> Result<Vec<Chosen>, String> {
    let mut chosen = Vec::new();
    for kind in kinds {
        let Some(settings) = of_part(kinds, settings, kind.name).filter(|settings| (kind.is_chosen)(settings)) else { continue };
        let part = (kind.start)(&settings)?;
        chosen.push(Chosen { name: kind.name, settings, part });
    }
    if chosen.is_empty() {
        let names: Vec<&str> = kinds.iter().map(|kind| kind.name).collect();
        return Err(format!("--only leaves nothing to measure; name a candidate, or a part: {}", names.join(", ")));
    }
    Ok(chosen)
}

/// The settings of a part, which has all its candidates if `--only` names it; `None` if only others are named.
pub(crate) fn of_part(kinds: &[Kind], settings: &Settings, name: &str) -> Option<Settings> {
    let mut settings = settings.clone();
    if settings.only.iter().any(|only| only == name) {
        settings.only.clear();
    } else if !settings.only.is_empty() {
        settings.only.retain(|only| kinds.iter().all(|kind| kind.name != only));
        if settings.only.is_empty() {
            return None;
        }
    }
    Some(settings)
}

/// Until it is decided whether their claims hold, or the time is over, but at most in as many rounds again.
fn measure_undecided(
    parts: &mut [Chosen],
    rounds: usize,
    is_late: &impl Fn() -> bool,
    results: &mut Results,
) -> Result<(), String> {
    for round in rounds..2 * rounds {
        let mut known = results.clone();
        known.keep(steady::usual());
        let mut count = 0;
        for Chosen { settings, part, .. } in parts.iter_mut() {
            let only = part.undecided(&known);
            count += only.len();
            if !only.is_empty() && !is_late() {
                part.measure(&Settings { only, ..settings.clone() }, round, results)?;
            }
        }
        if count == 0 || is_late() {
            return Ok(());
        }
        let _ = writeln!(std::io::stderr(), "round {} of what was undecided: {count} candidates", round + 1 - rounds);
    }
    Ok(())
}

/// The rounds, by name, whose median must be certain if documents are to quote the run.
pub(crate) type Quoted = fn(&Results) -> Vec<(String, Vec<f64>)>;

/// Measure the chosen parts of a suite, judge its claims and append the results to its file.
pub(crate) fn run(suite: &str, kinds: &[Kind], settings: &Settings, quoted: Quoted) -> Result<(), String> {
    let run = Run::begin_in_sight();
    steady::begin(settings.quick);
    let mut results = Results::default();
    let mut parts = choose(kinds, settings)?;
    let (begun, mut rounds) = (Instant::now(), 0);
    let is_late = || settings.minutes.is_some_and(|minutes| begun.elapsed().as_secs_f64() > 60.0 * minutes);
    while rounds < settings.rounds && (rounds == 0 || !is_late()) {
        let mut times = Vec::new();
        for Chosen { name, settings, part } in &mut parts {
            let started = Instant::now();
            part.measure(settings, rounds, &mut results)?;
            times.push(format!("{name} {:.1} s", started.elapsed().as_secs_f64()));
        }
        rounds += 1;
        let _ = writeln!(std::io::stderr(), "round {rounds} of {}: {}", settings.rounds, times.join(", "));
    }
    if settings.minutes.is_some() {
        measure_undecided(&mut parts, rounds, &is_late, &mut results)?;
    }
    let (machine, noise) = run.end();
    results.keep(steady::usual());
    let mut claims = Vec::new();
    for Chosen { settings, part, .. } in &mut parts {
        part.finish(settings, &mut results)?;
        part.print(&results);
        claims.extend(part.claims(settings, &results));
    }
    let skips: Vec<_> = parts.iter().flat_map(|chosen| chosen.part.skips()).collect();
    skips.iter().for_each(|(name, reason)| println!("skipped: {name}: {reason}"));
    steady::text().into_iter().for_each(|text| println!("\n{text}"));
    println!("\n{}", claim::table(&claims));
    if settings.markdown {
        println!("{}", claim::markdown(&claims));
    }
    let judged = noise.judge(&quoted(&results));
    let mut entry = json!({
        "suite": suite,
        "machine": machine,
        "rounds": rounds,
        "seconds": settings.seconds,
        "parts": parts.iter().map(|chosen| chosen.name).collect::<Vec<_>>(),
        "series": results.to_json(),
        "claims": claim::to_json(&claims),
        "skipped": skips.iter().map(|(name, reason)| json!({ "candidate": name, "reason": reason })).collect::<Vec<_>>(),
    });
    entry["state"] = steady::to_json();
    for (field, value) in parts.iter().filter_map(|chosen| chosen.part.to_json()) {
        entry[field] = value;
    }
    append(&settings.file(suite, &judged), &entry)?;
    for (name, svg) in parts.iter().filter_map(|chosen| chosen.part.picture(&results, &entry)) {
        plot::save(&settings.file(name, &judged).with_extension("svg"), &svg?)?;
    }
    if settings.is_whole() { judged } else { Ok(()) }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        settings: Settings,
    }

    pub(crate) fn settings(only: &[&str]) -> Settings {
        let words = ["bench"].into_iter().chain(only.iter().flat_map(|name| ["--only", name]));
        Line::parse_from(words).settings
    }

    /// In which round what was measured.
    type Measured = Vec<(usize, Vec<String>)>;

    /// Undecided until it was measured so many times.
    struct Undecided {
        rounds: usize,
        measured: Rc<RefCell<Measured>>,
    }

    impl Part for Undecided {
        fn measure(&mut self, settings: &Settings, round: usize, _results: &mut Results) -> Result<(), String> {
            self.measured.borrow_mut().push((round, settings.only.clone()));
            Ok(())
        }

        fn undecided(&self, _results: &Results) -> Vec<String> {
            if self.measured.borrow().len() < self.rounds { vec!["one of several".to_owned()] } else { Vec::new() }
        }

        fn print(&self, _results: &Results) {}

        fn claims(&self, _settings: &Settings, _results: &Results) -> Vec<Claim> {
            Vec::new()
        }
    }

    #[test]
    fn what_is_undecided_is_measured_until_it_is_decided_or_as_often_again_or_it_is_late() {
        let measured = |rounds, looks_in_time: usize| {
            let (measured, looks) = (Rc::default(), Cell::new(0));
            let part = Box::new(Undecided { rounds, measured: Rc::clone(&measured) });
            let is_late = || looks.replace(looks.get() + 1) >= looks_in_time;
            let mut parts = [Chosen { name: "one", settings: settings(&[]), part }];
            measure_undecided(&mut parts, 3, &is_late, &mut Results::default()).expect("nothing fails");
            measured.take()
        };
        let rounds = |count: usize| (3..3 + count).map(|round| (round, vec!["one of several".to_owned()])).collect::<Vec<_>>();
        assert_eq!(measured(2, usize::MAX), rounds(2), "decided");
        assert_eq!(measured(9, usize::MAX), rounds(3), "as often again");
        assert_eq!(measured(9, 1), rounds(1), "late");
        assert_eq!(measured(0, usize::MAX), []);
    }
}
