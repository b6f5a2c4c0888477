//! The state that a reload may replace while the daemon serves: the disks, and the limits of new clients.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::export::Export;
use crate::transport::unix::ClientSettings;

/// Descriptors that a file disk holds: with and without the page cache.
const DESCRIPTORS_PER_DISK: u64 = 2;

/// One state of the served disks; never changed, only replaced.
pub(crate) struct Served {
    pub(crate) exports: Vec<Arc<Export>>,
    pub(crate) settings: ClientSettings,
    /// Most descriptors of disks added after the start.
    pub(crate) added_descriptors: u64,
}

impl Served {
    /// The disk of this name, or an error that lists the disks.
    pub(crate) fn find(&self, name: &str) -> Result<&Arc<Export>, String> {
        self.exports.iter().find(|export| export.name() == name).ok_or_else(|| {
            let names: Vec<_> = self.exports.iter().map(|export| export.name()).collect();
            format!("no disk '{name}' here; there are: {}", names.join(", "))
        })
    }
}

/// The state in force, shared by the transports and the admin thread.
pub struct Live {
    served: Mutex<Arc<Served>>,
    next_client: AtomicU64,
    /// Number of clients that have left and whose last request is finished.
    pub(crate) departures: AtomicU64,
    /// Most descriptors that vhost-user devices hold.
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

    pub(crate) fn next_client(&self) -> u64 {
        self.next_client.fetch_add(1, Ordering::Relaxed)
    }

    /// All client numbers so far are below this.
    pub(crate) fn clients_before(&self) -> u64 {
        self.next_client.load(Ordering::Relaxed)
    }

    /// Numbers below this one were used by another daemon.
    pub(crate) fn number_clients_from(&self, client: u64) {
        self.next_client.fetch_max(client, Ordering::Relaxed);
    }

    /// Replace the whole state at once. Only the admin thread does that.
    pub(crate) fn replace(&self, exports: Vec<Arc<Export>>, settings: ClientSettings, added_disks: usize) {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        let added_descriptors = served.added_descriptors + DESCRIPTORS_PER_DISK * added_disks as u64;
        *served = Arc::new(Served { exports, settings, added_descriptors });
    }
}
