//! The in-band upgrade: a guest moves from virtqueues to rings in its own memory (docs/protocol.md section 9).
//!
//! [`controller::UpgradeController`] decides for a device, on its vhost-user socket thread; a
//! [`VirtqueueServer`](super::server::VirtqueueServer) serves a virtqueue with its ring, on the thread of a worker.

pub mod controller;
pub mod rings;
pub mod wire;
