//! What every measurement of this project shares: `fipsee ping`, and the suites of `cargo xtask bench`.
//!
//! [`harness`] sends messages between two sides and times them; [`quiet`] says whether a run may be quoted; [`statistics`],
//! [`results`] and [`claim`] say what its rounds mean; [`plot`] draws them. Disks and daemons are not known here.
#![allow(missing_docs, reason = "parts of benchmarks, whose names say what they are")]

pub mod claim;
pub mod cpus;
pub mod harness;
pub mod machine;
pub mod plot;
pub mod quiet;
pub mod results;
pub mod statistics;
