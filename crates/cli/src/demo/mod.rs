//! `fipsee demo`: a demonstration in a few seconds. A daemon with a null and a memory disk in a second process; data
//! written, read back and compared; then the same small reads over Fip-see, over a Unix socket, and in-process.

mod daemon;
mod data;
mod direct;
mod unix;

use std::time::Duration;

use fipsee::cpus::CpuChoice;
use fipsee::load::{self, DataPath, Mix, Settings};
use fipsee_block::client::Claim;
use fipsee_block::disk::{MemoryDisk, MemoryOptions, NullDisk, NullOptions};
use fipsee_ring::clock;
use fipsee_ring::wait::WaitMode;

use self::daemon::Daemon;
pub(crate) use self::daemon::{DaemonArguments, run_daemon};
use crate::error::Error;
use crate::output::{self, Table};
use crate::units;

/// Size of the null disk: it costs nothing.
const NULL_BYTES: u64 = 1 << 30;
/// Size of the memory disks: all of it is written and verified, so it must not take long.
const MEMORY_BYTES: u64 = 16 << 20;
/// Bytes of one request of the measurements.
const BLOCK_BYTES: usize = 4096;
/// Requests in flight where throughput is measured.
const DEPTH: u32 = 64;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Time of each of the twelve measurements, in seconds
    #[arg(long, default_value = "0.4", hide = true, value_parser = units::parse_seconds)]
    seconds: Duration,
}

/// One line of the table.
struct Measured {
    ns_p50: u64,
    ns_p99: u64,
    iops: f64,
}

/// The disks of each transport, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Null,
    Memory,
}

impl Which {
    const BOTH: [Self; 2] = [Self::Null, Self::Memory];

    const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Memory => "memory",
        }
    }

    /// Requests that fit the disk.
    const fn block_count(self) -> u64 {
        let size_bytes = match self {
            Self::Null => NULL_BYTES,
            Self::Memory => MEMORY_BYTES,
        };
        size_bytes / BLOCK_BYTES as u64
    }
}

fn null_disk() -> Result<NullDisk, String> {
    NullDisk::new("null", &NullOptions { size_bytes: NULL_BYTES, ..NullOptions::default() })
}

fn memory_disk() -> Result<MemoryDisk, String> {
    MemoryDisk::new(&MemoryOptions { size_bytes: MEMORY_BYTES, ..MemoryOptions::default() })
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let duration = arguments.seconds;
    // Measured once, while nothing else runs.
    let _ = clock::ticks_per_second();
    let daemon = Daemon::start()?;
    output::print(&format!("A daemon runs as process {} and serves two disks, 'null' and 'memory'.\n", daemon.pid()))?;
    let written = data::write_and_verify(daemon.socket())?;
    output::print(&format!("Data:    {written}\n\nReads of {BLOCK_BYTES} bytes at random places, measuring ...\n"))?;
    let headings = ["", "DISK", "p50 AT DEPTH 1", "p99 AT DEPTH 1", "IOPS AT DEPTH 64"];
    let mut table = Table::new(2, &headings);
    let mut add = |way: &str, which: Which, measured: &Measured| {
        let times = [measured.ns_p50, measured.ns_p99].map(units::nanoseconds);
        let [p50, p99] = times;
        table.push(vec![way.to_owned(), which.name().to_owned(), p50, p99, units::count(measured.iops)]);
    };
    for which in Which::BOTH {
        add("Fip-see", which, &over_fipsee(&daemon, which, duration)?);
    }
    for which in Which::BOTH {
        add("Unix socket", which, &unix::measure(daemon.unix_socket(), which, duration)?);
    }
    add("in-process", Which::Null, &direct::measure(null_disk()?, Which::Null, duration)?);
    add("in-process", Which::Memory, &direct::measure(memory_disk()?, Which::Memory, duration)?);
    drop(daemon);
    output::print(&format!("\n{}\n{}", table.render(), notes()))
}

/// The load generator of `fipsee bench`, against the daemon.
fn over_fipsee(daemon: &Daemon, which: Which, duration: Duration) -> Result<Measured, Error> {
    let run = |depth| {
        let settings = Settings {
            socket: daemon.socket().to_owned(),
            disk: which.name().to_owned(),
            claim: Claim::None,
            mix: Mix::RandRead,
            block_bytes: BLOCK_BYTES as u64,
            depth,
            queues: 1,
            duration,
            wait: WaitMode::Adaptive,
            notify: None,
            data_path: DataPath::Memshare,
            cpus: CpuChoice::Auto,
            verify: false,
            range_bytes: (0, 0),
        };
        load::run(&settings).map_err(|error| Error::from(error.to_string()))
    };
    let (one, many) = (run(1)?, run(DEPTH)?);
    let quantile_ns = |percent: u32| one.latency_ns(f64::from(percent) / 100.0);
    Ok(Measured { ns_p50: quantile_ns(50), ns_p99: quantile_ns(99), iops: many.iops })
}

fn notes() -> String {
    let mut text = String::from(
        "Fip-see and Unix socket: client and server are two processes. The socket carries 16 bytes there and 4 KiB of data\n\
         back. In-process: the disk's code called as a function, one request at a time.\n",
    );
    if cfg!(debug_assertions) {
        text.push_str("This is a debug build: times are many times longer than in a release build (cargo run --release).\n");
    }
    if crate::process::allowed_cpus().len() < 2 {
        text.push_str("There is only one CPU here: client and daemon take turns, which costs microseconds a turn.\n");
    }
    text.push_str(
        "\nWhere to go next:\n  \
         fipseed --disk a=memory:256M --disk b=file:disk.img,size=1G     serve disks\n  \
         fipsee ls                                                       see them\n  \
         fipsee cp some.img fip:b --verify                               fill one\n  \
         fipsee bench a --rw randread --depth 64                         measure one\n  \
         fipsee ping                                                     measure the ring alone\n",
    );
    text
}
