//! Disks for virtual machines: guest memory, virtqueues, virtio-blk requests, and the in-band upgrade to Fip-see rings.
//!
//! A [`server::VirtqueueServer`] is one virtqueue of a vhost-user-blk device, as a worker serves it; the vhost-user conversation is the
//! daemon's. Nothing here trusts the guest: descriptors and headers are copied once, then checked, then used.

pub mod config;
mod fault_guard;
pub mod inflight;
pub mod memory;
mod queue;
pub mod server;
pub mod upgrade;
