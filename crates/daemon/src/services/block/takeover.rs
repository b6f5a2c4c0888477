//! What another daemon needs to go on with the clients of disks, and how this one goes on with another's.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use fipsee_block::server::Standing;
use fipsee_block::stats::QueueCounters;
use fipsee_block::wire::{FEATURES, PROFILE};
use fipsee_ring::channel::{QueueGeometry, RegionLayout, ServerQueue};
use fipsee_ring::control::MAX_QUEUES;
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::region::{Access, Region};
use fipsee_ring::tuning::Choices;
use fipsee_serve::session::{Adopted, Client, Credentials, Part};
use fipsee_serve::{Assignment, QueueName, Quiesced};
use serde::{Deserialize, Serialize};

use super::{Block, BlockAttachment, Channel, QueueEnd};
use crate::export::{Attached, Kind, Role};
use crate::takeover::wire::{RoleGiven, StandingGiven, count, recount};
use crate::worker::DiskEngine;

/// With the channel's memory.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChannelGiven {
    disk: String,
    read_only: bool,
    exclusive: bool,
    #[serde(with = "RoleGiven")]
    role: Role,
    layout_features: u64,
    pool_offset_bytes: u64,
    pool_bytes: u64,
    region_bytes: u64,
}

/// With the daemon's end of both doorbells, ours first.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct QueueGiven {
    #[serde(with = "GeometryGiven")]
    geometry: QueueGeometry,
    standing: StandingGiven,
    counters: Vec<u64>,
    latency: Vec<(u64, u64)>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "QueueGeometry", deny_unknown_fields)]
struct GeometryGiven {
    request_offset_bytes: u64,
    completion_offset_bytes: u64,
    cold_offset_bytes: u64,
    request_slots: u32,
    completion_slots: u32,
    request_start: u32,
    completion_start: u32,
    depth: u32,
    worker_cpu: Option<u32>,
    #[serde(with = "choices_word")]
    choices: Choices,
}

mod choices_word {
    use fipsee_ring::tuning::Choices;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(choices: &Choices, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(choices.word())
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<Choices, D::Error> {
        u32::deserialize(deserializer).map(Choices::from_word)
    }
}

fn part<'a>(state: &impl Serialize, files: Vec<BorrowedFd<'a>>) -> Result<Part<BorrowedFd<'a>>, String> {
    let state = serde_json::to_string(state).map_err(|error| format!("cannot be written down: {error}"))?;
    Ok(Part { state, files })
}

fn understand<'a, T: Deserialize<'a>>(state: &'a str) -> Result<T, String> {
    serde_json::from_str(state).map_err(|error| format!("what is said of it is not understood: {error}"))
}

impl BlockAttachment {
    /// The channel, then each queue.
    pub(super) fn save_parts(&self, client: u64, quiesced: &Quiesced) -> Result<Vec<Part<BorrowedFd<'_>>>, String> {
        let Channel { region, layout, bells, read_only } = &self.channel;
        let (exclusive, role) = self.export.terms_of(client);
        let channel = ChannelGiven {
            disk: self.export.name().to_owned(),
            read_only: *read_only,
            exclusive,
            role,
            layout_features: layout.features,
            pool_offset_bytes: layout.pool_offset_bytes,
            pool_bytes: layout.pool_bytes,
            region_bytes: layout.region_bytes,
        };
        let mut parts = vec![part(&channel, vec![region.as_fd()])?];
        for ((geometry, (our_bell, client_bell)), index) in layout.queues.iter().zip(bells).zip(0_u16..) {
            // One that could not be served from the start, as the log says.
            let standing =
                quiesced.state(QueueName { client, index }).ok_or_else(|| format!("its queue {index} is not served"))?;
            let (counters, latency) = self.export.counters(client, index).map(|counters| count(&counters)).unwrap_or_default();
            let queue = QueueGiven { geometry: *geometry, standing: StandingGiven::from(standing), counters, latency };
            parts.push(part(&queue, vec![our_bell.as_fd(), client_bell.as_fd()])?);
        }
        Ok(parts)
    }
}

impl Block {
    pub(super) fn adopt_parts(&self, client: &Client<'_>, parts: Vec<Part<OwnedFd>>) -> Result<Adopted<DiskEngine>, String> {
        let mut parts = parts.into_iter();
        let Some(Part { state, mut files }) = parts.next() else { return Err("its channel is missing".to_owned()) };
        let given: ChannelGiven = understand(&state)?;
        let export = self.live.now().exports.iter().find(|export| export.name() == given.disk).cloned();
        let export = export.ok_or("its disk is not there")?;
        let file = files.pop().ok_or("its channel is missing")?;
        let region = Region::from_peer(file, given.region_bytes, Access::ReadWrite).map_err(|error| error.to_string())?;
        let region = Arc::new(region);
        let mut layout = RegionLayout {
            features: given.layout_features,
            pool_offset_bytes: given.pool_offset_bytes,
            pool_bytes: given.pool_bytes,
            region_bytes: given.region_bytes,
            queues: Vec::new(),
        };
        if !(1..=usize::from(MAX_QUEUES)).contains(&parts.len()) || layout.features & !FEATURES != 0 {
            return Err("its channel has an impossible number of queues or unknown features".to_owned());
        }
        let mut ends = Vec::new();
        for part in parts {
            let (geometry, end) = adopt_queue(&region, part)?;
            layout.queues.push(geometry);
            ends.push(end);
        }
        let assignments: Vec<Assignment> = ends.iter().map(|_| Assignment::choose(&self.workers)).collect();
        let worker_cpus = assignments.iter().map(|assignment| self.workers[assignment.worker()].place.cpu).collect();
        let queues = ends.iter().map(|(_, counters, _)| Arc::clone(counters)).collect();
        let standings: Vec<Option<Standing>> = ends.iter().map(|(.., standing)| *standing).collect();
        let (id, &Credentials { pid, uid, .. }) = (client.id, client.credentials);
        let attachment = BlockAttachment {
            channel: Channel::new(region, layout, &ends, given.read_only),
            export: Arc::clone(&export),
            live: Arc::clone(&self.live),
        };
        let commands = attachment.commands(id, &assignments, ends);
        let (kind, exclusive, role) = (Kind::Ring, given.exclusive, given.role);
        export.keep(Attached { kind, client: id, pid, uid, queues, worker_cpus, exclusive, role, leaving: false });
        let is_same = move |quiesced: &Quiesced| {
            let mut queues = standings.iter().zip(0_u16..);
            queues.all(|(standing, index)| quiesced.state(QueueName { client: id, index }) == standing.as_ref())
        };
        Ok(Adopted { attachment: Box::new(attachment), assignments, commands, is_same: Box::new(is_same) })
    }
}

fn adopt_queue(region: &Arc<Region>, Part { state, mut files }: Part<OwnedFd>) -> Result<(QueueGeometry, QueueEnd), String> {
    let QueueGiven { geometry, standing, counters, latency } = understand(&state)?;
    let (Some(client_bell), Some(our_bell)) = (files.pop(), files.pop()) else {
        return Err("the doorbells of a queue are missing".to_owned());
    };
    let standing = standing.understand().ok_or("a queue stands where none can")?;
    let bells = (EventDoorbell::from_fd(our_bell), SocketDoorbell::from_fd(client_bell));
    let positions = (standing.request, standing.completion);
    let queue = geometry.check(&PROFILE).and_then(|()| ServerQueue::open_at(region, &geometry, bells.0, bells.1, positions));
    let numbers = Arc::<QueueCounters>::default();
    recount(&numbers, &counters, &latency);
    Ok((geometry, (queue.map_err(|fault| fault.to_string())?, numbers, Some(standing))))
}
