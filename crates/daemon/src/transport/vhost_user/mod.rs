//! Hypervisors on this host, whose guests see a disk as a virtio-blk device.
//!
//! Each socket has a thread for its conversation, which may wait for the hypervisor and for workers; virtqueues are served by the
//! workers, as rings are. What a message means is decided in [`device`], without I/O; `connection` reads messages and carries out what
//! that wants done; `socket` is the thread.

mod adoption;
mod connection;
pub mod device;
mod handover;
pub mod message;
mod socket;
mod vring;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fipsee_ring::listener::Listener;

pub(crate) use self::adoption::{AdoptedMachines, Machines};
pub use self::connection::FrontendConnection;
use self::device::Asked;
pub use self::handover::{Held, Hold};
use self::socket::Shared;
pub use self::socket::Socket;
pub(crate) use self::socket::bind;
use crate::export::Export;
use crate::live::Live;
use crate::worker::WorkerHandle;

/// What the thread of a socket is told.
#[derive(Debug)]
pub enum Notice {
    /// Serve what connects.
    Begin,
    /// Serve this one, which came to another daemon.
    Adopt(Box<FrontendConnection>),
    /// Do nothing until told otherwise: another daemon may take over.
    Hold(Hold),
    /// End.
    Stop,
    /// The disk's size changed.
    Resized,
    /// A guest asks its device something.
    Asked(Asked),
    /// A queue broke.
    Fault {
        /// Which.
        queue: u16,
        /// Why, in words.
        reason: String,
    },
}

/// All sockets. Only the admin thread adds and removes them while the daemon serves.
pub struct VhostUserSockets {
    shared: Shared,
    sockets: Mutex<Vec<Socket>>,
}

/// Sockets that are about to be removed; nobody is connected to them, nor can be.
#[must_use]
pub struct Retired(Vec<PathBuf>);

impl VhostUserSockets {
    /// Without a socket yet.
    #[must_use]
    pub const fn new(workers: Vec<WorkerHandle>, live: Arc<Live>) -> Self {
        Self { shared: Shared { workers, live }, sockets: Mutex::new(Vec::new()) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Socket>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take a path for an export. Nobody is served there before [`add`](Self::add); dropped instead, it is as if nothing had been.
    ///
    /// # Errors
    /// In words that say what to do: as for any socket.
    pub fn prepare(&self, export: &Arc<Export>, path: &Path) -> Result<Socket, String> {
        Socket::serve(self.shared.clone(), export, bind(export.name(), path)?)
    }

    /// As [`prepare`](Self::prepare), at a socket that is there.
    ///
    /// # Errors
    /// In words: no thread or descriptor left.
    pub fn serve_at(&self, export: &Arc<Export>, listener: Listener) -> Result<Socket, String> {
        Socket::serve(self.shared.clone(), export, listener)
    }

    /// The listening sockets and the names of their disks, for another daemon.
    #[must_use]
    pub fn listeners(&self) -> Vec<(String, Arc<Listener>)> {
        self.lock().iter().map(|socket| (socket.export().name().to_owned(), socket.listener())).collect()
    }

    /// Serve at what was prepared.
    pub fn add(&self, sockets: Vec<Socket>) {
        sockets.iter().for_each(Socket::begin);
        self.lock().extend(sockets);
    }

    /// Where an export is served, in the order in which that began.
    #[must_use]
    pub fn paths_of(&self, export: &Export) -> Vec<PathBuf> {
        let sockets = self.lock();
        let of_it = sockets.iter().filter(|socket| std::ptr::eq(&raw const **socket.export(), export));
        of_it.map(|socket| socket.path().to_owned()).collect()
    }

    /// Close all sockets that are not wanted to new connections, if nobody is connected to any of them.
    ///
    /// # Errors
    /// Who is, in words.
    pub fn retire(&self, is_unwanted: impl Fn(&Export, &Path) -> bool) -> Result<Retired, String> {
        let sockets = self.lock();
        let unwanted: Vec<&Socket> = sockets.iter().filter(|socket| is_unwanted(socket.export(), socket.path())).collect();
        for (index, socket) in unwanted.iter().enumerate() {
            if let Err(pid) = socket.retire() {
                unwanted[..index].iter().for_each(|retired| retired.reinstate());
                return Err(format!(
                    "the vhost-user socket {} of disk '{}' is in use by process {pid}; end that first",
                    socket.path().display(),
                    socket.export().name()
                ));
            }
        }
        Ok(Retired(unwanted.iter().map(|socket| socket.path().to_owned()).collect()))
    }

    /// Take back [`retire`](Self::retire).
    pub fn reinstate(&self, retired: &Retired) {
        let sockets = self.lock();
        sockets.iter().filter(|socket| retired.0.iter().any(|path| path == socket.path())).for_each(Socket::reinstate);
    }

    /// Remove what was retired.
    pub fn remove(&self, retired: &Retired) {
        let removed: Vec<Socket> =
            self.lock().extract_if(.., |socket| retired.0.iter().any(|path| path == socket.path())).collect();
        // Not under the lock: each waits for its thread, which has nothing to do any more.
        drop(removed);
    }

    /// The disk's size changed: hypervisors are to tell their guests.
    pub fn resized(&self, export: &Export) {
        let sockets = self.lock();
        sockets
            .iter()
            .filter(|socket| std::ptr::eq(&raw const **socket.export(), export))
            .for_each(|socket| socket.notify(Notice::Resized));
    }

    /// Hang up on every hypervisor and remove every socket; `false` when something is still in flight after `patience`.
    #[must_use]
    pub fn stop(&self, patience: Duration) -> bool {
        let sockets = std::mem::take(&mut *self.lock());
        sockets.iter().for_each(Socket::stop);
        let deadline = Instant::now() + patience;
        let mut all_ended = true;
        for socket in sockets {
            all_ended &= socket.end_before(deadline);
        }
        all_ended
    }
}
