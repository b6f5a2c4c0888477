//! Block devices over Fip-see channels.
//!
//! [`wire`] is the format, [`request`] turns a message from the peer into a checked request, [`client`] submits,
//! [`server`] serves a queue from a [`disk`]. Serving is the
//! feature `server`: clients need neither disks nor the runtime. This crate has no configuration, threads or export names.

#![allow(missing_docs, reason = "a comment is where a name and a type do not say it")]

pub mod client;
#[cfg(feature = "server")]
pub mod disk;
pub mod packed;
#[cfg(feature = "server")]
pub mod request;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
pub mod stats;
pub mod wire;
