//! The client: attach to an export, submit in batches, reap completions.
//!
//! [`Disk::attach`] gives a [`Disk`] (control connection, memory) and its [`Queue`]s, each for one thread at a time.
//! [`Blocking`] wraps a disk and one queue for plain reads and writes.

mod blocking;
mod connection;
mod error;
mod memory;
mod queue;
mod reconnect;

pub use blocking::Blocking;
pub use connection::{AttachOptions, Claim, Disk, Placement, default_socket_path};
pub use error::Error;
pub use memory::{Buffer, Memory};
pub use queue::{Completion, Event, Queue};
pub use reconnect::{ReconnectEvent, ReconnectPolicy};
