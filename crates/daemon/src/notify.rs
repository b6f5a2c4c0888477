//! What the service manager is told (sd_notify(3)). Without one, nothing happens.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// Says that the daemon serves, or serves again after a reload.
pub(crate) fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Says that a reload begins; [`ready`] ends it, whatever came of it.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "the service manager is not told of the reload: no monotonic clock"),
    }
}

/// Says that the daemon is going.
pub(crate) fn stopping(status: &str) {
    notify(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// Says that another process is the daemon from now on.
pub(crate) fn handed_over(pid: i32) {
    if let Ok(pid) = u32::try_from(pid) {
        notify(&[NotifyState::MainPid(pid)]);
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager at NOTIFY_SOCKET cannot be told how the daemon is");
    }
}

/// Signs of life for a service manager that wants them (WatchdogSec=). The thread that must be alive gives them itself.
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// Half of the time after which we would be taken for dead.
    interval: Option<Duration>,
    last: Instant,
}

impl Watchdog {
    pub(crate) fn from_environment() -> Self {
        Self { interval: sd_notify::watchdog_enabled().map(|timeout| timeout / 2), last: Instant::now() }
    }

    /// How long the thread may sleep, if that matters to anyone.
    pub(crate) fn longest_sleep(&self) -> Option<Duration> {
        self.interval.map(|interval| interval.saturating_sub(self.last.elapsed()))
    }

    /// A sign of life, when one is due.
    pub(crate) fn beat(&mut self) {
        if self.interval.is_some_and(|interval| self.last.elapsed() >= interval) {
            self.last = Instant::now();
            notify(&[NotifyState::Watchdog]);
        }
    }
}
