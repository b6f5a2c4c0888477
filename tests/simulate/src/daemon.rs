//! A daemon: the sessions' state machine, and workers that run when the scheduler says so.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use fipsee_block::disk::{AnyDisk, DiskSpec, NullDisk, NullOptions};
use fipsee_daemon::config::DiskConfig;
use fipsee_daemon::export::AllowList;
use fipsee_ring::control::Control;
use fipsee_ring::wait::{Backoff, WaitMode};
use fipsee_serve::session::{Action, Credentials, Done, Host, Sessions};
use fipsee_serve::{Command, Pass, Place, Worker, WorkerHandle};

use crate::context::{Context, lock};
use crate::disk::SECTORS;
use crate::queue::{Lane, SimEngine};
use crate::service::{self, SimHost};
use crate::variant::Variant;

/// From a client.
pub(crate) enum Up {
    /// It connects.
    Connect,
    /// A packet, with its descriptors.
    Packet(Vec<u8>, Vec<OwnedFd>),
    /// It is gone.
    HangUp,
}

/// To a client.
pub(crate) enum Down {
    /// A packet, with its descriptors.
    Packet(Control, Vec<OwnedFd>),
    /// The daemon is gone, or wants no more of it.
    Closed,
}

/// A connection.
#[derive(Default)]
pub(crate) struct Link {
    /// The daemon's number for it, once it has taken it.
    pub(crate) session: Option<u64>,
    /// What the daemon has not taken.
    pub(crate) up: VecDeque<Up>,
    /// What the client has not taken.
    pub(crate) down: VecDeque<Down>,
}

/// Whether a worker is to be scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awake {
    /// It looks.
    Yes,
    /// It found nothing: next it arms its doorbells.
    Drowsy,
    /// Until something rings.
    No,
}

/// A worker and how far it is.
pub(crate) struct SimWorker {
    pub(crate) worker: Worker<SimEngine>,
    lane: Arc<Lane>,
    pub(crate) awake: Awake,
    /// Somebody who might have rung has run since it was last asked whether anything rang.
    is_stirred: bool,
    idle: u32,
    pub(crate) has_stopped: bool,
}

/// A daemon.
pub(crate) struct Daemon {
    pub(crate) sessions: Sessions<SimEngine, SimHost>,
    pub(crate) workers: Vec<SimWorker>,
    pub(crate) handles: Vec<WorkerHandle<SimEngine>>,
    reports: Arc<Mutex<Vec<(u64, Done)>>>,
    context: Arc<Context>,
    reports_taken: u32,
}

fn config() -> &'static DiskConfig {
    static CONFIG: OnceLock<DiskConfig> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let spec = DiskSpec::parse("disk=null:12K").expect("a specification");
        DiskConfig { spec, allow: AllowList { everyone: true, ..AllowList::default() }, vhost_user: Vec::new() }
    })
}

impl Daemon {
    /// One with so many workers; `next_client`: the numbers of clients before.
    #[must_use]
    pub(crate) fn new(context: &Arc<Context>, workers: usize, next_client: u64) -> Self {
        let options = NullOptions { size_bytes: SECTORS as u64 * 512, ..NullOptions::default() };
        let disk = AnyDisk::Null(NullDisk::new("disk", &options).expect("a possible size"));
        let lanes: Vec<Arc<Lane>> = std::iter::repeat_with(Arc::default).take(workers).collect();
        let (mut all, mut handles) = (Vec::new(), Vec::new());
        for lane in &lanes {
            let backoff = Backoff::new(WaitMode::Sleep, Duration::ZERO);
            let (worker, handle) = Worker::new(Place::default(), backoff, SimEngine::new(Arc::clone(lane))).expect("descriptors");
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
            export: service::export(config(), disk),
            workers: handles.clone(),
            lanes,
            next_client,
            departures: Arc::new(AtomicU64::new(1)),
        };
        let reports = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&reports);
        let sessions = Sessions::new(host, Arc::new(move |client, done| lock(&to).push((client, done))));
        Self { sessions, workers: all, handles, reports, context: Arc::clone(context), reports_taken: 0 }
    }

    /// Take the next event of a connection.
    pub(crate) fn take(&mut self, links: &mut [Link], link: usize, now: Instant) {
        let Some(up) = links[link].up.pop_front() else { return };
        match (up, links[link].session) {
            (Up::Connect, _) => match self.sessions.connected(Credentials::default(), now) {
                Ok(id) => {
                    self.context.say(|| format!("daemon: connection {link} is client {id}"));
                    links[link].session = Some(id);
                }
                Err(refusal) => {
                    links[link].down.push_back(Down::Packet(refusal.into(), Vec::new()));
                    links[link].down.push_back(Down::Closed);
                }
            },
            (Up::Packet(bytes, files), Some(id)) => {
                self.context.say(|| format!("daemon: takes {:?} of client {id}", Control::decode(&bytes)));
                self.sessions.packet(id, &bytes, files, now);
            }
            (Up::HangUp, Some(id)) => {
                self.context.say(|| format!("daemon: client {id} hung up"));
                self.sessions.hung_up(id);
                links[link].session = None;
            }
            (_, None) => {}
        }
        self.tick(links, now);
    }

    /// As the transport does after every event.
    pub(crate) fn tick(&mut self, links: &mut [Link], now: Instant) {
        self.sessions.tick(now);
        self.carry_out(links);
    }

    /// Is an acknowledgement of a worker waiting?
    #[must_use]
    pub(crate) fn has_reports(&self) -> bool {
        !lock(&self.reports).is_empty()
    }

    /// Take what the workers acknowledged.
    pub(crate) fn take_reports(&mut self, links: &mut [Link]) {
        for (client, done) in std::mem::take(&mut *lock(&self.reports)) {
            self.reports_taken += 1;
            if self.context.is_broken(Variant::AcknowledgementLost) && (client + u64::from(self.reports_taken)).is_multiple_of(4)
            {
                continue;
            }
            self.context.say(|| format!("daemon: its workers report {done:?} for client {client}"));
            self.sessions.acknowledged(client, done);
        }
        self.carry_out(links);
    }

    /// Do what the sessions decided.
    pub(crate) fn carry_out(&mut self, links: &mut [Link]) {
        loop {
            let actions = self.sessions.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    Action::Send { client, message, grant } => {
                        let Some(link) = links.iter_mut().find(|link| link.session == Some(client)) else { continue };
                        let files = grant.as_deref().map(|grant| grant.descriptors()).unwrap_or_default();
                        let files = files.iter().map(|file| file.try_clone_to_owned().expect("a descriptor")).collect();
                        link.down.push_back(Down::Packet(message, files));
                    }
                    Action::Close { client } => {
                        let Some(link) = links.iter_mut().find(|link| link.session == Some(client)) else { continue };
                        link.session = None;
                        link.down.push_back(Down::Closed);
                    }
                    Action::Command { worker, command } => self.sessions.host.command(worker, command),
                }
            }
        }
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

    /// Somebody has run who might have rung: it costs a system call to ask.
    pub(crate) fn stir(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.is_stirred = true);
    }

    /// A pass of a worker, or the step from looking to sleeping.
    pub(crate) fn run(&mut self, index: usize, idle_passes: u32) {
        let worker = &mut self.workers[index];
        if worker.awake == Awake::Drowsy {
            let sleeps = worker.worker.nothing_remains_after_arming() && !worker.lane.has_ended();
            self.context.say(|| format!("worker {index}: {}", if sleeps { "sleeps" } else { "stays awake" }));
            worker.awake = if sleeps { Awake::No } else { Awake::Yes };
            worker.is_stirred = true;
            return;
        }
        match worker.worker.pass() {
            Pass::Worked => worker.idle = 0,
            Pass::Idle => {
                worker.idle += 1;
                if worker.idle > idle_passes {
                    worker.awake = Awake::Drowsy;
                }
            }
            Pass::Stopped => worker.has_stopped = true,
        }
    }

    /// Queues that its workers serve.
    #[must_use]
    pub(crate) fn queues(&self) -> u64 {
        self.handles.iter().map(|handle| handle.counters.queues.load(Ordering::Relaxed)).sum()
    }

    /// Have the workers end.
    pub(crate) fn stop(&self) {
        self.handles.iter().for_each(|handle| handle.mailbox.send(Command::Stop));
    }

    /// Is anything held for a client?
    #[must_use]
    pub(crate) fn what_is_left(&self) -> Option<String> {
        let attached = self.sessions.host.export.attached().len();
        let assigned: u64 = self.handles.iter().map(|handle| handle.assigned.load(Ordering::Relaxed)).sum();
        let (sessions, queues) = (self.sessions.len(), self.queues());
        let is_empty = self.sessions.is_empty() && attached == 0 && assigned == 0 && queues == 0;
        (!is_empty)
            .then(|| format!("{sessions} clients, {attached} places at the disk, {assigned} places at workers, {queues} queues"))
    }
}
