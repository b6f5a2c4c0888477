//! Disks and the checks of requests. What starts other processes is apart, in `system`.

mod disk_faults;
mod disk_file;
mod disk_memory;
mod disk_model;
mod disk_spec;
mod disk_wrap;
mod notify;
mod packed_parts;
mod request_checks;
mod resize_events;
mod table_read_once;
mod transfer_pieces;

use fipsee_block::disk::{AnyDisk, DiskSpec};

fn open(text: &str) -> AnyDisk {
    DiskSpec::parse(text).expect("a description").open().expect("a disk")
}
