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
    /// New size in bytes, or with K, M, G or T (powers of 1024)
    #[arg(value_parser = parse_size)]
    size: u64,
    /// Make it smaller: all data beyond the new size is lost
    #[arg(long)]
    shrink: bool,
    /// Make it smaller even while clients or virtual machines are attached
    #[arg(long, requires = "shrink")]
    force: bool,
    /// Print JSON: the disk's new description, as info does
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(socket: &Path, arguments: &Arguments) -> Result<(), Error> {
    let Arguments { disk, size, shrink, force, .. } = arguments;
    // Sent in any case: a daemon that does not know the keys must not assume consent.
    let request = json!({ "disk": disk, "size_bytes": size, "shrink": shrink, "force": force });
    let answer = admin::ask(socket, "disk.resize", &request)?;
    if arguments.json {
        return output::print_json(&answer);
    }
    let size_bytes = admin::number(&answer, "size_bytes");
    output::print(&format!("disk '{}' has {} ({size_bytes} bytes) now\n", arguments.disk, units::bytes(size_bytes)))
}
