//! One socket and the thread that serves it: one hypervisor at a time.

use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use fipsee_ring::mailbox::Mailbox;
use fipsee_serve::session::Credentials;
use fipsee_serve::unix::listener::Listener;
use fipsee_serve::{AbortOnPanic, Assignment, Group};
use rustix::event::epoll;
use rustix::net::{SocketFlags, SocketType};

use super::connection::{FrontendConnection, misplaced};
use super::device::Device;
use super::target::{Target, disk_or_port, kind_of};
use super::{Notice, VhostUserSockets};
use crate::config::make_usual_folder;
use crate::export::Export;
use crate::live::Live;
use crate::transport::LogQuota;
use crate::worker::WorkerHandle;

/// As the client socket: the disk's lists decide which users may use the disk.
const MODE: u32 = 0o666;
const TOKEN_NOTICES: u64 = 0;
const TOKEN_LISTENER: u64 = 1;
const TOKEN_CONNECTION: u64 = 2;

/// The current connection, and whether another may follow.
#[derive(Default)]
pub(super) struct State {
    /// It is being removed.
    pub(super) retired: bool,
    pub(super) peer: Option<Peer>,
}

/// A connected hypervisor.
pub(super) struct Peer {
    pub(super) pid: i32,
    pub(super) client: u64,
    /// To be shut down.
    stream: Arc<UnixStream>,
    /// Whose share it has.
    group: Arc<Group>,
    assignments: Arc<Mutex<Vec<Option<Assignment>>>>,
    /// It was notified that queues are to leave their workers, and has not begun with that.
    is_told: bool,
}

impl Peer {
    fn of(connection: &FrontendConnection) -> Self {
        let (stream, assignments) = (Arc::clone(&connection.stream), Arc::clone(&connection.assignments));
        let group = Arc::clone(&connection.share.group);
        Self { pid: connection.credentials.pid, client: connection.client, stream, group, assignments, is_told: false }
    }
}

/// State shared by a socket's handle, its thread and its connection.
pub(super) struct SharedSocket {
    pub(super) workers: Vec<WorkerHandle>,
    pub(super) live: Arc<Live>,
    pub(super) listener: Arc<Listener>,
    pub(super) target: Target,
    state: Mutex<State>,
    /// For the thread; including the queues' faults and upgrade requests.
    pub(super) notices: Arc<Mailbox<Notice>>,
}

/// A served socket. When dropped, it releases its device and removes its file.
pub(crate) struct Socket {
    pub(super) shared: Arc<SharedSocket>,
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
}

/// Queues that a device can have: as many as a client of any kind.
pub(super) const MAX_QUEUES: u16 = fipsee_ring::control::MAX_QUEUES;

impl SharedSocket {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notify its thread, once, if queues of the machine are to leave their workers.
    pub(super) fn leave_workers(&self) {
        if self.target.disk().is_none() {
            return;
        }
        if let Some(peer) = self.state().peer.as_mut().filter(|peer| !peer.is_told) {
            let assigned = peer.assignments.lock().unwrap_or_else(PoisonError::into_inner);
            if !misplaced(&assigned, &self.workers, self.pool_of(peer.client, &peer.group)).is_empty() {
                peer.is_told = true;
                self.notices.send(Notice::LeaveWorkers);
            }
        }
    }

    /// The workers for the queues of this client.
    pub(super) fn pool_of(&self, client: u64, group: &Group) -> u64 {
        self.live.pools.of(client, self.target.name(), Some(group))
    }

    pub(super) fn device(&self, queues: u16) -> Device {
        self.target.device(queues)
    }
}

/// Listen at `path` for hypervisors that use the disk or port of this name.
pub(crate) fn bind(name: &str, path: &Path) -> Result<Listener, String> {
    let listener = make_usual_folder(path)
        .and_then(|()| Listener::bind(path, SocketType::STREAM, MODE))
        .map_err(|text| format!("{} '{name}': {text} for its vhost-user socket", kind_of(name)))?;
    if listener.took_over() {
        let (disk, port) = disk_or_port(name);
        tracing::info!(disk, port, path = %path.display(), "taking over the vhost-user socket of a daemon that is gone");
    }
    Ok(listener)
}

impl VhostUserSockets {
    /// Serve hypervisors that connect there with `target`, after [`add`](Self::add).
    pub(crate) fn serve_at(&self, target: Target, listener: Listener) -> Result<Socket, String> {
        let (disk, kind, path) = (target.name().to_owned(), target.kind(), listener.path().to_owned());
        let failed =
            |error: std::io::Error| format!("{kind} '{disk}': cannot serve {}: {error}; raise the limits", path.display());
        let shared = Arc::new(SharedSocket {
            workers: self.workers.clone(),
            live: Arc::clone(&self.live),
            listener: Arc::new(listener),
            target,
            state: Mutex::default(),
            notices: Arc::new(Mailbox::new().map_err(failed)?),
        });
        let epoll = watch(&shared.listener, &shared.notices).map_err(failed)?;
        let own = SocketThread { shared: Arc::clone(&shared), epoll, kept: Vec::new(), quota: LogQuota::default() };
        let (running, ended) = channel::<()>();
        let run = move || {
            let _guard = AbortOnPanic;
            let _running: Sender<()> = running;
            own.run();
        };
        let thread = std::thread::Builder::new().name(format!("fip-vm-{disk}")).spawn(run).map_err(failed)?;
        Ok(Socket { shared, thread: Some(thread), ended })
    }
}

impl Socket {
    pub(super) fn begin(&self) {
        self.shared.listener.own();
        self.notify(Notice::Begin);
    }

    pub(super) fn serves(&self, export: &Export) -> bool {
        self.shared.target.is(export)
    }

    pub(super) fn path(&self) -> &Path {
        self.shared.listener.path()
    }

    pub(super) fn notify(&self, notice: Notice) {
        self.shared.notices.send(notice);
    }

    /// Serve this one, which another daemon accepted.
    pub(super) fn adopt(&self, connection: FrontendConnection) {
        self.shared.state().peer = Some(Peer::of(&connection));
        self.notify(Notice::Adopt(Box::new(connection)));
    }

    /// End the connection, finish requests in flight, and end the thread. Does not wait.
    pub(super) fn stop(&self) {
        let mut state = self.shared.state();
        state.retired = true;
        if let Some(Peer { stream, .. }) = &state.peer {
            // Its thread may be waiting for the rest of a message.
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(state);
        self.notify(Notice::Stop);
    }

    /// Wait for the end requested by [`stop`](Self::stop); `false`: a disk does not answer, and the thread is abandoned.
    pub(super) fn end_before(mut self, deadline: Instant) -> bool {
        let waited = self.ended.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        let has_ended = waited == Err(RecvTimeoutError::Disconnected);
        if !has_ended {
            self.thread = None;
        }
        has_ended
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.stop();
            let _ = thread.join();
        }
    }
}

fn watch(listener: &Listener, notices: &Mailbox<Notice>) -> std::io::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&epoll, notices, epoll::EventData::new_u64(TOKEN_NOTICES), edge)?;
    epoll::add(&epoll, listener.socket(), epoll::EventData::new_u64(TOKEN_LISTENER), epoll::EventFlags::empty())?;
    Ok(epoll)
}

enum End {
    HungUp,
    Refused(String),
    Stopped,
}

struct SocketThread {
    shared: Arc<SharedSocket>,
    epoll: OwnedFd,
    /// Notices that were received early, for the connection that has just been adopted.
    kept: Vec<Notice>,
    quota: LogQuota,
}

impl SocketThread {
    fn run(mut self) {
        loop {
            let tokens = self.wait();
            let mut adopted = None;
            let mut notices = self.shared.notices.take().into_iter();
            while let Some(notice) = notices.next() {
                match notice {
                    Notice::Begin => self.listen(true),
                    Notice::Stop => return,
                    Notice::Hold(hold) => hold.rest(None),
                    Notice::Adopt(connection) => {
                        // Its queues are served already: an upgrade request of its guest may follow.
                        self.kept = notices.by_ref().collect();
                        adopted = Some(*connection);
                    }
                    // From a closed connection.
                    Notice::Changed
                    | Notice::MoveQueue { .. }
                    | Notice::LeaveWorkers
                    | Notice::Asked(_)
                    | Notice::Fault { .. } => {}
                }
            }
            let accepted = tokens.contains(&TOKEN_LISTENER) && adopted.is_none();
            let Some(connection) = adopted.or_else(|| if accepted { self.admit() } else { None }) else { continue };
            // The next one waits in the socket's queue.
            self.listen(false);
            if let End::Stopped = self.serve(connection) {
                return;
            }
            self.listen(true);
        }
    }

    fn listen(&self, on: bool) {
        let events = if on { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let token = epoll::EventData::new_u64(TOKEN_LISTENER);
        if let Err(error) = epoll::modify(&self.epoll, self.shared.listener.socket(), token, events) {
            tracing::error!(%error, "cannot watch a vhost-user socket");
        }
    }

    fn wait(&self) -> Vec<u64> {
        let mut events = Vec::<epoll::Event>::with_capacity(4);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => tracing::error!(%error, "epoll failed"),
        }
        events.iter().map(|event| event.data.u64()).collect()
    }

    fn admit(&mut self) -> Option<FrontendConnection> {
        let shared = &self.shared;
        let (target, (disk, port)) = (&shared.target, shared.target.disk_or_port());
        let stream = match rustix::net::accept_with(shared.listener.socket(), SocketFlags::CLOEXEC) {
            Ok(socket) => UnixStream::from(socket),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED | rustix::io::Errno::AGAIN) => return None,
            Err(error) => {
                if self.quota.allows() {
                    tracing::error!(disk, port, %error, "cannot accept a hypervisor; raise LimitNOFILE=");
                }
                return None;
            }
        };
        let client = shared.live.next_client();
        let limits = shared.live.now().settings.limits;
        let limits = target.disk().map_or(limits, |export| export.limits().of_client(limits));
        let queues = limits.max_queues.clamp(1, MAX_QUEUES);
        let connection = FrontendConnection::new(shared, client, stream, shared.device(queues)).ok()?;
        let Credentials { pid, uid, .. } = connection.credentials;
        let mut state = shared.state();
        if state.retired {
            return None;
        }
        if let Err(reason) = target.admit(client, &connection.credentials) {
            if self.quota.allows() {
                tracing::warn!(disk, port, pid, uid, reason, "a hypervisor is refused");
            }
            return None;
        }
        state.peer = Some(Peer::of(&connection));
        drop(state);
        if self.quota.allows() {
            tracing::info!(client, pid, uid, disk, port, socket = %shared.listener.path().display(), "a hypervisor attached");
        }
        Some(connection)
    }

    fn serve(&mut self, mut connection: FrontendConnection) -> End {
        let shared = Arc::clone(&self.shared);
        let (client, (disk, port)) = (connection.client, shared.target.disk_or_port());
        let Credentials { pid, uid, .. } = connection.credentials;
        let end = self.converse(&mut connection);
        shared.target.is_leaving(client);
        // Set before the connection is shut down, unlike the notice, which may come later than the hang-up. A guest on rings
        // continues with virtqueues then.
        let is_retired = shared.state().retired;
        connection.notify(|device| device.hung_up(is_retired));
        self.log_last_faults();
        shared.state().peer = None;
        shared.target.leave(client, &shared.live);
        shared.live.departures.fetch_add(1, Ordering::Relaxed);
        shared.live.device_descriptors.fetch_sub(connection.charged, Ordering::Relaxed);
        if self.quota.allows() {
            match &end {
                End::Refused(reason) => {
                    tracing::warn!(client, pid, uid, disk, port, reason, "a hypervisor is refused and detached")
                }
                End::HungUp | End::Stopped => {
                    tracing::info!(client, disk, port, "a hypervisor is gone; everything of it is released")
                }
            }
        }
        end
    }

    fn converse(&mut self, connection: &mut FrontendConnection) -> End {
        let stream = Arc::clone(&connection.stream);
        let token = epoll::EventData::new_u64(TOKEN_CONNECTION);
        if let Err(error) = epoll::add(&self.epoll, &*stream, token, epoll::EventFlags::IN) {
            return End::Refused(format!("its connection cannot be watched: {error}"));
        }
        let mut tokens = Vec::new();
        let end = loop {
            if self.take_notices(connection) {
                break End::Stopped;
            }
            if tokens.contains(&TOKEN_CONNECTION) {
                match connection.receive() {
                    Ok(None) => break End::HungUp,
                    Ok(Some(message)) => {
                        if let Err(problem) = connection.drive(|device| device.message(message)) {
                            break End::Refused(problem);
                        }
                    }
                    Err(problem) => break End::Refused(problem),
                }
            }
            connection.charge();
            tokens = self.wait();
        };
        let _ = epoll::delete(&self.epoll, &*stream);
        // A hang-up at the same time as the stop was ours.
        if self.take_notices(connection) { End::Stopped } else { end }
    }

    /// `true`: the socket is being removed.
    fn take_notices(&mut self, connection: &mut FrontendConnection) -> bool {
        let mut stops = false;
        for notice in std::mem::take(&mut self.kept).into_iter().chain(self.shared.notices.take()) {
            match notice {
                // One at a time: no connection is adopted while another exists.
                Notice::Begin | Notice::Adopt(_) => {}
                Notice::Hold(hold) => hold.rest(Some(connection)),
                Notice::Stop => stops = true,
                Notice::Changed => connection.changed(),
                Notice::MoveQueue { queue, to, .. } if queue.client == connection.client => {
                    connection.move_queue(queue.index, to)
                }
                Notice::MoveQueue { .. } => {}
                Notice::LeaveWorkers => {
                    self.shared.state().peer.iter_mut().for_each(|peer| peer.is_told = false);
                    connection.leave_workers();
                }
                Notice::Asked(asked) => connection.notify(|device| device.asked(asked)),
                Notice::Fault { queue, reason } => self.log_fault(queue, &reason),
            }
        }
        stops
    }

    fn log_fault(&mut self, queue: u16, reason: &str) {
        if self.quota.allows() {
            let (disk, port) = self.shared.target.disk_or_port();
            tracing::warn!(disk, port, queue, reason, "a virtqueue broke and is not served until it is reset");
        }
    }

    /// For queues that broke while their hypervisor was hanging up: workers released them, and so reported the fault.
    fn log_last_faults(&mut self) {
        for notice in self.shared.notices.take() {
            match notice {
                Notice::Fault { queue, reason } => self.log_fault(queue, &reason),
                other => self.shared.notices.send(other),
            }
        }
    }
}
