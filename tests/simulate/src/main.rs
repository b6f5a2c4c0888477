//! `fipsee-simulate`: plays the lifetimes of many seeds, one again, or the known-bad variants.

use std::process::ExitCode;
use std::time::Instant;

use fipsee_simulate::Summary;
use fipsee_simulate::kinds::{self, play};
use fipsee_simulate::moves::{Step, Tally};
use fipsee_simulate::variant::Variant;

const USAGE: &str = "\
usage: fipsee-simulate [--seeds N | --seeds A..B] [--kind NAME] [--seed N] [--variant NAME] [--variants] [--follow N]

  --seeds N        play the lifetimes of seeds 0 to N-1 (without: 100000)
  --seeds A..B     those of seeds A to B-1
  --kind NAME      only those of this kind: disks, moves, calls, machine, takeover, ports
  --follow N       under the governor: 1 to 16 clients and back on 8 CPUs, with seeds 0 to N-1
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
    kind: Option<&'static str>,
    variant: Option<Variant>,
    all_variants: bool,
    follow: Option<u64>,
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
        Asked { follow: Some(count), variant, .. } => follow_all(count, variant),
        Asked { one: true, seeds, variant, .. } => show(seeds.start, variant),
        Asked { variant: Some(variant), seeds, .. } => find(variant, seeds, true),
        Asked { seeds, kind, .. } => play_all(seeds, kind),
    };
    if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(arguments: &[String]) -> Result<Asked, String> {
    let mut asked = Asked { seeds: 0..100_000, one: false, kind: None, variant: None, all_variants: false, follow: None };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("'{text}' is no number of a seed"));
        match argument.as_str() {
            "--follow" => asked.follow = Some(number(value()?)?),
            "--variants" => asked.all_variants = true,
            "--variant" => {
                let name = value()?;
                let names = || Variant::ALL.map(|(_, name)| name).join(", ");
                let known = Variant::parse(name).ok_or_else(|| format!("no variant '{name}'; there are: {}", names()))?;
                asked.variant = Some(known);
            }
            "--kind" => {
                let name = value()?;
                let known = kinds::KINDS.iter().find(|kind| kind.name == *name).ok_or_else(|| format!("no kind '{name}'"))?;
                asked.kind = Some(known.name);
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
fn play_all(seeds: std::ops::Range<u64>, kind: Option<&str>) -> bool {
    let started = Instant::now();
    let (mut lifetimes, mut steps, mut requests, mut faults) = (0_u64, 0_u64, 0_u64, 0_u64);
    let (mut count, mut moves) = (0, Tally::default());
    let descriptors = open_descriptors();
    for seed in seeds.filter(|seed| kind.is_none_or(|kind| kinds::of_seed(*seed).name == kind)) {
        count += 1;
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
        moves.add(&outcome.moves);
    }
    let left = open_descriptors().saturating_sub(descriptors);
    if left > 0 {
        println!("{left} descriptors were not closed");
        return false;
    }
    let seconds = started.elapsed().as_secs_f64().max(1e-9);
    let rate = |count: u64| format!("{:.0}", f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / seconds);
    let kills = Step::ALL.iter().zip(moves.kills).map(|((_, name), kills)| format!("{name} {kills}"));
    println!(
        "{} moves of queues, {} more were refused; something was killed at each of {} steps: {}",
        moves.moves,
        moves.refused,
        Step::ALL.len(),
        kills.collect::<Vec<_>>().join(", ")
    );
    println!(
        "{lifetimes} lifetimes, each with {LIFETIME_REQUESTS} requests or more and a fault that took effect, in {count} seeds; \
         {requests} requests were answered and {faults} faults took effect in {seconds:.1} s: {} seeds/s, {} steps/s; nothing was \
         violated",
        rate(count),
        rate(steps)
    );
    true
}

/// The workers follow the load, from one client to many and back.
fn follow_all(count: u64, variant: Option<Variant>) -> bool {
    let started = Instant::now();
    let (mut all, mut moves) = (Summary::default(), Tally::default());
    for seed in 0..count {
        match fipsee_simulate::follow(seed, variant) {
            Err(failure) => {
                println!("{failure}");
                return false;
            }
            Ok(one) => {
                moves.add(&one.moves);
                all.requests += one.requests;
                all.simulated_us += one.simulated_us;
                all.slowest_added_us = all.slowest_added_us.max(one.slowest_added_us);
                all.slowest_removed_us = all.slowest_removed_us.max(one.slowest_removed_us);
            }
        }
    }
    println!(
        "{count} times 1 to 16 clients and back on 8 CPUs: 1 to 7 workers and back, one by one; the slowest was added after {} ms and \
         removed after {} ms; {} moves of queues, {} requests, {} s simulated in {:.1} s; nothing was violated",
        all.slowest_added_us / 1000,
        all.slowest_removed_us / 1000,
        moves.moves,
        all.requests,
        all.simulated_us / 1_000_000,
        started.elapsed().as_secs_f64()
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
