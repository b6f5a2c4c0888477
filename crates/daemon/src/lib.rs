//! `fipseed`: serves disks to local programs over Fip-see channels.
//!
//! A [`front`] finds clients and hands them memory; a [`worker`] serves their queues. Nothing here runs per request
//! except what workers call of [`worker`]; their loop is `fipsee_serve`'s.

pub mod admin;
pub mod config;
pub mod confine;
pub mod export;
mod fault_log;
pub mod front;
pub mod live;
mod log;
pub mod notify;
pub mod placement;
pub mod reload;
mod run;
mod takeover;
pub mod worker;

pub use run::{run, start};
