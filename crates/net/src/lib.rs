//! Ethernet frames over Fip-see channels (docs/protocol.md section 10, docs/decisions/0037-network.md).
//!
//! A program attaches to a [`Port`] of a network, posts buffers for frames to come, and sends frames. The daemon's side is a learning
//! [`switch`] without I/O, and with the feature `server` the queues that feed it.

#![allow(missing_docs, reason = "a comment is where a name and a type do not say it")]

pub mod checksum;
pub mod error;
pub mod frame;
pub mod offload;
mod port;
#[cfg(feature = "server")]
pub mod server;
pub mod switch;
pub mod wire;

pub use fipsee_ring::port::ReconnectPolicy;

pub use self::error::{Error, NetError};
pub use self::port::{AttachOptions, Buffer, Counters, Frame, ListedPortInfo, Port, ReconnectEvent, list};
