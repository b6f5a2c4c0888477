//! One client of the local front: where it stands in the handshake, and what it holds.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use fipsee_block::server::{QueueServer, QueueSetup};
use fipsee_ring::channel::{FEATURE_WORKER_CPU, FEATURES, MAX_DEPTH, RegionLayout};
use fipsee_ring::control::{
    ACCESS_READ, ACCESS_WRITE, ATTACH_EXCLUSIVE, ATTACH_READ_ONLY, Control, MAX_QUEUES, MAX_REGIONS, RefusalCode, SERVICE_BLOCK,
};
use fipsee_ring::handshake::{self, Grant, Limits, Refusal, Wanted, refuse};
use fipsee_ring::region::{Access, Region};
use fipsee_ring::seqpacket::Seqpacket;

use crate::export::{Denied, Export, Kind};
use crate::placement;
use crate::worker::{Command, Seat, WorkerHandle};

/// Limits of one client (docs/threat-model.md).
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// Queues granted at most.
    pub max_queues: u16,
    /// Requests outstanding per queue at most.
    pub max_depth: u32,
    /// Pool bytes granted at most.
    pub max_pool_bytes: u64,
    /// Bytes of its own memory that it may register in all.
    pub max_memory_bytes: u64,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self { max_queues: 16, max_depth: 256, max_pool_bytes: 64 << 20, max_memory_bytes: 16 << 30 }
    }
}

/// Where a client stands.
pub(super) enum State {
    /// Connected; has said nothing yet.
    Silent { since: Instant },
    /// Greeted.
    Greeted { since: Instant },
    /// Attached.
    Attached(Attachment),
    /// Asked to detach; the workers are finishing.
    Detaching(Attachment),
    /// Nothing of it is left but the socket.
    Done,
}

/// What an attached client holds.
pub(super) struct Attachment {
    pub(super) export: Arc<Export>,
    /// The worker of each of its queues.
    pub(super) seats: Vec<Seat>,
    /// Ids of regions in use; bit 0 is the pool.
    pub(super) regions: u64,
    /// Ids whose removal the workers have not confirmed.
    pub(super) removing: u64,
    /// Length of each registered region, by id.
    pub(super) region_bytes: [u64; MAX_REGIONS as usize],
    pub(super) descriptors: u64,
}

/// One connected client.
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) socket: Seqpacket,
    pub(super) credentials: (i32, u32, u32),
    /// Those in force when it connected.
    pub(super) limits: ClientLimits,
    pub(super) state: State,
    /// Agreed in the greeting.
    pub(super) features: u64,
}

/// Everything the front needs to hand out after a successful ATTACH.
pub(super) struct Granted {
    pub(super) attachment: Attachment,
    pub(super) reply: Control,
    pub(super) grant: Grant,
    pub(super) commands: Vec<(usize, Command)>,
}

impl Session {
    /// HELLO: agree on a version and on features; which are not known are not in force.
    pub(super) fn greet(&mut self, version_min: u16, version_max: u16, features: u64) -> Result<Control, Refusal> {
        if !matches!(self.state, State::Silent { .. }) {
            return Err(refuse(RefusalCode::Malformed, "HELLO came twice; it is the first message and the only one of its kind"));
        }
        self.features = features & FEATURES;
        let ClientLimits { max_queues, max_depth, max_pool_bytes, .. } = self.limits;
        let limits = Limits { max_queues, max_depth, max_pool_bytes };
        let welcome = handshake::welcome(version_min, version_max, &limits, self.features)?;
        self.state = State::Greeted { since: Instant::now() };
        Ok(welcome)
    }

    /// ATTACH: check, lay out memory, and prepare what the workers must do. Nothing is held when this fails.
    pub(super) fn attach(
        &self,
        wanted: &Wanted<'_>,
        exports: &[Arc<Export>],
        workers: &[WorkerHandle],
    ) -> Result<Granted, Refusal> {
        if !matches!(self.state, State::Greeted { .. }) {
            return Err(refuse(RefusalCode::Malformed, "ATTACH follows HELLO, once"));
        }
        let unknown_flags = wanted.flags & !(ATTACH_READ_ONLY | ATTACH_EXCLUSIVE);
        if wanted.service != SERVICE_BLOCK || unknown_flags != 0 || wanted.queue_count == 0 || wanted.depth == 0 {
            let text =
                "ATTACH asks for an unknown service or flag, or for no queue or depth 0; upgrade the daemon or mend the client";
            return Err(refuse(RefusalCode::Malformed, text));
        }
        let unknown = || {
            let names: Vec<_> = exports.iter().map(|export| export.name()).filter(|name| *name != wanted.name).take(8).collect();
            let text = format!("no disk '{}' here; there are: {} (fipsee ls shows all)", wanted.name, names.join(", "));
            refuse(RefusalCode::UnknownExport, text)
        };
        let export = exports.iter().find(|export| export.name() == wanted.name).ok_or_else(unknown)?;
        let exclusive = wanted.flags & ATTACH_EXCLUSIVE != 0;
        export.admit(self.id, self.credentials, Kind::Ring, exclusive).map_err(|denied| match denied {
            Denied::NotAllowed(text) => refuse(RefusalCode::NotAllowed, text),
            Denied::Busy(text) => refuse(RefusalCode::Busy, text),
            Denied::Gone => unknown(),
        })?;
        self.lay_out(wanted, export, workers).inspect_err(|_| export.leave(self.id))
    }

    fn lay_out(&self, wanted: &Wanted<'_>, export: &Arc<Export>, workers: &[WorkerHandle]) -> Result<Granted, Refusal> {
        let limits = &self.limits;
        let queue_count = wanted.queue_count.min(limits.max_queues).min(MAX_QUEUES);
        let depth = wanted.depth.min(limits.max_depth).min(MAX_DEPTH);
        let seed = u32::try_from(self.id & 0xffff_ffff).unwrap_or(0);
        let mut layout = RegionLayout::plan(queue_count, depth, wanted.pool_bytes.min(limits.max_pool_bytes), seed);
        let seats: Vec<Seat> = layout.queues.iter().map(|_| Seat::take(workers)).collect();
        let worker_cpus: Vec<Option<usize>> = seats.iter().map(|seat| workers[seat.worker()].place.cpu).collect();
        layout.features = self.features;
        if self.features & FEATURE_WORKER_CPU != 0 {
            for (geometry, cpu) in layout.queues.iter_mut().zip(&worker_cpus) {
                geometry.worker_cpu = cpu.and_then(|cpu| u32::try_from(cpu).ok());
            }
        }
        let places = seats.iter().map(|seat| workers[seat.worker()].place);
        let mut grant = Grant::new(layout, |region| placement::put_near(region, places))?;
        let read_only = export.is_read_only() || wanted.flags & ATTACH_READ_ONLY != 0;
        let info = export.info(read_only);
        let (mut commands, mut counters) = (Vec::new(), Vec::new());
        for ((queue, geometry), seat) in std::mem::take(&mut grant.queues).into_iter().zip(&grant.layout.queues).zip(&seats) {
            let setup = QueueSetup {
                depth: geometry.depth,
                info,
                read_only,
                pool: (Arc::clone(&grant.region), grant.layout.pool_offset_bytes, grant.layout.pool_bytes),
                counters: Arc::default(),
            };
            counters.push(Arc::clone(&setup.counters));
            let server = Box::new(move |id| QueueServer::new(queue, id, setup));
            commands.push((seat.worker(), Command::AddQueue { server, export: Arc::clone(export), client: self.id }));
        }
        export.set_queues(self.id, counters, worker_cpus);
        let descriptors = 1 + 2 * u64::from(queue_count);
        Ok(Granted {
            attachment: Attachment {
                export: Arc::clone(export),
                seats,
                regions: 1,
                removing: 0,
                region_bytes: [0; MAX_REGIONS as usize],
                descriptors,
            },
            reply: grant.attached(info.to_bytes()),
            grant,
            commands,
        })
    }

    /// REGISTER: check the id and map the memory.
    pub(super) fn register(
        &mut self,
        (id, access, length_bytes): (u16, u16, u64),
        mut files: Vec<OwnedFd>,
    ) -> Result<Arc<Region>, Refusal> {
        let limits = self.limits;
        let State::Attached(attachment) = &mut self.state else {
            return Err(refuse(RefusalCode::Malformed, "REGISTER follows ATTACH"));
        };
        if id == 0 || id >= MAX_REGIONS || attachment.regions >> id & 1 != 0 {
            let text = format!("region id {id} is in use or not in 1..{MAX_REGIONS}; choose a free one");
            return Err(refuse(RefusalCode::BadMemory, text));
        }
        if access == 0 || access & !(ACCESS_READ | ACCESS_WRITE) != 0 {
            return Err(refuse(RefusalCode::BadMemory, format!("access {access:#x} is neither reading nor writing nor both")));
        }
        let held_bytes: u64 = attachment.region_bytes.iter().sum();
        if length_bytes > limits.max_memory_bytes.saturating_sub(held_bytes) {
            let text = format!(
                "{held_bytes} bytes are registered and {length_bytes} more asked for; a client may register {} (max_memory_bytes)",
                limits.max_memory_bytes
            );
            return Err(refuse(RefusalCode::Limit, text));
        }
        let (Some(file), true) = (files.pop(), files.is_empty()) else {
            return Err(refuse(RefusalCode::BadMemory, "REGISTER carries exactly one descriptor, the memory file"));
        };
        let mapping = if access & ACCESS_WRITE != 0 { Access::ReadWrite } else { Access::Read };
        let region =
            Region::from_peer(file, length_bytes, mapping).map_err(|error| refuse(RefusalCode::BadMemory, error.to_string()))?;
        attachment.regions |= 1 << id;
        attachment.region_bytes[usize::from(id)] = length_bytes;
        attachment.descriptors += 1;
        Ok(Arc::new(region))
    }

    /// UNREGISTER: check the id. It stays in use until the workers have let go of it.
    pub(super) fn unregister(&mut self, id: u16) -> Result<(), Refusal> {
        let bit = if (1..MAX_REGIONS).contains(&id) { 1_u64 << id } else { 0 };
        match &mut self.state {
            State::Attached(held) if held.regions & !held.removing & bit != 0 => {
                held.removing |= bit;
                Ok(())
            }
            _ => Err(refuse(RefusalCode::BadMemory, format!("there is no registered region {id}"))),
        }
    }
}
