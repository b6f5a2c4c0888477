//! Hypervisors on this host, whose guests see a disk as a virtio-blk device, or a port of a network as a virtio-net device.
//!
//! Each socket has a thread for its connection, which may wait for the hypervisor and for workers; virtqueues are served by the
//! workers, as rings are. Messages are interpreted in [`device`], without I/O; `connection` reads messages and carries out the
//! resulting actions; `socket` is the thread.

mod adoption;
mod connection;
pub mod device;
mod handover;
pub mod message;
mod queues;
mod socket;
mod target;
mod vring;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fipsee_serve::QueueName;
use fipsee_serve::unix::listener::Listener;

pub(crate) use self::adoption::Machines;
use self::connection::FrontendConnection;
use self::device::Asked;
pub(crate) use self::handover::Held;
use self::handover::Hold;
use self::socket::Peer;
pub(crate) use self::socket::{Socket, bind};
pub(crate) use self::target::Target;
use self::target::kind_of;
use crate::export::Export;
use crate::live::Live;
use crate::worker::WorkerHandle;

#[derive(Debug)]
enum Notice {
    Begin,
    /// Serve this one, which another daemon accepted.
    Adopt(Box<FrontendConnection>),
    /// Pause until released: another daemon may take over.
    Hold(Hold),
    Stop,
    /// The disk's size, or the port's link.
    Changed,
    /// Have another worker serve this queue, if it is of this connection.
    MoveQueue {
        queue: QueueName,
        to: usize,
        /// Until this is carried out.
        _moving: Arc<()>,
    },
    /// Have others serve the queues whose workers are not for them any more.
    LeaveWorkers,
    Asked(Asked),
    Fault {
        queue: u16,
        reason: String,
    },
}

/// All sockets. Only the admin thread adds and removes them while the daemon serves.
pub(crate) struct VhostUserSockets {
    workers: Vec<WorkerHandle>,
    live: Arc<Live>,
    sockets: Mutex<Vec<Socket>>,
    /// Each queue on its way has one more of these.
    moving: Arc<()>,
}

impl VhostUserSockets {
    pub(crate) fn new(workers: Vec<WorkerHandle>, live: Arc<Live>) -> Self {
        Self { workers, live, sockets: Mutex::new(Vec::new()), moving: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Socket>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bind a path for the disk or port of this name, which [`serve_at`](Self::serve_at) follows; undone when dropped instead.
    pub(crate) fn bind(&self, name: &str, path: &Path) -> Result<Listener, String> {
        // Found without connecting, which would count as a machine for a moment.
        if let Some(other) = self.target_at(path) {
            let (kind, path) = (kind_of(name), path.display());
            return Err(format!(
                "{kind} '{name}': {path} is the vhost-user socket of {} '{}' already; choose another path",
                other.kind(),
                other.name()
            ));
        }
        bind(name, path)
    }

    /// What hypervisors that connect there use.
    pub(crate) fn target_at(&self, path: &Path) -> Option<Target> {
        self.lock().iter().find(|socket| socket.path() == path).map(|socket| socket.shared.target.clone())
    }

    /// The listening sockets and the names of their disks, for another daemon.
    pub(crate) fn listeners(&self) -> Vec<(String, Arc<Listener>)> {
        let named = |socket: &Socket| (socket.shared.target.name().to_owned(), Arc::clone(&socket.shared.listener));
        self.lock().iter().map(named).collect()
    }

    pub(crate) fn add(&self, sockets: Vec<Socket>) {
        sockets.iter().for_each(Socket::begin);
        self.lock().extend(sockets);
    }

    /// The sockets of an export, oldest first.
    pub(crate) fn paths_of(&self, export: &Export) -> Vec<PathBuf> {
        self.lock().iter().filter(|socket| socket.serves(export)).map(|socket| socket.path().to_owned()).collect()
    }

    /// Close all unwanted sockets to new connections, if none of them is in use;
    /// [`remove_retired`](Self::remove_retired) follows.
    pub(crate) fn retire(&self, is_unwanted: impl Fn(&Target, &Path) -> bool) -> Result<(), String> {
        let sockets = self.lock();
        let unwanted: Vec<&Socket> = sockets.iter().filter(|socket| is_unwanted(&socket.shared.target, socket.path())).collect();
        let mut states: Vec<_> = unwanted.iter().map(|socket| socket.shared.state()).collect();
        for (socket, state) in unwanted.iter().zip(&states) {
            if let Some(Peer { pid, .. }) = &state.peer {
                return Err(format!(
                    "the vhost-user socket {} of {} '{}' is in use by process {pid}; end that first",
                    socket.path().display(),
                    socket.shared.target.kind(),
                    socket.shared.target.name()
                ));
            }
        }
        states.iter_mut().for_each(|state| state.retired = true);
        Ok(())
    }

    pub(crate) fn remove_retired(&self) {
        let removed: Vec<Socket> = self.lock().extract_if(.., |socket| socket.shared.state().retired).collect();
        // Not under the lock: each waits for its thread to end.
        drop(removed);
    }

    /// Have another worker serve a queue of a machine. `false`: it is of no machine that is here.
    pub(crate) fn move_queue(&self, queue: QueueName, to: usize) -> bool {
        let sockets = self.lock();
        let is_its = |socket: &&Socket| socket.shared.state().peer.as_ref().is_some_and(|peer| peer.client == queue.client);
        let found = sockets.iter().find(is_its);
        let notice = || Notice::MoveQueue { queue, to, _moving: Arc::clone(&self.moving) };
        found.map(|socket| socket.notify(notice())).is_some()
    }

    /// Is a queue on its way that was [moved](Self::move_queue)?
    pub(crate) fn is_moving(&self) -> bool {
        Arc::strong_count(&self.moving) > 1
    }

    /// Workers have queues that they are not for: have others serve those of machines.
    pub(crate) fn leave_workers(&self) {
        self.lock().iter().for_each(|socket| socket.shared.leave_workers());
    }

    /// The size of the disk of this name changed, or the link of the port: hypervisors must notify their guests.
    pub(crate) fn changed(&self, name: &str) {
        self.lock().iter().filter(|socket| socket.shared.target.name() == name).for_each(|socket| socket.notify(Notice::Changed));
    }

    /// Hang up on every hypervisor and remove every socket; `false` when something is still in flight after the timeout.
    pub(crate) fn stop(&self, timeout: Duration) -> bool {
        let sockets = std::mem::take(&mut *self.lock());
        sockets.iter().for_each(Socket::stop);
        let deadline = Instant::now() + timeout;
        sockets.into_iter().fold(true, |all, socket| all & socket.end_before(deadline))
    }
}
