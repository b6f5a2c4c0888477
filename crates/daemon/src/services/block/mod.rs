//! Disks for local clients: what ATTACH grants, and what is held for it.

mod takeover;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use fipsee_block::server::{QueueServer, QueueSetup, Standing};
use fipsee_block::stats::QueueCounters;
use fipsee_block::wire::{
    ATTACH_EXCLUSIVE, ATTACH_IGNORE_CLAIM, ATTACH_READ_ONLY, ATTACH_SOLE_WRITER, FEATURE_SOLE_WRITER, FEATURES, PROFILE,
    SERVICE_BLOCK,
};
use fipsee_ring::channel::{FEATURE_WORKER_CPU, MAX_DEPTH, RegionLayout, ServerQueue};
use fipsee_ring::control::{MAX_QUEUES, RefusalCode};
use fipsee_ring::handshake::{Grant, Refusal, Wanted, refuse};
use fipsee_ring::memory::RegionTable;
use fipsee_ring::region::Region;
use fipsee_serve::session::{Ack, Adopted, Attachment, Channel, Client, Denial, Granted, Part, Service, TakesMemory};
use fipsee_serve::{Assignment, QueueName, Quiesced};

use super::not_served;
use crate::export::{Denied, Export, Kind, Role, Wish};
use crate::live::Live;
use crate::placement;
use crate::worker::{Command, DiskEngine, WorkerHandle, block_queue};

/// The block service.
pub(super) struct Block {
    live: Arc<Live>,
    workers: Vec<WorkerHandle>,
}

/// What is held for an attached client.
struct BlockAttachment {
    export: Arc<Export>,
    channel: Channel,
    read_only: bool,
    live: Arc<Live>,
}

/// The daemon's end of a queue, the numbers that it goes on counting, and, if it is no new one, its state.
type QueueEnd = (ServerQueue, Arc<QueueCounters>, Option<Standing>);

impl BlockAttachment {
    /// What the workers are to do so that they serve the queues.
    fn commands(&self, client: u64, assignments: &[Assignment], ends: Vec<QueueEnd>) -> Vec<(usize, Command)> {
        let (Channel { region, layout, .. }, read_only) = (&self.channel, self.read_only);
        let info = self.export.info(read_only);
        let of_queue = ends.into_iter().zip(&layout.queues).zip(assignments).zip(0_u16..);
        let command = of_queue.map(|((((queue, counters, standing), geometry), assignment), index)| {
            let memory = RegionTable::of_pool(region, layout.pool_offset_bytes, layout.pool_bytes);
            let depth = geometry.depth;
            let make = move |id| {
                let setup = QueueSetup { depth, info, read_only, memory: memory?, counters };
                let mut server = QueueServer::new(queue, id, setup);
                standing.iter().for_each(|standing| server.take_stand(standing));
                Ok(server)
            };
            (assignment.worker(), block_queue::add(QueueName { client, index }, &self.export, make))
        });
        command.collect()
    }
}

impl Attachment<DiskEngine> for BlockAttachment {
    fn name(&self) -> &str {
        self.export.name()
    }

    fn service(&self) -> u16 {
        SERVICE_BLOCK
    }

    fn save(&self, client: u64, quiesced: &Quiesced) -> Result<Vec<Part<BorrowedFd<'_>>>, String> {
        self.save_parts(client, quiesced)
    }

    fn memory(&self) -> Option<&dyn TakesMemory<DiskEngine>> {
        Some(self)
    }

    fn leave(&self, client: u64) {
        self.export.is_leaving(client);
    }

    fn release(&self, client: u64) {
        self.export.leave(client);
        self.live.departed();
    }
}

impl TakesMemory<DiskEngine> for BlockAttachment {
    fn add_region(&self, client: u64, id: u16, region: &Arc<Region>, access: u16, ack: Ack) -> Command {
        block_queue::add_region(client, id, region, access, ack)
    }

    fn remove_region(&self, client: u64, id: u16, ack: Ack) -> Command {
        block_queue::remove_region(client, id, ack)
    }
}

impl Service<DiskEngine> for Block {
    fn number(&self) -> u16 {
        SERVICE_BLOCK
    }

    fn features(&self) -> u64 {
        FEATURES
    }

    fn adopt(&self, client: &Client<'_>, parts: Vec<Part<OwnedFd>>) -> Result<Adopted<DiskEngine>, String> {
        self.adopt_parts(client, parts)
    }

    fn attach(&self, client: &Client<'_>, wanted: &Wanted<'_>) -> Result<Granted<DiskEngine>, Denial> {
        let about_claims = ATTACH_SOLE_WRITER | ATTACH_IGNORE_CLAIM;
        let allowed_flags = if client.features & FEATURE_SOLE_WRITER == 0 { 0 } else { about_claims };
        if wanted.flags & about_claims == about_claims {
            return Err(refuse(RefusalCode::Malformed, "ATTACH claims the disk and ignores claims; mend the client").into());
        }
        if wanted.flags & !(ATTACH_READ_ONLY | ATTACH_EXCLUSIVE | allowed_flags) != 0 {
            return Err(not_served());
        }
        let served = self.live.now();
        let unknown = || {
            let names = served.exports.iter().map(|export| export.name()).filter(|name| *name != wanted.name).take(8);
            let names = names.collect::<Vec<_>>().join(", ");
            let text = format!("no disk '{}' here; there are: {names} (fipsee ls shows all)", wanted.name);
            refuse(RefusalCode::UnknownExport, text)
        };
        let export = served.exports.iter().find(|export| export.name() == wanted.name).ok_or_else(unknown)?;
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
        export.admit(client.id, client.credentials, wish).map_err(|denied| match denied {
            Denied::NotAllowed(text) => refuse(RefusalCode::NotAllowed, text).into(),
            Denied::Busy(text) => refuse(RefusalCode::Busy, text).into(),
            Denied::BusyForNow(text) => Denial::Later(refuse(RefusalCode::Busy, text)),
            Denied::Gone => unknown().into(),
        })?;
        Ok(self.lay_out(client, wanted, export).inspect_err(|_| export.leave(client.id))?)
    }
}

impl Block {
    pub(super) const fn new(live: Arc<Live>, workers: Vec<WorkerHandle>) -> Self {
        Self { live, workers }
    }

    fn lay_out(&self, client: &Client<'_>, wanted: &Wanted<'_>, export: &Arc<Export>) -> Result<Granted<DiskEngine>, Refusal> {
        let (limits, workers) = (&client.limits, &self.workers);
        let queue_count = wanted.queue_count.min(limits.max_queues).min(MAX_QUEUES);
        let depth = wanted.depth.min(limits.max_depth).min(MAX_DEPTH);
        let seed = u32::try_from(client.id & 0xffff_ffff).unwrap_or(0);
        let mut layout = RegionLayout::plan(&PROFILE, queue_count, depth, wanted.pool_bytes.min(limits.max_pool_bytes), seed);
        let assignments: Vec<Assignment> = layout.queues.iter().map(|_| Assignment::choose(workers)).collect();
        let places = || assignments.iter().map(|assignment| workers[assignment.worker()].place);
        layout.features = client.features;
        for (geometry, placement::Place { cpu, choices, .. }) in layout.queues.iter_mut().zip(places()) {
            // Our end uses them, whether or not the client has asked for advice.
            geometry.choices = choices;
            let is_told = client.features & FEATURE_WORKER_CPU != 0;
            geometry.worker_cpu = cpu.filter(|_| is_told).and_then(|cpu| u32::try_from(cpu).ok());
        }
        let mut grant = Grant::new(layout, |region| placement::put_near(region, places()))?;
        let read_only = export.is_read_only() || wanted.flags & ATTACH_READ_ONLY != 0;
        let channel = Channel::of(&grant);
        let ends = std::mem::take(&mut grant.queues).into_iter().map(|queue| (queue, Arc::default(), None));
        let ends: Vec<QueueEnd> = ends.collect();
        let counters = ends.iter().map(|(_, counters, _)| Arc::clone(counters)).collect();
        export.set_queues(client.id, counters, places().map(|place| place.cpu).collect());
        let attachment = BlockAttachment { export: Arc::clone(export), channel, read_only, live: Arc::clone(&self.live) };
        let commands = attachment.commands(client.id, &assignments, ends);
        let reply = grant.attached(export.info(read_only).to_bytes());
        Ok(Granted { attachment: Box::new(attachment), assignments, reply, grant, commands })
    }
}
