//! The daemon against docs/protocol.md: each test names the requirements that it checks (`checks: R-...`), and `requirements`
//! fails if a requirement has no test. The client speaks in bytes, by `raw` and `client`, which share no code with the daemon.

#[path = "../common/mod.rs"]
mod common;

mod client;
mod control;
mod document;
mod endings;
mod events;
mod raw;
mod region;
mod requests;
mod requirements;
mod rings;
mod session;
mod takeover;
