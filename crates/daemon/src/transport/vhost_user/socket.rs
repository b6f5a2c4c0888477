//! One socket and the thread that serves it: one hypervisor at a time, the next when that is gone.

use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use fipsee_ring::listener::Listener;
use fipsee_ring::mailbox::Mailbox;
use fipsee_serve::AbortOnPanic;
use rustix::event::epoll;
use rustix::net::{SocketFlags, SocketType};

use super::Notice;
use super::connection::{Backend, FrontendConnection};
use super::device::{Device, DiskDescription};
use crate::export::{Export, Kind, Role, Wish};
use crate::live::Live;
use crate::transport::LogQuota;
use crate::worker::WorkerHandle;

/// As the client socket: who may use the disk is decided by the disk's lists.
const MODE: u32 = 0o666;
const TOKEN_NOTICES: u64 = 0;
const TOKEN_LISTENER: u64 = 1;
const TOKEN_CONNECTION: u64 = 2;

/// Who is connected, and may the next one be?
#[derive(Debug, Default)]
struct State {
    /// It is being removed.
    retired: bool,
    /// The process, and its connection to be shut down.
    peer: Option<(i32, Arc<UnixStream>)>,
}

/// A socket that is served. Dropped, it lets go of its device and removes its file.
pub struct Socket {
    listener: Arc<Listener>,
    export: Arc<Export>,
    state: Arc<Mutex<State>>,
    notices: Arc<Mailbox<Notice>>,
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
}

/// Queues that a device can have: as many as a client of any kind.
pub(super) const MAX_QUEUES: u16 = fipsee_ring::control::MAX_QUEUES;

/// What all sockets share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) workers: Vec<WorkerHandle>,
    pub(super) live: Arc<Live>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Listen at `path` for hypervisors that want the disk of this name.
///
/// # Errors
/// In words that say what to do: as for any socket.
pub(crate) fn bind(disk: &str, path: &Path) -> Result<Listener, String> {
    let listener = Listener::bind(path, SocketType::STREAM, MODE)
        .map_err(|text| format!("disk '{disk}': {text} for its vhost-user socket"))?;
    if listener.took_over() {
        tracing::info!(disk, path = %path.display(), "taking over the vhost-user socket of a daemon that is gone");
    }
    Ok(listener)
}

impl Socket {
    /// Serve there hypervisors that want `export`, after [`begin`](Self::begin).
    pub(super) fn serve(shared: Shared, export: &Arc<Export>, listener: Listener) -> Result<Self, String> {
        let (disk, path) = (export.name(), listener.path().to_owned());
        let listener = Arc::new(listener);
        let failed = |error: std::io::Error| format!("disk '{disk}': cannot serve {}: {error}; raise the limits", path.display());
        let notices = Arc::new(Mailbox::new().map_err(failed)?);
        let state = Arc::<Mutex<State>>::default();
        let epoll = watch(&listener, &notices).map_err(failed)?;
        let thread_state = SocketThread {
            shared,
            export: Arc::clone(export),
            listener: Arc::clone(&listener),
            epoll,
            state: Arc::clone(&state),
            notices: Arc::clone(&notices),
            kept: Vec::new(),
            quota: LogQuota::default(),
        };
        let (running, ended) = channel::<()>();
        let run = move || {
            let _guard = AbortOnPanic;
            let _running: Sender<()> = running;
            thread_state.run();
        };
        let thread = std::thread::Builder::new().name(format!("fip-vm-{disk}")).spawn(run).map_err(failed)?;
        Ok(Self { listener, export: Arc::clone(export), state, notices, thread: Some(thread), ended })
    }

    /// Serve who connects.
    pub(super) fn begin(&self) {
        self.listener.own();
        self.notices.send(Notice::Begin);
    }

    /// For another daemon.
    pub(super) fn listener(&self) -> Arc<Listener> {
        Arc::clone(&self.listener)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.listener.path()
    }

    /// Its disk.
    pub(super) const fn export(&self) -> &Arc<Export> {
        &self.export
    }

    /// For its thread.
    pub(super) fn notify(&self, notice: Notice) {
        self.notices.send(notice);
    }

    /// Serve this one, which came to another daemon.
    pub(super) fn adopt(&self, connection: FrontendConnection) {
        lock(&self.state).peer = Some((connection.credentials.pid, Arc::clone(&connection.stream)));
        self.notices.send(Notice::Adopt(Box::new(connection)));
    }

    /// Is it at `path`, for this disk?
    pub(super) fn is_at(&self, path: &Path, disk: &str) -> bool {
        self.path() == path && self.export.name() == disk
    }

    /// The process that is connected.
    pub(super) fn peer(&self) -> Option<i32> {
        lock(&self.state).peer.as_ref().map(|(pid, _)| *pid)
    }

    /// What a connection here serves.
    pub(super) fn backend(&self, workers: &[WorkerHandle], client: u64) -> Backend {
        Backend { workers: workers.to_vec(), export: Arc::clone(&self.export), client, notices: Arc::clone(&self.notices) }
    }

    /// Let nobody connect any more, if nobody is; else the process that is.
    pub(super) fn retire(&self) -> Result<(), i32> {
        let mut state = lock(&self.state);
        match &state.peer {
            Some((pid, _)) => Err(*pid),
            None => {
                state.retired = true;
                Ok(())
            }
        }
    }

    /// Take back [`retire`](Self::retire).
    pub(super) fn reinstate(&self) {
        lock(&self.state).retired = false;
    }

    /// End the connection, finish what is in flight, and go. Does not wait for that.
    pub(super) fn stop(&self) {
        let mut state = lock(&self.state);
        state.retired = true;
        if let Some((_, stream)) = &state.peer {
            // Its thread may be waiting for the rest of a message.
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(state);
        self.notices.send(Notice::Stop);
    }

    /// Wait for the end that [`stop`](Self::stop) asked for; `false`: a disk does not answer, and the thread is given up.
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

/// A new device for the disk.
pub(super) fn device(export: &Export, queues: u16) -> Device {
    let (name, info, read_only) = (export.name().to_owned(), export.info(false), export.is_read_only());
    Device::new(DiskDescription { name, info, read_only }, queues)
}

/// How a conversation ended.
enum End {
    /// The hypervisor hung up.
    HungUp,
    /// It sent what is refused.
    Refused(String),
    /// The socket goes.
    Stopped,
}

/// The thread's own state.
struct SocketThread {
    shared: Shared,
    export: Arc<Export>,
    listener: Arc<Listener>,
    epoll: OwnedFd,
    state: Arc<Mutex<State>>,
    notices: Arc<Mailbox<Notice>>,
    /// Taken from there, and meant for the connection that has just been adopted.
    kept: Vec<Notice>,
    quota: LogQuota,
}

impl SocketThread {
    fn run(mut self) {
        loop {
            let tokens = self.wait();
            let mut adopted = None;
            let mut notices = self.notices.take().into_iter();
            while let Some(notice) = notices.next() {
                match notice {
                    Notice::Begin => self.listen(true),
                    Notice::Stop => return,
                    Notice::Hold(hold) => hold.rest(None),
                    Notice::Adopt(connection) => {
                        // Its queues are served already: what follows may be a question of its guest.
                        self.kept = notices.by_ref().collect();
                        adopted = Some(*connection);
                    }
                    // Of a connection that is gone.
                    Notice::Resized | Notice::Asked(_) | Notice::Fault { .. } => {}
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
        if let Err(error) = epoll::modify(&self.epoll, self.listener.socket(), epoll::EventData::new_u64(TOKEN_LISTENER), events)
        {
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

    /// A hypervisor that may use the disk.
    fn admit(&mut self) -> Option<FrontendConnection> {
        let stream = match rustix::net::accept_with(self.listener.socket(), SocketFlags::CLOEXEC) {
            Ok(socket) => UnixStream::from(socket),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED | rustix::io::Errno::AGAIN) => return None,
            Err(error) => {
                if self.quota.allows() {
                    tracing::error!(disk = self.export.name(), %error, "cannot accept a hypervisor; raise LimitNOFILE=");
                }
                return None;
            }
        };
        let client = self.shared.live.next_client();
        let queues = self.shared.live.now().settings.limits.max_queues.clamp(1, MAX_QUEUES);
        let (workers, notices) = (self.shared.workers.clone(), Arc::clone(&self.notices));
        let backend = Backend { workers, export: Arc::clone(&self.export), client, notices };
        let connection = FrontendConnection::new(backend, stream, device(&self.export, queues)).ok()?;
        let ((pid, uid), disk) = (connection.peer(), self.export.name());
        let mut state = lock(&self.state);
        if state.retired {
            return None;
        }
        // The destination of a migration connects while the source still writes: a device claims when its first queue is served.
        let wish = Wish { kind: Kind::VhostUser, exclusive: false, role: Role::Reader, ignores_claims: false };
        if let Err(denied) = self.export.admit(client, &connection.credentials, wish) {
            if self.quota.allows() {
                let reason = denied.into_text();
                tracing::warn!(disk, pid, uid, reason, "a hypervisor is refused");
            }
            return None;
        }
        state.peer = Some((pid, Arc::clone(&connection.stream)));
        drop(state);
        if self.quota.allows() {
            tracing::info!(client, pid, uid, disk, socket = %self.listener.path().display(), "a hypervisor attached");
        }
        Some(connection)
    }

    /// Serve one that is admitted until it is gone.
    fn serve(&mut self, mut connection: FrontendConnection) -> End {
        let export = Arc::clone(&self.export);
        let (client, (pid, uid), disk) = (connection.backend.client, connection.peer(), export.name());
        let end = self.converse(&mut connection);
        export.is_leaving(client);
        // Set before the connection is shut down, unlike the notice, which may come later than the hang-up. A guest on rings goes on with
        // virtqueues then.
        let is_retired = lock(&self.state).retired;
        connection.notify(|device, _| device.hung_up(is_retired));
        let FrontendConnection { charged, .. } = connection;
        self.log_last_faults();
        lock(&self.state).peer = None;
        export.leave(client);
        self.shared.live.departed();
        self.shared.live.give_descriptors(charged);
        if self.quota.allows() {
            match &end {
                End::Refused(reason) => tracing::warn!(client, pid, uid, disk, reason, "a hypervisor is refused and detached"),
                End::HungUp | End::Stopped => tracing::info!(client, disk, "a hypervisor is gone; everything of it is released"),
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
            connection.charge(&self.shared.live);
            tokens = self.wait();
        };
        let _ = epoll::delete(&self.epoll, &*stream);
        // A hang-up that came with the order to stop was ours.
        if self.take_notices(connection) { End::Stopped } else { end }
    }

    /// `true`: the socket goes.
    fn take_notices(&mut self, connection: &mut FrontendConnection) -> bool {
        let mut stops = false;
        for notice in std::mem::take(&mut self.kept).into_iter().chain(self.notices.take()) {
            match notice {
                // One at a time: no connection is adopted while one is there.
                Notice::Begin | Notice::Adopt(_) => {}
                Notice::Hold(hold) => hold.rest(Some(connection.machine())),
                Notice::Stop => stops = true,
                Notice::Resized => connection.notify(|device, info| device.resized(info)),
                Notice::Asked(asked) => connection.notify(|device, _| device.asked(asked)),
                Notice::Fault { queue, reason } => self.log_fault(queue, &reason),
            }
        }
        stops
    }

    fn log_fault(&mut self, queue: u16, reason: &str) {
        if self.quota.allows() {
            let disk = self.export.name();
            tracing::warn!(disk, queue, reason, "a virtqueue broke and is served no more until it is reset");
        }
    }

    /// Of queues that broke while their hypervisor was hanging up: workers have let go of them, and so have said it.
    fn log_last_faults(&mut self) {
        for notice in self.notices.take() {
            match notice {
                Notice::Fault { queue, reason } => self.log_fault(queue, &reason),
                other => self.notices.send(other),
            }
        }
    }
}
