//! A connected hypervisor: its messages are read for the state machine of its device, and that machine's actions are carried out.

use std::any::Any;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fipsee_net::switch::Link;
use fipsee_ring::handshake::HANDSHAKE_TIMEOUT;
use fipsee_ring::mailbox::Mailbox;
use fipsee_ring::tuning::Choices;
use fipsee_serve::session::Credentials;
use fipsee_serve::unix::credentials_of;
use fipsee_serve::{Assignment, NotAdded, Queue, QueueName, Share, When, Which};
use fipsee_virtio::blk::server::{self, GuestDiskQueue, UpgradeToken, VirtqueueServer};
use fipsee_virtio::blk::upgrade::wire::UpgradeRequest;
use fipsee_virtio::core::ServedVirtqueue;
use fipsee_virtio::net::server::PortQueue;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::Notice;
use super::device::{Acknowledgement, Action, Asked, Device, NotServed};
use super::message::{HEADER_BYTES, Header, Message};
use super::queues::{served, stop};
use super::socket::SharedSocket;
use super::target::{Target, disk_or_port};
use crate::descriptors;
use crate::transport::LogQuota;
use crate::worker::{Command, DiskEngine, WorkerHandle};

/// Within which a message comes that has begun: meanwhile nothing else is done for its machine, and none of its queues moves.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Descriptors of a device besides those of its queues and its memory: two of the connection, the channel for our requests,
/// inflight area, log, and memory files on their way to being mapped.
const DESCRIPTORS: u64 = 40;
/// Kick, call and error of each queue, and the worker's copies.
const DESCRIPTORS_PER_QUEUE: u64 = 6;

pub(crate) struct FrontendConnection {
    pub(super) shared: Arc<SharedSocket>,
    pub(super) client: u64,
    pub(super) credentials: Credentials,
    pub(super) share: Share,
    pub(super) stream: Arc<UnixStream>,
    pub(super) device: Arc<Mutex<Device>>,
    /// Of each queue that a worker serves. Changed by this connection's thread alone.
    pub(super) assignments: Arc<Mutex<Vec<Option<Assignment>>>>,
    /// Descriptors that are charged to it.
    pub(super) charged: u64,
    quota: LogQuota,
}

impl std::fmt::Debug for FrontendConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrontendConnection").field("client", &self.client).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct UpgradeForwarder {
    queue: u16,
    run: u64,
    notices: Arc<Mailbox<Notice>>,
}

impl server::Device for UpgradeForwarder {
    fn asked(&mut self, token: UpgradeToken, upgrade_request: UpgradeRequest) {
        self.notices.send(Notice::Asked(Asked { queue: self.queue, run: self.run, token, upgrade_request }));
    }

    fn broke(&mut self, reason: &str) {
        self.notices.send(Notice::Fault { queue: self.queue, reason: reason.to_owned() });
    }
}

/// Waits for a worker's acknowledgement.
type Waiting = Box<dyn FnOnce() -> Acknowledgement>;

/// The command, its worker, and whether that serves the queue then.
pub(super) type Order = (usize, Command, Receiver<Result<(), String>>);

impl FrontendConnection {
    pub(super) fn new(shared: &Arc<SharedSocket>, client: u64, stream: UnixStream, device: Device) -> std::io::Result<Self> {
        let (shared, credentials) = (Arc::clone(shared), credentials_of(&stream)?);
        let assignments = Arc::new(Mutex::new((0..device.queue_count()).map(|_| None).collect()));
        let stream = Arc::new(stream);
        let live = &shared.live;
        let share = live.shares.of_machine(shared.target.name(), &credentials, shared.listener.path());
        live.shares.attached(client, &share);
        let (device, quota) = (Arc::new(Mutex::new(device)), LogQuota::default());
        Ok(Self { shared, client, credentials, share, stream, device, assignments, charged: 0, quota })
    }

    /// Give the device an input that cannot be refused.
    pub(super) fn notify(&mut self, input: impl FnOnce(&mut Device)) {
        let _ = self.drive(|device| {
            input(device);
            Ok(())
        });
    }

    /// The disk's size changed, or the port's link.
    pub(super) fn changed(&mut self) {
        match &Arc::clone(&self.shared).target {
            Target::Disk(export) => self.notify(|device| device.resized(export.info(false))),
            Target::Port(_, port) => self.notify(|device| device.set_link(port.link() != Link::Down)),
        }
    }

    /// Charge the descriptors that it may hold now.
    pub(super) fn charge(&mut self) {
        let (device, held) = (lock(&self.device), &self.shared.live.device_descriptors);
        let charge = DESCRIPTORS + DESCRIPTORS_PER_QUEUE * u64::from(device.queue_count()) + device.memory.regions().len() as u64;
        if charge != self.charged {
            held.fetch_add(charge, Ordering::Relaxed);
            held.fetch_sub(std::mem::replace(&mut self.charged, charge), Ordering::Relaxed);
        }
    }

    /// The next message, which has begun to come; `None`: the hypervisor hung up.
    pub(super) fn receive(&self) -> Result<Option<Message>, String> {
        let (mut bytes, mut filled, mut descriptors) = ([0; HEADER_BYTES], 0, Vec::new());
        let deadline = Instant::now() + MESSAGE_TIMEOUT;
        while filled < HEADER_BYTES {
            self.await_bytes(deadline)?;
            match descriptors::receive(&self.stream, &mut bytes[filled..], &mut descriptors) {
                Ok(0) => return Ok(None),
                Ok(count) => filled += count,
                Err(error) => return Err(format!("its connection broke: {error}")),
            }
        }
        let (header, length) = Header::parse(bytes);
        let mut body = vec![0; length.ok_or_else(|| format!("{header}: invalid message"))?];
        let mut filled = 0;
        while filled < body.len() {
            self.await_bytes(deadline).map_err(|problem| format!("{header}: {problem}"))?;
            match (&*self.stream).read(&mut body[filled..]) {
                Ok(0) => return Err(format!("{header}: the message ends early")),
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("{header}: the message ends early: {error}")),
            }
        }
        Ok(Some(Message { header, body, descriptors }))
    }

    /// Until there is something to read, or the end.
    fn await_bytes(&self, deadline: Instant) -> Result<(), String> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).unwrap_or_default();
            match poll(&mut [PollFd::new(&*self.stream, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => {
                    let seconds = MESSAGE_TIMEOUT.as_secs();
                    return Err(format!("the rest of the message did not come within {seconds} s; send each message at once"));
                }
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(format!("its connection cannot be watched: {error}")),
            }
        }
    }

    /// Give the device an input, and carry out its actions until that has taken effect.
    pub(super) fn drive(&mut self, input: impl FnOnce(&mut Device) -> Result<(), String>) -> Result<(), String> {
        let shared = Arc::clone(&self.device);
        let mut device = lock(&shared);
        let mut result = input(&mut device);
        loop {
            let actions = device.take_actions();
            if actions.is_empty() {
                return result;
            }
            // All commands are sent before one is awaited: queues drain in parallel.
            let mut waiting = Vec::new();
            for action in actions {
                match self.carry_out(&mut device, action) {
                    Ok(wait) => waiting.extend(wait),
                    Err(problem) => result = result.and(Err(problem)),
                }
            }
            for wait in waiting {
                let acknowledgement = wait();
                match &acknowledgement {
                    Acknowledgement::Served(_, Ok(_)) | Acknowledgement::Transferred(_, Ok(_)) => self.publish_queues(&device),
                    Acknowledgement::Served(queue, Err(_)) | Acknowledgement::Transferred(queue, Err(_)) => {
                        self.assign(*queue, None);
                    }
                    _ => {}
                }
                result = result.and(device.acknowledged(acknowledgement));
            }
        }
    }

    fn carry_out(&mut self, device: &mut Device, action: Action) -> Result<Option<Waiting>, String> {
        let (target, client, gone) = (&self.shared.target, self.client, "its worker is gone");
        let waiting: Waiting = match action {
            Action::Reply(bytes, descriptor) => {
                let sent = descriptors::send(&self.stream, &bytes, descriptor.as_ref().map(AsFd::as_fd).as_slice());
                sent.map_err(|error| format!("it does not take its answer: {error}"))?;
                return Ok(None);
            }
            Action::Announce(bytes) => {
                announce(device, &bytes);
                return Ok(None);
            }
            Action::EndClaim => {
                target.end_claim(client);
                return Ok(None);
            }
            Action::Warn(queue, what, problem) => {
                let (disk, port) = target.disk_or_port();
                tracing::warn!(disk, port, queue, problem, "{what}");
                return Ok(None);
            }
            Action::Claim => {
                let claimed = target.claim(client, HANDSHAKE_TIMEOUT);
                Box::new(move || Acknowledgement::Done(claimed))
            }
            Action::Serve(queue, run, setup) => {
                let order = self.order(queue, run, move |id, device| VirtqueueServer::new(id, *setup, device))?;
                self.begin(queue, order)
            }
            Action::ServePort(queue, role, setup) => {
                let pairs = device.model.port().map_or(1, |port| port.pairs);
                let order = self.order_port(queue, (role, pairs), *setup)?;
                self.begin(queue, order)
            }
            Action::SendRarp(queue, mac) => {
                // The next message waits for it: a hypervisor has one on its way at most.
                let (reply, done) = channel();
                let change = move |queue: &mut PortQueue| {
                    queue.announce(mac);
                    let _ = reply.send(());
                };
                self.send(queue, |which| Command::change(which, When::Now, change));
                Box::new(move || {
                    let _ = done.recv();
                    Acknowledgement::Done(Ok(()))
                })
            }
            Action::Stop(queue) => {
                let (reply, stopped) = channel();
                let removed = move |queue: Box<dyn Queue<DiskEngine>>, _: Share| {
                    let _ = stop(queue).map(|next| reply.send(next));
                };
                self.send(queue, |which| Command::Remove { which, finish: false, removed: Box::new(removed) });
                self.assign(queue, None);
                Box::new(move || Acknowledgement::Stopped(queue, stopped.recv().ok()))
            }
            Action::Move(queue, memory, rings) => {
                let moved = self.change(queue, When::Idle, move |server| server.set_memory(memory, rings));
                Box::new(move || Acknowledgement::Moved(queue, moved.recv().unwrap_or_else(|_| Err(gone.to_owned()))))
            }
            Action::Transfer(queue, worker) => {
                // It is the only action of its step.
                let transferred = self.transfer(queue, worker);
                Box::new(move || Acknowledgement::Transferred(queue, transferred))
            }
            Action::Change(queue, change) => {
                let changed = self.change(queue, When::Now, change);
                Box::new(move || Acknowledgement::Done(changed.recv().unwrap_or(Ok(()))))
            }
            Action::Ring(queue, how) => self.ring(queue, how),
        };
        Ok(Some(waiting))
    }

    /// Have a worker serve a queue.
    fn begin(&self, queue: u16, (worker, command, served): Order) -> Waiting {
        let handle = &self.shared.workers[worker];
        let choices = handle.place().choices;
        handle.mailbox.send(command);
        let served = move || served.recv().unwrap_or_else(|_| Err("its worker is gone".to_owned())).map(|()| choices);
        Box::new(move || Acknowledgement::Served(queue, served()))
    }

    fn ring(&self, queue: u16, how: fn(&mut VirtqueueServer, Sender<()>)) -> Waiting {
        let (done, waiting) = channel();
        let _ = self.change(queue, When::Now, move |server| {
            let server: &mut dyn Any = server;
            let _ = server.downcast_mut().map(|server| how(server, done));
        });
        Box::new(move || {
            // A queue that is gone has released its ring.
            let _ = waiting.recv();
            Acknowledgement::Done(Ok(()))
        })
    }

    /// The queue goes from one worker to the other: between the two no thread has it. If that one cannot have it, it goes back; if it
    /// cannot do that either, it is stopped.
    fn transfer(&mut self, index: u16, to: usize) -> Result<Choices, NotServed> {
        let gone = || NotServed { problem: "its worker is gone".to_owned(), next_available: None };
        let from = self.worker_of(index).ok_or_else(gone)?;
        let (lift, lifted) = channel();
        let removed = move |queue, share| {
            let _ = lift.send((queue, share));
        };
        self.send(index, |which| Command::Remove { which, finish: false, removed: Box::new(removed) });
        let (mut queue, mut share): (Box<dyn Queue<DiskEngine>>, Share) = lifted.recv().map_err(|_| gone())?;
        let mut problem = String::new();
        for worker in [to, from] {
            let (reply, served) = channel();
            let make = move |number| {
                queue.disarm();
                queue.moved(number);
                Ok(queue)
            };
            let added = move |added| {
                let _ = reply.send(added);
            };
            let (name, assignment) =
                (QueueName { client: self.client, index }, Assignment::to(worker, &self.shared.workers[worker]));
            let choices = assignment.place.choices;
            self.assign(index, Some(assignment));
            let command = Command::Add { name, share, make: Box::new(make), added: Box::new(added) };
            self.shared.workers[worker].mailbox.send(command);
            match served.recv().map_err(|_| gone())? {
                Ok(()) => return Ok(choices),
                Err(NotAdded::Doorbell(error, back, its)) => {
                    if self.quota.allows() {
                        let (disk, port) = self.shared.target.disk_or_port();
                        tracing::warn!(disk, port, queue = index, worker, %error, "a worker cannot watch a queue; raise fs.epoll.max_user_watches");
                    }
                    (queue, share, problem) = (back, its, not_watched(&error));
                }
                Err(NotAdded::NotMade(problem)) => return Err(NotServed { problem, next_available: None }),
            }
        }
        Err(NotServed { problem, next_available: stop(queue) })
    }

    /// Have another worker serve this queue.
    pub(super) fn move_queue(&mut self, queue: u16, to: usize) {
        // Those of a port stay where the others of their network are.
        let is_for_it = self.shared.target.disk().is_some() && self.shared.workers[to].counters.pool.number() == self.pool();
        if is_for_it && self.worker_of(queue).is_some_and(|worker| worker != to) {
            self.notify(|device| device.transfer(queue, to));
        }
    }

    /// Queues whose workers are not for them, or not any more, go to others.
    pub(super) fn leave_workers(&mut self) {
        if self.shared.target.disk().is_none() {
            return;
        }
        let pool = self.pool();
        let misplaced = misplaced(&self.assigned(), &self.shared.workers, pool);
        for queue in misplaced {
            let to = Assignment::choose_in(&self.shared.workers, pool).worker;
            if self.worker_of(queue).is_some_and(|worker| worker != to) {
                self.notify(|device| device.transfer(queue, to));
            }
        }
    }

    /// The workers for its queues.
    fn pool(&self) -> u64 {
        self.shared.pool_of(self.client, &self.share.group)
    }

    pub(super) fn assigned(&self) -> MutexGuard<'_, Vec<Option<Assignment>>> {
        self.assignments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn assign(&self, queue: u16, assignment: Option<Assignment>) {
        self.assigned()[usize::from(queue)] = assignment;
    }

    fn worker_of(&self, queue: u16) -> Option<usize> {
        self.assigned()[usize::from(queue)].as_ref().map(|assignment| assignment.worker)
    }

    /// Change a queue between two visits; returns the result of `change`, if the queue exists.
    fn change<T: Send + 'static>(
        &self,
        queue: u16,
        when: When,
        change: impl FnOnce(&mut dyn ServedVirtqueue) -> T + Send + 'static,
    ) -> Receiver<T> {
        let (reply, replied) = channel();
        let mut change = Some(change);
        let change = move |queue: &mut dyn Queue<DiskEngine>| {
            if let (Some(queue), Some(change)) = (served(queue), change.take()) {
                let _ = reply.send(change(queue));
            }
        };
        self.send(queue, |which| Command::Change { which, when, change: Box::new(change) });
        replied
    }

    /// Send a command to the worker of a queue, if it has one.
    fn send(&self, queue: u16, command: impl FnOnce(Which) -> Command) {
        if let Some(worker) = self.worker_of(queue) {
            let which = Which::Queue(QueueName { client: self.client, index: queue });
            self.shared.workers[worker].mailbox.send(command(which));
        }
    }

    /// Choose a worker for a queue, which `make` creates there.
    pub(super) fn order(
        &mut self,
        queue: u16,
        run: u64,
        make: impl FnOnce(u32, Option<Box<dyn server::Device>>) -> Result<VirtqueueServer, String> + Send + 'static,
    ) -> Result<Order, String> {
        let SharedSocket { workers, target, notices, .. } = &*self.shared;
        let Target::Disk(export) = target else { return Err("it is a queue of a port".to_owned()) };
        let forwarder = UpgradeForwarder { queue, run, notices: Arc::clone(notices) };
        let (disk, policy, (reply, served)) = (Arc::clone(&export.disk), export.policy_of(self.client), channel());
        let added = move |added: Result<(), NotAdded<DiskEngine>>| {
            let _ = reply.send(added.map_err(not_served));
        };
        let make = move |id| Ok(GuestDiskQueue::new(make(id, Some(Box::new(forwarder)))?, disk).notifying_by(policy));
        let command =
            Command::add(QueueName { client: self.client, index: queue }, self.share.with(&export.limiter), make, added);
        let assignment = Assignment::choose_in(workers, self.pool());
        let worker = assignment.worker;
        self.assign(queue, Some(assignment));
        Ok((worker, command, served))
    }

    /// For `fipsee stat` and `info`: queues up to the last that is served.
    pub(super) fn publish_queues(&self, device: &Device) {
        let Some(export) = self.shared.target.disk() else { return };
        let cpus: Vec<_> = {
            let assigned = self.assigned();
            let count = assigned.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
            assigned[..count].iter().map(|assigned| assigned.as_ref()?.place.cpu).collect()
        };
        let counters = device.vrings[..cpus.len()].iter().map(|vring| Arc::clone(&vring.counters)).collect();
        export.set_queues(self.client, counters, cpus);
        export.set_share(self.client, &self.share);
    }
}

pub(super) fn not_served(error: NotAdded<DiskEngine>) -> String {
    match error {
        NotAdded::NotMade(reason) => reason,
        NotAdded::Doorbell(error, ..) => not_watched(&error),
    }
}

fn not_watched(error: &std::io::Error) -> String {
    format!(
        "its kick descriptor cannot be watched ({error}); it must be an eventfd, and fs.epoll.max_user_watches be high enough"
    )
}

/// The queues whose workers are for others, or in no use.
pub(super) fn misplaced(assigned: &[Option<Assignment>], workers: &[WorkerHandle], pool: u64) -> Vec<u16> {
    let is_misplaced = |of: &Option<Assignment>| of.as_ref().is_some_and(|of| workers[of.worker].counters.pool.number() != pool);
    (0..).zip(assigned).filter(|(_, of)| is_misplaced(of)).map(|(queue, _)| queue).collect()
}

/// The device, whose lock is not poisoned: a panic of a thread ends the process.
pub(super) fn lock(device: &Mutex<Device>) -> MutexGuard<'_, Device> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request to the hypervisor, without an answer; does not wait for a hypervisor that does not read.
fn announce(device: &mut Device, bytes: &[u8]) {
    let Some(channel) = &device.channel else { return };
    let sent = rustix::net::send(channel, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    if sent != Ok(bytes.len()) {
        let (disk, port) = disk_or_port(device.model.name());
        tracing::warn!(disk, port, ?sent, "the hypervisor cannot be notified of a change");
        device.channel = None;
    }
}
