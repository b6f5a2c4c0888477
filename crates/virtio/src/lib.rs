//! Devices for virtual machines.
//!
//! [`core`] is what every device is built on; [`blk`] is the disk, of which a [`blk::server::VirtqueueServer`] is one virtqueue, as a
//! worker serves it. The vhost-user conversation is the daemon's. Nothing here trusts the guest: descriptors and headers are copied
//! once, then checked, then used.

pub mod blk;
pub mod core;
