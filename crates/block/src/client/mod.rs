//! The client: attach to an export, submit in batches, reap completions.
//!
//! [`Disk::attach`] gives a [`Disk`] (control connection, memory) and its [`Queue`]s, each for one thread at a time.
//! [`Blocking`] wraps a disk and one queue for plain reads and writes.

mod blocking;
mod connection;
mod error;
mod memory;
mod queue;
pub mod transfer;

pub use blocking::Blocking;
pub use connection::{AttachOptions, Claim, Disk, ReconnectEvent, default_socket_path};
pub use error::{DiskError, Error};
pub use fipsee_ring::port::ReconnectPolicy;
pub use memory::{Buffer, Bytes, Memory};
pub use queue::{Completion, Event, Queue};
