//! `fipseed`: serves disks to local programs over Fip-see channels.
//!
//! Clients come by a [`transport`] and attach to one of the [`services`]; a [`worker`] serves their queues. Nothing here runs per request
//! except what workers call of [`worker`]; their loop is `fipsee_serve`'s.

pub mod admin;
pub mod config;
pub mod confine;
pub mod export;
mod fault_log;
pub mod live;
mod log;
pub mod notify;
pub mod placement;
pub mod reload;
mod run;
pub mod services;
mod takeover;
pub mod transport;
pub mod worker;

pub use run::{run, start, start_with};
