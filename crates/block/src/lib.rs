//! Block devices over Fip-see channels.
//!
//! [`wire`] is the format, [`request`] turns a message from the peer into a checked request, [`client`] submits,
//! [`server`] serves a queue from a [`disk`]. Serving is the
//! feature `server`: clients need neither disks nor the runtime. This crate has no configuration, threads or export names.

// What a client uses is documented item by item; elsewhere a comment is where a name and a type do not say it.
pub mod client;
#[cfg(feature = "server")]
#[allow(missing_docs)]
pub mod disk;
#[allow(missing_docs)]
pub mod packed;
#[cfg(feature = "server")]
#[allow(missing_docs)]
pub mod request;
#[cfg(feature = "server")]
#[allow(missing_docs)]
pub mod server;
#[cfg(feature = "server")]
#[allow(missing_docs)]
pub mod stats;
pub mod wire;
