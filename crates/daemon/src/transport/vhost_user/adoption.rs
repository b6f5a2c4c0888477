//! The new daemon's half of a takeover: devices are made as their hypervisors described them to the old one, and their queues go to the
//! workers where they stand.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use fipsee_serve::{QueueName, Quiesced};
use fipsee_virtio::blk::server::{GuestStanding, VirtqueueServer};
use fipsee_virtio::blk::upgrade::controller::Grant;
use fipsee_virtio::core::inflight::InflightArea;
use fipsee_virtio::core::memory::{DirtyLog, GuestMemory, RegionDescription};

use super::connection::{FrontendConnection, Order, lock};
use super::device::{Device, LOG_ALL, PROTOCOL_OFFERED};
use super::socket::{MAX_QUEUES, Socket, device};
use super::vring::UserRings;
use crate::export::{Attached, Kind};
use crate::live::Live;
use crate::takeover::take::{Conversation, Failure};
use crate::takeover::wire::machine::{GuestMemoryGiven, MachineGiven, VirtqueueGiven};
use crate::takeover::wire::{self, Given};
use crate::worker::{Command, WorkerHandle};

/// Virtual machines as they come over the line.
pub(crate) struct Machines<'a> {
    workers: Vec<WorkerHandle>,
    live: Arc<Live>,
    sockets: &'a [Socket],
    adopted: AdoptedMachines,
    standings: Vec<(QueueName, GuestStanding)>,
    served: Vec<(QueueName, Receiver<Result<(), String>>)>,
}

/// Virtual machines that are ours as soon as the other daemon is told, and where they connected.
#[derive(Default)]
pub(crate) struct AdoptedMachines(Vec<(usize, FrontendConnection)>);

impl AdoptedMachines {
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Serve them.
    pub(crate) fn begin(self, sockets: &[Socket]) {
        for (socket, connection) in self.0 {
            sockets[socket].adopt(connection);
        }
    }
}

/// What is wrong with what came, in words.
type Wrong = String;

impl<'a> Machines<'a> {
    pub(crate) fn new(workers: &[WorkerHandle], live: &Arc<Live>, sockets: &'a [Socket]) -> Self {
        let (workers, live) = (workers.to_vec(), Arc::clone(live));
        let adopted = AdoptedMachines::default();
        Self { workers, live, sockets, adopted, standings: Vec::new(), served: Vec::new() }
    }

    /// Take in the one that `given` announces; what workers are to be told of it goes to `commands`.
    pub(crate) fn adopt(
        &mut self,
        line: &mut Conversation,
        given: MachineGiven,
        descriptors: Vec<OwnedFd>,
        commands: &mut [Vec<Command>],
    ) -> Result<(), Failure> {
        let (client, disk) = (given.client, given.disk.clone());
        let refused = |what: Wrong| Failure::Refused(format!("the virtual machine of disk '{disk}': {what}"));
        let place = self.sockets.iter().position(|socket| socket.is_at(&given.socket, &disk));
        let place = place.filter(|place| self.adopted.0.iter().all(|(other, _)| other != place));
        let place = place.ok_or_else(|| refused("its socket is not there".to_owned()))?;
        let mut memory = GuestMemory::default();
        for _ in 0..given.regions {
            memory = take_region(line, &memory)?.map_err(refused)?;
        }
        let mut connection = self.connection(place, &given, descriptors, memory).map_err(refused)?;
        let mut grants = lock(&connection.device).resume_attachment(&given).map_err(refused)?;
        for index in 0..given.queues {
            let (Given::Virtqueue(queue), eventfds) = line.packet()? else { return Err(Failure::out_of_order()) };
            if queue.index != index {
                return Err(refused("its queues are mixed up".to_owned()));
            }
            let name = QueueName { client, index };
            let resumed = connection.resume_queue(queue, eventfds, &mut grants);
            let resumed = resumed.map_err(|what| refused(format!("virtqueue {index}: {what}")))?;
            if let Some((standing, (worker, command, served))) = resumed {
                commands[worker].push(command);
                self.standings.push((name, standing));
                self.served.push((name, served));
            }
        }
        connection.publish_queues(&lock(&connection.device));
        self.adopted.0.push((place, connection));
        Ok(())
    }

    fn connection(
        &self,
        place: usize,
        given: &MachineGiven,
        descriptors: Vec<OwnedFd>,
        memory: GuestMemory,
    ) -> Result<FrontendConnection, Wrong> {
        let socket = &self.sockets[place];
        let beside = [given.channel, given.inflight.is_some(), given.log.is_some()].into_iter().filter(|is_there| *is_there);
        if descriptors.len() != 1 + beside.count() || !(1..=MAX_QUEUES).contains(&given.queues) {
            return Err("descriptors are missing, or its queues are impossibly many".to_owned());
        }
        let mut descriptors = descriptors.into_iter();
        let stream = descriptors.next().map(UnixStream::from).ok_or("its connection is missing")?;
        let mut device = device(socket.export(), given.queues);
        device.memory = Arc::new(memory);
        device.resume(given, descriptors)?;
        let connection = FrontendConnection::new(socket.backend(&self.workers, given.client), stream, device);
        let connection = connection.map_err(|error| format!("its connection: {error}"))?;
        let (pid, uid) = connection.peer();
        let (client, exclusive, role) = (given.client, given.exclusive, given.role);
        let (kind, queues, worker_cpus) = (Kind::VhostUser, Vec::new(), Vec::new());
        socket.export().keep(Attached { kind, client, pid, uid, queues, worker_cpus, exclusive, role, leaving: false });
        self.live.number_clients_from(client.saturating_add(1));
        Ok(connection)
    }

    /// Every queue stands at its worker where it stood in the other daemon.
    pub(crate) fn standing(self, still: &Quiesced) -> Result<AdoptedMachines, Failure> {
        for (name, served) in self.served {
            if let Ok(Err(problem)) | Err(problem) = served.try_recv().map_err(|_| "its worker is gone".to_owned()) {
                return Err(Failure::Refused(format!("virtqueue {} of client {}: {problem}", name.index, name.client)));
            }
        }
        if self.standings.iter().any(|(name, standing)| still.state(*name) != Some(standing)) {
            return Err(Failure::Refused("a virtqueue does not stand where the other daemon left it; see the log".to_owned()));
        }
        Ok(self.adopted)
    }
}

fn take_region(line: &mut Conversation, memory: &GuestMemory) -> Result<Result<GuestMemory, Wrong>, Failure> {
    let (Given::GuestMemory(given), mut files) = line.packet()? else { return Err(Failure::out_of_order()) };
    let GuestMemoryGiven { guest_address, length_bytes, user_address, file_offset_bytes, .. } = given;
    let region = RegionDescription { guest_address, length_bytes, user_address, file_offset_bytes };
    Ok(match files.pop() {
        Some(file) => memory.with(region, file),
        None => Err("its memory is missing".to_owned()),
    })
}

impl Device {
    /// As its hypervisor has described it.
    fn resume(&mut self, given: &MachineGiven, mut descriptors: impl Iterator<Item = OwnedFd>) -> Result<(), Wrong> {
        let unknown = (given.features | given.acked_features) & !self.offered();
        let unknown_of_protocol = given.protocol_features & !PROTOCOL_OFFERED;
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

    fn resume_attachment(&mut self, given: &MachineGiven) -> Result<Vec<Grant>, Wrong> {
        let Some(attachment) = &given.attachment else { return Ok(Vec::new()) };
        let entries = attachment.entries().ok_or("its rings are impossible")?;
        let advice = self.advice();
        self.attachment
            .resume(attachment.id, entries, &self.memory, advice)
            .ok_or_else(|| "its rings do not lie in its memory".to_owned())
    }
}

impl FrontendConnection {
    /// Have a queue as it was; where it stands, if it was served, and which worker is to be told what.
    fn resume_queue(
        &mut self,
        given: VirtqueueGiven,
        eventfds: Vec<OwnedFd>,
        grants: &mut Vec<Grant>,
    ) -> Result<Option<(GuestStanding, Order)>, Wrong> {
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
        let Some(standing) = given.standing else { return Ok(None) };
        let standing = standing.understand().ok_or("it stands where none can")?;
        let grant = grants.iter().position(|grant| grant.entry.virtqueue == u32::from(index));
        let grant = grant.filter(|_| standing.ring.is_some()).map(|place| grants.swap_remove(place));
        let (setup, run, resumed) = (device.setup(index)?, device.begin_run(index), standing.clone());
        let order = self.order(index, run, move |id, device| VirtqueueServer::resume(id, setup, device, &resumed, grant));
        let choices = self.backend.workers[order.0].place.choices;
        device.vrings[usize::from(index)].run.iter_mut().for_each(|run| run.choices = choices);
        Ok(Some((standing, order)))
    }
}
