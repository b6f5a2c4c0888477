//! The daemon as the host of its clients' sessions: registry, limits, workers, log.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fipsee_block::disk::usable_memory_bytes;
use fipsee_ring::control::{Page, Refusal, Wanted};
use fipsee_serve::session::{Client, ClientLimits, Credentials, Denial, Event, Granted, Host};
use fipsee_serve::{Assignment, QueueName, Share};

use crate::live::Live;
use crate::scaling::Scaling;
use crate::services::Registry;
use crate::transport::LogQuota;
use crate::transport::vhost_user::VhostUserSockets;
use crate::worker::{Command, DiskEngine, WorkerHandle};

pub(super) struct DaemonHost {
    pub(super) live: Arc<Live>,
    pub(super) workers: Vec<WorkerHandle>,
    pub(super) registry: Registry,
    pub(super) scaling: Arc<Scaling>,
    machines: Arc<VhostUserSockets>,
    /// Descriptors of its own: those open at the start stay open (disks, workers, logs).
    descriptors: u64,
    /// Of the machine or the control group.
    memory_bytes: Option<u64>,
    quota: LogQuota,
}

impl DaemonHost {
    pub(super) fn new(
        workers: Vec<WorkerHandle>,
        live: Arc<Live>,
        registry: Registry,
        scaling: Arc<Scaling>,
        machines: Arc<VhostUserSockets>,
    ) -> Self {
        let descriptors = std::fs::read_dir("/proc/self/fd").map_or(0, |open| open.count() as u64);
        let (memory_bytes, quota) = (usable_memory_bytes(), LogQuota::default());
        Self { live, workers, registry, scaling, machines, descriptors, memory_bytes, quota }
    }

    /// Take a sample of how busy the workers are, if it is time; `is_moving`: a queue of a session is on its way.
    pub(super) fn scale(&self, is_moving: bool) {
        if self.scaling.tick(is_moving || self.machines.is_moving()) {
            self.machines.leave_workers();
        }
    }

    pub(super) fn cannot_accept(&mut self, error: &std::io::Error) {
        if self.quota.allows() {
            tracing::error!(%error, "cannot accept a client; raise LimitNOFILE= or detach clients");
        }
    }
}

impl Host<DiskEngine> for DaemonHost {
    fn next_client(&mut self) -> u64 {
        self.live.next_client()
    }

    fn limits(&self) -> ClientLimits {
        self.live.now().settings.limits
    }

    fn max_clients(&self) -> (usize, Option<usize>) {
        let settings = self.live.now().settings;
        (settings.max_clients, settings.max_clients_per_user)
    }

    fn max_memory_bytes_per_user(&self) -> u64 {
        self.live.now().settings.memory_per_user(self.memory_bytes)
    }

    fn share(&self, credentials: &Credentials) -> Share {
        self.live.shares.of_client(credentials)
    }

    fn descriptors(&self) -> (u64, u64) {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        (limit, self.descriptors + self.live.now().added_descriptors() + self.live.device_descriptors.load(Ordering::Relaxed))
    }

    fn features(&self) -> u64 {
        self.registry.features()
    }

    fn list(&self, client: &Client<'_>, service: u16, after: &str) -> Result<Page, Refusal> {
        self.registry.list(client, service, after)
    }

    fn attach(&mut self, client: &Client<'_>, wanted: &Wanted) -> Result<Granted<DiskEngine>, Denial> {
        self.registry.attach(client, wanted)
    }

    fn command(&mut self, worker: usize, command: Command) {
        self.workers[worker].mailbox.send(command);
    }

    fn wanted_move(&mut self) -> Option<(QueueName, Assignment)> {
        while let Some((queue, to)) = self.scaling.wanted_move() {
            if self.live.stays(queue.client) {
                continue;
            }
            // Those of machines are moved by the threads of their connections.
            if !self.machines.move_queue(queue, to) {
                return Some((queue, Assignment::to(to, &self.workers[to])));
            }
        }
        None
    }

    fn uneven(&self, nth: usize) -> Option<(usize, Assignment)> {
        self.scaling.uneven(nth)
    }

    fn stays_uneven(&mut self) {
        self.scaling.stays_uneven();
    }

    fn may_balance(&self, queue: QueueName, from: usize, to: usize) -> bool {
        !self.live.stays(queue.client) && self.scaling.may_balance(queue, from, to)
    }

    fn departures(&self) -> u64 {
        self.live.departures.load(Ordering::Relaxed)
    }

    fn event(&mut self, event: Event<'_>) {
        if !self.quota.allows() {
            return;
        }
        match event {
            Event::Attached { client: Client { id, credentials: Credentials { pid, uid, .. }, .. }, name, queues } => {
                tracing::info!(client = id, pid, uid, name, queues, "attached");
            }
            Event::Gone { client, name } => tracing::info!(client, name, "gone; everything of it is released"),
            Event::Refused { client, credentials: Credentials { pid, uid, .. }, reason } => {
                tracing::warn!(client, pid, uid, reason, "refused");
            }
        }
    }
}
