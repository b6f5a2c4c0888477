//! How to attach, and to what.

use std::path::Path;
use std::time::Duration;

use fipsee_ring::control::Listed;
use fipsee_ring::handshake;
use fipsee_ring::wait::{DEFAULT_LOOK, WaitMode};

use crate::error::Error;
use crate::frame::Mac;
use crate::wire::{ATTACH_EVENTS, ATTACH_MTU_SHIFT, ATTACH_OFFLOADS, LISTED_IN_USE, ListedPort, SERVICE_NET};

/// Options of an attachment.
#[derive(Clone, Debug)]
pub struct AttachOptions {
    /// Network and port, for example `lan/a`.
    pub name: String,
    /// Pairs of queues wanted: one for each thread. The daemon may grant fewer.
    pub pairs: u16,
    /// Frames on their way in each direction of a pair. The daemon may grant fewer.
    pub depth: u32,
    /// Length of a receive buffer. None: as long as the longest frame of the network; a shorter one saves memory, and a longer frame fills
    /// several. Memory is asked for before the network's MTU is known: with None as much as buffers for the longest MTU need, 9018 bytes.
    pub buffer_bytes: Option<u32>,
    /// Receive buffers that are posted, if not `depth`.
    pub posted: Option<u32>,
    /// What frames may leave to be done, sent and received ones: bits `OFFLOAD_*` of [`wire`](crate::wire). The daemon may grant fewer.
    /// With segmentation frames of 64 KiB come: receive buffers are then 4 KiB long if nothing else is said.
    pub offloads: u32,
    /// The daemon refuses a client that needs a greater MTU than the network has.
    pub least_mtu: Option<u16>,
    /// How [`Port::wait`](crate::port::Port::wait) waits, and how long it looks before it sleeps, in adaptive mode.
    pub wait: WaitMode,
    pub look: Duration,
}

impl AttachOptions {
    /// One pair of depth 256, adaptive waiting.
    pub fn new(name: &str) -> Self {
        let (name, wait, look) = (name.to_owned(), WaitMode::default(), DEFAULT_LOOK);
        Self { name, pairs: 1, depth: 256, buffer_bytes: None, posted: None, offloads: 0, least_mtu: None, wait, look }
    }

    /// As in ATTACH.
    pub(super) fn flags(&self) -> u32 {
        let least_mtu = u32::from(self.least_mtu.unwrap_or(0)) << ATTACH_MTU_SHIFT;
        self.offloads & ATTACH_OFFLOADS | ATTACH_EVENTS | least_mtu
    }
}

/// A port that may be attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedPortInfo {
    pub name: String,
    pub mac: Mac,
    pub mtu: u16,
    pub in_use: bool,
}

/// The ports of the daemon at `socket_path` that this user may use, in the order of their names.
///
/// # Errors
/// As [`Port::attach`](crate::port::Port::attach); [`Error::Unsupported`] when the daemon is too old.
pub fn list(socket_path: &Path) -> Result<Vec<ListedPortInfo>, Error> {
    let describe = |Listed { name, service_info }: Listed| {
        let ListedPort { mac, mtu, flags, .. } = ListedPort::from_bytes(&service_info);
        ListedPortInfo { name, mac: Mac(mac), mtu, in_use: flags & LISTED_IN_USE != 0 }
    };
    Ok(handshake::list(socket_path, SERVICE_NET)?.into_iter().map(describe).collect())
}
