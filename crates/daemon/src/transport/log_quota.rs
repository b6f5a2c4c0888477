//! Keeping clients from filling the log.

use std::time::{Duration, Instant};

/// Lines per second that clients may cause in the log; more are counted and left out.
const LOG_LINES_PER_SECOND: u32 = 50;

/// The recent log lines of one transport about its clients.
#[derive(Debug, Default)]
pub(crate) struct LogQuota {
    second: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl LogQuota {
    pub(crate) fn allows(&mut self) -> bool {
        if self.second.is_none_or(|second| second.elapsed() >= Duration::from_secs(1)) {
            if self.left_out > 0 {
                tracing::warn!(lines = self.left_out, "lines about clients were left out");
            }
            *self = Self { second: Some(Instant::now()), lines: 0, left_out: 0 };
        }
        self.lines += 1;
        let allowed = self.lines <= LOG_LINES_PER_SECOND;
        self.left_out += u64::from(!allowed);
        allowed
    }
}
