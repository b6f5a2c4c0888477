//! Devices for virtual machines.
//!
//! [`core`] is the base of every device; [`blk`] is the disk, of which a [`blk::server::VirtqueueServer`] is one virtqueue, as a
//! worker serves it; [`net`] is a port of a network, of which a [`net::server::PortQueue`] is one. The daemon has the vhost-user
//! protocol. Nothing here trusts the guest: descriptors and headers are copied once, then checked, then used.

#![allow(missing_docs, reason = "a comment is where a name and a type do not say it")]

pub mod blk;
pub mod core;
pub mod net;
