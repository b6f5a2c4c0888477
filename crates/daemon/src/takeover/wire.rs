//! The packets of the two daemons of a takeover. A change raises [`VERSION`].

pub(crate) mod machine;

use std::path::PathBuf;

use fipsee_block::server::{EventState, QueueState};
use fipsee_block::stats::QueueCounters;
use fipsee_ring::ring::Cursor;
use fipsee_serve::takeover::{Answer, PacketKind};
use serde::{Deserialize, Serialize};

use crate::overlay::Overlay;

/// Version of everything below. Daemons of two versions do not take over from each other.
pub(crate) const VERSION: u32 = 10;

/// The old daemon's packets, in this order: greeting, overlay, listeners, disks, devices, `Prepare`; clients, each followed by its memory and
/// the records of its service, virtual machines likewise, totals, `End`. `Refused` may come at any point, and ends the takeover: the old
/// daemon continues.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "packet", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum HandoverPacket {
    Greeting(Greeting),
    /// One of the changes at run time.
    Overlay(Overlay),
    /// With the socket, and its lock if the old daemon made it.
    Listener {
        of: ListenerOf,
        path: PathBuf,
    },
    /// With its file, unless it is a null disk.
    Disk(DiskRecord),
    /// With the descriptors of the device that is this port.
    Device {
        port: String,
    },
    /// The device that was this port is gone: the port keeps it as its holder.
    GoneDevice {
        port: String,
        device: String,
    },
    /// End of the part that is handed over while clients are served.
    Prepare {},
    Client(ClientRecord),
    /// With the file.
    Memory {
        client: u64,
        id: u16,
        access: u16,
        length_bytes: u64,
    },
    /// With the descriptors of the service.
    Part {
        client: u64,
        state: String,
    },
    /// With its connection, and the descriptors that the record lists.
    Machine(machine::MachineRecord),
    /// With the file.
    GuestMemory(machine::GuestMemoryRecord),
    /// With the eventfds that the record lists.
    Virtqueue(machine::VirtqueueRecord),
    /// What the clients of a disk that are gone have done: [`Totals`](crate::totals::Totals) in JSON.
    Totals {
        disk: String,
        totals: String,
    },
    /// End of all: when queues were quiesced, on CLOCK_MONOTONIC, and the least number of the next client.
    End {
        quiesced_at_ns: u64,
        next_client: u64,
    },
    Refused {
        reason: String,
    },
}

impl HandoverPacket {
    /// Its kind, which says when it is allowed.
    pub(crate) fn kind(&self) -> PacketKind {
        match self {
            Self::Greeting(_) => PacketKind::Greeting,
            Self::Overlay(_) | Self::Listener { .. } | Self::Disk(_) => PacketKind::Shared,
            Self::Device { .. } | Self::GoneDevice { .. } => PacketKind::Shared,
            Self::Prepare {} => PacketKind::Prepare,
            Self::Client(ClientRecord { client, stage, .. }) => {
                let (memories, records) = match stage {
                    Stage::Attached(attached) => (attached.memories, attached.parts),
                    Stage::Silent | Stage::Greeted => (0, 0),
                };
                PacketKind::Client { client: *client, memories, records }
            }
            Self::Machine(machine::MachineRecord { client, regions, queues, .. }) => {
                PacketKind::Client { client: *client, memories: *regions, records: usize::from(*queues) }
            }
            Self::Memory { client, .. } | Self::GuestMemory(machine::GuestMemoryRecord { client, .. }) => {
                PacketKind::Memory(*client)
            }
            Self::Part { client, .. } | Self::Virtqueue(machine::VirtqueueRecord { client, .. }) => PacketKind::Record(*client),
            Self::Totals { .. } => PacketKind::Late,
            Self::End { .. } => PacketKind::End,
            Self::Refused { reason } => PacketKind::Refused(reason.clone()),
        }
    }
}

/// The new daemon's answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct AnswerPacket(#[serde(with = "AnswerRecord")] pub(crate) Answer);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Answer", tag = "packet", rename_all = "snake_case", deny_unknown_fields)]
enum AnswerRecord {
    Prepared {},
    Taken {},
    Refused { reason: String },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Greeting {
    pub(crate) pid: u32,
    /// Of the program, for the log.
    pub(crate) version: String,
    pub(crate) clients: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ListenerOf {
    Clients,
    Admin,
    /// Scrapers, at a socket that the service manager may have passed.
    Metrics {
        is_passed: bool,
    },
    /// Virtual machines that use this disk.
    Machines(String),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiskRecord {
    pub(crate) name: String,
    pub(crate) kind: String,
    /// Configured size; a resize does not change this.
    pub(crate) configured_bytes: Option<u64>,
    /// As sent to clients.
    pub(crate) info: Vec<u8>,
}

/// With the client's socket.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClientRecord {
    pub(crate) client: u64,
    pub(crate) features: u64,
    pub(crate) max_queues: u16,
    pub(crate) max_depth: u32,
    pub(crate) max_pool_bytes: u64,
    pub(crate) max_memory_bytes: u64,
    pub(crate) stage: Stage,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    Silent,
    Greeted,
    Attached(AttachedRecord),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttachedRecord {
    /// Number of the service.
    pub(crate) service: u16,
    /// It sent DETACH, and has no answer yet.
    pub(crate) detaching: bool,
    /// Number of packets of each that follow.
    pub(crate) memories: usize,
    pub(crate) parts: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QueueStateRecord {
    /// Slot index and stamp.
    request: (u32, u32),
    completion: (u32, u32),
    resize_unacknowledged: bool,
    resize_wanted: Option<u64>,
    detach_unacknowledged: bool,
    detach_wanted: Option<u64>,
    detached: bool,
}

impl From<&QueueState> for QueueStateRecord {
    fn from(state: &QueueState) -> Self {
        let position = |cursor: Cursor| (cursor.index(), cursor.stamp());
        Self {
            request: position(state.request),
            completion: position(state.completion),
            resize_unacknowledged: state.resize.unacknowledged,
            resize_wanted: state.resize.wanted,
            detach_unacknowledged: state.detach.unacknowledged,
            detach_wanted: state.detach.wanted,
            detached: state.detached,
        }
    }
}

impl QueueStateRecord {
    /// Parse it; `None`: a position that no ring has. Whether it is in its ring is checked when that is opened.
    pub(crate) fn understand(&self) -> Option<QueueState> {
        let cursor = |(index, stamp): (u32, u32)| (stamp != 0).then(|| Cursor::at(index, stamp));
        Some(QueueState {
            request: cursor(self.request)?,
            completion: cursor(self.completion)?,
            resize: EventState { unacknowledged: self.resize_unacknowledged, wanted: self.resize_wanted },
            detach: EventState { unacknowledged: self.detach_unacknowledged, wanted: self.detach_wanted },
            detached: self.detached,
        })
    }
}

pub(crate) fn count(counters: &QueueCounters) -> (Vec<u64>, Vec<(u64, u64)>) {
    (counters.plain().iter().map(|(_, counter)| counter.get()).collect(), counters.latency.buckets().collect())
}

/// Restore them, where nothing was counted yet.
pub(crate) fn recount(counters: &QueueCounters, plain: &[u64], latency: &[(u64, u64)]) {
    for ((_, counter), value) in counters.plain().iter().zip(plain) {
        counter.add(*value);
    }
    for (ticks, count) in latency {
        counters.latency.record(*ticks, *count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_with_fields_they_do_not_have_are_refused() {
        assert!(serde_json::from_str::<HandoverPacket>("{\"packet\":\"prepare\"}").is_ok());
        assert!(serde_json::from_str::<HandoverPacket>("{\"packet\":\"prepare\",\"but\":1}").is_err());
    }
}
