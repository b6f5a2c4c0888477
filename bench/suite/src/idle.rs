//! What clients that do nothing cost.

use std::path::Path;
use std::time::{Duration, Instant};

use fipsee_block::client::{AttachOptions, Disk, Error, Queue};

use crate::daemon::Daemon;

/// Attach `count` clients and leave them idle.
pub(crate) fn attach(socket: &Path, disk: &str, count: usize) -> Result<Vec<(Disk, Vec<Queue>)>, Error> {
    let options = AttachOptions { pool_bytes: 0, ..AttachOptions::new(disk) };
    (0..count).map(|_| Disk::attach(socket, &options)).collect()
}

/// Processor share in percent and sleeps per second of the daemon over `duration`, with nobody doing anything.
pub(crate) fn daemon_usage(daemon: &Daemon, duration: Duration) -> Result<(f64, f64), String> {
    std::thread::sleep(Duration::from_millis(200)); // tidy: allow sleep, the daemon needs time to fall asleep
    let (cpu_before, sleeps_before) = daemon.usage()?;
    let started = Instant::now();
    std::thread::sleep(duration); // tidy: allow sleep, idleness is what is measured
    let (cpu, sleeps) = daemon.usage()?;
    let seconds = started.elapsed().as_secs_f64();
    let count = fipsee::load::count_f64(sleeps - sleeps_before);
    Ok((100.0 * (cpu - cpu_before).as_secs_f64() / seconds, count / seconds))
}
