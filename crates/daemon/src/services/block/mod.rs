//! Disks for local clients: what ATTACH grants, the state held for it, and its takeover by another daemon.

pub(crate) mod declared;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fipsee_block::server::{DiskQueue, QueueServer, QueueSetup, QueueState};
use fipsee_block::stats::QueueCounters;
use fipsee_block::wire::{
    ATTACH_EXCLUSIVE, ATTACH_IGNORE_CLAIM, ATTACH_READ_ONLY, ATTACH_SOLE_WRITER, BlockInfo, FEATURE_SOLE_WRITER, FEATURES,
    ListedInfo, PROFILE, SERVICE_BLOCK,
};
use fipsee_ring::channel::{FEATURE_WORKER_CPU, MAX_DEPTH, RegionLayout, ServerQueue};
use fipsee_ring::control::{Listed, MAX_LISTED, MAX_QUEUES, Page, Refusal, RefusalCode, Wanted};
use fipsee_ring::handshake::{Grant, refuse};
use fipsee_ring::memory::RegionTable;
use fipsee_ring::region::Region;
use fipsee_serve::session::{
    Ack, Adopted, AdoptedChannel, Attachment, Channel, Client, Denial, Granted, Part, Service, TakesMemory,
};
use fipsee_serve::{Assignment, Metric, NotAdded, QueueName, Quiesced, When, Which, WorkerPlacement};
use serde::{Deserialize, Serialize};

use super::{Entry, not_served};
use crate::export::{AttachRequest, Denied, Export, Kind, Role};
use crate::live::Live;
use crate::notification::{Notify, given};
use crate::placement;
use crate::takeover::wire::{QueueStateRecord, count, recount};
use crate::worker::{Command, DiskEngine, WorkerHandle};

pub(super) const ENTRY: Entry = Entry {
    needs: declared::needs,
    make: |_, live, workers| Box::new(Block { live: Arc::clone(live), workers: workers.to_vec() }),
};

struct Block {
    live: Arc<Live>,
    workers: Vec<WorkerHandle>,
}

struct BlockAttachment {
    export: Arc<Export>,
    channel: Channel,
    read_only: bool,
    live: Arc<Live>,
}

/// The daemon's end of a queue, its counters, and, unless it is new, its state.
type QueueEnd = (ServerQueue, Arc<QueueCounters>, Option<QueueState>);

/// The state with which another daemon continues a client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientRecord {
    disk: String,
    read_only: bool,
    exclusive: bool,
    role: Role,
    /// Its own policy of notifications.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    notify: Option<Notify>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct QueueRecord {
    state: QueueStateRecord,
    counters: Vec<u64>,
    latency: Vec<(u64, u64)>,
}

fn write(state: &impl Serialize) -> Result<String, String> {
    serde_json::to_string(state).map_err(|error| format!("cannot be encoded: {error}"))
}

fn read<'a, T: Deserialize<'a>>(state: &'a str) -> Result<T, String> {
    serde_json::from_str(state).map_err(|error| format!("its state cannot be parsed: {error}"))
}

impl BlockAttachment {
    /// Publish the queues for queries; returns the workers' commands to serve them.
    fn serve(
        &self,
        client: &Client<'_>,
        assignments: &[Assignment],
        ends: Vec<QueueEnd>,
        info: BlockInfo,
    ) -> Vec<(usize, Command)> {
        let (client, share) = (client.id, client.share.with(&self.export.limiter));
        self.live.shares.attached(client, &share);
        self.export.set_share(client, &share);
        let counters = ends.iter().map(|(_, counters, _)| Arc::clone(counters)).collect();
        self.export.set_queues(client, counters, assignments.iter().map(|assignment| assignment.place.cpu).collect());
        let (Channel { region, layout, .. }, read_only) = (&self.channel, self.read_only);
        let of_queue = ends.into_iter().zip(&layout.queues).zip(assignments).zip(0_u16..);
        let command = of_queue.map(|((((queue, counters, state), geometry), assignment), index)| {
            let memory = RegionTable::of_pool(region, layout.pool_offset_bytes, layout.pool_bytes);
            let depth = geometry.depth;
            let (disk, policy) = (Arc::clone(&self.export.disk), self.export.policy_of(client));
            let make = move |id| {
                let memory = memory.map_err(|_| "it does not fit the region that was laid out for it".to_owned())?;
                let mut server = QueueServer::new(queue, id, QueueSetup { depth, info, read_only, memory, counters });
                state.iter().for_each(|state| server.restore(state));
                Ok(DiskQueue::new(server, disk).notifying_by(policy))
            };
            let added = move |added| match added {
                Ok(()) => {}
                Err(NotAdded::NotMade(reason)) => tracing::error!(client, reason, "a queue is not served"),
                Err(NotAdded::Doorbell(error, ..)) => {
                    tracing::error!(client, %error, "cannot watch a doorbell; the queue is not served")
                }
            };
            (assignment.worker, Command::add(QueueName { client, index }, share.clone(), make, added))
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
        let (exclusive, role) = self.export.terms_of(client);
        let (disk, notify) = (self.export.name().to_owned(), self.export.own_notify_of(client));
        let own = ClientRecord { disk, read_only: self.read_only, exclusive, role, notify };
        self.channel.save(&write(&own)?, |index| {
            // A queue that could not be served from the start, as logged.
            let state = quiesced.state(QueueName { client, index }).ok_or_else(|| format!("its queue {index} is not served"))?;
            let (counters, latency) = self.export.counters(client, index).map(|counters| count(&counters)).unwrap_or_default();
            let QueueState { request, completion, .. } = state;
            let queue = QueueRecord { state: QueueStateRecord::from(state), counters, latency };
            Ok(((*request, *completion), write(&queue)?))
        })
    }

    fn memory(&self) -> Option<&dyn TakesMemory<DiskEngine>> {
        Some(self)
    }

    fn pool_bytes(&self) -> u64 {
        self.channel.layout.pool_bytes
    }

    fn moved(&self, client: u64, index: u16, place: WorkerPlacement) {
        self.export.queue_moved(client, index, place.cpu);
    }

    fn leave(&self, client: u64) {
        self.export.is_leaving(client);
    }

    fn release(&self, client: u64) {
        self.export.leave(client);
        self.live.departures.fetch_add(1, Ordering::Relaxed);
    }
}

impl TakesMemory<DiskEngine> for BlockAttachment {
    fn add_region(&self, client: u64, id: u16, region: &Arc<Region>, access: u16, ack: Ack) -> Command {
        let region = Arc::clone(region);
        Command::change(Which::Client(client), When::Now, move |queue: &mut DiskQueue| {
            let _until_dropped = &ack;
            let added = queue.server.memory.insert(id, &region, 0, region.length_bytes(), access);
            debug_assert!(added.is_ok(), "the session keeps the ids");
        })
    }

    fn remove_region(&self, client: u64, id: u16, ack: Ack) -> Command {
        Command::change(Which::Client(client), When::Idle, move |queue: &mut DiskQueue| {
            let _until_dropped = &ack;
            let _ = queue.server.memory.remove(id);
        })
    }
}

impl Service<DiskEngine> for Block {
    fn number(&self) -> u16 {
        SERVICE_BLOCK
    }

    fn features(&self) -> u64 {
        FEATURES
    }

    fn metrics(&self) -> Vec<(&'static str, Metric)> {
        declared::metrics(&self.live.now())
    }

    fn adopt(&self, client: &Client<'_>, parts: Vec<Part<OwnedFd>>) -> Result<Adopted<DiskEngine>, String> {
        let AdoptedChannel { own, channel, queues } = Channel::adopt(&PROFILE, parts)?;
        let ClientRecord { disk, read_only, exclusive, role, notify } = read(&own)?;
        let export = self.live.now().find(&disk).cloned().map_err(|_| "its disk is not there")?;
        let (mut ends, mut states): (Vec<QueueEnd>, _) = (Vec::new(), Vec::new());
        for (queue, own) in queues {
            let QueueRecord { state, counters, latency } = read(&own)?;
            let state = state.understand().ok_or("the state of a queue is impossible")?;
            let numbers = Arc::<QueueCounters>::default();
            recount(&numbers, &counters, &latency);
            ends.push((queue, numbers, Some(state)));
            states.push(state);
        }
        let pool = self.pool_of(client, &export);
        let assignments: Vec<Assignment> = ends.iter().map(|_| Assignment::choose_in(&self.workers, pool)).collect();
        let id = client.id;
        export.keep(Kind::Ring, id, client.credentials, (exclusive, role));
        notify.into_iter().for_each(|notify| _ = export.set_notify_of(id, notify));
        let attachment = BlockAttachment { channel, export, read_only, live: Arc::clone(&self.live) };
        let commands = attachment.serve(client, &assignments, ends, attachment.export.info(read_only));
        let is_same = Box::new(move |quiesced: &Quiesced| quiesced.has_states(id, &states));
        Ok(Adopted { attachment: Box::new(attachment), assignments, commands, is_same })
    }

    fn list(&self, client: &Client<'_>, after: &str) -> Option<Page> {
        let served = self.live.now();
        let is_listed = |export: &&Arc<Export>| export.name() > after && export.is_open_to(client.credentials);
        let mut exports: Vec<_> = served.exports.iter().filter(is_listed).collect();
        exports.sort_unstable_by_key(|export| export.name());
        let listed = |export: &&Arc<Export>| Listed {
            name: export.name().to_owned(),
            service_info: ListedInfo::of(&export.info(false)).to_bytes(),
        };
        Some(Page { entries: exports.iter().take(MAX_LISTED).map(listed).collect(), more: exports.len() > MAX_LISTED })
    }

    fn attach(&self, client: &Client<'_>, wanted: &Wanted) -> Result<Granted<DiskEngine>, Denial> {
        let about_claims = ATTACH_SOLE_WRITER | ATTACH_IGNORE_CLAIM;
        let allowed_flags = if client.features & FEATURE_SOLE_WRITER == 0 { 0 } else { about_claims };
        if wanted.flags & about_claims == about_claims {
            return Err(refuse(RefusalCode::Malformed, "ATTACH claims the disk and ignores claims; fix the client").into());
        }
        if wanted.flags & !(ATTACH_READ_ONLY | ATTACH_EXCLUSIVE | allowed_flags) != 0 {
            return Err(not_served());
        }
        let served = self.live.now();
        // Of a disk that the client may not use, it does not learn that it exists.
        let unknown = || {
            let (name, uid) = (&wanted.name, client.credentials.uid);
            let text = format!("no disk '{name}' that user {uid} may use; `fipsee ls` lists those");
            refuse(RefusalCode::UnknownName, text)
        };
        let export = served.find(&wanted.name).map_err(|_| unknown())?;
        let role = match wanted.flags {
            flags if flags & ATTACH_READ_ONLY != 0 => Role::Reader,
            flags if flags & ATTACH_SOLE_WRITER != 0 => Role::SoleWriter,
            _ => Role::Writer,
        };
        let request = AttachRequest {
            kind: Kind::Ring,
            exclusive: wanted.flags & ATTACH_EXCLUSIVE != 0,
            role,
            ignores_claims: wanted.flags & ATTACH_IGNORE_CLAIM != 0,
        };
        export.admit(client.id, client.credentials, request).map_err(|denied| match denied {
            Denied::NotAllowed(reason) => Denial::Concealed { refusal: unknown(), reason },
            Denied::Busy(text) => refuse(RefusalCode::Busy, text).into(),
            Denied::BusyForNow(text) => Denial::Later(refuse(RefusalCode::Busy, text)),
            Denied::Full(text) => refuse(RefusalCode::Limit, text).into(),
            Denied::FullForNow(text) => Denial::Later(refuse(RefusalCode::Limit, text)),
            Denied::Gone => unknown().into(),
        })?;
        Ok(self.lay_out(client, wanted, export).inspect_err(|_| export.leave(client.id))?)
    }
}

impl Block {
    /// The workers for its queues.
    fn pool_of(&self, client: &Client<'_>, export: &Export) -> u64 {
        self.live.pools.of(client.id, export.name(), Some(&client.share.group))
    }

    fn lay_out(&self, client: &Client<'_>, wanted: &Wanted, export: &Arc<Export>) -> Result<Granted<DiskEngine>, Refusal> {
        let (limits, workers) = (export.limits().of_client(client.limits), &self.workers);
        let queue_count = wanted.queue_count.min(limits.max_queues).min(MAX_QUEUES);
        let depth = wanted.depth.min(limits.max_depth).min(MAX_DEPTH);
        let seed = u32::try_from(client.id & 0xffff_ffff).unwrap_or(0);
        let mut layout = RegionLayout::plan(&PROFILE, queue_count, depth, wanted.pool_bytes.min(limits.max_pool_bytes), seed);
        let pool = self.pool_of(client, export);
        let assignments: Vec<Assignment> = layout.queues.iter().map(|_| Assignment::choose_in(workers, pool)).collect();
        let places = || assignments.iter().map(|assignment| assignment.place);
        layout.features = client.features;
        for (geometry, WorkerPlacement { cpu, choices, .. }) in layout.queues.iter_mut().zip(places()) {
            // Our end uses them, whether or not the client requested advice.
            geometry.choices = choices;
            let is_sent = client.features & FEATURE_WORKER_CPU != 0;
            geometry.worker_cpu_plus_1 = cpu.filter(|_| is_sent).and_then(|cpu| u32::try_from(cpu + 1).ok()).unwrap_or(0);
        }
        let mut grant = Grant::new(layout, |region| placement::put_near(region, places()))?;
        let read_only = export.spec.ro || wanted.flags & ATTACH_READ_ONLY != 0;
        let channel = Channel::of(&grant);
        let ends = std::mem::take(&mut grant.queues).into_iter().map(|queue| (queue, Arc::default(), None)).collect();
        let attachment = BlockAttachment { export: Arc::clone(export), channel, read_only, live: Arc::clone(&self.live) };
        // Once: the queues need the geometry sent to the client.
        let info = export.info(read_only);
        let commands = attachment.serve(client, &assignments, ends, info);
        let reply = grant.attached(info.to_bytes());
        Ok(Granted { attachment: Box::new(attachment), assignments, reply, grant, commands })
    }
}
