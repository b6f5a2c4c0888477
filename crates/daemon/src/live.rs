//! What a reload may replace while the daemon serves: the disks, and the limits of new clients.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::export::Export;
use crate::transport::unix::ClientSettings;

/// Descriptors that a file disk holds: with and without the page cache.
const DESCRIPTORS_PER_DISK: u64 = 2;

/// One state of what is served; never changed, only replaced.
pub(crate) struct Served {
    pub(crate) exports: Vec<Arc<Export>>,
    pub(crate) settings: ClientSettings,
    /// Descriptors of disks that came after the start, at most.
    pub(crate) added_descriptors: u64,
}

impl Served {
    /// The disk of this name, or which there are.
    pub(crate) fn find(&self, name: &str) -> Result<&Arc<Export>, String> {
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
    /// Clients whose last request is finished and whose place is free.
    pub(crate) departures: AtomicU64,
    /// What vhost-user devices hold, at most.
    pub(crate) device_descriptors: AtomicU64,
}

impl Live {
    pub(crate) fn new(exports: Vec<Arc<Export>>, settings: ClientSettings) -> Self {
        let served = Mutex::new(Arc::new(Served { exports, settings, added_descriptors: 0 }));
        let (departures, device_descriptors) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { served, next_client: AtomicU64::new(1), departures, device_descriptors }
    }

    /// The state in force. Hold it for the time of one decision, not longer: it keeps removed disks open.
    pub(crate) fn now(&self) -> Arc<Served> {
        Arc::clone(&self.served.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A number for a client, whichever transport it comes by.
    pub(crate) fn next_client(&self) -> u64 {
        self.next_client.fetch_add(1, Ordering::Relaxed)
    }

    /// No client has had a number from this one on.
    pub(crate) fn clients_before(&self) -> u64 {
        self.next_client.load(Ordering::Relaxed)
    }

    /// Clients below this number are another daemon's.
    pub(crate) fn number_clients_from(&self, client: u64) {
        self.next_client.fetch_max(client, Ordering::Relaxed);
    }

    /// Put another in force, all of it at once. Only the admin thread does that.
    pub(crate) fn replace(&self, exports: Vec<Arc<Export>>, settings: ClientSettings, added_disks: usize) {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        let added_descriptors = served.added_descriptors + DESCRIPTORS_PER_DISK * added_disks as u64;
        *served = Arc::new(Served { exports, settings, added_descriptors });
    }
}
