//! The in-band upgrade: a guest goes over from virtqueues to rings in its own memory (docs/protocol.md section 9).
//!
//! [`controller::UpgradeController`] decides about a device, on the thread of its vhost-user conversation; a
//! [`VirtqueueServer`](super::server::VirtqueueServer) serves a virtqueue with its ring, on the thread of a worker.

pub mod controller;
pub mod rings;
pub mod wire;
