//! The block device: its configuration space, the server of one of its virtqueues, and the in-band upgrade to Fip-see rings.

pub mod config;
pub mod server;
pub mod upgrade;
