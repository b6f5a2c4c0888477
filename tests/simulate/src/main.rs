//! `fipsee-simulate`: plays the lifetimes of many seeds, one again, or the known-bad variants.

use std::process::ExitCode;
use std::time::Instant;

use fipsee_simulate::kinds::{self, play};
use fipsee_simulate::variant::Variant;

const USAGE: &str = "\
usage: fipsee-simulate [--seeds N | --seeds A..B] [--seed N] [--variant NAME] [--variants]

  --seeds N        play the lifetimes of seeds 0 to N-1 (without: 100000)
  --seeds A..B     those of seeds A to B-1
  --seed N         one, with its trace; if it fails, also the shortest one found that fails
  --variant NAME   with something broken on purpose, which must be found
  --variants       all of these, each of which must be found within 10000 seeds";

/// Requests of a whole lifetime.
const LIFETIME_REQUESTS: u32 = 100;
/// Within so many seeds each variant must be found.
const VARIANT_SEEDS: u64 = 10_000;
const USAGE_ERROR: u8 = 2;

struct Asked {
    seeds: std::ops::Range<u64>,
    one: bool,
    variant: Option<Variant>,
    all_variants: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let asked = match parse(&arguments) {
        Ok(asked) => asked,
        Err(error) => {
            eprintln!("error: {error}\n\n{USAGE}");
            return ExitCode::from(USAGE_ERROR);
        }
    };
    let succeeded = match asked {
        Asked { all_variants: true, .. } => {
            Variant::ALL.iter().fold(true, |all, (variant, _)| find(*variant, 0..VARIANT_SEEDS, false) && all)
        }
        Asked { one: true, seeds, variant, .. } => show(seeds.start, variant),
        Asked { variant: Some(variant), seeds, .. } => find(variant, seeds, true),
        Asked { seeds, .. } => play_all(seeds),
    };
    if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(arguments: &[String]) -> Result<Asked, String> {
    let mut asked = Asked { seeds: 0..100_000, one: false, variant: None, all_variants: false };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("'{text}' is no number of a seed"));
        match argument.as_str() {
            "--variants" => asked.all_variants = true,
            "--variant" => {
                let name = value()?;
                let names = || Variant::ALL.map(|(_, name)| name).join(", ");
                let known = Variant::parse(name).ok_or_else(|| format!("no variant '{name}'; there are: {}", names()))?;
                asked.variant = Some(known);
            }
            "--seed" => {
                let seed = number(value()?)?;
                (asked.seeds, asked.one) = (seed..seed.saturating_add(1), true);
            }
            "--seeds" => {
                let text = value()?;
                let (from, to) = text.split_once("..").unwrap_or(("0", text));
                asked.seeds = number(from)?..number(to)?;
            }
            other => return Err(format!("there is no option '{other}'")),
        }
    }
    Ok(asked)
}

/// Play all of these; the first that fails is shrunk and shown.
fn play_all(seeds: std::ops::Range<u64>) -> bool {
    let started = Instant::now();
    let (mut lifetimes, mut steps, mut requests, mut faults) = (0_u64, 0_u64, 0_u64, 0_u64);
    let count = seeds.end.saturating_sub(seeds.start);
    let descriptors = open_descriptors();
    for seed in seeds {
        let outcome = play(seed, None, false);
        if outcome.failure.is_some() {
            println!("seed {seed} failed; `--seed {seed}` plays it again");
            return show(seed, None);
        }
        let is_lifetime = outcome.made >= LIFETIME_REQUESTS && outcome.faults > 0;
        if !is_lifetime && !kinds::of_seed(seed).is_part() {
            println!("seed {seed}: {} requests and {} faults are no lifetime", outcome.made, outcome.faults);
            return false;
        }
        lifetimes += u64::from(is_lifetime);
        steps += u64::from(outcome.steps);
        requests += u64::from(outcome.requests);
        faults += u64::from(outcome.faults);
    }
    let left = open_descriptors().saturating_sub(descriptors);
    if left > 0 {
        println!("{left} descriptors were not closed");
        return false;
    }
    let seconds = started.elapsed().as_secs_f64().max(1e-9);
    let rate = |count: u64| format!("{:.0}", f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / seconds);
    println!(
        "{lifetimes} lifetimes, each with {LIFETIME_REQUESTS} requests or more and a fault that took effect, in {count} seeds; \
         {requests} requests were answered and {faults} faults took effect in {seconds:.1} s: {} seeds/s, {} steps/s; nothing was \
         violated",
        rate(count),
        rate(steps)
    );
    true
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Play one with its trace, and the shortest one found that fails if it does.
fn show(seed: u64, variant: Option<Variant>) -> bool {
    let (kind, outcome) = (kinds::of_seed(seed), play(seed, variant, true));
    let Some(failure) = &outcome.failure else {
        outcome.trace.iter().for_each(|line| println!("{line}"));
        println!("seed {seed} ({}): {} steps, {} requests; nothing was violated", kind.name, outcome.steps, outcome.requests);
        return true;
    };
    println!("seed {seed} ({}) fails after {} steps: {failure}", kind.name, outcome.steps);
    let Some(shrunk) = kind.shrink.and_then(|shrink| shrink(seed, variant)) else {
        outcome.trace.iter().for_each(|line| println!("  {line}"));
        return false;
    };
    println!("the shortest that fails has {} steps: {}:", shrunk.outcome.steps, shrunk.script);
    shrunk.outcome.trace.iter().for_each(|line| println!("  {line}"));
    false
}

/// Is a known-bad variant found?
fn find(variant: Variant, seeds: std::ops::Range<u64>, shows: bool) -> bool {
    let name = variant.name();
    let started = Instant::now();
    for (count, seed) in (1_u64..).zip(seeds) {
        let outcome = play(seed, Some(variant), false);
        let Some(failure) = outcome.failure else { continue };
        let ms = started.elapsed().as_millis();
        println!("variant {name}: found by seed {seed}, lifetime {count}, after {ms} ms: {failure}");
        if shows {
            show(seed, Some(variant));
        }
        return true;
    }
    println!("variant {name}: NOT FOUND");
    false
}
