//! `fipsee attach DISK --vhost-user PATH` and `fipsee detach --vhost-user PATH`: sockets for virtual machines on a running
//! daemon.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::error::Error;
use crate::{admin, output};

#[derive(Debug, clap::Args)]
pub(crate) struct AttachArguments {
    /// Name of the disk
    disk: String,
    /// Serve it to virtual machines at this Unix socket, too, until the daemon ends
    #[arg(long, value_name = "PATH")]
    vhost_user: PathBuf,
    /// Print JSON: the disk's description, as info does
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DetachArguments {
    /// Remove this Unix socket, to which no virtual machine may be connected
    #[arg(long, value_name = "PATH")]
    vhost_user: PathBuf,
    /// Print JSON: the disk's description, as info does
    #[arg(long)]
    json: bool,
}

pub(crate) fn attach(socket: &Path, arguments: &AttachArguments) -> Result<(), Error> {
    let path = admin::absolute(&arguments.vhost_user)?;
    let answer = admin::ask(socket, "disk.attach", &json!({ "disk": arguments.disk, "vhost_user": path }))?;
    if arguments.json {
        return output::print_json(&answer);
    }
    let disk = &arguments.disk;
    output::print(&format!("disk '{disk}' is served at {path}; fipsee vm-args {disk} --vmm qemu prints how to use it\n"))
}

pub(crate) fn detach(socket: &Path, arguments: &DetachArguments) -> Result<(), Error> {
    let path = admin::absolute(&arguments.vhost_user)?;
    let answer = admin::ask(socket, "disk.detach", &json!({ "vhost_user": path }))?;
    if arguments.json {
        return output::print_json(&answer);
    }
    output::print(&format!("disk '{}' is served at {} no more\n", admin::text(&answer, "disk"), path))
}
