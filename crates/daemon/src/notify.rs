//! Notifications to the service manager (sd_notify(3)). Without one, nothing happens.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// The daemon serves, or serves again after a reload.
pub(crate) fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// A reload begins; [`ready`] ends it, whether it succeeded or not.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "the service manager is not notified of the reload: no monotonic clock"),
    }
}

/// Something else is served from now on.
pub(crate) fn status(status: &str) {
    notify(&[NotifyState::Status(status)]);
}

pub(crate) fn stopping(status: &str) {
    notify(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// Another process is the daemon from now on.
pub(crate) fn handed_over(pid: i32) {
    // 0: this process does not see it.
    if let Some(pid) = u32::try_from(pid).ok().filter(|pid| *pid > 0) {
        notify(&[NotifyState::MainPid(pid)]);
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager at NOTIFY_SOCKET cannot be notified");
    }
}

/// Keep-alive messages for a service manager that expects them (WatchdogSec=), sent by the thread that is watched.
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// Half of the watchdog's timeout.
    interval: Option<Duration>,
    last: Instant,
}

impl Watchdog {
    pub(crate) fn from_environment() -> Self {
        Self { interval: sd_notify::watchdog_enabled().map(|timeout| timeout / 2), last: Instant::now() }
    }

    /// How long the thread may sleep, if there is a watchdog.
    pub(crate) fn longest_sleep(&self) -> Option<Duration> {
        self.interval.map(|interval| interval.saturating_sub(self.last.elapsed()))
    }

    pub(crate) fn beat(&mut self) {
        if self.interval.is_some_and(|interval| self.last.elapsed() >= interval) {
            self.last = Instant::now();
            notify(&[NotifyState::Watchdog]);
        }
    }
}
