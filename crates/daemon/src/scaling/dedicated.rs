//! Workers that are for one disk, user, group, virtual machine or client alone. An owner is known by its key: `disk:a`, `user:1000`.

use std::time::{Duration, Instant};

use fipsee_serve::governor::Move;
use fipsee_serve::{Pool, QueueName};

use super::{Scaling, State, assigned_to};
use crate::export::AttachedClient;

/// A virtual machine that reconnects within this time still has its worker.
const LONGEST_ABSENCE: Duration = Duration::from_secs(3);
/// Why an owner has none after all.
const NO_WORKER: &str = "a client of a network came meanwhile, whose worker it would have been; dedicate it again";

/// What has a worker to itself.
pub(super) struct Dedicated {
    pub(super) owner: String,
    pub(super) worker: usize,
    /// The queues of others have left it.
    pub(super) is_ready: bool,
    /// When none of its connections was found any more.
    absent_since: Option<Instant>,
}

impl Dedicated {
    /// Nothing is to come: neither queues that leave its worker nor its end.
    pub(super) const fn is_settled(&self) -> bool {
        self.is_ready && self.absent_since.is_none()
    }
}

/// The keys of virtual machines begin with this.
const MACHINE: &str = "machine:";

/// The pool of an owner that has this worker to itself.
pub(super) const fn number_of(worker: usize) -> u64 {
    worker as u64 + 1
}

/// For people: of `user:1000`, `user 1000`.
fn shown(owner: &str) -> String {
    match owner.split_once(':') {
        Some((kind @ ("disk" | "group"), name)) => format!("{kind} '{name}'"),
        Some((kind, name)) => format!("{kind} {name}"),
        None => owner.to_owned(),
    }
}

/// How many there are, with their names, and what to do.
fn too_many(owners: &[String]) -> (String, &'static str) {
    let names: Vec<_> = owners.iter().take(8).map(|owner| shown(owner)).collect();
    let names = names.join(", ");
    match owners.len() {
        1 => (format!("{names} is dedicated"), "do not dedicate it"),
        count => (format!("{count} are dedicated ({names})"), "dedicate fewer"),
    }
}

/// Of so many workers, one that no owner has, without queues that stay: the last, which is the first that is not needed otherwise.
fn free_worker(dedicated: &[Dedicated], workers: usize, fixed_at: impl Fn(usize) -> u64) -> Option<usize> {
    let is_free = |worker: &usize| dedicated.iter().all(|of| of.worker != *worker) && fixed_at(*worker) == 0;
    (1..workers).rev().find(is_free)
}

/// A client of a network that attached while a worker was chosen for an owner stays there: the owner gets another. Those for which there is
/// none.
fn avoid_fixed(dedicated: &mut Vec<Dedicated>, workers: usize, fixed_at: impl Fn(usize) -> u64) -> Vec<String> {
    let mut without = Vec::new();
    while let Some(at) = dedicated.iter().position(|of| !of.is_ready && fixed_at(of.worker) > 0) {
        match free_worker(dedicated, workers, &fixed_at) {
            Some(worker) => dedicated[at].worker = worker,
            None => without.push(dedicated.remove(at).owner),
        }
    }
    without
}

impl Scaling {
    /// Can these have a worker each, and a CPU for it?
    pub(crate) fn check_dedicated(&self, owners: &[String]) -> Result<(), String> {
        let started = self.workers.len();
        if owners.is_empty() {
            return Ok(());
        }
        if owners.len() < started {
            self.check_cpus(owners)?;
            return self.check_fixed(owners);
        }
        let (are, fewer) = too_many(owners);
        let workers = match started {
            1 => "1 worker was started, which".to_owned(),
            _ => format!("{started} workers were started, of which one"),
        };
        let needed = owners.len() + 1;
        Err(format!("{are}, and {workers} is for all others; start {needed} (--workers, workers), or {fewer}"))
    }

    /// Owners that have a worker keep it if CPUs go. Where the scheduler places all workers, they share its CPUs.
    fn check_cpus(&self, owners: &[String]) -> Result<(), String> {
        let has_worker = |owner: &String| self.is_dedicated(owner);
        if !self.places.binds() || owners.iter().all(has_worker) {
            return Ok(());
        }
        let cpus = self.places.usable_now().map_or_else(|| self.state().cpus.len(), |cpus| cpus.len());
        if owners.len() < cpus {
            return Ok(());
        }
        let (are, fewer) = too_many(owners);
        let cpus = match cpus {
            1 => "1 CPU, which".to_owned(),
            _ => format!("{cpus} CPUs, of which one"),
        };
        Err(format!(
            "{are}, and this daemon may use {cpus} is for all others; {fewer}, let it use more (cpuset, taskset), or have workers share CPUs (placement = \"off\")"
        ))
    }

    /// A worker with queues that stay never becomes that of an owner alone.
    fn check_fixed(&self, owners: &[String]) -> Result<(), String> {
        let state = self.state();
        let kept = |worker: usize| state.dedicated.iter().any(|of| of.worker == worker && owners.contains(&of.owner));
        let has_worker = |owner: &&String| state.dedicated.iter().any(|of| of.owner == **owner);
        let wanting: Vec<_> = owners.iter().filter(|owner| !has_worker(owner)).collect();
        let free = (1..self.workers.len()).filter(|worker| !kept(*worker) && self.fixed_at(*worker) == 0).count();
        let Some(owner) = wanting.get(free) else { return Ok(()) };
        let ports: Vec<_> =
            self.live.fixed().values().filter(|queues| queues.worker > 0).map(|queues| queues.port.clone()).collect();
        let ports = ports.iter().take(8).map(|port| format!("'{port}'")).collect::<Vec<_>>().join(", ");
        Err(format!(
            "no worker is left for {}: clients of network ports ({ports}) stay at theirs while they are attached; start more \
             (--workers, workers), or detach those clients first",
            shown(owner)
        ))
    }

    /// These have a worker each from now on, and no others; checked before.
    pub(crate) fn dedicate(&self, owners: &[String]) {
        let mut state = self.state();
        let before = state.dedicated.len();
        state.dedicated.retain(|of| owners.contains(&of.owner));
        state.has_freed |= state.dedicated.len() != before;
        self.set_pools(&mut state);
        for owner in owners {
            if state.dedicated.iter().any(|of| of.owner == *owner) {
                continue;
            }
            let Some(worker) = free_worker(&state.dedicated, self.workers.len(), |worker| self.fixed_at(worker)) else {
                tracing::warn!(owner, "{NO_WORKER}");
                break;
            };
            state.dedicated.push(Dedicated { owner: owner.clone(), worker, is_ready: false, absent_since: None });
            self.set_pools(&mut state);
        }
        state.next = Some(Instant::now());
        self.wake_up.doorbell.ring();
    }

    /// As [`dedicate`](Self::dedicate), for one of them.
    pub(crate) fn set_dedicated(&self, owner: &str, dedicated: bool) -> Result<(), String> {
        let there = |of: &Dedicated| of.owner != owner && self.is_present(&of.owner);
        let mut owners: Vec<_> = self.state().dedicated.iter().filter(|of| there(of)).map(|of| of.owner.clone()).collect();
        if dedicated {
            owners.push(owner.to_owned());
            self.check_dedicated(&owners)?;
        }
        self.dedicate(&owners);
        Ok(())
    }

    pub(crate) fn is_dedicated(&self, owner: &str) -> bool {
        self.state().dedicated.iter().any(|of| of.owner == owner)
    }

    /// The owner that has the worker to itself.
    pub(crate) fn dedicated_to(&self, worker: usize) -> Option<String> {
        self.state().dedicated.iter().find(|of| of.worker == worker).map(|of| of.owner.clone())
    }

    /// Is it still there? A client or virtual machine has its worker until it is gone, all others until that is changed.
    fn is_present(&self, owner: &str) -> bool {
        match owner.split_once(':') {
            Some(("client", number)) => number.parse().is_ok_and(|number| self.find(number, |_, _| ()).is_some()),
            Some(("machine", _)) => self.live.shares.present().iter().any(|group| group.key() == owner),
            _ => true,
        }
    }

    /// Something of an attached client, and of its pool.
    fn find<T>(&self, number: u64, what: impl Fn(&AttachedClient, u64) -> T) -> Option<T> {
        let of = |client: &AttachedClient, disk: &str| {
            let share = client.share.as_ref().map(|share| &*share.group);
            (client.client == number).then(|| what(client, self.live.pools.of(number, disk, share)))
        };
        self.live.now().exports.iter().find_map(|export| export.find_attached(|client| of(client, export.name())))
    }

    /// The pool that a queue belongs to.
    pub(super) fn pool_of(&self, queue: QueueName) -> u64 {
        self.find(queue.client, |_, pool| pool).unwrap_or(Pool::SHARED)
    }

    /// Workers without other queues serve those that they are for, and owners that are gone have none any more: virtual machines
    /// after the time that a reconnection takes. Called by the thread that
    /// attaches clients, so that none is between the choice of its workers and its place in the list of its disk's clients.
    pub(super) fn settle_dedicated(&self, state: &mut State) {
        let (before, now) = (state.dedicated.len(), Instant::now());
        state.dedicated.retain_mut(|of| {
            of.absent_since = if self.is_present(&of.owner) { None } else { of.absent_since.or(Some(now)) };
            // The numbers of clients are not given again.
            let longest = if of.owner.starts_with(MACHINE) { LONGEST_ABSENCE } else { Duration::ZERO };
            of.absent_since.is_none_or(|since| now.duration_since(since) < longest)
        });
        for owner in avoid_fixed(&mut state.dedicated, self.workers.len(), |worker| self.fixed_at(worker)) {
            tracing::warn!(owner, "{NO_WORKER}");
        }
        let mut has_changed = std::mem::take(&mut state.has_freed) || state.dedicated.len() != before;
        for Dedicated { owner, worker, is_ready, .. } in state.dedicated.iter_mut().filter(|of| !of.is_ready) {
            if assigned_to(&self.workers[*worker]) == 0 {
                self.workers[*worker].counters.pool.set(number_of(*worker));
                (*is_ready, has_changed) = (true, true);
                tracing::info!(owner, worker, "has a worker to itself");
            }
        }
        if !has_changed {
            return;
        }
        let ready = state.dedicated.iter().filter(|of| of.is_ready);
        self.live.pools.set(ready.map(|of| (of.owner.clone(), number_of(of.worker))).collect());
        self.set_pools(state);
        let State { dedicated, wanted, .. } = state;
        for export in &self.live.now().exports {
            export.for_each_attached(|client| {
                let pool = self.live.pools.of(client.client, export.name(), client.share.as_ref().map(|share| &*share.group));
                // Those that are of no such pool any more leave as other queues do.
                if let Some(of) = dedicated.iter().find(|of| number_of(of.worker) == pool) {
                    let queues = 0..u16::try_from(client.queues.len()).unwrap_or(u16::MAX);
                    wanted.extend(queues.map(|index| Move { queue: QueueName { client: client.client, index }, to: of.worker }));
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dedicated(of: &[(&str, usize, bool)]) -> Vec<Dedicated> {
        let one = |(owner, worker, is_ready): &(&str, usize, bool)| {
            let (owner, worker, is_ready) = ((*owner).to_owned(), *worker, *is_ready);
            Dedicated { owner, worker, is_ready, absent_since: None }
        };
        of.iter().map(one).collect()
    }

    fn workers(dedicated: &[Dedicated]) -> Vec<(&str, usize)> {
        dedicated.iter().map(|of| (of.owner.as_str(), of.worker)).collect()
    }

    #[test]
    fn owner_whose_worker_got_a_client_of_a_network_meanwhile_gets_another() {
        let mut all = dedicated(&[("disk:a", 4, true), ("disk:b", 3, false), ("disk:c", 2, false)]);
        assert!(avoid_fixed(&mut all, 5, |_| 0).is_empty(), "nothing came");
        assert_eq!(workers(&all), [("disk:a", 4), ("disk:b", 3), ("disk:c", 2)]);
        // Queues at the first worker are in no owner's way, and one that is ready has its worker.
        assert!(avoid_fixed(&mut all, 5, |worker| [2, 0, 0, 2, 2][worker]).is_empty());
        assert_eq!(workers(&all), [("disk:a", 4), ("disk:b", 1), ("disk:c", 2)]);
        assert_eq!(avoid_fixed(&mut all, 5, |worker| [0, 0, 2, 2, 0][worker]), ["disk:c"], "none is left");
        assert_eq!(workers(&all), [("disk:a", 4), ("disk:b", 1)]);
    }
}
