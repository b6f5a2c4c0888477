//! Typed calls between processes, over a Fip-see channel: what a function call costs when two CPUs share memory.
//!
//! A program serves a [`Service`] at a Unix socket ([`Server`]); others connect ([`Client`]), get a channel of their own
//! and call. A request and its reply are plain values of at most 60 bytes, one ring message each; more goes through a
//! [`Payload`], memory that both sides reach. Calls of one client are answered in order, so a message contains nothing
//! but the value. What happens on the wire is in `docs/protocol.md` section 8, why in `docs/decisions/0011-typed-calls.md`.
//!
//! A call that cannot be carried out is answered with a reply that says so: an error is a value of the reply type. A
//! message that is no value of its type is a fault of the peer, and ends the channel.
//!
//! The feature `server` (on by default) brings the serving side, which runs on the runtime of every service; clients do not need
//! it.

mod client;
mod error;
mod payload;
pub mod raw;
#[cfg(feature = "server")]
mod server;
mod service;
mod wire;

pub use client::{Client, ConnectOptions};
pub use error::{CallError, Error};
pub use fipsee_ring::wait::WaitMode;
pub use payload::Payload;
#[cfg(feature = "server")]
pub use raw::{Stopper, Taken as Served};
#[cfg(feature = "server")]
pub use server::{Allow, Call, Credentials, Server, ServerOptions, Worker};
pub use service::{Service, Value};
pub use wire::{MAX_VALUE_BYTES, PAYLOAD_UNIT_BYTES, PROFILE, SERVICE_CALLS, ServiceInfo};
