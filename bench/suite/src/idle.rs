//! What clients that do nothing cost.

use std::path::Path;
use std::time::{Duration, Instant};

use fipsee_block::client::{AttachOptions, Disk, Error, Queue};

use crate::cost::process_time;
use crate::daemon::Daemon;

/// Attach `count` clients and leave them idle.
pub(crate) fn attach(socket: &Path, disk: &str, count: usize) -> Result<Vec<(Disk, Vec<Queue>)>, Error> {
    let options = AttachOptions { pool_bytes: 0, ..AttachOptions::new(disk) };
    (0..count).map(|_| Disk::attach(socket, &options)).collect()
}

/// Processor share in percent and sleeps per second of the daemon over `duration`, with no client active.
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

/// Processor share in percent of each of `servers` while no client is active.
pub(crate) fn server_shares(servers: &[u32], duration: Duration) -> Result<Vec<f64>, String> {
    let times = || servers.iter().map(|pid| process_time(*pid)).collect::<Result<Vec<_>, _>>();
    std::thread::sleep(Duration::from_millis(200)); // tidy: allow sleep, they need time to fall asleep
    let (before, started) = (times()?, Instant::now());
    std::thread::sleep(duration); // tidy: allow sleep, idleness is what is measured
    let (after, seconds) = (times()?, started.elapsed().as_secs_f64());
    Ok(after.iter().zip(&before).map(|(after, before)| 100.0 * (*after - *before).as_secs_f64() / seconds).collect())
}
