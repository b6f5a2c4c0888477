//! The new daemon's half of a takeover: devices are made as their hypervisors described them to the old one, and their queues go to the
//! workers where they stand.

use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use fipsee_serve::{QueueName, Quiesced};
use fipsee_virtio::blk::upgrade::GuestStanding;
use fipsee_virtio::blk::upgrade::desk::Grant;
use fipsee_virtio::core::inflight::InflightArea;
use fipsee_virtio::core::memory::DirtyLog;
use rustix::io::DupFlags;
use vhost::vhost_user::BackendReqHandler;
use vhost::vhost_user::message::FrontendReq;

use super::channel::message;
use super::device::{Device, LOG_ALL};
use super::queue::{Ordered, Served, UserRings};
use super::socket::{MAX_QUEUES, Socket};
use super::table::{Extent, Table};
use super::visitor::Visitor;
use crate::export::{Attached, Kind};
use crate::live::Live;
use crate::takeover::line::Line;
use crate::takeover::take::{Failure, expect};
use crate::takeover::wire::machine::{MachineGiven, VirtqueueGiven};
use crate::takeover::wire::{self, Given};
use crate::worker::{Command, WorkerHandle};

/// Virtual machines as they come over the line.
pub(crate) struct Machines<'a> {
    workers: Vec<WorkerHandle>,
    live: Arc<Live>,
    sockets: &'a [Socket],
    adopted: AdoptedMachines,
    standings: Vec<(QueueName, GuestStanding)>,
    served: Vec<(QueueName, Served)>,
}

/// Virtual machines that are ours as soon as the other daemon is told, and where they connected.
#[derive(Default)]
pub(crate) struct AdoptedMachines(Vec<(usize, Visitor)>);

impl AdoptedMachines {
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Hear their hypervisors.
    pub(crate) fn begin(self, sockets: &[Socket]) {
        for (socket, visitor) in self.0 {
            sockets[socket].adopt(visitor);
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
        line: &Line,
        given: MachineGiven,
        descriptors: Vec<OwnedFd>,
        commands: &mut [Vec<Command>],
    ) -> Result<(), Failure> {
        let (client, disk) = (given.client, given.disk.clone());
        let refused = |what: Wrong| Failure::Refused(format!("the virtual machine of disk '{disk}': {what}"));
        let place = self.sockets.iter().position(|socket| socket.is_at(&given.socket, &disk));
        let place = place.filter(|place| self.adopted.0.iter().all(|(other, _)| other != place));
        let place = place.ok_or_else(|| refused("its socket is not there".to_owned()))?;
        let mut table = Table::default();
        for _ in 0..given.regions {
            take_region(line, client, &mut table)?.map_err(refused)?;
        }
        let (device, visitor) = self.device(place, &given, descriptors, table).map_err(refused)?;
        let mut device = device.lock().unwrap_or_else(PoisonError::into_inner);
        let mut grants = device.resume_attachment(&given).map_err(refused)?;
        for index in 0..given.queues {
            let (packet, eventfds) = expect(line, "handing over virtqueues")?;
            let Given::Virtqueue(queue) = packet else { return Err(Failure::out_of_order(&packet)) };
            if (queue.client, queue.index) != (client, index) {
                return Err(refused("its queues are mixed up".to_owned()));
            }
            let name = QueueName { client, index };
            let resumed = device.resume_queue(queue, eventfds, &mut grants);
            let resumed = resumed.map_err(|what| refused(format!("virtqueue {index}: {what}")))?;
            if let Some((standing, Ordered { worker, command, served })) = resumed {
                commands[worker].push(command);
                self.standings.push((name, standing));
                self.served.push((name, served));
            }
        }
        device.publish_queues();
        drop(device);
        self.adopted.0.push((place, visitor));
        Ok(())
    }

    fn device(
        &self,
        place: usize,
        given: &MachineGiven,
        descriptors: Vec<OwnedFd>,
        table: Table,
    ) -> Result<(Arc<Mutex<Device>>, Visitor), Wrong> {
        let socket = &self.sockets[place];
        let beside = [given.channel, given.inflight.is_some(), given.log.is_some()].into_iter().filter(|is_there| *is_there);
        if descriptors.len() != 1 + beside.count() || !(1..=MAX_QUEUES).contains(&given.queues) {
            return Err("descriptors are missing, or its queues are impossibly many".to_owned());
        }
        let mut descriptors = descriptors.into_iter();
        let connection = descriptors.next().map(UnixStream::from).ok_or("its connection is missing")?;
        let export = Arc::clone(socket.export());
        let serving = socket.serving(&self.workers, given.client);
        let mut device = Device::new(serving, given.queues);
        device.memory = table.memory()?;
        device.table = table;
        let device = Arc::new(Mutex::new(device));
        let handler = resume_conversation(&connection, &device, given)?;
        device.lock().unwrap_or_else(PoisonError::into_inner).resume(given, descriptors)?;
        let visitor = Visitor::new(given.client, connection, handler, Arc::clone(&device));
        let visitor = visitor.map_err(|error| format!("its connection: {error}"))?;
        let (pid, uid) = visitor.who();
        let (client, exclusive, role) = (given.client, given.exclusive, given.role);
        let (kind, queues, worker_cpus) = (Kind::VhostUser, Vec::new(), Vec::new());
        export.keep(Attached { kind, client, pid, uid, queues, worker_cpus, exclusive, role, leaving: false });
        self.live.number_clients_from(client.saturating_add(1));
        Ok((device, visitor))
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

fn take_region(line: &Line, client: u64, table: &mut Table) -> Result<Result<(), Wrong>, Failure> {
    let (packet, mut files) = expect(line, "handing over memory of a virtual machine")?;
    let Given::GuestMemory(given) = packet else { return Err(Failure::out_of_order(&packet)) };
    let (guest_address, length_bytes, user_address) = (given.guest_address, given.length_bytes, given.user_address);
    let extent = Extent { guest_address, length_bytes, user_address };
    Ok(match files.pop() {
        Some(file) if given.client == client => table.add(extent, given.file_offset_bytes, file),
        _ => Err("its memory is missing".to_owned()),
    })
}

/// A handler in the state that the hypervisor's messages brought another one to.
///
/// Crate `vhost` has no other way to that state than the messages. They are played to it through a socket pair, whose place the
/// connection then takes. What they have the device do, [`Device::resume`] puts right.
fn resume_conversation(
    connection: &UnixStream,
    device: &Arc<Mutex<Device>>,
    given: &MachineGiven,
) -> Result<BackendReqHandler<Mutex<Device>>, Wrong> {
    let failed = |error: std::io::Error| format!("no descriptor is left: {error}");
    let (stage, prompter) = UnixStream::pair().map_err(failed)?;
    let mut handler = BackendReqHandler::from_stream(stage, Arc::clone(device));
    let mut play = |request: FrontendReq, value: Option<u64>| {
        let body = value.map(u64::to_le_bytes);
        std::io::Write::write_all(&mut &prompter, &message(request, body.as_ref().map_or(&[], <[u8; 8]>::as_slice)))
            .map_err(failed)?;
        handler.handle_request().map_err(|error| format!("{request:?} of its hypervisor is refused here: {error}"))
    };
    if given.asked_features {
        play(FrontendReq::GET_FEATURES, None)?;
    }
    play(FrontendReq::SET_FEATURES, Some(given.acked_features))?;
    play(FrontendReq::SET_PROTOCOL_FEATURES, Some(given.protocol_features))?;
    // SAFETY: `handler` owns this descriptor, keeps it open, and is not used while this is; it is not closed here.
    let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(handler.as_raw_fd()) });
    rustix::io::dup3(connection, &mut place, DupFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
    Ok(handler)
}

impl Device {
    /// What the conversation did not bring.
    fn resume(&mut self, given: &MachineGiven, mut descriptors: impl Iterator<Item = OwnedFd>) -> Result<(), Wrong> {
        if given.features & !self.offered() != 0 {
            return Err(format!("features {:#x} are not offered here", given.features & !self.offered()));
        }
        self.asked_features = given.asked_features;
        self.features = given.features;
        self.desk.set_migrating(self.features & LOG_ALL != 0);
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
        self.desk
            .resume(attachment.id, entries, &self.memory, advice)
            .ok_or_else(|| "its rings do not lie in its memory".to_owned())
    }

    /// Have a queue as it was; where it stands, if it was served, and which worker is to be told what.
    fn resume_queue(
        &mut self,
        given: VirtqueueGiven,
        eventfds: Vec<OwnedFd>,
        grants: &mut Vec<Grant>,
    ) -> Result<Option<(GuestStanding, Ordered)>, Wrong> {
        let index = given.index;
        let mut eventfds = eventfds.into_iter();
        let mut eventfd = |is_there: bool| match (is_there, is_there.then(|| eventfds.next()).flatten()) {
            (true, None) => Err("a descriptor is missing".to_owned()),
            (_, fd) => Ok(fd),
        };
        let queue = self.queue(index.into())?;
        if given.size > 0 {
            queue.set_size(given.size.into())?;
        }
        queue.rings = given.rings.map(|(descriptor, available, used, log)| UserRings { descriptor, available, used, log });
        (queue.next_available, queue.enabled) = (given.next_available, given.enabled);
        (queue.kick, queue.call, queue.error) = (eventfd(given.kick)?, eventfd(given.call)?, eventfd(given.error)?);
        wire::recount(&queue.counters, &given.counters, &given.latency);
        let Some(standing) = given.standing else { return Ok(None) };
        let standing = standing.understand().ok_or("it stands where none can")?;
        let grant = grants.iter().position(|grant| grant.entry.virtqueue == u32::from(index));
        let grant = grant.filter(|_| standing.ring.is_some()).map(|place| grants.swap_remove(place));
        let (fill, memory) = (self.fill(index), Arc::clone(&self.memory));
        let queue = &mut self.queues[usize::from(index)];
        let ordered = queue.resume(index, &self.serving, &memory, fill, (standing.clone(), grant))?;
        Ok(Some((standing, ordered)))
    }
}
