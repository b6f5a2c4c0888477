//! `fipsee mount DISK FILE`: the disk as a file, for programs that use only files.

mod answer;
mod background;
mod compound;
mod filesystem;
mod kernel;
mod lane;
mod link;
mod log;
mod mount_point;
mod placement;
mod ranges;
mod session;

use std::path::{Path, PathBuf};
use std::time::Duration;

use fipsee::cpus::CpuChoice;

use crate::error::Error;
use crate::units;

/// Most threads: a daemon's default limit.
const MAX_THREADS: u16 = 16;

/// The kernel's caching of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Cache {
    /// Nothing, except pages of programs that map it: every read and write reaches the disk
    None,
    /// Pages, as of any file: for a disk without another writer
    Kernel,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Any user of FILE sees the disk: mkfs, dd, qemu-img, mount -o loop. It has the disk's size, cannot grow, and ignores O_TRUNC, as a
block device does. `umount FILE` (for a user: fusermount3 -u FILE), SIGTERM and SIGINT end it.")]
pub(crate) struct Arguments {
    /// Name of the disk
    disk: String,
    /// A regular file to mount onto; made, and removed at the end, if it does not exist
    file: PathBuf,
    /// Do not write to the disk
    #[arg(long)]
    read_only: bool,
    /// Write even while another client may, or is the disk's sole writer
    #[arg(long)]
    force: bool,
    /// Let other users in, as far as FILE's owner and mode allow (for users: only if /etc/fuse.conf says user_allow_other)
    #[arg(long)]
    allow_other: bool,
    /// Threads that serve the file, each with a queue of the disk
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_THREADS)))]
    threads: u16,
    /// CPUs for them, or auto: those near the daemon's workers, which are left alone; of only two CPUs, either, as the load wants
    #[arg(long, value_name = "auto|LIST", default_value = "auto")]
    cpus: CpuChoice,
    /// What the kernel keeps of the file's content
    #[arg(long, value_enum, default_value = "none")]
    cache: Cache,
    /// When the daemon goes away, wait so long for it to come back before reads and writes fail (EIO)
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = units::parse_whole_seconds)]
    reconnect: u64,
    /// Return once the disk is mounted; later messages go to the system's log
    #[arg(long)]
    background: bool,
}

impl Arguments {
    const fn timeout(&self) -> Duration {
        Duration::from_secs(self.reconnect)
    }
}

pub(crate) fn run(socket: &Path, arguments: &Arguments) -> Result<(), Error> {
    arguments.cpus.check()?;
    if arguments.background && !background::is_second() { background::start() } else { session::run(socket, arguments) }
}
