//! What is held of a client's channel, and how another process continues with it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use fipsee_ring::channel::{Profile, QueueGeometry, RegionLayout, ServerQueue};
use fipsee_ring::control::MAX_QUEUES;
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::handshake::Grant;
use fipsee_ring::region::{Access, Region};
use fipsee_ring::ring::Cursor;
use fipsee_ring::tuning::Choices;

use super::Part;

/// The memory and the doorbells of a client's queues.
#[derive(Debug)]
pub struct Channel {
    pub region: Arc<Region>,
    /// As it was laid out: the copy in the region is the client's to change.
    pub layout: RegionLayout,
    /// The server's ends of the doorbells of each queue: the one that wakes it, and the one that wakes the client.
    doorbells: Vec<(EventDoorbell, SocketDoorbell)>,
}

/// Next request, next completion.
pub type Positions = (Cursor, Cursor);

pub struct AdoptedChannel {
    /// What the service said of it.
    pub own: String,
    pub channel: Channel,
    /// The server's end of each queue, and what the service said of it.
    pub queues: Vec<(ServerQueue, String)>,
}

impl Channel {
    /// What a client was granted, with the ends of its queues still in `grant`.
    pub fn of(grant: &Grant) -> Self {
        let doorbells = grant.queues.iter().map(doorbells_of).collect();
        Self { region: Arc::clone(&grant.region), layout: grant.layout.clone(), doorbells }
    }

    /// What another process needs to continue with it. The service adds `own` and, to the position of each queue, a text of its
    /// own.
    pub fn save(
        &self,
        own: &str,
        mut queue: impl FnMut(u16) -> Result<(Positions, String), String>,
    ) -> Result<Vec<Part<BorrowedFd<'_>>>, String> {
        let RegionLayout { features, pool_offset_bytes, pool_bytes, region_bytes, .. } = self.layout;
        let state = write([features, pool_offset_bytes, pool_bytes, region_bytes], own);
        let mut parts = vec![Part { state, files: vec![self.region.as_fd()] }];
        for ((geometry, (ours, theirs)), index) in self.layout.queues.iter().zip(&self.doorbells).zip(0_u16..) {
            let ((request, completion), own) = queue(index)?;
            let offsets = [geometry.request_offset_bytes, geometry.completion_offset_bytes, geometry.cold_offset_bytes];
            let numbers = [
                geometry.worker_cpu_plus_1,
                geometry.request_slots,
                geometry.completion_slots,
                geometry.request_start,
                geometry.completion_start,
                geometry.depth,
                geometry.choices.word(),
                request.index(),
                request.stamp(),
                completion.index(),
                completion.stamp(),
            ];
            let state = write(offsets.into_iter().chain(numbers.map(u64::from)), &own);
            parts.push(Part { state, files: vec![ours.as_fd(), theirs.as_fd()] });
        }
        Ok(parts)
    }

    /// Continue with what another process has [saved](Self::save).
    pub fn adopt(profile: &Profile, parts: Vec<Part<OwnedFd>>) -> Result<AdoptedChannel, String> {
        let mut parts = parts.into_iter();
        let Part { state, mut files } = parts.next().ok_or("its channel is missing")?;
        let ([features, pool_offset_bytes, pool_bytes, region_bytes], own) = read(&state)?;
        if !(1..=usize::from(MAX_QUEUES)).contains(&parts.len()) || features & !profile.features != 0 {
            return Err("its channel has an impossible number of queues or unknown features".to_owned());
        }
        let file = files.pop().ok_or("its channel is missing")?;
        let region = Region::from_peer(file, region_bytes, Access::ReadWrite).map_err(|error| error.to_string())?;
        let (region, mut layout) =
            (Arc::new(region), RegionLayout { features, pool_offset_bytes, pool_bytes, region_bytes, queues: Vec::new() });
        let mut queues = Vec::new();
        for part in parts {
            let (geometry, queue, own) = adopt_queue(profile, &region, part)?;
            layout.queues.push(geometry);
            queues.push((queue, own));
        }
        let doorbells = queues.iter().map(|(queue, _)| doorbells_of(queue)).collect();
        Ok(AdoptedChannel { own, channel: Self { region, layout, doorbells }, queues })
    }
}

fn doorbells_of(queue: &ServerQueue) -> (EventDoorbell, SocketDoorbell) {
    (queue.our_doorbell.clone(), queue.client_doorbell.clone())
}

fn adopt_queue(
    profile: &Profile,
    region: &Arc<Region>,
    Part { state, mut files }: Part<OwnedFd>,
) -> Result<(QueueGeometry, ServerQueue, String), String> {
    let (numbers, own): ([u64; 14], _) = read(&state)?;
    let [request_offset_bytes, completion_offset_bytes, cold_offset_bytes, numbers @ ..] = numbers;
    let numbers = numbers.map(|number| u32::try_from(number).unwrap_or(u32::MAX));
    let [worker_cpu_plus_1, request_slots, completion_slots, request_start, completion_start, depth, choices, positions @ ..] =
        numbers;
    let geometry = QueueGeometry {
        request_offset_bytes,
        completion_offset_bytes,
        cold_offset_bytes,
        request_slots,
        completion_slots,
        request_start,
        completion_start,
        depth,
        worker_cpu_plus_1,
        choices: Choices::from_word(choices),
        reserved: [0; 3],
    };
    geometry.check(profile).map_err(|fault| fault.to_string())?;
    let (Some(theirs), Some(ours)) = (files.pop(), files.pop()) else {
        return Err("the doorbells of a queue are missing".to_owned());
    };
    let cursor = |index, stamp| if stamp == 0 { Err("a queue has an impossible position") } else { Ok(Cursor::at(index, stamp)) };
    let positions = (cursor(positions[0], positions[1])?, cursor(positions[2], positions[3])?);
    let doorbells = (EventDoorbell::from_fd(ours), SocketDoorbell::from_fd(theirs));
    let queue = ServerQueue::open_at(region, &geometry, doorbells.0, doorbells.1, positions, &geometry.tuning());
    let queue = queue.map_err(|fault| fault.to_string())?;
    Ok((geometry, queue, own))
}

/// Numbers on a line, then what the service says.
fn write(numbers: impl IntoIterator<Item = u64>, own: &str) -> String {
    let numbers: Vec<String> = numbers.into_iter().map(|number| number.to_string()).collect();
    format!("{}\n{own}", numbers.join(" "))
}

fn read<const N: usize>(state: &str) -> Result<([u64; N], String), String> {
    let (numbers, own) = state.split_once('\n').unwrap_or((state, ""));
    let numbers = numbers.split(' ').map(|number| number.parse().ok()).collect::<Option<Vec<u64>>>();
    let numbers = numbers.and_then(|numbers| numbers.try_into().ok()).ok_or("what is said of its channel is not understood")?;
    Ok((numbers, own.to_owned()))
}
