//! What a device is besides its virtqueues: the features and the configuration space that its driver sees.

use std::sync::atomic::{AtomicBool, Ordering};

use fipsee_block::wire::BlockInfo;
use fipsee_net::frame::Mac;
use fipsee_net::server::ServedPort;
use fipsee_net::switch::Link;
use fipsee_net::wire::{MAX_PAIRS, QUEUES_PER_PAIR};
use fipsee_virtio::{blk, net};

#[derive(Clone, Debug)]
pub struct DiskDescription {
    pub name: String,
    pub info: BlockInfo,
    pub read_only: bool,
}

#[derive(Clone, Debug)]
pub struct PortDescription {
    /// Network and port.
    pub name: String,
    pub mac: Mac,
    pub mtu: u16,
    /// Pairs of queues that it may have.
    pub pairs: u16,
    /// No administrator has taken it down.
    pub is_up: bool,
}

impl PortDescription {
    pub(in super::super) fn new(name: &str, port: &ServedPort, queues: u16) -> Self {
        let pairs = (queues / QUEUES_PER_PAIR).clamp(1, MAX_PAIRS);
        let info = port.info(pairs);
        Self { name: name.to_owned(), mac: Mac(info.mac), mtu: info.mtu, pairs, is_up: port.link() != Link::Down }
    }
}

#[derive(Clone, Debug)]
pub(in super::super) enum Model {
    Disk(DiskDescription),
    Port(PortDescription),
}

impl Model {
    pub(in super::super) fn name(&self) -> &str {
        match self {
            Self::Disk(disk) => &disk.name,
            Self::Port(port) => &port.name,
        }
    }

    /// Virtio features that are offered.
    pub(super) fn features(&self) -> u64 {
        match self {
            Self::Disk(disk) => blk::config::features(&disk.info, disk.read_only),
            Self::Port(port) => net::config::features(port.pairs),
        }
    }

    /// The configuration space of a device with so many queues.
    pub(super) fn space(&self, queues: u16, writeback: &AtomicBool) -> Vec<u8> {
        match self {
            Self::Disk(disk) => blk::config::space(&disk.info, queues, writeback.load(Ordering::Relaxed)).to_vec(),
            Self::Port(port) => net::config::space(port.mac, port.mtu, port.pairs, port.is_up).to_vec(),
        }
    }

    /// The answer to GET_QUEUE_NUM: for a port, pairs.
    pub(super) const fn queue_number(&self, queues: u16) -> u16 {
        match self {
            Self::Disk(_) => queues,
            Self::Port(port) => port.pairs,
        }
    }

    pub(in super::super) const fn port(&self) -> Option<&PortDescription> {
        match self {
            Self::Disk(_) => None,
            Self::Port(port) => Some(port),
        }
    }
}
