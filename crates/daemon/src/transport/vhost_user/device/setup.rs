//! The parameters of queues, and the rings that a guest has moved to (docs/protocol.md section 9).
//!
//! Upgrade requests come from the queues and are answered between two messages of the hypervisor: so no attachment begins or ends
//! while queues are stopped or memory changes.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use fipsee_block::wire::BlockInfo;
use fipsee_ring::tuning::{Choices, Tuning};
use fipsee_virtio::blk::server::{SERIAL_BYTES, UpgradeToken, VirtqueueServer, VirtqueueSetup};
use fipsee_virtio::blk::upgrade::controller::Decision;
use fipsee_virtio::blk::upgrade::wire::UpgradeRequest;
use fipsee_virtio::core::DeviceQueueSetup;
use fipsee_virtio::net::Role;

use super::{Action, Device, DiskDescription, Model, PROTOCOL_FEATURES};
use crate::transport::vhost_user::vring::Run;

#[derive(Debug)]
pub(in super::super) struct Asked {
    pub(in super::super) queue: u16,
    /// The queue's run in which it came: its token is not valid in another.
    pub(in super::super) run: u64,
    pub(in super::super) token: UpgradeToken,
    pub(in super::super) upgrade_request: UpgradeRequest,
}

impl Device {
    pub(super) fn start_all(&mut self) {
        (0..self.queue_count()).for_each(|queue| self.start(queue));
    }

    /// Serve a queue, if it is fully described and not served yet. One whose rings are not in the guest's memory waits for other
    /// memory or other rings.
    pub(super) fn start(&mut self, queue: u16) {
        self.then(move |device| {
            let (features, vring) = (device.features, device.vring(queue));
            let is_on = features & PROTOCOL_FEATURES == 0 || vring.enabled;
            if features != 0 && is_on && !vring.is_served() && vring.is_described() {
                device.act(Action::Claim);
                device.then(move |device| device.serve(queue));
            }
        });
    }

    fn serve(&mut self, queue: u16) {
        let setup = match self.setup(queue) {
            Ok(setup) => setup,
            Err(problem) => return self.actions.push(Action::Warn(queue, "a queue cannot be served", problem)),
        };
        let run = self.begin_run(queue);
        match &self.model {
            Model::Disk(disk) => {
                let setup = self.disk_setup(queue, disk, setup);
                self.act(Action::Serve(queue, run, Box::new(setup)));
            }
            Model::Port(port) => {
                let role = Role::of(queue, port.pairs, self.features);
                self.act(Action::ServePort(queue, role, Box::new(setup)));
            }
        }
    }

    /// A worker is about to serve the queue.
    pub(in super::super) fn begin_run(&mut self, queue: u16) -> u64 {
        static RUNS: AtomicU64 = AtomicU64::new(1);
        let id = RUNS.fetch_add(1, Ordering::Relaxed);
        self.vring(queue).run = Some(Run { id, choices: Tuning::default().to_choices() });
        id
    }

    pub(in super::super) fn setup(&self, index: u16) -> Result<DeviceQueueSetup, String> {
        let vring = &self.vrings[usize::from(index)];
        let (Some(user), Some(kick), true) = (&vring.rings, &vring.kick, vring.size > 0) else {
            return Err("a part of it is missing".to_owned());
        };
        let rings = user.translate(&self.memory).ok_or("its rings are not in the memory that was handed over")?;
        let copy = |descriptor: &OwnedFd| descriptor.try_clone().map_err(|error| format!("no descriptor is left: {error}"));
        let log = self.log_in_force();
        Ok(DeviceQueueSetup {
            memory: Arc::clone(&self.memory),
            size: vring.size,
            rings,
            next_available: vring.next_available,
            features: self.features,
            kick: copy(kick)?,
            call: vring.call.as_ref().map(copy).transpose()?,
            error: vring.error.as_ref().map(copy).transpose()?,
            // A port has used each chain before its visit ends, so that there is nothing to record.
            inflight: self.inflight.as_ref().filter(|_| self.model.port().is_none()).and_then(|area| area.queue(index)),
            used_log_address: vring.log_address(log.as_ref()),
            log,
        })
    }

    /// What a queue of `disk` needs besides.
    pub(in super::super) fn disk_setup(&self, index: u16, disk: &DiskDescription, queue: DeviceQueueSetup) -> VirtqueueSetup {
        VirtqueueSetup {
            queue,
            info: disk.info,
            read_only: disk.read_only,
            writeback: Arc::clone(&self.writeback),
            serial: serial(&disk.name, &disk.info),
            counters: Arc::clone(&self.vrings[usize::from(index)].counters),
        }
    }

    /// The choices advised to a guest for its rings: those of the worker of its first virtqueue.
    pub(in super::super) fn advice(&self) -> Choices {
        let run = self.vrings.iter().find_map(|vring| vring.run);
        run.map_or_else(|| Tuning::default().to_choices(), |run| run.choices)
    }

    /// Answer an upgrade request, unless its queue was stopped meanwhile: then it comes again.
    pub(in super::super) fn asked(&mut self, asked: Asked) {
        self.then(move |device| {
            let Asked { queue, run, token, ref upgrade_request } = asked;
            if device.vrings.get(usize::from(queue)).and_then(|vring| vring.run).is_none_or(|current| current.id != run) {
                return;
            }
            let (queues, advice, served) = (device.queue_count(), device.advice(), device.served());
            let is_served = |index: u32| served.iter().any(|queue| u32::from(*queue) == index);
            let reply = match device.attachment.decide(upgrade_request, &device.memory, queues, advice, is_served) {
                Decision::Answer(reply) => reply,
                Decision::Attach(grants, reply) => {
                    for grant in grants {
                        let doorbell = u16::try_from(grant.entry.virtqueue).unwrap_or(u16::MAX);
                        device.change_disk(doorbell, move |server| server.attach(grant));
                    }
                    reply
                }
                Decision::Detach(reply) => {
                    device.end_attachment();
                    reply
                }
            };
            device.then(move |device| {
                device.change_disk(queue, move |server| {
                    server.answer_upgrade_request(token, &reply);
                    server.flush();
                });
            });
        });
        let _ = self.advance();
    }

    /// When this has taken effect, the rings are no longer accessed, and requests taken from them are finished.
    pub(super) fn end_attachment(&mut self) {
        self.on_rings(VirtqueueServer::end);
        self.then(|device| {
            device.attachment.in_force = None;
        });
    }

    /// Emit this for every queue of the attachment. A queue that is gone has released its ring.
    pub(super) fn on_rings(&mut self, how: fn(&mut VirtqueueServer, Sender<()>)) {
        self.then(move |device| {
            let mut doorbells = device.served();
            doorbells.retain(|queue| device.attachment.virtqueues().any(|doorbell| doorbell == u32::from(*queue)));
            doorbells.into_iter().for_each(|queue| device.act(Action::Ring(queue, how)));
        });
    }
}

/// The serial number in /dev/disk/by-id: the disk's name; if too long, shortened and made unique by its identity.
fn serial(name: &str, info: &BlockInfo) -> String {
    if name.len() <= SERIAL_BYTES {
        return name.to_owned();
    }
    let [a, b, c, d, ..] = info.identity;
    format!("{}-{a:02x}{b:02x}{c:02x}{d:02x}", name.get(..SERIAL_BYTES - 9).unwrap_or(""))
}
