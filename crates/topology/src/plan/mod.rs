//! Where pollers and their clients should run.
//!
//! The rules, in order of weight (docs/decisions/0010-placement.md):
//!
//! 1. A CPU remains for clients; on one CPU no thread is bound.
//! 2. No two pollers on one core while another core is free.
//! 3. CPU 0 polls last: the machine's own interrupts land there.
//! 4. Fast cores before slow ones.
//! 5. Pollers are spread over nodes, and within a node over last-level caches, as the usable CPUs are.
//! 6. The cheapest link to a client's CPU; then the highest number.
//!
//! What was measured outweighs what the kernel says.

mod view;

use self::view::View;
use crate::cpu_list;
use crate::machine::{Cpu, Machine};
use crate::matrix::Matrix;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Poller {
    pub cpu: usize,
    /// Where its clients should, best first: every usable CPU that no poller has.
    pub clients: Vec<usize>,
    /// Why there, in words.
    pub reason: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub pollers: Vec<Poller>,
    /// Workers that were asked for and have no CPU of their own.
    pub unbound_count: usize,
    /// Should threads poll? Not on a machine with one CPU, where a thread that polls keeps its peer from running.
    pub polls: bool,
    /// What the user should know.
    pub warnings: Vec<String>,
}

impl Plan {
    pub fn new(machine: &Machine, matrix: Option<&Matrix>, worker_count: usize) -> Self {
        let polls = machine.cpus.len() > 1;
        if machine.usable.len() < 2 {
            let why = match machine.usable.as_slice() {
                _ if !polls => "this machine has one CPU: no thread is bound to it, and none polls".to_owned(),
                [cpu] => format!("only CPU {cpu} may be used: no thread is bound, everything runs there"),
                _ => "there is no CPU that threads can be bound to".to_owned(),
            };
            return Self { unbound_count: worker_count, polls, warnings: vec![why], ..Self::default() };
        }
        let view = View::new(machine, matrix);
        let bound_count = worker_count.min(machine.usable.len() - 1);
        let mut chosen: Vec<&Cpu> = Vec::with_capacity(bound_count);
        while chosen.len() < bound_count {
            let free = view.usable.iter().filter(|cpu| !chosen.contains(cpu));
            let weighted = free.map(|cpu| (view.weight(cpu, &chosen), *cpu));
            let Some((_, best)) = weighted.min_by(|(a, _), (b, _)| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal)) else {
                break;
            };
            chosen.push(best);
        }
        let mut warnings = view.contradictions();
        warnings.extend(too_many(worker_count, bound_count, machine.usable.len()));
        warnings.extend(crowded(&view, &chosen));
        let poller =
            |cpu: &&Cpu| Poller { cpu: cpu.number, clients: view.clients(cpu, &chosen), reason: view.reason(cpu, &chosen) };
        Self { pollers: chosen.iter().map(poller).collect(), unbound_count: worker_count - bound_count, polls, warnings }
    }
}

/// Where a client of the poller on `worker_cpu` should run, best first. CPUs of `taken`, where other pollers and clients are,
/// come into it only when there are no others.
pub fn clients_of(machine: &Machine, matrix: Option<&Matrix>, worker_cpu: usize, taken: &[usize]) -> Vec<usize> {
    let view = View::new(machine, matrix);
    let Some(worker) = machine.cpu(worker_cpu) else { return Vec::new() };
    let taken: Vec<&Cpu> = taken.iter().filter_map(|number| machine.cpu(*number)).chain([worker]).collect();
    let free = view.clients(worker, &taken);
    if free.is_empty() { view.clients(worker, &[worker]) } else { free }
}

fn too_many(worker_count: usize, bound_count: usize, usable_count: usize) -> Option<String> {
    let unbound = match worker_count - bound_count {
        0 => return None,
        1 => "1 is".to_owned(),
        count => format!("{count} are"),
    };
    Some(format!(
        "{worker_count} workers are too many for {usable_count} CPUs, of which one is left to clients: {unbound} not bound; use at most {bound_count}"
    ))
}

fn crowded(view: &View<'_>, chosen: &[&Cpu]) -> Option<String> {
    let second = |index: &usize| chosen[..*index].iter().any(|other| view.is_same_core(chosen[*index], other));
    let mut cpus: Vec<usize> = (0..chosen.len()).filter(second).map(|index| chosen[index].number).collect();
    cpus.sort_unstable();
    let list = cpu_list::format(&cpus);
    (!cpus.is_empty()).then(|| format!("there are more workers than cores: those on CPUs {list} share a core with another one"))
}
