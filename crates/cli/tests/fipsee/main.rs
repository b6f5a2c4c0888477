//! The program `fipsee`, by its subcommands, mostly with a daemon that it serves.

mod alone;
mod claims;
mod cp;
mod ext4_image;
mod listing;
mod look;
mod program;
mod report;
mod topology;
mod verify_matrix;
