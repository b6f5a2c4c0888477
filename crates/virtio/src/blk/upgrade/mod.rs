//! The in-band upgrade: a guest goes over from virtqueues to rings in its own memory (docs/protocol.md section 9).
//!
//! [`desk::Desk`] decides about a device, on the thread of its vhost-user conversation; [`GuestQueue`] is a virtqueue with its ring, on
//! the thread of a worker.

pub mod desk;
mod queue;
pub mod rings;
mod served;
mod standing;
pub mod wire;

pub use queue::{Device, GuestQueue};
pub use served::GuestDiskQueue;
pub use standing::{GuestStanding, RingStanding};
