//! What goes wrong at disks, in the log and in numbers. A disk that fails writes its first line at once, and from then on at most one a
//! second for each kind of fault: with what happened first since the line before, and how often.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fipsee_block::disk::faults::{Fault, Report, errno_name};
use fipsee_block::disk::{AnyDisk, Disk, Faults};
use fipsee_ring::doorbell::EventDoorbell;
use rustix::io::Errno;
use serde_json::{Map, Value, json};

use crate::live::Live;

/// Between two lines about the same disk.
const PAUSE: Duration = Duration::from_secs(1);

/// Drains the faults of all disks, on a thread that may wait for the log.
pub(crate) struct FaultLog {
    live: Arc<Live>,
    bell: EventDoorbell,
    /// Until when nothing is written about a disk.
    quiet: HashMap<String, Instant>,
}

impl FaultLog {
    pub(crate) fn new(live: Arc<Live>) -> io::Result<Self> {
        Ok(Self { live, bell: EventDoorbell::new()?, quiet: HashMap::new() })
    }

    /// Readable when there is something to [`write`](Self::write).
    pub(crate) fn bell(&self) -> EventDoorbell {
        self.bell.clone()
    }

    /// Write what may be written now, also about disks that are new; returns how long the rest has to wait.
    pub(crate) fn write(&mut self) -> Option<Duration> {
        // It does not block: nothing is read from a bell that is silent.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        let now = Instant::now();
        self.quiet.retain(|_, until| *until > now);
        let mut rest = None;
        for export in &self.live.now().exports {
            let Some(faults) = export.disk().faults() else { continue };
            faults.ring_at(&self.bell);
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

    /// Write all that is left: nobody will any more.
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
            let error =
                errno.map_or_else(|| "the file ends before the disk does: something else has cut it".to_owned(), describe);
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

fn describe(errno: Errno) -> String {
    format!("{}, {}", errno_name(errno), io::Error::from(errno))
}

/// `errors`, by operation, and `stalled`; `null` for a disk that has none.
pub(crate) fn counts(disk: &AnyDisk) -> (Value, Value) {
    let Some(faults) = disk.faults() else { return (Value::Null, Value::Null) };
    let errors: Map<_, _> = faults.counts().map(|(operation, count)| (operation.to_owned(), json!(count))).collect();
    (errors.into(), faults.stalled_now().into())
}

/// As [`counts`], in one object for each disk that can have any.
pub(crate) fn totals(live: &Live) -> Value {
    let served = live.now();
    let can_fail = served.exports.iter().filter(|export| export.disk().faults().is_some());
    let disks = can_fail.map(|export| {
        let (errors, stalled) = counts(export.disk());
        json!({ "disk": export.name(), "errors": errors, "stalled": stalled })
    });
    disks.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_name_words_and_number() {
        assert_eq!(describe(Errno::NOSPC), "ENOSPC, No space left on device (os error 28)");
    }
}
