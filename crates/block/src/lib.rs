//! Block devices over Fip-see channels.
//!
//! [`wire`] is the format, [`request`] turns a message from the peer into a checked request, [`client`] submits,
//! [`server`] serves a queue from a [`disk`]. What is served is the
//! feature `server`: clients carry neither disks nor the runtime. This crate knows nothing of configuration, threads or names of exports.

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
