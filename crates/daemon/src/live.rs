//! The state that a reload may replace while the daemon serves: the disks, and the limits of new clients.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fipsee_net::server::Switches;
use fipsee_serve::Share;

use crate::export::Export;
use crate::pools::Pools;
use crate::shares::Shares;
use crate::transport::unix::ClientSettings;

/// Descriptors that a file disk holds: with and without the page cache.
const DESCRIPTORS_PER_DISK: u64 = 2;

/// One state of the served disks; never changed, only replaced.
pub(crate) struct Served {
    pub(crate) exports: Vec<Arc<Export>>,
    pub(crate) settings: ClientSettings,
    /// Number of disks at the start.
    at_start: usize,
}

impl Served {
    /// Most descriptors of the disks that are more than at the start.
    pub(crate) fn added_descriptors(&self) -> u64 {
        DESCRIPTORS_PER_DISK * self.exports.len().saturating_sub(self.at_start) as u64
    }

    /// The disk of this name, or an error that lists the disks.
    pub(crate) fn find(&self, name: &str) -> Result<&Arc<Export>, String> {
        self.exports.iter().find(|export| export.name() == name).ok_or_else(|| {
            let names: Vec<_> = self.exports.iter().map(|export| export.name()).collect();
            let there =
                if names.is_empty() { "no disk is served".to_owned() } else { format!("there are: {}", names.join(", ")) };
            format!("no disk '{name}' here; {there}")
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
    /// Of clients that have one share of the workers together.
    pub(crate) shares: Shares,
    /// Of clients whose queues have a worker to themselves.
    pub(crate) pools: Pools,
    /// The networks; their ports come and go.
    pub(crate) switches: Switches,
    /// Clients whose queues stay where they are: those of ports.
    fixed: Mutex<BTreeMap<u64, FixedQueues>>,
}

/// Queues of a client that stay at a worker as long as it is attached.
#[derive(Debug)]
pub(crate) struct FixedQueues {
    pub(crate) port: String,
    pub(crate) worker: usize,
    pub(crate) queues: usize,
    /// `None`: it is a device of the host, whose limits are those of its port.
    pub(crate) share: Option<Share>,
}

impl Live {
    pub(crate) fn new(exports: Vec<Arc<Export>>, settings: ClientSettings, switches: Switches) -> Self {
        let at_start = exports.len();
        let served = Mutex::new(Arc::new(Served { exports, settings, at_start }));
        let (departures, device_descriptors) = (AtomicU64::new(0), AtomicU64::new(0));
        Self {
            served,
            next_client: AtomicU64::new(1),
            departures,
            device_descriptors,
            shares: Shares::default(),
            pools: Pools::default(),
            switches,
            fixed: Mutex::default(),
        }
    }

    /// The queues of this client stay where they are; `None`: there are none any more.
    pub(crate) fn set_fixed(&self, client: u64, queues: Option<FixedQueues>) {
        let mut all = self.fixed();
        _ = match queues {
            Some(queues) => all.insert(client, queues),
            None => all.remove(&client),
        };
    }

    pub(crate) fn stays(&self, client: u64) -> bool {
        self.fixed().contains_key(&client)
    }

    pub(crate) fn fixed(&self) -> MutexGuard<'_, BTreeMap<u64, FixedQueues>> {
        self.fixed.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Replace the whole state at once. The caller has the lock of the admin socket's state.
    pub(crate) fn replace(&self, exports: Vec<Arc<Export>>, settings: ClientSettings) {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        *served = Arc::new(Served { exports, settings, at_start: served.at_start });
    }
}
