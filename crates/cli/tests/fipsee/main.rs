//! The program `fipsee`, by its subcommands, mostly with a daemon that it serves.

mod alone;
mod background;
mod bench;
mod claims;
mod completion;
mod cp;
mod cp_interrupted;
mod ext4_image;
mod listing;
mod look;
mod net;
mod program;
mod report;
mod run_time;
mod top;
mod topology;
mod verify_matrix;
mod vm_args;
