//! `fipseed`: serves disks to local programs over Fip-see channels.
//!
//! Clients come by a [`transport`] and attach to one of the [`services`]; a worker serves their queues. Nothing here runs per request
//! except what workers call of `worker`; their loop is `fipsee_serve`'s.

#![allow(missing_docs, reason = "a comment is where a name and a type do not say it")]

pub mod admin;
pub mod config;
pub mod confine;
mod daemonize;
mod descriptors;
mod disk_limits;
mod disk_text;
pub mod export;
mod fault_log;
mod latency;
mod live;
mod log;
mod metrics;
mod notification;
mod notify;
mod overlay;
mod placement;
mod pools;
mod program;
pub mod rates;
mod reload;
mod run;
mod scaling;
mod service_thread;
pub mod services;
mod shares;
mod takeover;
mod totals;
pub mod transport;
mod worker;

pub use fipsee_serve::unix::credentials_of;
pub use program::{end, program};
pub use run::{run, start, start_with};

/// What `--version` says: the version and, of a release build, its commit (build.rs).
pub const VERSION: &str = env!("FIPSEE_VERSION");
