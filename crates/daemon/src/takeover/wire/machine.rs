//! The records of a virtual machine: the state of its vhost-user connection, its memory, its virtqueues and its rings.

use std::path::PathBuf;

use fipsee_virtio::blk::server::{DeviceQueueState, GuestRingState};
use fipsee_virtio::blk::upgrade::wire::Entry;
use fipsee_virtio::core::VirtqueueState;
use fipsee_virtio::core::inflight::InflightState;
use serde::{Deserialize, Serialize};

use super::QueueStateRecord;
use crate::export::Role;
use crate::notification::{Notify, given};

/// With the connection; then, as far as the record says, the channel for our requests, the inflight area and the log of writes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MachineRecord {
    pub(crate) client: u64,
    /// The socket where it connected.
    pub(crate) socket: PathBuf,
    pub(crate) disk: String,
    pub(crate) exclusive: bool,
    pub(crate) role: Role,
    /// Its own policy of notifications.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub(crate) notify: Option<Notify>,
    /// The hypervisor's queries and settings.
    pub(crate) asked_features: bool,
    pub(crate) acked_features: u64,
    pub(crate) protocol_features: u64,
    /// In force: none after a reset.
    pub(crate) features: u64,
    pub(crate) writeback: bool,
    pub(crate) channel: bool,
    pub(crate) inflight: Option<InflightRecord>,
    /// Offset and length.
    pub(crate) log: Option<(u64, u64)>,
    pub(crate) attachment: Option<AttachmentRecord>,
    /// Number of packets of each that follow.
    pub(crate) regions: usize,
    pub(crate) queues: u16,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InflightRecord {
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u64,
    pub(crate) queues: u16,
    pub(crate) size: u16,
}

/// The rings that a guest has moved to (docs/protocol.md section 9).
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttachmentRecord {
    pub(crate) id: u64,
    /// As on the wire.
    entries: Vec<Vec<u8>>,
}

impl AttachmentRecord {
    pub(crate) fn new(id: u64, entries: &[Entry]) -> Self {
        Self { id, entries: entries.iter().map(|entry| entry.to_bytes().to_vec()).collect() }
    }

    /// The queues; `None`: they are impossible.
    pub(crate) fn entries(&self) -> Option<Vec<Entry>> {
        let entry = |bytes: &Vec<u8>| Entry::parse(bytes.as_slice().try_into().ok()?);
        self.entries.iter().map(entry).collect::<Option<Vec<_>>>().filter(|_| self.id != 0)
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GuestMemoryRecord {
    pub(crate) client: u64,
    pub(crate) guest_address: u64,
    pub(crate) length_bytes: u64,
    pub(crate) user_address: u64,
    pub(crate) file_offset_bytes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VirtqueueRecord {
    pub(crate) client: u64,
    pub(crate) index: u16,
    pub(crate) size: u16,
    /// Descriptors, available, used, and the log's address, as the hypervisor sees them.
    pub(crate) rings: Option<(u64, u64, u64, Option<u64>)>,
    pub(crate) next_available: u16,
    pub(crate) enabled: bool,
    pub(crate) kick: bool,
    pub(crate) call: bool,
    pub(crate) error: bool,
    /// Its state, if it is served.
    pub(crate) state: Option<DeviceQueueStateRecord>,
    pub(crate) counters: Vec<u64>,
    pub(crate) latency: Vec<(u64, u64)>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeviceQueueStateRecord {
    next_available: u16,
    next_used: u16,
    /// Heads that were taken, a bit each: a guest can have as many pending upgrade requests as its queue has descriptors.
    taken: Vec<u64>,
    fault: Option<String>,
    inflight: Option<(u64, u16)>,
    ring: Option<RingRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RingRecord {
    queue: u16,
    kept: bool,
    state: QueueStateRecord,
}

impl From<&DeviceQueueState> for DeviceQueueStateRecord {
    fn from(state: &DeviceQueueState) -> Self {
        let DeviceQueueState { virtqueue, ring } = state;
        let mut taken = Vec::new();
        for head in &virtqueue.taken {
            let (word, bit) = (usize::from(*head / 64), *head % 64);
            taken.resize(taken.len().max(word + 1), 0);
            taken[word] |= 1 << bit;
        }
        Self {
            next_available: virtqueue.next_available,
            next_used: virtqueue.next_used,
            taken,
            fault: virtqueue.fault.clone(),
            inflight: virtqueue.inflight.map(|inflight| (inflight.counter, inflight.last_batch_head)),
            ring: ring.map(|ring| RingRecord { queue: ring.queue, kept: ring.kept, state: (&ring.state).into() }),
        }
    }
}

impl DeviceQueueStateRecord {
    /// Parse it; `None`: a state that no queue can have. The rest is checked when it is served.
    pub(crate) fn understand(self) -> Option<DeviceQueueState> {
        let ring = match self.ring {
            Some(RingRecord { queue, kept, state }) => Some(GuestRingState { queue, kept, state: state.understand()? }),
            None => None,
        };
        let heads = 0..u16::try_from(self.taken.len() * 64).ok()?;
        let taken = heads.filter(|head| self.taken[usize::from(*head / 64)] & 1 << (head % 64) != 0).collect();
        let inflight = self.inflight.map(|(counter, last_batch_head)| InflightState { counter, last_batch_head });
        let (next_available, next_used, fault) = (self.next_available, self.next_used, self.fault);
        Some(DeviceQueueState { virtqueue: VirtqueueState { next_available, next_used, taken, fault, inflight }, ring })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_state_survives_its_record() {
        let virtqueue = VirtqueueState {
            next_available: 65535,
            next_used: 65530,
            taken: vec![0, 63, 64, 700, 32767],
            fault: Some("it is faulty".to_owned()),
            inflight: Some(InflightState { counter: u64::MAX, last_batch_head: 3 }),
        };
        let state = DeviceQueueState { virtqueue, ring: None };
        let text = serde_json::to_string(&DeviceQueueStateRecord::from(&state)).expect("JSON");
        let given: DeviceQueueStateRecord = serde_json::from_str(&text).expect("the same");
        assert_eq!(given.understand(), Some(state));
        let longest = DeviceQueueStateRecord { taken: vec![u64::MAX; 512], ..(&DeviceQueueState::default()).into() };
        assert!(serde_json::to_vec(&longest).expect("JSON").len() < 16 << 10, "it fits a packet");
        let too_long = DeviceQueueStateRecord { taken: vec![0; 1024], ..longest };
        assert_eq!(too_long.understand(), None);
    }
}
