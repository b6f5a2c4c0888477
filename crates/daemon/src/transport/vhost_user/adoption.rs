//! The new daemon's half of a takeover: devices are created as their hypervisors described them to the old one, and their queues
//! go to the workers in their saved state.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use fipsee_serve::{QueueName, Quiesced};
use fipsee_virtio::blk::server::{DeviceQueueState, VirtqueueServer};
use fipsee_virtio::blk::upgrade::controller::Grant;
use fipsee_virtio::core::inflight::InflightArea;
use fipsee_virtio::core::memory::{DirtyLog, GuestMemory, RegionDescription};

use super::connection::{FrontendConnection, Order, lock};
use super::device::{Device, LOG_ALL, Model};
use super::socket::{MAX_QUEUES, SharedSocket, Socket};
use super::vring::UserRings;
use crate::export::Kind;
use crate::takeover::take::{Conversation, Failure};
use crate::takeover::wire::machine::{GuestMemoryRecord, MachineRecord, VirtqueueRecord};
use crate::takeover::wire::{self, HandoverPacket};
use crate::worker::Command;

/// Virtual machines received over the line. They are ours as soon as the other daemon is notified.
pub(crate) struct Machines<'a> {
    sockets: &'a [Socket],
    /// Each with the number of the socket where it connected.
    adopted: Vec<(usize, FrontendConnection)>,
    states: Vec<(QueueName, DeviceQueueState)>,
    served: Vec<(QueueName, Receiver<Result<(), String>>)>,
}

type Wrong = String;

impl<'a> Machines<'a> {
    pub(crate) const fn new(sockets: &'a [Socket]) -> Self {
        Self { sockets, adopted: Vec::new(), states: Vec::new(), served: Vec::new() }
    }

    pub(crate) const fn len(&self) -> usize {
        self.adopted.len()
    }

    pub(crate) fn begin(self) {
        for (socket, connection) in self.adopted {
            self.sockets[socket].adopt(connection);
        }
    }

    /// Adopt the one that `given` announces; the commands to its workers go to `commands`.
    pub(crate) fn adopt(
        &mut self,
        line: &mut Conversation,
        given: MachineRecord,
        descriptors: Vec<OwnedFd>,
        commands: &mut [Vec<Command>],
    ) -> Result<(), Failure> {
        let (client, disk) = (given.client, given.disk.clone());
        let refused = |what: Wrong| Failure::Refused(format!("the virtual machine of disk '{disk}': {what}"));
        let is_it = |socket: &Socket| socket.path() == given.socket && socket.shared.target.name() == disk;
        let place = self.sockets.iter().position(is_it);
        let place = place.filter(|place| self.adopted.iter().all(|(other, _)| other != place));
        let place = place.ok_or_else(|| refused("its socket is not there".to_owned()))?;
        let mut memory = GuestMemory::default();
        for _ in 0..given.regions {
            let (HandoverPacket::GuestMemory(given), mut files) = line.packet()? else { return Err(Failure::out_of_order()) };
            let GuestMemoryRecord { guest_address, length_bytes, user_address, file_offset_bytes, .. } = given;
            let region = RegionDescription { guest_address, length_bytes, user_address, file_offset_bytes };
            let file = files.pop().ok_or_else(|| refused("its memory is missing".to_owned()))?;
            memory = memory.with(region, file).map_err(|error| refused(error.to_string()))?;
        }
        let mut connection = connect(&self.sockets[place].shared, &given, descriptors, memory).map_err(refused)?;
        let mut grants = lock(&connection.device).resume_attachment(&given).map_err(refused)?;
        for index in 0..given.queues {
            let (HandoverPacket::Virtqueue(queue), eventfds) = line.packet()? else { return Err(Failure::out_of_order()) };
            if queue.index != index {
                return Err(refused("its queues are out of order".to_owned()));
            }
            let name = QueueName { client, index };
            let resumed = connection.resume_queue(queue, eventfds, &mut grants);
            let resumed = resumed.map_err(|what| refused(format!("virtqueue {index}: {what}")))?;
            if let Some((state, (worker, command, served))) = resumed {
                commands[worker].push(command);
                self.states.push((name, state));
                self.served.push((name, served));
            }
        }
        connection.publish_queues(&lock(&connection.device));
        self.adopted.push((place, connection));
        Ok(())
    }

    /// Is every queue at its worker in the state that it had in the other daemon?
    pub(crate) fn check(&self, still: &Quiesced) -> Result<(), Failure> {
        for (name, served) in &self.served {
            if let Ok(Err(problem)) | Err(problem) = served.try_recv().map_err(|_| "its worker is gone".to_owned()) {
                return Err(Failure::Refused(format!("virtqueue {} of client {}: {problem}", name.index, name.client)));
            }
        }
        if self.states.iter().any(|(name, state)| still.state(*name) != Some(state)) {
            return Err(Failure::Refused("a virtqueue is not in the state that the other daemon left; see the log".to_owned()));
        }
        Ok(())
    }
}

fn connect(
    shared: &Arc<SharedSocket>,
    given: &MachineRecord,
    descriptors: Vec<OwnedFd>,
    memory: GuestMemory,
) -> Result<FrontendConnection, Wrong> {
    let beside = [given.channel, given.inflight.is_some(), given.log.is_some()].into_iter().filter(|is_there| *is_there);
    if descriptors.len() != 1 + beside.count() || !(1..=MAX_QUEUES).contains(&given.queues) {
        return Err("descriptors are missing, or it has too many queues".to_owned());
    }
    let mut descriptors = descriptors.into_iter();
    let stream = descriptors.next().map(UnixStream::from).ok_or("its connection is missing")?;
    let mut device = shared.device(given.queues);
    device.memory = Arc::new(memory);
    device.resume(given, descriptors)?;
    let connection = FrontendConnection::new(shared, given.client, stream, device);
    let connection = connection.map_err(|error| format!("its connection: {error}"))?;
    let export = shared.target.disk().ok_or("its socket is that of a port")?;
    export.keep(Kind::VhostUser, given.client, &connection.credentials, (given.exclusive, given.role));
    given.notify.into_iter().for_each(|notify| _ = export.set_notify_of(given.client, notify));
    shared.live.number_clients_from(given.client.saturating_add(1));
    Ok(connection)
}

impl Device {
    /// As its hypervisor has described it.
    fn resume(&mut self, given: &MachineRecord, mut descriptors: impl Iterator<Item = OwnedFd>) -> Result<(), Wrong> {
        let unknown = (given.features | given.acked_features) & !self.offered();
        let unknown_of_protocol = given.protocol_features & !self.protocol_offered();
        if unknown != 0 || unknown_of_protocol != 0 {
            return Err(format!("features {unknown:#x}, or protocol features {unknown_of_protocol:#x}, are not offered here"));
        }
        (self.asked_features, self.acked_features) = (given.asked_features, given.acked_features);
        (self.features, self.protocol_features) = (given.features, given.protocol_features);
        self.attachment.migrating = self.features & LOG_ALL != 0;
        self.writeback.store(given.writeback, Ordering::Relaxed);
        if given.channel {
            self.channel = descriptors.next().map(UnixStream::from);
        }
        if let (Some(area), Some(file)) = (&given.inflight, given.inflight.as_ref().and_then(|_| descriptors.next())) {
            let area = InflightArea::from_peer(file, area.length_bytes, area.offset_bytes, area.queues, area.size);
            self.inflight = Some(area.map_err(|error| format!("its inflight area: {error}"))?);
        }
        if let (Some((offset_bytes, length_bytes)), Some(file)) = (given.log, descriptors.next()) {
            let log = DirtyLog::map(file, length_bytes, offset_bytes).map_err(|error| format!("its log of writes: {error}"))?;
            self.log = Some(Arc::new(log));
        }
        Ok(())
    }

    fn resume_attachment(&mut self, given: &MachineRecord) -> Result<Vec<Grant>, Wrong> {
        let Some(attachment) = &given.attachment else { return Ok(Vec::new()) };
        let entries = attachment.entries().ok_or("its rings are impossible")?;
        let advice = self.advice();
        self.attachment
            .resume(attachment.id, entries, &self.memory, advice)
            .ok_or_else(|| "its rings are not in its memory".to_owned())
    }
}

impl FrontendConnection {
    /// Restore a queue; returns its state, if it was served, and the command to its worker.
    fn resume_queue(
        &mut self,
        given: VirtqueueRecord,
        eventfds: Vec<OwnedFd>,
        grants: &mut Vec<Grant>,
    ) -> Result<Option<(DeviceQueueState, Order)>, Wrong> {
        let shared = Arc::clone(&self.device);
        let (mut device, index, mut eventfds) = (lock(&shared), given.index, eventfds.into_iter());
        let mut eventfd = |is_there: bool| match (is_there, is_there.then(|| eventfds.next()).flatten()) {
            (true, None) => Err("a descriptor is missing".to_owned()),
            (_, fd) => Ok(fd),
        };
        let vring = &mut device.vrings[usize::from(index)];
        if given.size > 0 {
            vring.set_size(given.size.into())?;
        }
        vring.rings = given.rings.map(|(descriptor, available, used, log)| UserRings { descriptor, available, used, log });
        (vring.next_available, vring.enabled) = (given.next_available, given.enabled);
        (vring.kick, vring.call, vring.error) = (eventfd(given.kick)?, eventfd(given.call)?, eventfd(given.error)?);
        wire::recount(&vring.counters, &given.counters, &given.latency);
        let counted = std::slice::from_ref(&vring.counters);
        self.shared.target.disk().into_iter().for_each(|export| export.count(self.client, counted));
        let Some(state) = given.state else { return Ok(None) };
        let state = state.understand().ok_or("its state is impossible")?;
        let grant = grants.iter().position(|grant| grant.entry.virtqueue == u32::from(index));
        let grant = grant.filter(|_| state.ring.is_some()).map(|place| grants.swap_remove(place));
        let Model::Disk(disk) = &device.model else { return Err("it is a queue of a port".to_owned()) };
        let setup = device.disk_setup(index, disk, device.setup(index)?);
        let (run, resumed) = (device.begin_run(index), state.clone());
        let order = self.order(index, run, move |id, device| VirtqueueServer::resume(id, setup, device, &resumed, grant))?;
        let choices = self.shared.workers[order.0].place().choices;
        device.vrings[usize::from(index)].run.iter_mut().for_each(|run| run.choices = choices);
        Ok(Some((state, order)))
    }
}
