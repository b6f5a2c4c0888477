//! Disk errors, ports of networks that were blocked, and devices that are gone, in the log and in counters. A failing disk logs its first line at once, and from then on at most one a
//! second for each kind of fault: with the first error since the previous line, and their number.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fipsee_block::disk::faults::{Fault, Report, errno_name};
use fipsee_block::disk::{Disk, Faults};
use fipsee_ring::doorbell::EventDoorbell;

use crate::live::Live;
use crate::transport::tap::Taps;

/// Interval of lines about the same disk.
const PAUSE: Duration = Duration::from_secs(1);

/// Drains the faults of all disks, on a thread that may wait for the log.
pub(crate) struct FaultLog {
    live: Arc<Live>,
    taps: Arc<Taps>,
    /// Readable when there is something to [`write`](Self::write).
    pub(crate) doorbell: EventDoorbell,
    /// Disks about which nothing is logged until then.
    quiet: HashMap<String, Instant>,
}

impl FaultLog {
    pub(crate) fn new(live: Arc<Live>, taps: Arc<Taps>) -> Self {
        let doorbell = taps.notified.clone();
        Self { live, taps, doorbell, quiet: HashMap::new() }
    }

    /// Log what is due, also about new disks; returns how long the rest must wait.
    pub(crate) fn write(&mut self) -> Option<Duration> {
        // It does not block: an idle doorbell reads as nothing.
        let _ = rustix::io::read(&self.doorbell, &mut [0; 8]);
        self.taps.end_gone();
        let now = Instant::now();
        self.quiet.retain(|_, until| *until > now);
        for (port, times) in self.live.switches.newly_blocked(&self.doorbell) {
            tracing::warn!(
                port,
                times,
                "frames came back through the port: it is blocked for 10 seconds; remove the loop behind it"
            );
        }
        let mut rest = None;
        for export in &self.live.now().exports {
            let Some(faults) = export.disk.faults() else { continue };
            faults.ring_at(&self.doorbell);
            if !faults.is_pending() {
                continue;
            }
            match self.quiet.get(export.name()) {
                Some(until) => rest = rest.into_iter().chain([*until - now]).min(),
                None => {
                    faults.drain().for_each(|report| write_line(export.name(), faults, report));
                    self.quiet.insert(export.name().to_owned(), now + PAUSE);
                }
            }
        }
        rest
    }

    pub(crate) fn finish(&mut self) {
        self.quiet.clear();
        self.write();
    }
}

fn write_line(disk: &str, faults: &Faults, report: Report) {
    let Report { fault, operation, sector, count } = report;
    let path = faults.path().map(Path::display).map(tracing::field::display);
    match fault {
        Fault::Failed(errno) => {
            let error = errno.map_or_else(
                || "the file ends before the disk does: something else has cut it".to_owned(),
                |errno| format!("{}, {}", errno_name(errno), io::Error::from(errno)),
            );
            tracing::error!(disk, operation, sector, error, path, errors = count, "disk error");
        }
        Fault::Stalled(age) => {
            let age_s = age.as_secs_f64();
            tracing::warn!(disk, operation, sector, path, age_s, requests = count, "stalled: in flight for too long");
        }
        Fault::Ended(duration) => {
            let took_s = duration.as_secs_f64();
            tracing::warn!(disk, operation, sector, path, took_s, requests = count, "a stalled request has ended");
        }
    }
}
