//! What a reload may replace while the daemon serves: the disks, and the limits of new clients.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::export::Export;
use crate::transport::unix::ClientSettings;

/// Descriptors that a file disk holds: with and without the page cache.
const DESCRIPTORS_PER_DISK: u64 = 2;

/// One state of what is served; never changed, only replaced.
#[derive(Clone)]
pub struct Served {
    /// The disks.
    pub exports: Vec<Arc<Export>>,
    /// Limits.
    pub settings: ClientSettings,
    /// Descriptors of disks that came after the start, at most.
    pub added_descriptors: u64,
}

impl Served {
    /// The disk of this name.
    ///
    /// # Errors
    /// There is none: the text names those that there are.
    pub fn find(&self, name: &str) -> Result<&Arc<Export>, String> {
        self.exports.iter().find(|export| export.name() == name).ok_or_else(|| {
            let names: Vec<_> = self.exports.iter().map(|export| export.name()).collect();
            format!("no disk '{name}' here; there are: {}", names.join(", "))
        })
    }
}

/// The state that is in force, shared by the transports and the admin thread.
pub struct Live {
    served: Mutex<Arc<Served>>,
    next_client: AtomicU64,
    departures: AtomicU64,
    device_descriptors: AtomicU64,
}

impl Live {
    /// What is served from the start.
    #[must_use]
    pub fn new(exports: Vec<Arc<Export>>, settings: ClientSettings) -> Self {
        let served = Served { exports, settings, added_descriptors: 0 };
        Self {
            served: Mutex::new(Arc::new(served)),
            next_client: AtomicU64::new(1),
            departures: AtomicU64::new(0),
            device_descriptors: AtomicU64::new(0),
        }
    }

    /// The state in force. Hold it for the time of one decision, not longer: it keeps removed disks open.
    #[must_use]
    pub fn now(&self) -> Arc<Served> {
        Arc::clone(&self.served.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A number for a client, whichever transport it comes by.
    #[must_use]
    pub fn next_client(&self) -> u64 {
        self.next_client.fetch_add(1, Ordering::Relaxed)
    }

    /// No client has had a number from this one on.
    #[must_use]
    pub fn clients_before(&self) -> u64 {
        self.next_client.load(Ordering::Relaxed)
    }

    /// Clients below this number are another daemon's.
    pub fn number_clients_from(&self, client: u64) {
        self.next_client.fetch_max(client, Ordering::Relaxed);
    }

    /// A client's last request is finished, and its place is free.
    pub fn departed(&self) {
        self.departures.fetch_add(1, Ordering::Relaxed);
    }

    /// How often that happened.
    #[must_use]
    pub fn departures(&self) -> u64 {
        self.departures.load(Ordering::Relaxed)
    }

    /// Descriptors that vhost-user devices hold, at most.
    #[must_use]
    pub fn device_descriptors(&self) -> u64 {
        self.device_descriptors.load(Ordering::Relaxed)
    }

    /// A device holds up to so many more descriptors.
    pub fn take_descriptors(&self, count: u64) {
        self.device_descriptors.fetch_add(count, Ordering::Relaxed);
    }

    /// They are closed.
    pub fn give_descriptors(&self, count: u64) {
        self.device_descriptors.fetch_sub(count, Ordering::Relaxed);
    }

    /// Put another in force, all of it at once. Only the admin thread does that.
    pub fn replace(&self, exports: Vec<Arc<Export>>, settings: ClientSettings, added_disks: usize) {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        let added_descriptors = served.added_descriptors + DESCRIPTORS_PER_DISK * added_disks as u64;
        *served = Arc::new(Served { exports, settings, added_descriptors });
    }
}
