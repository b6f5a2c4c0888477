//! Ways to a disk: ours, those of others, and what nothing can be faster than.

mod call;
mod guest;
mod ours;
mod peers;
mod programs;
mod through_fio;
pub(crate) mod vhost;

use std::path::PathBuf;

use fipsee_measure::cpus::Cpus;
use peers::{Loop, THREAD};

use crate::fio::Fio;
use crate::matrix::Cell;

pub(crate) use Kind::{Baseline, Ours, Peer};

/// The owner of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ours,
    /// Another server of disks.
    Peer,
    /// No server at all: what the load generator, the kernel or a call can do.
    Baseline,
}

/// What one measurement gave.
pub(crate) struct Measured {
    pub(crate) iops: Option<f64>,
    /// p50 and p99, where the way measures them.
    pub(crate) latency_ns: Option<(f64, f64)>,
    /// Requests to spread the processor time over; `None` where other work was done, too.
    pub(crate) requests: Option<f64>,
}

/// A way that is ready to be measured. What it started ends with it.
pub(crate) trait Way {
    /// Put `cell` on it for `seconds`.
    fn measure(&mut self, cell: Cell, seconds: f64) -> Result<Measured, String>;

    /// Processes that work for it and go on after the measurement.
    fn servers(&self) -> Vec<u32>;

    /// Those of them that run where they are put.
    fn placeable(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Processor time of a measurement that does nothing.
    fn start_cost(&self) -> std::time::Duration {
        std::time::Duration::ZERO
    }
}

/// A way with servers that stay where the scheduler puts them, as if just started by a user.
struct Unbound(Box<dyn Way>);

fn unbound(way: Box<dyn Way>) -> Result<Box<dyn Way>, String> {
    Ok(Box::new(Unbound(way)))
}

impl Way for Unbound {
    fn measure(&mut self, cell: Cell, seconds: f64) -> Result<Measured, String> {
        self.0.measure(cell, seconds)
    }

    fn servers(&self) -> Vec<u32> {
        self.0.servers()
    }

    fn start_cost(&self) -> std::time::Duration {
        self.0.start_cost()
    }
}

/// Start what a way needs; an error is the reason why it is skipped.
type Open = fn(&Site) -> Result<Box<dyn Way>, String>;

/// A way, before anything of it is started.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Which loads make sense on it.
    pub(crate) takes: fn(Cell) -> bool,
    pub(crate) open: Open,
}

/// What ways need from the run.
pub(crate) struct Site {
    /// Our daemon, with the disks `n` (null) and `m` (memory).
    pub(crate) socket: PathBuf,
    pub(crate) daemon_pid: u32,
    /// Where it is a vhost-user-blk device with the null disk, for one way at a time.
    pub(crate) vhost_user: PathBuf,
    /// Where sockets and logs go.
    pub(crate) directory: PathBuf,
    /// Where files in memory go: a tmpfs.
    pub(crate) memory_directory: PathBuf,
    /// What `cargo xtask dist` built.
    pub(crate) dist: Option<PathBuf>,
    pub(crate) cpus: Cpus,
    pub(crate) fio: Result<Fio, String>,
    pub(crate) memory_bytes: u64,
    pub(crate) null_bytes: u64,
    /// Names of files given away so far.
    pub(crate) used_names: std::cell::Cell<u32>,
}

impl Site {
    /// A path in the directory of sockets and logs that no other way has.
    fn fresh(&self, name: &str) -> PathBuf {
        let number = self.used_names.get();
        self.used_names.set(number + 1);
        self.directory.join(format!("{name}-{number}"))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.fresh(name).with_extension("log")
    }

    /// Something that ships.
    fn shipped(&self, path: &str) -> Result<PathBuf, String> {
        let dist = self.dist.as_ref().ok_or("FIPSEE_DIST is not set; run `cargo xtask bench`, which builds what ships")?;
        let found = dist.join(path);
        if found.exists() { Ok(found) } else { Err(format!("{path} was not built; `cargo xtask dist` says why")) }
    }

    fn fio(&self) -> Result<&Fio, String> {
        self.fio.as_ref().map_err(Clone::clone)
    }
}

const fn any(_: Cell) -> bool {
    true
}

const fn one_at_a_time(cell: Cell) -> bool {
    cell.depth == 1
}

fn claimed(cell: Cell) -> bool {
    cell.is_claimed()
}

const fn entry(name: &'static str, kind: Kind, takes: fn(Cell) -> bool, open: Open) -> Entry {
    Entry { name, kind, takes, open }
}

pub(crate) const CALL: &str = "in-process call, null disk";
pub(crate) const LIBRARY: &str = "Rust library, null disk";
pub(crate) const C_LIBRARY: &str = "C library, null disk";
pub(crate) const ENGINE: &str = "fio engine, null disk";
pub(crate) const FUSE: &str = "FUSE mount, null disk";
pub(crate) const PYTHON: &str = "Python, null disk";
pub(crate) const FIO_NULL: &str = "fio's null engine";
pub(crate) const VHOST_POLLING: &str = "qemu vhost-user-blk, polling";
pub(crate) const VHOST_EVENTFD: &str = "qemu vhost-user-blk, eventfd";
pub(crate) const OUR_VHOST_POLLING: &str = "our vhost-user-blk, polling";
pub(crate) const OUR_VHOST_EVENTFD: &str = "our vhost-user-blk, eventfd";
pub(crate) const GUEST_RINGS: &str = "rings in a guest's memory, null disk";
pub(crate) const QEMU_NBD: &str = "qemu NBD";
pub(crate) const NBDKIT: &str = "nbdkit null";
pub(crate) const QEMU_NBD_UNBOUND: &str = "qemu NBD, not bound to a CPU";
pub(crate) const NBDKIT_UNBOUND: &str = "nbdkit null, not bound to a CPU";
pub(crate) const QEMU_FUSE: &str = "qemu FUSE";

/// nbdkit's default.
const NBDKIT_THREADS: u32 = 16;

/// The peers with other settings, to see which are best for them; on demand.
pub(crate) const TUNING: [Entry; 11] = [
    entry("vhost polling, thread", Peer, any, |site| peers::vhost(site, true, THREAD)),
    entry("vhost polling, thread, polls 0 ns", Peer, any, |site| peers::vhost(site, true, Loop::Thread(0))),
    entry("vhost polling, thread, polls 1 ms", Peer, any, |site| peers::vhost(site, true, Loop::Thread(1_000_000))),
    entry("vhost polling, main loop", Peer, any, |site| peers::vhost(site, true, Loop::Main)),
    entry("NBD, main loop", Peer, any, |site| peers::nbd(site, Loop::Main)),
    entry("nbdkit, 16 threads", Peer, any, |site| peers::nbdkit(site, NBDKIT_THREADS)),
    entry("nbdkit, 1 thread", Peer, any, |site| peers::nbdkit(site, 1)),
    entry("FUSE, thread", Peer, any, |site| peers::fuse(site, THREAD)),
    entry("FUSE, thread, polls 0 ns", Peer, any, |site| peers::fuse(site, Loop::Thread(0))),
    entry("FUSE, thread, polls 1 ms", Peer, any, |site| peers::fuse(site, Loop::Thread(1_000_000))),
    entry("FUSE, main loop", Peer, any, |site| peers::fuse(site, Loop::Main)),
];

/// Everything, in the order in which it is measured: what claims compare is side by side.
pub(crate) const WAYS: [Entry; 24] = [
    entry(CALL, Baseline, one_at_a_time, |site| call::open(site, false)),
    entry("in-process call, memory disk", Baseline, one_at_a_time, |site| call::open(site, true)),
    entry(C_LIBRARY, Ours, any, |site| programs::c_library(site, "n")),
    entry(LIBRARY, Ours, any, |site| ours::library(site, "n")),
    entry("Rust library, memory disk", Ours, any, |site| ours::library(site, "m")),
    entry("C library, memory disk", Ours, any, |site| programs::c_library(site, "m")),
    entry(FIO_NULL, Baseline, any, through_fio::null),
    entry(ENGINE, Ours, any, |site| through_fio::engine(site, "n")),
    entry("fio engine, memory disk", Ours, any, |site| through_fio::engine(site, "m")),
    entry(GUEST_RINGS, Ours, any, guest::open),
    entry(OUR_VHOST_POLLING, Ours, any, |site| ours::vhost(site, true)),
    entry(VHOST_POLLING, Peer, any, |site| peers::vhost(site, true, THREAD)),
    entry(OUR_VHOST_EVENTFD, Ours, any, |site| ours::vhost(site, false)),
    entry(VHOST_EVENTFD, Peer, any, |site| peers::vhost(site, false, THREAD)),
    entry(QEMU_NBD, Peer, any, |site| peers::nbd(site, Loop::Main)),
    entry(NBDKIT, Peer, any, |site| peers::nbdkit(site, NBDKIT_THREADS)),
    entry(QEMU_NBD_UNBOUND, Peer, claimed, |site| unbound(peers::nbd(site, Loop::Main)?)),
    entry(NBDKIT_UNBOUND, Peer, claimed, |site| unbound(peers::nbdkit(site, NBDKIT_THREADS)?)),
    entry(QEMU_FUSE, Peer, any, |site| peers::fuse(site, THREAD)),
    entry(FUSE, Ours, any, |site| ours::fuse(site, "n")),
    entry("FUSE mount, memory disk", Ours, any, |site| ours::fuse(site, "m")),
    entry(PYTHON, Ours, claimed, programs::python),
    entry("psync on tmpfs", Baseline, one_at_a_time, |site| through_fio::on_tmpfs(site, "psync")),
    entry("io_uring on tmpfs", Baseline, any, |site| through_fio::on_tmpfs(site, "io_uring")),
];
