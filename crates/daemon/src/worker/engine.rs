//! The workers' engine, and kernel rings that are made before confinement.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use fipsee_block::disk::Engine;
use fipsee_ring::control::MAX_QUEUES;
use fipsee_virtio::core::make_spare_rings;
use rustix::process::{Resource, getrlimit};

use super::{Command, WorkerHandle};
use crate::config::{Config, sockets_of_ports};
use crate::placement::WorkerPlacement;

/// Operations in flight that the kernel ring of a worker holds; more wait in the engine.
const ENGINE_ENTRIES: u32 = 256;
/// How long workers may take to make their kernel rings: they have no other work yet.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn spawn(config: &Config, index: usize, place: WorkerPlacement) -> io::Result<(WorkerHandle, JoinHandle<()>)> {
    let stall_limit = config.stall_limit;
    fipsee_serve::spawn(index, place, config.wait, config.look, move || {
        let mut engine = Engine::new(ENGINE_ENTRIES)?;
        engine.set_stall_limit(stall_limit);
        Ok(engine)
    })
}

/// Have workers make their kernel rings, if this machine permits them. Disks that are added later need no new one.
pub(crate) fn start_engines(workers: &[WorkerHandle]) -> Result<(), String> {
    if let Err(reason) = Engine::check() {
        tracing::debug!(reason, "no worker will serve file disks");
        return Ok(());
    }
    let (done, started) = channel();
    for worker in workers {
        worker.mailbox.send(Command::StartEngine(done.clone()));
    }
    drop(done);
    match started.recv_timeout(ENGINE_TIMEOUT) {
        Err(RecvTimeoutError::Timeout) => Err("the workers do not get to run; look whether the machine is overloaded".to_owned()),
        _ => Ok(()),
    }
}

/// The share of the daemon's descriptors for rings of interrupts: an eighth.
const DESCRIPTORS_OF_RINGS: u64 = 8;

/// Make the kernel rings that interrupt virtual machines: one for each queue that a machine may have at each of the sockets that
/// the configuration names. Further queues, at sockets that are attached later, interrupt without a ring.
pub(crate) fn make_rings_for_machines(config: &Config) {
    let of_disks: usize = config.disks.iter().map(|disk| disk.vhost_user.len()).sum();
    let sockets = of_disks + sockets_of_ports(&config.networks).count();
    let wanted = sockets * usize::from(config.clients.limits.max_queues.clamp(1, MAX_QUEUES));
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / DESCRIPTORS_OF_RINGS;
    let count = make_spare_rings(wanted.min(usize::try_from(limit).unwrap_or(usize::MAX)));
    if count < wanted {
        tracing::warn!(wanted, count, "fewer kernel rings for interrupts than virtual machines may need; raise LimitNOFILE=");
    }
}
