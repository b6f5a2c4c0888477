//! On which CPUs the workers run, on which NUMA node the memory lies that they share with clients, and how rings between the two go
//! about their work.

use clap::ValueEnum;
use fipsee_ring::region::Region;
use fipsee_ring::tuning::Choices;
pub(crate) use fipsee_serve::WorkerPlacement;
use fipsee_topology::cache::{self, Kept, Unusable};
use fipsee_topology::choose::{self, ByDistance};
use fipsee_topology::machine::Machine;
use fipsee_topology::numa;
use fipsee_topology::pin;
use fipsee_topology::plan::{Plan, clients_of};
use serde::Deserialize;

use crate::config::Config;

/// Who chooses the workers' CPUs, unless they are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Placement {
    /// What is known of the machine, and was measured by `fipsee topology`.
    #[default]
    Auto,
    /// The scheduler: nobody is bound.
    Off,
}

/// Choose a place for each worker, and the choices of its rings; say in the log which and why. Nothing is measured here: that would hold up
/// the start.
pub(crate) fn choose(config: &Config) -> Vec<WorkerPlacement> {
    let machine = Machine::this();
    let kept = load(&machine);
    let matrix = kept.as_ref().map(|kept| &kept.matrix);
    let cpus: Vec<usize> = match (config.cpus.as_slice(), config.placement) {
        ([], Placement::Auto) => planned(&Plan::new(&machine, matrix, config.workers)),
        ([], Placement::Off) => Vec::new(),
        (given, _) => given.to_vec(),
    };
    let chosen = kept.as_ref().map(|kept| &kept.choices);
    let place = |worker: usize| {
        let cpu = cpus.get(worker).copied();
        let clients = cpu.map_or_else(Vec::new, |cpu| clients_of(&machine, matrix, cpu, &cpus));
        let choices = choices_of(worker, &machine, cpu, &clients, chosen);
        WorkerPlacement { cpu, node: cpu.and_then(|cpu| machine.node_of(cpu)), choices }
    };
    (0..config.workers).map(place).collect()
}

/// Those that were measured between the worker and where its clients should run, else those of the CPU's family.
fn choices_of(worker: usize, machine: &Machine, cpu: Option<usize>, clients: &[usize], chosen: Option<&ByDistance>) -> Choices {
    let found = chosen.and_then(|chosen| choose::for_clients(machine, cpu, clients, chosen));
    let choices = found.map_or_else(choose::of_family, |found| found.choices);
    let reason = found.map_or_else(|| choose::BY_FAMILY.to_owned(), choose::reason);
    tracing::info!(worker, choices = %choose::summary(choices), "choices of rings: {reason}");
    choices
}

fn load(machine: &Machine) -> Option<Kept> {
    match cache::load(machine) {
        Ok((path, kept)) => {
            tracing::info!(measurement = %path.display(), "places and choices of rings are those that were measured");
            Some(kept)
        }
        Err(Unusable::Missing) => None,
        Err(refused) => {
            tracing::warn!("{refused}");
            None
        }
    }
}

/// Have this thread, and those that it starts from now on, leave the CPUs of bound workers to them. A client that comes and goes without end
/// keeps such threads busy; on a worker's CPU they would take its time from everybody whom it serves. Where no other CPU may be used, nothing
/// changes.
pub(crate) fn leave_to_workers(places: &[WorkerPlacement]) {
    let cpus: Vec<usize> = places.iter().filter_map(|place| place.cpu).collect();
    if let Err(error) = pin::keep_off(&cpus) {
        tracing::warn!(%error, "cannot keep the threads that attach clients off the workers' CPUs; they may take time from the workers");
    }
}

fn common_node(mut places: impl Iterator<Item = WorkerPlacement>) -> Option<usize> {
    let node = places.next()?.node?;
    places.all(|place| place.node == Some(node)).then_some(node)
}

/// With all workers on one node, have the whole daemon take its memory there: call it before any other thread runs and before disks are
/// opened. Otherwise pages lie where they are touched first; those of a memory disk, on the node of a worker.
pub(crate) fn prefer_memory(places: &[WorkerPlacement]) {
    let Some(node) = common_node(places.iter().copied()) else { return };
    match numa::prefer_for_thread(node) {
        Ok(()) => tracing::info!(node, "memory is taken from the workers' node"),
        Err(error) => tracing::warn!(node, %error, "cannot ask for memory of the workers' node"),
    }
}

/// Have the pages of a new channel taken from the node of the workers that poll it, whoever touches them first.
pub(crate) fn put_near(region: &Region, places: impl Iterator<Item = WorkerPlacement>) {
    if let Some(node) = common_node(places)
        && let Err(error) = numa::prefer_for_region(region, node)
    {
        tracing::debug!(node, %error, "cannot ask for a channel's memory on its workers' node");
    }
}

fn planned(plan: &Plan) -> Vec<usize> {
    for warning in &plan.warnings {
        tracing::warn!("{warning}");
    }
    for (worker, poller) in plan.pollers.iter().enumerate() {
        tracing::info!(worker, cpu = poller.cpu, "placed: {}", poller.reason);
    }
    plan.pollers.iter().map(|poller| poller.cpu).collect()
}
