//! `fipsee mount`: a disk as a file, as programs without knowledge of Fip-see use it.

mod contract;
mod failures;
mod filesystems;
mod load;
mod support;
