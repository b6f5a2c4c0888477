//! One client of the local front: where it stands in the handshake, and what it holds.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use fipsee_block::server::{QueueServer, QueueSetup};
use fipsee_ring::channel::{MAX_DEPTH, RegionLayout, ServerQueue};
use fipsee_ring::control::{
    ACCESS_READ, ACCESS_WRITE, ATTACH_EXCLUSIVE, ATTACH_READ_ONLY, Control, MAX_QUEUES, MAX_REGIONS, RefusalCode, SERVICE_BLOCK,
    VERSION,
};
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::region::{Access, Region};
use fipsee_ring::seqpacket::Seqpacket;

use crate::export::{Denied, Export};
use crate::worker::Command;

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

/// A refusal on its way to the client.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: RefusalCode,
    pub(super) text: String,
}

pub(super) fn refuse(code: RefusalCode, text: impl Into<String>) -> Refusal {
    Refusal { code, text: text.into() }
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
    pub(super) workers: Vec<usize>,
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
}

/// Everything the front needs to hand out after a successful ATTACH.
pub(super) struct Granted {
    pub(super) attachment: Attachment,
    pub(super) reply: Control,
    pub(super) region: Arc<Region>,
    pub(super) client_ends: Vec<(EventDoorbell, SocketDoorbell)>,
    pub(super) commands: Vec<(usize, Command)>,
}

impl Session {
    /// HELLO: agree on a version.
    pub(super) fn greet(&mut self, version_min: u16, version_max: u16, features: u64) -> Result<Control, Refusal> {
        if !matches!(self.state, State::Silent { .. }) {
            return Err(refuse(RefusalCode::Malformed, "HELLO came twice; it is the first message and the only one of its kind"));
        }
        if !(version_min..=version_max).contains(&VERSION) {
            let text = format!(
                "the client speaks protocol versions {version_min} to {version_max}, this daemon speaks {VERSION}; upgrade the older of the two"
            );
            return Err(refuse(RefusalCode::Version, text));
        }
        let _ = features; // None are defined in version 1, so none are in force.
        self.state = State::Greeted { since: Instant::now() };
        let limits = &self.limits;
        Ok(Control::Welcome {
            version: VERSION,
            max_queues: limits.max_queues,
            max_depth: limits.max_depth,
            features: 0,
            max_pool_bytes: limits.max_pool_bytes,
        })
    }

    /// ATTACH: check, lay out memory, and prepare what the workers must do. Nothing is held when this fails.
    pub(super) fn attach(&self, wanted: &Wanted<'_>, exports: &[Arc<Export>], loads: &mut [u64]) -> Result<Granted, Refusal> {
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
        export.admit(self.id, self.credentials, exclusive).map_err(|denied| match denied {
            Denied::NotAllowed(text) => refuse(RefusalCode::NotAllowed, text),
            Denied::Busy(text) => refuse(RefusalCode::Busy, text),
            Denied::Gone => unknown(),
        })?;
        let loads_before = loads.to_vec();
        self.lay_out(wanted, export, loads).inspect_err(|_| {
            export.leave(self.id);
            loads.copy_from_slice(&loads_before);
        })
    }

    fn lay_out(&self, wanted: &Wanted<'_>, export: &Arc<Export>, loads: &mut [u64]) -> Result<Granted, Refusal> {
        let limits = &self.limits;
        let scarce = |what: &str, error: &dyn std::fmt::Display| {
            let text = format!(
                "the daemon cannot create {what}: {error}; raise its limits (LimitNOFILE=, memory) or detach other clients"
            );
            refuse(RefusalCode::Limit, text)
        };
        let queue_count = wanted.queue_count.min(limits.max_queues).min(MAX_QUEUES);
        let depth = wanted.depth.min(limits.max_depth).min(MAX_DEPTH);
        let seed = u32::try_from(self.id & 0xffff_ffff).unwrap_or(0);
        let layout = RegionLayout::plan(queue_count, depth, wanted.pool_bytes.min(limits.max_pool_bytes), seed);
        let region =
            Region::create("fipsee-channel", layout.region_bytes).map_err(|error| scarce("the channel's memory", &error))?;
        let region = Arc::new(region);
        layout.write_to(&region).map_err(|fault| scarce("the channel", &fault))?;
        let read_only = export.is_read_only() || wanted.flags & ATTACH_READ_ONLY != 0;
        let info = export.info(read_only);
        let (mut client_ends, mut commands, mut workers, mut counters) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for geometry in &layout.queues {
            let bell = EventDoorbell::new().map_err(|error| scarce("a doorbell", &error))?;
            let watched = bell.as_fd().try_clone_to_owned().map_err(|error| scarce("a doorbell", &error))?;
            let (client_bell, client_end) = SocketDoorbell::pair().map_err(|error| scarce("a doorbell", &error))?;
            let queue = ServerQueue::open(&region, geometry, EventDoorbell::from_fd(watched), client_bell);
            let queue = queue.map_err(|fault| scarce("a queue", &fault))?;
            client_ends.push((bell, client_end));
            let worker = (0..loads.len()).min_by_key(|index| loads[*index]).unwrap_or(0);
            loads[worker] += 1;
            workers.push(worker);
            let setup = QueueSetup {
                depth: geometry.depth,
                info,
                read_only,
                pool: (Arc::clone(&region), layout.pool_offset_bytes, layout.pool_bytes),
                counters: Arc::default(),
            };
            counters.push(Arc::clone(&setup.counters));
            let server = Box::new(move |id| QueueServer::new(queue, id, setup));
            commands.push((worker, Command::AddQueue { server, export: Arc::clone(export), client: self.id }));
        }
        export.set_queues(self.id, counters);
        let descriptors = 1 + 2 * u64::from(queue_count);
        Ok(Granted {
            attachment: Attachment {
                export: Arc::clone(export),
                workers,
                regions: 1,
                removing: 0,
                region_bytes: [0; MAX_REGIONS as usize],
                descriptors,
            },
            reply: Control::Attached { queue_count, region_bytes: layout.region_bytes, service_info: info.to_bytes() },
            region,
            client_ends,
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

/// The fields of an ATTACH.
pub(super) struct Wanted<'a> {
    pub(super) service: u16,
    pub(super) queue_count: u16,
    pub(super) depth: u32,
    pub(super) flags: u32,
    pub(super) pool_bytes: u64,
    pub(super) name: &'a str,
}
