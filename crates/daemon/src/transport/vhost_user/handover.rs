//! The old daemon's half of a takeover: hypervisors are not heard between two of their messages, and their devices are handed over.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fipsee_serve::{QueueName, Quiesced};
use fipsee_virtio::blk::upgrade::GuestStanding;

use super::VhostUserSockets;
use super::device::Device;
use super::queue::Queue;
use crate::takeover::line::{Line, LineError};
use crate::takeover::wire::machine::{AttachmentGiven, GuestMemoryGiven, InflightGiven, MachineGiven, VirtqueueGiven};
use crate::takeover::wire::{self, Given};

/// Longer than a thread needs to get to its next notice, unless it is not given a CPU or waits for somebody.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Asks the thread of a socket to hear nobody.
#[derive(Debug)]
pub struct Hold {
    /// Who is connected. Nothing it said is half read or unanswered.
    reply: Sender<Option<Machine>>,
    /// Until this ends.
    until: Receiver<()>,
}

impl Hold {
    /// Do nothing until told otherwise.
    pub(super) fn rest(self, machine: Option<Machine>) {
        let _ = self.reply.send(machine);
        let _ = self.until.recv();
    }
}

/// A hypervisor that is connected, and its device.
pub(super) struct Machine {
    pub(super) connection: Arc<UnixStream>,
    pub(super) device: Arc<Mutex<Device>>,
}

/// All sockets, held. Dropped, they go on.
pub struct Held {
    machines: Vec<(PathBuf, Machine)>,
    _until: Vec<Sender<()>>,
}

impl VhostUserSockets {
    /// Have every socket rest between two messages.
    ///
    /// # Errors
    /// Who does not get there in time, in words; everybody goes on.
    pub(crate) fn hold(&self, timeout: Duration) -> Result<Held, String> {
        let sockets = self.lock();
        let mut held = Held { machines: Vec::new(), _until: Vec::new() };
        let mut replies = Vec::new();
        // Side by side: each may have to wait for a disk.
        for socket in sockets.iter() {
            let ((reply, machine), (go, until)) = (channel(), channel());
            socket.hold(Hold { reply, until });
            held._until.push(go);
            replies.push(machine);
        }
        let deadline = Instant::now() + timeout + ANSWER_TIMEOUT;
        for (socket, reply) in sockets.iter().zip(replies) {
            let machine = reply.recv_timeout(deadline.saturating_duration_since(Instant::now())).map_err(|_| {
                format!(
                    "the virtual machine of disk '{}' at {} (process {}) is in the middle of a message, or of one that waits for the disk; try again, or end it",
                    socket.export().name(),
                    socket.path().display(),
                    socket.peer().map_or_else(|| "unknown".to_owned(), |pid| pid.to_string()),
                )
            })?;
            held.machines.extend(machine.map(|machine| (socket.path().to_owned(), machine)));
        }
        Ok(held)
    }
}

impl Held {
    /// How many machines are connected.
    pub(crate) const fn len(&self) -> usize {
        self.machines.len()
    }

    /// Hand them over; their queues stand still.
    pub(crate) fn give(&self, line: &Line, still: &Quiesced, deadline: Instant) -> Result<(), LineError> {
        for (socket, Machine { connection, device }) in &self.machines {
            let device = device.lock().unwrap_or_else(PoisonError::into_inner);
            device.give((socket, connection), line, still, deadline)?;
        }
        Ok(())
    }
}

impl Device {
    fn give(
        &self,
        (socket, connection): (&PathBuf, &UnixStream),
        line: &Line,
        still: &Quiesced,
        deadline: Instant,
    ) -> Result<(), LineError> {
        let client = self.serving.client;
        let (inflight, log) = (self.inflight.as_ref().map(|area| area.source()), self.log.as_ref().map(|log| log.source()));
        let beside =
            [self.channel.as_ref().map(AsFd::as_fd), inflight.map(|(source, _, _)| source.file), log.map(|source| source.file)];
        let descriptors: Vec<BorrowedFd<'_>> = std::iter::once(connection.as_fd()).chain(beside.into_iter().flatten()).collect();
        let export = &self.serving.export;
        let (exclusive, role) = export.terms_of(client);
        let given = MachineGiven {
            client,
            socket: socket.clone(),
            disk: export.name().to_owned(),
            exclusive,
            role,
            asked_features: self.asked_features,
            acked_features: self.acked_features,
            protocol_features: self.protocol_features,
            features: self.features,
            writeback: self.writeback.load(Ordering::Relaxed),
            channel: self.channel.is_some(),
            inflight: inflight.map(|(source, queues, size)| InflightGiven {
                offset_bytes: source.offset_bytes,
                length_bytes: source.length_bytes,
                queues,
                size,
            }),
            log: log.map(|source| (source.offset_bytes, source.length_bytes)),
            attachment: self.desk.attachment().map(|(id, entries)| AttachmentGiven::new(id, entries)),
            regions: self.table.len(),
            queues: self.queue_count(),
        };
        line.send(&Given::Machine(given), &descriptors, deadline)?;
        for (extent, source) in self.table.regions() {
            let region = GuestMemoryGiven {
                client,
                guest_address: extent.guest_address,
                length_bytes: extent.length_bytes,
                user_address: extent.user_address,
                file_offset_bytes: source.offset_bytes,
            };
            line.send(&Given::GuestMemory(region), &[source.file], deadline)?;
        }
        for (index, queue) in (0..).zip(&self.queues) {
            let name = QueueName { client, index };
            let given = queue.describe(name, still).map_err(LineError::Wrong)?;
            let descriptors = [&queue.kick, &queue.call, &queue.error];
            let descriptors: Vec<BorrowedFd<'_>> = descriptors.into_iter().flatten().map(AsFd::as_fd).collect();
            line.send(&Given::Virtqueue(given), &descriptors, deadline)?;
        }
        Ok(())
    }
}

impl Queue {
    fn describe(&self, name: QueueName, still: &Quiesced) -> Result<VirtqueueGiven, String> {
        let standing = still.state::<GuestStanding>(name);
        if standing.is_some() != self.is_served() {
            return Err(format!("virtqueue {} of client {} does not stand still; try again", name.index, name.client));
        }
        let (counters, latency) = wire::count(&self.counters);
        Ok(VirtqueueGiven {
            client: name.client,
            index: name.index,
            size: self.size,
            rings: self.rings.map(|rings| (rings.descriptor, rings.available, rings.used, rings.log)),
            next_available: self.next_available,
            enabled: self.enabled,
            kick: self.kick.is_some(),
            call: self.call.is_some(),
            error: self.error.is_some(),
            standing: standing.map(Into::into),
            counters,
            latency,
        })
    }
}
