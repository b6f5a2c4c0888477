//! Chooses again and again between two CPUs, and compares what was chosen with a long measurement: is the choice right?
//!
//! `cargo run --release -p fipsee-topology --example repeat_choice -- [TIMES=100] [CALLER WORKER] [ROUNDS=400]`
//!
//! Choices and rounds of the long measurement are distinguished by the floor (one bounced line) before and after each: near or
//! far. A choice is right if by the long measurement, in its own state, the mean of its times over the tasks, each over the best
//! there, is within 3 % of the least such mean among all that were chosen in either state, the family's and the usual one.

use std::collections::BTreeMap;
use std::error::Error;

use fipsee_ring::clock;
use fipsee_ring::tuning::{Choices, Tuning};
use fipsee_topology::choose::{self, Basis, Chosen, Round, Task};
use fipsee_topology::machine::Machine;

const TASKS: usize = Task::ALL.len();
/// A choice is right within this of the best.
const RIGHT: f64 = 1.03;
/// What takes so much longer at one task than the family's choices is not the best, whatever it gains elsewhere.
const LOSS: f64 = 1.05;
/// And as good as the bar lets it be within this: what gains less than a twentieth is not taken.
const WITHIN_THE_BAR: f64 = 1.0 / 0.95;
/// States whose floors differ by less are one.
const APART: f64 = 2.0;

fn main() -> Result<(), Box<dyn Error>> {
    let numbers: Vec<usize> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let times = numbers.first().copied().unwrap_or(100);
    let pair = match numbers.get(1..3) {
        Some(&[caller, worker]) => (caller, worker),
        _ => *choose::pairs(&Machine::this(), None).values().next().ok_or("there is one CPU; nothing to choose")?,
    };
    let rounds = numbers.get(3).copied().unwrap_or(400);
    // Once, so that its 20 ms are not part of the first choice.
    let _ = clock::ticks_per_second();
    let mut all = Vec::with_capacity(times);
    for _ in 0..times {
        all.push(choose::choose(pair, choose::of_family())?);
    }
    let mut kinds: Vec<Choices> = vec![choose::of_family(), Tuning::usual().to_choices()];
    kinds.extend(all.iter().map(|chosen| chosen.choices));
    kinds.iter_mut().for_each(|choices| *choices = bare(*choices));
    kinds.sort_unstable_by_key(|choices| choices.word());
    kinds.dedup();
    let measured = choose::compare(pair, &kinds, rounds)?;
    let floors = || all.iter().map(|chosen| chosen.floor_ticks).chain(measured.iter().map(|(floor, _)| *floor)).flatten();
    let (least, most) = (floors().fold(f64::INFINITY, f64::min), floors().fold(0.0, f64::max));
    let bound = if most > least * APART { (least * most).sqrt() } else { f64::INFINITY };
    println!("floor {least:.0} to {most:.0} ticks");
    let names = if bound.is_finite() { ["NEAR", "FAR"] } else { ["ONE STATE", "OTHER STATE"] };
    for (state, range) in names.into_iter().zip([0.0..bound, bound..f64::INFINITY]) {
        let is_here = |floor: &[f64; 2]| floor.iter().all(|ticks| range.contains(ticks));
        let all: Vec<&Chosen> = all.iter().filter(|chosen| is_here(&chosen.floor_ticks)).collect();
        let rounds: Vec<&Round> = measured.iter().filter(|(floor, _)| is_here(floor)).collect();
        println!("\n{state}: {} choices, {} rounds of the long measurement", all.len(), rounds.len());
        if !all.is_empty() {
            show(&all);
        }
        if !rounds.is_empty() {
            judge(&all, &kinds, &rounds);
        }
    }
    Ok(())
}

/// Without the mark of measured ones.
fn bare(choices: Choices) -> Choices {
    choose::over(Choices::NONE, choices)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// How often each was chosen, how long it took, and what was tried.
fn show(all: &[&Chosen]) {
    let one_core = all.iter().filter(|chosen| chosen.basis == Basis::OneCore).count();
    let mut times: Vec<f64> = all.iter().map(|chosen| chosen.milliseconds).collect();
    times.sort_by(f64::total_cmp);
    let quantile = |part: usize| times[(times.len() - 1) * part / 100];
    let quantiles: Vec<String> = [0, 25, 50, 75, 95, 100].iter().map(|part| format!("{:.1}", quantile(*part))).collect();
    println!("  on one core {one_core}; ms, quantiles 0, 25, 50, 75, 95, 100 %: {}", quantiles.join("  "));
    let mut trials = BTreeMap::<u32, (usize, Vec<f64>)>::new();
    for trial in all.iter().flat_map(|chosen| &chosen.trials) {
        let entry = trials.entry(trial.tried.word()).or_default();
        entry.0 += usize::from(trial.taken);
        entry.1.push(trial.ratio);
    }
    println!("  tried                     times  taken  ratio 5 %, 50 %, 95 %");
    for (word, (taken, mut ratios)) in trials {
        ratios.sort_by(f64::total_cmp);
        let at = |part: usize| ratios[(ratios.len() - 1) * part / 100];
        let name = choose::summary(Choices::from_word(word));
        println!("  {name:<26}{:>5}  {taken:>5}  {:.3} {:.3} {:.3}", ratios.len(), at(5), at(50), at(95));
    }
}

fn judge(all: &[&Chosen], kinds: &[Choices], rounds: &[&Round]) {
    let figure = |kind: usize, task: Task| median(rounds.iter().filter_map(|(_, all)| all[kind].get(&task).copied()).collect());
    let figures: Vec<[f64; TASKS]> = (0..kinds.len()).map(|kind| Task::ALL.map(|task| figure(kind, task))).collect();
    let best = |task: usize| figures.iter().map(|of| of[task]).fold(f64::INFINITY, f64::min);
    let mean = |of: &[f64; TASKS]| (0..TASKS).map(|task| of[task] / best(task)).product::<f64>().powf(1.0 / TASKS as f64);
    let family = kinds.iter().position(|kind| *kind == bare(choose::of_family())).unwrap_or(0);
    let loses = |of: &[f64; TASKS]| (0..TASKS).any(|task| of[task] > figures[family][task] * LOSS);
    let least = figures.iter().filter(|of| !loses(of)).map(mean).fold(f64::INFINITY, f64::min);
    println!("  by a long measurement, ticks per message of {}:", Task::ALL.map(Task::text).join(", "));
    let (mut right, mut within_the_bar) = (0, 0);
    for (choices, figures) in kinds.iter().zip(&figures) {
        let count = all.iter().filter(|chosen| bare(chosen.choices) == *choices).count();
        let loss = mean(figures) / least;
        right += if loss <= RIGHT { count } else { 0 };
        within_the_bar += if loss <= WITHIN_THE_BAR { count } else { 0 };
        let shown: Vec<String> = figures.iter().map(|ticks| format!("{ticks:>7.1}")).collect();
        let word = if loss <= RIGHT { "right" } else { "wrong" };
        println!("  {count:>4} {word} {loss:.3} {}   {}", shown.join(""), choose::summary(*choices));
    }
    println!("  right: {right} of {}; within the bar of 0.95: {within_the_bar}", all.len());
}
