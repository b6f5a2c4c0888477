//! The old daemon's half of a takeover: connections pause between two messages, and their devices are handed over.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fipsee_serve::takeover::LineError;
use fipsee_serve::{QueueName, Quiesced};
use fipsee_virtio::blk::server::DeviceQueueState;
use fipsee_virtio::core::memory::RegionDescription;

use super::connection::{FrontendConnection, lock};
use super::device::Device;
use super::socket::SharedSocket;
use super::vring::Vring;
use super::{Notice, VhostUserSockets};
use crate::export::Export;
use crate::takeover::line::Line;
use crate::takeover::wire::machine::{AttachmentRecord, GuestMemoryRecord, InflightRecord, MachineRecord, VirtqueueRecord};
use crate::takeover::wire::{self, HandoverPacket};

/// Longer than a thread needs to reach its next notice, unless it gets no CPU or is blocked.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Hold {
    /// The connection. No message is half read or unanswered.
    reply: Sender<Option<Machine>>,
    /// Until this ends.
    until: Receiver<()>,
}

impl Hold {
    pub(super) fn rest(self, connection: Option<&FrontendConnection>) {
        let _ = self.reply.send(connection.and_then(Machine::of));
        let _ = self.until.recv();
    }
}

struct Machine {
    shared: Arc<SharedSocket>,
    export: Arc<Export>,
    client: u64,
    stream: Arc<UnixStream>,
    device: Arc<Mutex<Device>>,
}

/// All sockets, paused. They resume when this is dropped.
pub(crate) struct Held {
    machines: Vec<Machine>,
    _until: Vec<Sender<()>>,
}

impl VhostUserSockets {
    pub(crate) fn hold(&self, timeout: Duration) -> Result<Held, String> {
        // Not under the lock: the main thread takes it. Sockets come and go by the thread that is here alone.
        let sockets: Vec<Arc<SharedSocket>> = self.lock().iter().map(|socket| Arc::clone(&socket.shared)).collect();
        let mut held = Held { machines: Vec::new(), _until: Vec::new() };
        let mut replies = Vec::new();
        // In parallel: each may have to wait for a disk.
        for socket in &sockets {
            let ((reply, machine), (go, until)) = (channel(), channel());
            socket.notices.send(Notice::Hold(Hold { reply, until }));
            held._until.push(go);
            replies.push(machine);
        }
        let deadline = Instant::now() + timeout + ANSWER_TIMEOUT;
        for (socket, reply) in sockets.iter().zip(replies) {
            let machine = reply.recv_timeout(deadline.saturating_duration_since(Instant::now())).map_err(|_| {
                let peer = socket.state().peer.as_ref().map_or_else(|| "unknown".to_owned(), |peer| peer.pid.to_string());
                format!(
                    "the virtual machine of '{}' at {} (process {peer}) is in the middle of a message, or of one that waits for the disk; try again, or end it",
                    socket.target.name(),
                    socket.listener.path().display(),
                )
            })?;
            held.machines.extend(machine);
        }
        Ok(held)
    }
}

impl Held {
    pub(crate) const fn len(&self) -> usize {
        self.machines.len()
    }

    /// Hand them over; their queues are quiesced.
    pub(crate) fn give(&self, line: &Line, still: &Quiesced, deadline: Instant) -> Result<(), LineError> {
        self.machines.iter().try_for_each(|machine| machine.give(line, still, deadline))
    }
}

impl Machine {
    /// `None`: it uses a port. Its connection ends with this process, and its hypervisor connects to the next one.
    fn of(connection: &FrontendConnection) -> Option<Self> {
        let export = Arc::clone(connection.shared.target.disk()?);
        Some(Self {
            shared: Arc::clone(&connection.shared),
            export,
            client: connection.client,
            stream: Arc::clone(&connection.stream),
            device: Arc::clone(&connection.device),
        })
    }

    fn give(&self, line: &Line, still: &Quiesced, deadline: Instant) -> Result<(), LineError> {
        let (export, client, device) = (&self.export, self.client, lock(&self.device));
        let (inflight, log) = (device.inflight.as_ref().map(|area| area.source()), device.log.as_ref().map(|log| log.source()));
        let beside =
            [device.channel.as_ref().map(AsFd::as_fd), inflight.map(|(source, _, _)| source.file), log.map(|source| source.file)];
        let descriptors: Vec<BorrowedFd<'_>> = std::iter::once(self.stream.as_fd()).chain(beside.into_iter().flatten()).collect();
        let (exclusive, role) = export.terms_of(client);
        let given = MachineRecord {
            client,
            socket: self.shared.listener.path().to_owned(),
            disk: export.name().to_owned(),
            exclusive,
            role,
            notify: export.own_notify_of(client),
            asked_features: device.asked_features,
            acked_features: device.acked_features,
            protocol_features: device.protocol_features,
            features: device.features,
            writeback: device.writeback.load(Ordering::Relaxed),
            channel: device.channel.is_some(),
            inflight: inflight.map(|(source, queues, size)| InflightRecord {
                offset_bytes: source.offset_bytes,
                length_bytes: source.length_bytes,
                queues,
                size,
            }),
            log: log.map(|source| (source.offset_bytes, source.length_bytes)),
            attachment: device.attachment.in_force.as_ref().map(|(id, entries)| AttachmentRecord::new(*id, entries)),
            regions: device.memory.regions().len(),
            queues: device.queue_count(),
        };
        line.send(&HandoverPacket::Machine(given), &descriptors, deadline)?;
        for region in device.memory.regions() {
            let RegionDescription { guest_address, length_bytes, user_address, file_offset_bytes } = region.description;
            let given = GuestMemoryRecord { client, guest_address, length_bytes, user_address, file_offset_bytes };
            line.send(&HandoverPacket::GuestMemory(given), &[region.file()], deadline)?;
        }
        for (index, vring) in (0..).zip(&device.vrings) {
            let given = vring.describe(QueueName { client, index }, still).map_err(LineError::Wrong)?;
            let descriptors = [&vring.kick, &vring.call, &vring.error];
            let descriptors: Vec<BorrowedFd<'_>> = descriptors.into_iter().flatten().map(AsFd::as_fd).collect();
            line.send(&HandoverPacket::Virtqueue(given), &descriptors, deadline)?;
        }
        Ok(())
    }
}

impl Vring {
    fn describe(&self, name: QueueName, still: &Quiesced) -> Result<VirtqueueRecord, String> {
        let state = still.state::<DeviceQueueState>(name);
        if state.is_some() != self.is_served() {
            return Err(format!("virtqueue {} of client {} is not quiesced; try again", name.index, name.client));
        }
        let (counters, latency) = wire::count(&self.counters);
        Ok(VirtqueueRecord {
            client: name.client,
            index: name.index,
            size: self.size,
            rings: self.rings.map(|rings| (rings.descriptor, rings.available, rings.used, rings.log)),
            next_available: self.next_available,
            enabled: self.enabled,
            kick: self.kick.is_some(),
            call: self.call.is_some(),
            error: self.error.is_some(),
            state: state.map(Into::into),
            counters,
            latency,
        })
    }
}
