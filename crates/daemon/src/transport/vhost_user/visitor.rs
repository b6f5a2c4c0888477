//! A hypervisor that is connected, and what is kept for it.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use fipsee_serve::session::Credentials;
use fipsee_serve::unix::credentials_of;
use vhost::vhost_user::BackendReqHandler;

use super::device::Device;
use super::handover::Machine;
use crate::live::Live;

/// Descriptors of a device beside those of its queues and its memory: two of the connection, the channel for our requests, inflight
/// area, log, and memory files on their way to being mapped.
const DESCRIPTORS: u64 = 40;
/// Kick, call and error of each queue, and the worker's copies.
const DESCRIPTORS_PER_QUEUE: u64 = 6;

/// One hypervisor.
pub struct Visitor {
    pub(super) client: u64,
    pub(super) credentials: Credentials,
    pub(super) connection: Arc<UnixStream>,
    pub(super) handler: BackendReqHandler<Mutex<Device>>,
    pub(super) device: Arc<Mutex<Device>>,
    /// Descriptors that it is counted with.
    pub(super) charged: u64,
}

impl std::fmt::Debug for Visitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Visitor").field("client", &self.client).finish_non_exhaustive()
    }
}

impl Visitor {
    /// Who is at the other end of `connection`, of which `handler` has a copy.
    pub(super) fn new(
        client: u64,
        connection: UnixStream,
        handler: BackendReqHandler<Mutex<Device>>,
        device: Arc<Mutex<Device>>,
    ) -> std::io::Result<Self> {
        let credentials = credentials_of(&connection)?;
        Ok(Self { client, credentials, connection: Arc::new(connection), handler, device, charged: 0 })
    }

    /// Process and user.
    pub(super) const fn who(&self) -> (i32, u32) {
        (self.credentials.pid, self.credentials.uid)
    }

    /// For another daemon.
    pub(super) fn machine(&self) -> Machine {
        Machine { connection: Arc::clone(&self.connection), device: Arc::clone(&self.device) }
    }

    /// Count the descriptors that it may hold now.
    pub(super) fn charge(&mut self, live: &Live) {
        let device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        let charge = DESCRIPTORS + DESCRIPTORS_PER_QUEUE * u64::from(device.queue_count()) + device.table.len() as u64;
        if charge != self.charged {
            live.take_descriptors(charge);
            live.give_descriptors(std::mem::replace(&mut self.charged, charge));
        }
    }
}
