//! One client of the local front: where it stands in the handshake, and what it holds.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use fipsee_block::server::{QueueServer, QueueSetup, Standing};
use fipsee_block::stats::QueueCounters;
use fipsee_block::wire::{
    ATTACH_EXCLUSIVE, ATTACH_IGNORE_CLAIM, ATTACH_READ_ONLY, ATTACH_SOLE_WRITER, FEATURE_SOLE_WRITER, FEATURES, PROFILE,
    SERVICE_BLOCK,
};
use fipsee_ring::channel::{FEATURE_WORKER_CPU, MAX_DEPTH, RegionLayout, ServerQueue};
use fipsee_ring::control::{ACCESS_READ, ACCESS_WRITE, Control, MAX_QUEUES, MAX_REGIONS, RefusalCode};
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::handshake::{self, Grant, Limits, Refusal, Wanted, refuse};
use fipsee_ring::region::{Access, MAX_REGION_BYTES, Region};
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_serve::{Assignment, QueueName};

use super::groups;
use super::local::Parked;
use crate::export::{Denied, Export, Kind, Role, Wish};
use crate::placement;
use crate::worker::{Command, WorkerHandle, block_queue};

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
    pub(super) channel: Channel,
    /// The worker of each of its queues.
    pub(super) assignments: Vec<Assignment>,
    /// Memory of its own that it registered, by id.
    pub(super) memory: BTreeMap<u16, Registered>,
    pub(super) descriptors: u64,
}

/// What its queues stand on.
pub(super) struct Channel {
    pub(super) region: Arc<Region>,
    /// As it was laid out: the copy in the region is the client's to change.
    pub(super) layout: RegionLayout,
    /// The daemon's ends of the doorbells of each queue: the one that wakes us, and the one that wakes the client.
    pub(super) bells: Vec<(EventDoorbell, SocketDoorbell)>,
    pub(super) read_only: bool,
}

/// Memory of a client.
pub(super) struct Registered {
    pub(super) region: Arc<Region>,
    /// `ACCESS_*` bits.
    pub(super) access: u16,
    /// It is to go, and the workers have not confirmed that.
    pub(super) is_going: bool,
}

impl Attachment {
    /// What a client holds that is about to be served.
    pub(super) fn new(export: &Arc<Export>, channel: Channel, assignments: Vec<Assignment>) -> Self {
        let descriptors = 1 + 2 * channel.layout.queues.len() as u64;
        Self { export: Arc::clone(export), channel, assignments, memory: BTreeMap::new(), descriptors }
    }

    /// What the workers are told so that they serve the queues, which are given with the numbers they go on counting and, if they are
    /// no new ones, where they stand.
    pub(super) fn commands(
        &self,
        client: u64,
        queues: Vec<(ServerQueue, Arc<QueueCounters>, Option<Standing>)>,
    ) -> Vec<(usize, Command)> {
        let Channel { region, layout, read_only, .. } = &self.channel;
        let info = self.export.info(*read_only);
        let of_queue = queues.into_iter().zip(&layout.queues).zip(&self.assignments).zip(0_u16..);
        let command = of_queue.map(|((((queue, counters, standing), geometry), assignment), index)| {
            let pool = (Arc::clone(region), layout.pool_offset_bytes, layout.pool_bytes);
            let setup = QueueSetup { depth: geometry.depth, info, read_only: *read_only, pool, counters };
            let make = move |id| {
                let server = QueueServer::new(queue, id, setup)?;
                Ok(match standing {
                    Some(standing) => server.stand(&standing),
                    None => server,
                })
            };
            (assignment.worker(), block_queue::add(QueueName { client, index }, &self.export, make))
        });
        command.collect()
    }
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
    /// Its ATTACH, while that waits for others to be gone.
    pub(super) parked: Option<Parked>,
}

/// Why an ATTACH is not granted.
pub(super) enum Denial {
    Refused(Refusal),
    /// It may be when those are gone who have hung up.
    Later(Refusal),
}

impl From<Refusal> for Denial {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
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
    ) -> Result<Granted, Denial> {
        if !matches!(self.state, State::Greeted { .. }) {
            return Err(refuse(RefusalCode::Malformed, "ATTACH follows HELLO, once").into());
        }
        let about_claims = ATTACH_SOLE_WRITER | ATTACH_IGNORE_CLAIM;
        let allowed_flags = if self.features & FEATURE_SOLE_WRITER == 0 { 0 } else { about_claims };
        let unknown_flags = wanted.flags & !(ATTACH_READ_ONLY | ATTACH_EXCLUSIVE | allowed_flags);
        if wanted.flags & about_claims == about_claims {
            return Err(refuse(RefusalCode::Malformed, "ATTACH claims the disk and ignores claims; mend the client").into());
        }
        if wanted.service != SERVICE_BLOCK || unknown_flags != 0 || wanted.queue_count == 0 || wanted.depth == 0 {
            let text =
                "ATTACH asks for an unknown service or flag, or for no queue or depth 0; upgrade the daemon or mend the client";
            return Err(refuse(RefusalCode::Malformed, text).into());
        }
        let unknown = || {
            let names: Vec<_> = exports.iter().map(|export| export.name()).filter(|name| *name != wanted.name).take(8).collect();
            let text = format!("no disk '{}' here; there are: {} (fipsee ls shows all)", wanted.name, names.join(", "));
            refuse(RefusalCode::UnknownExport, text)
        };
        let export = exports.iter().find(|export| export.name() == wanted.name).ok_or_else(unknown)?;
        let role = match wanted.flags {
            flags if flags & ATTACH_READ_ONLY != 0 => Role::Reader,
            flags if flags & ATTACH_SOLE_WRITER != 0 => Role::SoleWriter,
            _ => Role::Writer,
        };
        let wish = Wish {
            kind: Kind::Ring,
            exclusive: wanted.flags & ATTACH_EXCLUSIVE != 0,
            role,
            ignores_claims: wanted.flags & ATTACH_IGNORE_CLAIM != 0,
        };
        let more_gids = groups::of_peer(&self.socket);
        export.admit(self.id, self.credentials, &more_gids, wish).map_err(|denied| match denied {
            Denied::NotAllowed(text) => refuse(RefusalCode::NotAllowed, text).into(),
            Denied::Busy(text) => refuse(RefusalCode::Busy, text).into(),
            Denied::BusyForNow(text) => Denial::Later(refuse(RefusalCode::Busy, text)),
            Denied::Gone => unknown().into(),
        })?;
        self.lay_out(wanted, export, workers).inspect_err(|_| export.leave(self.id)).map_err(Denial::Refused)
    }

    fn lay_out(&self, wanted: &Wanted<'_>, export: &Arc<Export>, workers: &[WorkerHandle]) -> Result<Granted, Refusal> {
        let limits = &self.limits;
        let queue_count = wanted.queue_count.min(limits.max_queues).min(MAX_QUEUES);
        let depth = wanted.depth.min(limits.max_depth).min(MAX_DEPTH);
        let seed = u32::try_from(self.id & 0xffff_ffff).unwrap_or(0);
        let mut layout = RegionLayout::plan(&PROFILE, queue_count, depth, wanted.pool_bytes.min(limits.max_pool_bytes), seed);
        let assignments: Vec<Assignment> = layout.queues.iter().map(|_| Assignment::choose(workers)).collect();
        let worker_cpus: Vec<Option<usize>> =
            assignments.iter().map(|assignment| workers[assignment.worker()].place.cpu).collect();
        layout.features = self.features;
        for (geometry, assignment) in layout.queues.iter_mut().zip(&assignments) {
            let placement::Place { cpu, choices, .. } = workers[assignment.worker()].place;
            // Our end uses them, whether or not the client has asked for advice.
            geometry.choices = choices;
            let is_told = self.features & FEATURE_WORKER_CPU != 0;
            geometry.worker_cpu = cpu.filter(|_| is_told).and_then(|cpu| u32::try_from(cpu).ok());
        }
        let places = assignments.iter().map(|assignment| workers[assignment.worker()].place);
        let mut grant = Grant::new(layout, |region| placement::put_near(region, places))?;
        let read_only = export.is_read_only() || wanted.flags & ATTACH_READ_ONLY != 0;
        let queues = std::mem::take(&mut grant.queues).into_iter().map(|queue| (queue, Arc::default(), None)).collect::<Vec<_>>();
        let counters = queues.iter().map(|(_, counters, _)| Arc::clone(counters)).collect();
        let bells = queues.iter().map(|(queue, _, _)| (queue.our_bell.clone(), queue.client_bell.clone())).collect();
        let channel = Channel { region: Arc::clone(&grant.region), layout: grant.layout.clone(), bells, read_only };
        let attachment = Attachment::new(export, channel, assignments);
        let commands = attachment.commands(self.id, queues);
        export.set_queues(self.id, counters, worker_cpus);
        let reply = grant.attached(export.info(read_only).to_bytes());
        Ok(Granted { attachment, reply, grant, commands })
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
        if id == 0 || id >= MAX_REGIONS || attachment.memory.contains_key(&id) {
            let text = format!("region id {id} is in use or not in 1..{MAX_REGIONS}; choose a free one");
            return Err(refuse(RefusalCode::BadMemory, text));
        }
        if access == 0 || access & !(ACCESS_READ | ACCESS_WRITE) != 0 {
            return Err(refuse(RefusalCode::BadMemory, format!("access {access:#x} is neither reading nor writing nor both")));
        }
        if length_bytes == 0 || length_bytes > MAX_REGION_BYTES {
            let text = format!("{length_bytes} bytes cannot be registered in one piece; a region has 1 to {MAX_REGION_BYTES}");
            return Err(refuse(RefusalCode::BadMemory, text));
        }
        let held_bytes: u64 = attachment.memory.values().map(|held| held.region.length_bytes()).sum();
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
        let region = Arc::new(region);
        attachment.memory.insert(id, Registered { region: Arc::clone(&region), access, is_going: false });
        attachment.descriptors += 1;
        Ok(region)
    }

    /// UNREGISTER: check the id. It stays in use until the workers have let go of it.
    pub(super) fn unregister(&mut self, id: u16) -> Result<(), Refusal> {
        let State::Attached(held) = &mut self.state else {
            return Err(refuse(RefusalCode::Malformed, "UNREGISTER follows ATTACH"));
        };
        let found = held.memory.get_mut(&id).filter(|memory| !memory.is_going);
        let memory = found.ok_or_else(|| refuse(RefusalCode::BadMemory, format!("there is no registered region {id}")))?;
        memory.is_going = true;
        Ok(())
    }
}
