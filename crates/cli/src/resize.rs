//! `fipsee resize DISK SIZE`.

use std::path::Path;

use fipsee_block::disk::spec::parse_size;
use serde_json::json;

use crate::error::Error;
use crate::{admin, output, units};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Name of the disk
    disk: String,
    /// New size in bytes, or with K, M, G or T (powers of 1024); data beyond a smaller size is lost
    #[arg(value_parser = parse_size)]
    size: u64,
    /// Print JSON: the disk's new description, as info does
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(socket: &Path, arguments: &Arguments) -> Result<(), Error> {
    let request = json!({ "request": "resize", "disk": arguments.disk, "size_bytes": arguments.size });
    let answer = admin::ask(socket, &request)?;
    if arguments.json {
        return output::print_json(&answer);
    }
    let size_bytes = admin::number(&answer, "size_bytes");
    output::print(&format!("disk '{}' has {} ({size_bytes} bytes) now\n", arguments.disk, units::bytes(size_bytes)))
}
