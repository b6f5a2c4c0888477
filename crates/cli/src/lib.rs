//! The parts of `fipsee` that the benchmark suite uses, too.

pub mod claim;
pub mod cpus;
pub mod load;
pub mod pattern;
