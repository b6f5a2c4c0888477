//! A client or virtual machine that is attached to a disk.

use std::sync::Arc;

use fipsee_block::stats::{Distribution, QueueCounters};
use fipsee_ring::notify::SharedPolicy;
use fipsee_serve::Share;
use fipsee_serve::session::Credentials;

use super::{Kind, Role};
use crate::totals::Counts;

/// An attached client, as `fipsee stat` shows it.
#[derive(Clone, Debug)]
pub struct AttachedClient {
    pub(crate) kind: Kind,
    /// No other client of the daemon ever has the same number.
    pub(crate) client: u64,
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    pub(crate) queues: Vec<Arc<QueueCounters>>,
    /// Of all queues that it has had: those of a virtual machine come and go, with the same counters.
    pub(crate) counted: Vec<Arc<QueueCounters>>,
    /// The CPU of each queue's worker, if it is bound to one.
    pub(crate) worker_cpus: Vec<Option<usize>>,
    pub(crate) exclusive: bool,
    /// A device of a virtual machine reads, until its first queue is served.
    pub(crate) role: Role,
    /// By which its queues are notified.
    pub(crate) notify: Arc<SharedPolicy>,
    /// Is that the client's own, and not the disk's?
    pub(crate) notify_is_own: bool,
    /// Its connection is closed, and its last requests are not finished.
    pub(crate) leaving: bool,
    /// `None`: it is not served yet.
    pub(crate) share: Option<Share>,
}

impl AttachedClient {
    pub(crate) fn new(kind: Kind, client: u64, &Credentials { pid, uid, .. }: &Credentials, exclusive: bool, role: Role) -> Self {
        Self {
            kind,
            client,
            pid,
            uid,
            queues: Vec::new(),
            counted: Vec::new(),
            worker_cpus: Vec::new(),
            exclusive,
            role,
            notify: Arc::default(),
            notify_is_own: false,
            leaving: false,
            share: None,
        }
    }

    pub(super) fn count(&mut self, queues: &[Arc<QueueCounters>]) {
        for queue in queues {
            if !self.counted.iter().any(|known| Arc::ptr_eq(known, queue)) {
                self.counted.push(Arc::clone(queue));
            }
        }
    }

    /// What it has done since it attached.
    pub(crate) fn counts(&self) -> Counts {
        Counts::of(&self.counted)
    }

    /// How long workers were busy with its queues.
    pub(crate) fn busy_ns(&self) -> u64 {
        self.counted.iter().map(|queue| queue.busy_ns.get()).sum()
    }

    /// Service times of its requests.
    pub(crate) fn latency(&self) -> Distribution {
        Distribution::of(self.counted.iter().map(|queue| &queue.latency))
    }

    /// For the messages to clients that it excludes.
    pub(super) fn shown(&self) -> String {
        let what = if self.kind == Kind::VhostUser { " (a virtual machine)" } else { "" };
        let gone = if self.leaving { ", which is gone while its last requests are not finished," } else { "" };
        format!("process {}{what}{gone}", self.pid)
    }
}
