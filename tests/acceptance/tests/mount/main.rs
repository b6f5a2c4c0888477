//! `fipsee mount`: a disk as a file, as programs that know nothing of Fip-see meet it.

mod contract;
mod failures;
mod filesystems;
mod load;
mod support;
