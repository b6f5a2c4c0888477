//! The CPUs on which the workers run, the NUMA node of the memory that they share with clients, and the choices of the rings.

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

use crate::config::Config;

/// How the workers' CPUs are chosen, unless they are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Placement {
    /// By the machine's topology and the measurements of `fipsee topology`.
    #[default]
    Auto,
    /// By the scheduler: no worker is bound.
    Off,
}

/// Check that the workers can run on the CPUs that are given for them.
///
/// # Errors
/// The CPU on which this process may not run, and those on which it may.
pub(crate) fn check(config: &Config, machine: &Machine) -> Result<(), String> {
    machine.check_usable(&config.cpus).map_err(|problem| format!("{problem} (--cpus, cpus)"))
}

/// Where the workers can be, and the choices of their rings, for any CPUs that may be used. Nothing is measured here: that would delay the
/// start.
pub(crate) struct Places {
    placement: Placement,
    /// Given for the workers.
    cpus: Vec<usize>,
    kept: Option<Kept>,
    /// Those of the start, if this process was bound to fewer than it can reach.
    limit: Option<Vec<usize>>,
    workers: usize,
    /// At the start.
    usable: Vec<usize>,
}

impl Places {
    /// # Errors
    /// As [`check`].
    pub(crate) fn new(config: &Config) -> Result<Self, String> {
        let machine = Machine::this();
        check(config, &machine)?;
        // With one CPU left to clients.
        let workers = config.workers.most().unwrap_or_else(|| machine.usable.len().saturating_sub(1).max(1));
        let limit = pin::reachable().filter(|reachable| *reachable != machine.usable).map(|_| machine.usable.clone());
        let (placement, cpus, kept) = (config.placement, config.cpus.clone(), load(&machine));
        Ok(Self { placement, cpus, kept, limit, workers, usable: machine.usable })
    }

    /// Is any worker bound to a CPU?
    pub(crate) fn binds(&self) -> bool {
        !self.cpus.is_empty() || self.placement == Placement::Auto
    }

    pub(crate) fn usable(&self) -> &[usize] {
        &self.usable
    }

    /// The CPUs that may be used now, if that can be found out.
    pub(crate) fn usable_now(&self) -> Option<Vec<usize>> {
        let reachable = pin::reachable()?;
        let within: Vec<usize> = match &self.limit {
            Some(limit) => reachable.iter().copied().filter(|cpu| limit.contains(cpu)).collect(),
            None => return Some(reachable),
        };
        Some(if within.is_empty() { reachable } else { within })
    }

    /// A place for each worker on these CPUs; logged with the reason.
    pub(crate) fn choose(&self, usable: &[usize]) -> Vec<WorkerPlacement> {
        let mut machine = Machine::this();
        machine.usable = usable.to_vec();
        let matrix = self.kept.as_ref().map(|kept| &kept.matrix);
        let cpus: Vec<Option<usize>> = match (self.cpus.as_slice(), self.placement) {
            ([], Placement::Auto) => planned(&Plan::new(&machine, matrix, self.workers)).into_iter().map(Some).collect(),
            ([], Placement::Off) => Vec::new(),
            (given, _) => given.iter().map(|cpu| usable.contains(cpu).then_some(*cpu)).collect(),
        };
        let chosen = self.kept.as_ref().map(|kept| &kept.choices);
        let place = |worker: usize| {
            let cpu = cpus.get(worker).copied().flatten();
            // Those before it are in use when it is; those after it may not be.
            let taken: Vec<usize> = cpus.iter().take(worker + 1).flatten().copied().collect();
            let clients = cpu.map_or_else(Vec::new, |cpu| clients_of(&machine, matrix, cpu, &taken));
            let choices = choices_of(worker, &machine, cpu, &clients, chosen);
            WorkerPlacement { cpu, node: cpu.and_then(|cpu| machine.node_of(cpu)), choices }
        };
        (0..self.workers).map(place).collect()
    }
}

/// Those measured between the worker and the CPU where its clients should run, else those of the CPU's family.
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

/// Have this thread, and those that it starts from now on, avoid the CPUs of bound workers. A client that connects and
/// disconnects in a loop keeps such threads busy; on a worker's CPU they would take time from all clients of that worker. Where
/// no other CPU may be used, nothing changes.
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

/// With all workers on one node, allocate all memory of the daemon there: call it before any other thread runs and before disks
/// are opened. Otherwise pages are on the node that touches them first; those of a memory disk, on the node of a worker.
pub(crate) fn prefer_memory(places: &[WorkerPlacement]) {
    let Some(node) = common_node(places.iter().copied()) else { return };
    match numa::prefer_for_thread(node) {
        Ok(()) => tracing::info!(node, "memory is taken from the workers' node"),
        Err(error) => tracing::warn!(node, %error, "cannot ask for memory of the workers' node"),
    }
}

/// Allocate the pages of a new channel on the node of the workers that poll it, whichever thread touches them first.
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
