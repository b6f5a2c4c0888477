//! Round trips and streams of 60-byte messages between two processes: Fip-see, its baselines and its peers, interleaved
//! in one run, every byte of every message checked on both sides.
#![allow(missing_docs, reason = "parts of benchmarks, whose names say what they are")]

pub mod cli;
pub mod harness;
pub mod mechanisms;
mod report;
pub mod results;

#[global_allocator]
static ALLOCATOR: harness::shared::SwitchedAllocator = harness::shared::SwitchedAllocator;
