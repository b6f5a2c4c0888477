//! A daemon: the sessions' state machine, and workers that run when the scheduler says so.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fipsee_block::disk::{AnyDisk, DiskSpec, NullDisk, NullOptions};
use fipsee_daemon::config::DiskConfig;
use fipsee_daemon::export::AllowList;
use fipsee_ring::wait::{Backoff, WaitMode};
use fipsee_serve::{Assignment, Command, Pass, Worker, WorkerHandle, WorkerPlacement};
use fipsee_service::Sums;

use crate::context::Context;
use crate::disk::SECTORS;
use crate::link::{Awake, Transport};
use crate::queue::{Lane, SimEngine};
use crate::service::{self, SimHost};

/// A worker and how far it is.
pub(crate) struct SimWorker {
    pub(crate) worker: Worker<SimEngine>,
    lane: Arc<Lane>,
    pub(crate) awake: Awake,
    /// An actor that may have rung has run since the doorbells were last asked.
    is_stirred: bool,
    idle: u32,
    pub(crate) has_stopped: bool,
}

/// A daemon.
pub(crate) struct Daemon {
    pub(crate) transport: Transport<SimEngine, SimHost>,
    pub(crate) workers: Vec<SimWorker>,
    pub(crate) handles: Vec<WorkerHandle<SimEngine>>,
    context: Arc<Context>,
}

/// What is configured of the disk: may several write at a time, whatever they claim?
fn config(shared: bool) -> &'static DiskConfig {
    static CONFIGS: [OnceLock<DiskConfig>; 2] = [OnceLock::new(), OnceLock::new()];
    CONFIGS[usize::from(shared)].get_or_init(|| {
        let spec = DiskSpec::parse(if shared { "disk=null:12K,shared" } else { "disk=null:12K" }).expect("a specification");
        DiskConfig::new(spec, AllowList { everyone: true, ..AllowList::default() })
    })
}

impl Daemon {
    /// One with so many workers; `next_client`: the numbers of clients before.
    pub(crate) fn new(context: &Arc<Context>, workers: usize, shared: bool, next_client: u64) -> Self {
        let options = NullOptions { size_bytes: SECTORS as u64 * 512, ..NullOptions::default() };
        let disk = AnyDisk::Null(NullDisk::new("disk", &options).expect("a possible size"));
        let lanes: Vec<Arc<Lane>> = std::iter::repeat_with(Arc::default).take(workers).collect();
        let (mut all, mut handles) = (Vec::new(), Vec::new());
        for lane in &lanes {
            let backoff = Backoff::new(WaitMode::Sleep, Duration::ZERO);
            let (worker, handle) =
                Worker::new(WorkerPlacement::default(), backoff, SimEngine::new(Arc::clone(lane))).expect("descriptors");
            all.push(SimWorker {
                worker,
                lane: Arc::clone(lane),
                awake: Awake::Yes,
                is_stirred: true,
                idle: 0,
                has_stopped: false,
            });
            handles.push(handle);
        }
        let host = SimHost {
            context: Arc::clone(context),
            export: service::export(config(shared), disk),
            shared,
            sums: Sums(handles.clone(), Arc::default()),
            networks: context.lan().networks(context, handles.clone()),
            workers: handles.clone(),
            lanes,
            next_client,
            departures: Arc::new(AtomicU64::new(1)),
            max_clients: service::MAX_CLIENTS,
            scaling: None,
        };
        let transport = Transport::new(context, host);
        Self { transport, workers: all, handles, context: Arc::clone(context) }
    }

    /// Have a queue of a client go from its worker to one that is so many further.
    pub(crate) fn move_queue(&mut self, client: u64, index: u16, further: usize) {
        let sessions = &mut self.transport.sessions;
        let held = sessions.iter().find(|(id, _)| *id == client).and_then(|(_, session)| session.held());
        let Some(worker) = held.and_then(|held| held.worker(index)) else { return };
        let to = (worker + further) % self.handles.len();
        self.context.say(|| format!("daemon: queue {index} of client {client} moves from worker {worker} to {to}"));
        sessions.move_queue(client, index, Assignment::to(to, &self.handles[to]));
    }

    /// May this worker be scheduled? One that sleeps only when something rang.
    pub(crate) fn may_run(&mut self, index: usize) -> bool {
        let worker = &mut self.workers[index];
        if worker.has_stopped {
            return false;
        }
        if worker.awake == Awake::No
            && (worker.lane.has_ended() || std::mem::take(&mut worker.is_stirred) && worker.worker.sleep(Some(0)))
        {
            self.context.say(|| format!("worker {index}: wakes"));
            worker.awake = Awake::Yes;
        }
        worker.awake != Awake::No
    }

    /// An actor that may have rung has run: to ask costs a system call.
    pub(crate) fn stir(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.is_stirred = true);
    }

    /// A pass of a worker, or the step from looking to sleeping. The requests that a pass took which found something to do.
    pub(crate) fn run(&mut self, index: usize, idle_passes: u32) -> Option<u64> {
        let worker = &mut self.workers[index];
        if worker.awake == Awake::Drowsy {
            let sleeps = worker.worker.nothing_remains_after_arming() && !worker.lane.has_ended();
            self.context.say(|| format!("worker {index}: {}", if sleeps { "sleeps" } else { "stays awake" }));
            worker.awake = if sleeps { Awake::No } else { Awake::Yes };
            worker.is_stirred = true;
            return None;
        }
        let pass = worker.worker.pass();
        self.context.moves().passed(index);
        match pass {
            Pass::Worked => worker.idle = 0,
            Pass::Idle => {
                worker.idle += 1;
                if worker.idle > idle_passes {
                    worker.awake = Awake::Drowsy;
                }
            }
            Pass::Stopped => worker.has_stopped = true,
        }
        let taken = worker.lane.take_taken();
        (pass == Pass::Worked).then_some(taken)
    }

    /// Queues that its workers serve.
    pub(crate) fn queues(&self) -> u64 {
        self.handles.iter().map(|handle| handle.counters.queues.load(Ordering::Relaxed)).sum()
    }

    /// Have the workers end.
    pub(crate) fn stop(&self) {
        self.handles.iter().for_each(|handle| handle.mailbox.send(Command::Stop));
    }

    /// Is anything held for a client?
    pub(crate) fn what_is_left(&self) -> Option<String> {
        let attached = self.transport.sessions.host.export.attached().len();
        let assigned: u64 = self.handles.iter().map(|handle| handle.counters.assigned.load(Ordering::Relaxed)).sum();
        let (sessions, queues) = (self.transport.sessions.len(), self.queues());
        let is_empty = self.transport.sessions.is_empty() && attached == 0 && assigned == 0 && queues == 0;
        (!is_empty)
            .then(|| format!("{sessions} clients, {attached} places at the disk, {assigned} places at workers, {queues} queues"))
    }
}
