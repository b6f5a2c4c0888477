//! Block devices over Fip-see channels.
//!
//! [`wire`] is the format, [`request`] turns a message from the peer into a checked request, [`client`] submits,
//! [`server`] serves a queue from a [`disk`]. This crate knows nothing of configuration, threads or names of exports.

pub mod client;
pub mod disk;
pub mod packed;
pub mod request;
pub mod server;
pub mod stats;
pub mod wire;
