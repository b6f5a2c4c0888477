//! The oracle: it sends a disk requests that overlap, of every size, by every front, and compares each sector with what the protocol allows.
//! docs/reliability.md says how to run it.
#![allow(missing_docs, reason = "parts of a test, whose names say what they are")]

pub mod content;
pub mod daemon;
pub mod front;
pub mod interrupt;
pub mod model;
pub mod scenario;
pub mod setup;
pub mod slow;
pub mod slow_file;
pub mod storage;
pub mod workload;
