//! A hypervisor that is connected: its messages are read for the state machine of its device, and what that wants done is done.

use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fipsee_block::wire::BlockInfo;
use fipsee_ring::handshake::HANDSHAKE_TIMEOUT;
use fipsee_ring::mailbox::Mailbox;
use fipsee_serve::session::Credentials;
use fipsee_serve::unix::credentials_of;
use fipsee_serve::{Assignment, QueueName, When};
use fipsee_virtio::blk::server::{self, QuestionToken, VirtqueueServer};
use fipsee_virtio::blk::upgrade::wire::Question;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::Notice;
use super::device::{Acknowledgement, Action, Asked, Change, Device};
use super::handover::Machine;
use super::message::{HEADER_BYTES, Header, MAX_DESCRIPTORS, Message};
use crate::export::Export;
use crate::live::Live;
use crate::worker::{Command, WorkerHandle, virtqueue};

/// Descriptors of a device beside those of its queues and its memory: two of the connection, the channel for our requests, inflight
/// area, log, and memory files on their way to being mapped.
const DESCRIPTORS: u64 = 40;
/// Kick, call and error of each queue, and the worker's copies.
const DESCRIPTORS_PER_QUEUE: u64 = 6;

/// What a connection serves, and by whom.
#[derive(Clone)]
pub(super) struct Backend {
    pub(super) workers: Vec<WorkerHandle>,
    pub(super) export: Arc<Export>,
    pub(super) client: u64,
    /// The queues' faults and questions go here.
    pub(super) notices: Arc<Mailbox<Notice>>,
}

/// One hypervisor.
pub struct FrontendConnection {
    pub(super) backend: Backend,
    pub(super) credentials: Credentials,
    pub(super) stream: Arc<UnixStream>,
    pub(super) device: Arc<Mutex<Device>>,
    /// Of each queue that a worker serves.
    assignments: Vec<Option<Assignment>>,
    /// Descriptors that it is counted with.
    pub(super) charged: u64,
}

impl std::fmt::Debug for FrontendConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrontendConnection").field("client", &self.backend.client).finish_non_exhaustive()
    }
}

/// Forwards the questions and the fault of a queue.
#[derive(Debug)]
struct UpgradeForwarder {
    queue: u16,
    run: u64,
    notices: Arc<Mailbox<Notice>>,
}

impl server::Device for UpgradeForwarder {
    fn asked(&mut self, token: QuestionToken, question: Question) {
        self.notices.send(Notice::Asked(Asked { queue: self.queue, run: self.run, token, question }));
    }

    fn broke(&mut self, reason: &str) {
        self.notices.send(Notice::Fault { queue: self.queue, reason: reason.to_owned() });
    }
}

/// Waits for what a worker was asked for.
type Waiting = Box<dyn FnOnce() -> Acknowledgement>;

/// Which worker is to be told what, and whether it serves the queue then.
pub(super) type Order = (usize, Command, Receiver<Result<(), String>>);

impl FrontendConnection {
    pub(super) fn new(backend: Backend, stream: UnixStream, device: Device) -> std::io::Result<Self> {
        let credentials = credentials_of(&stream)?;
        let (stream, assignments) = (Arc::new(stream), (0..device.queue_count()).map(|_| None).collect());
        Ok(Self { backend, credentials, stream, device: Arc::new(Mutex::new(device)), assignments, charged: 0 })
    }

    /// Process and user.
    pub(super) const fn peer(&self) -> (i32, u32) {
        (self.credentials.pid, self.credentials.uid)
    }

    /// For another daemon.
    pub(super) fn machine(&self) -> Machine {
        Machine { backend: self.backend.clone(), stream: Arc::clone(&self.stream), device: Arc::clone(&self.device) }
    }

    /// Have the device take in what cannot be refused.
    pub(super) fn notify(&mut self, input: impl FnOnce(&mut Device, BlockInfo)) {
        let info = self.backend.export.info(false);
        let _ = self.drive(|device| {
            input(device, info);
            Ok(())
        });
    }

    /// Count the descriptors that it may hold now.
    pub(super) fn charge(&mut self, live: &Live) {
        let device = lock(&self.device);
        let charge = DESCRIPTORS + DESCRIPTORS_PER_QUEUE * u64::from(device.queue_count()) + device.memory.regions().len() as u64;
        if charge != self.charged {
            live.take_descriptors(charge);
            live.give_descriptors(std::mem::replace(&mut self.charged, charge));
        }
    }

    /// The next message, which may be waited for; `None`: the hypervisor hung up.
    ///
    /// # Errors
    /// In words: it is longer than any may be, or ends too early.
    pub(super) fn receive(&self) -> Result<Option<Message>, String> {
        let (mut bytes, mut filled, mut descriptors) = ([0; HEADER_BYTES], 0, Vec::new());
        while filled < HEADER_BYTES {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let into = &mut [IoSliceMut::new(&mut bytes[filled..])];
            match recvmsg(&*self.stream, into, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) if received.bytes == 0 => return Ok(None),
                Ok(received) => filled += received.bytes,
                Err(Errno::INTR) => {}
                Err(error) => return Err(format!("its connection broke: {error}")),
            }
            descriptors.extend(
                control
                    .drain()
                    .filter_map(|message| match message {
                        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                        _ => None,
                    })
                    .flatten(),
            );
        }
        let (header, length) = Header::parse(bytes);
        let mut body = vec![0; length.ok_or_else(|| format!("{header}: invalid message"))?];
        (&*self.stream).read_exact(&mut body).map_err(|error| format!("{header}: the message ends early: {error}"))?;
        Ok(Some(Message { header, body, descriptors }))
    }

    /// Have the device take something in, and do what it wants done until that has taken effect.
    ///
    /// # Errors
    /// The connection is to be closed, for this reason.
    pub(super) fn drive(&mut self, input: impl FnOnce(&mut Device) -> Result<(), String>) -> Result<(), String> {
        let shared = Arc::clone(&self.device);
        let mut device = lock(&shared);
        let mut result = input(&mut device);
        loop {
            let actions = device.take_actions();
            if actions.is_empty() {
                return result;
            }
            // All are asked before one is awaited: queues finish what is in flight side by side.
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
                    Acknowledgement::Served(_, Ok(_)) => self.publish_queues(&device),
                    Acknowledgement::Served(queue, Err(_)) => self.assignments[usize::from(*queue)] = None,
                    _ => {}
                }
                result = result.and(device.acknowledged(acknowledgement));
            }
        }
    }

    fn carry_out(&mut self, device: &mut Device, action: Action) -> Result<Option<Waiting>, String> {
        let Backend { export, client, .. } = &self.backend;
        let (disk, gone) = (export.name(), "its worker is gone");
        let waiting: Waiting = match action {
            Action::Reply(bytes, descriptor) => {
                send(&self.stream, &bytes, descriptor.as_ref())
                    .map_err(|error| format!("it does not take its answer: {error}"))?;
                return Ok(None);
            }
            Action::Announce(bytes) => {
                announce(device, &bytes);
                return Ok(None);
            }
            Action::EndClaim => {
                export.end_claim(*client);
                return Ok(None);
            }
            Action::Warn(queue, what, problem) => {
                tracing::warn!(disk, queue, problem, "{what}");
                return Ok(None);
            }
            Action::Claim => {
                let claimed = export.claim(*client, HANDSHAKE_TIMEOUT);
                Box::new(move || Acknowledgement::Done(claimed))
            }
            Action::Serve(queue, run, setup) => {
                let (worker, command, served) =
                    self.order(queue, run, move |id, device| VirtqueueServer::new(id, *setup, device));
                let choices = self.backend.workers[worker].place.choices;
                self.backend.workers[worker].mailbox.send(command);
                let served = move || served.recv().unwrap_or_else(|_| Err(gone.to_owned())).map(|()| choices);
                Box::new(move || Acknowledgement::Served(queue, served()))
            }
            Action::Stop(queue) => {
                let stopped = self.send_command(queue, virtqueue::stop);
                self.assignments[usize::from(queue)] = None;
                Box::new(move || Acknowledgement::Stopped(queue, stopped.recv().ok()))
            }
            Action::Move(queue, memory, rings) => {
                let moved = self.change(queue, When::Idle, move |server| server.set_memory(memory, rings));
                Box::new(move || Acknowledgement::Moved(queue, moved.recv().unwrap_or_else(|_| Err(gone.to_owned()))))
            }
            Action::Change(queue, Change(change)) => {
                let changed = self.change(queue, When::Now, change);
                Box::new(move || Acknowledgement::Done(changed.recv().unwrap_or(Ok(()))))
            }
            Action::Ring(queue, how) => {
                let (done, waiting) = channel();
                let _ = self.change(queue, When::Now, move |server| how(server, done));
                Box::new(move || {
                    // A queue that is gone has let go of its ring.
                    let _ = waiting.recv();
                    Acknowledgement::Done(Ok(()))
                })
            }
        };
        Ok(Some(waiting))
    }

    /// Change a queue; what `change` returns.
    fn change<T: Send + 'static>(
        &self,
        queue: u16,
        when: When,
        change: impl FnOnce(&mut VirtqueueServer) -> T + Send + 'static,
    ) -> Receiver<T> {
        self.send_command(queue, move |name, reply| virtqueue::change(name, when, change, reply))
    }

    /// Send a command to the worker of a queue; what it replies.
    fn send_command<T>(&self, queue: u16, command: impl FnOnce(QueueName, Sender<T>) -> Command) -> Receiver<T> {
        let (reply, replied) = channel();
        if let Some(assignment) = &self.assignments[usize::from(queue)] {
            let name = QueueName { client: self.backend.client, index: queue };
            self.backend.workers[assignment.worker].mailbox.send(command(name, reply));
        }
        replied
    }

    /// Choose a worker for a queue, which `make` makes there.
    pub(super) fn order(
        &mut self,
        queue: u16,
        run: u64,
        make: impl FnOnce(u32, Option<Box<dyn server::Device>>) -> Result<VirtqueueServer, String> + Send + 'static,
    ) -> Order {
        let Backend { workers, export, client, notices } = &self.backend;
        let forwarder = UpgradeForwarder { queue, run, notices: Arc::clone(notices) };
        let (assignment, (reply, served)) = (Assignment::choose(workers), channel());
        let name = QueueName { client: *client, index: queue };
        let command = virtqueue::add(name, export, move |id| make(id, Some(Box::new(forwarder))), reply);
        let worker = assignment.worker;
        self.assignments[usize::from(queue)] = Some(assignment);
        (worker, command, served)
    }

    /// For `fipsee stat` and `info`: queues up to the last that is served.
    pub(super) fn publish_queues(&self, device: &Device) {
        let count = self.assignments.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        let counters = device.vrings[..count].iter().map(|vring| Arc::clone(&vring.counters)).collect();
        let cpu = |assigned: &Option<Assignment>| self.backend.workers[assigned.as_ref()?.worker].place.cpu;
        let cpus = self.assignments[..count].iter().map(cpu).collect();
        self.backend.export.set_queues(self.backend.client, counters, cpus);
    }
}

/// The device, whose lock is not poisoned: a thread that panics takes the process with it.
pub(super) fn lock(device: &Mutex<Device>) -> MutexGuard<'_, Device> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

fn send(stream: &UnixStream, bytes: &[u8], descriptor: Option<&OwnedFd>) -> std::io::Result<()> {
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.map(AsFd::as_fd).into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(std::io::ErrorKind::WriteZero.into()) }
}

/// A request of ours, which is not answered; a hypervisor that does not read is not waited for.
fn announce(device: &mut Device, bytes: &[u8]) {
    let Some(channel) = &device.channel else { return };
    let sent = rustix::net::send(channel, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    if sent != Ok(bytes.len()) {
        tracing::warn!(disk = device.disk.name, ?sent, "the hypervisor cannot be told of the disk's new size");
        device.channel = None;
    }
}
