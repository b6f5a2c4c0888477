//! Progress on standard error, and the end by a signal.

use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::error::Error;

/// A bar, where standard error is a terminal, and the signal that ends the measurement.
pub(super) struct Progress {
    bar: ProgressBar,
    is_stopped: Arc<AtomicBool>,
    directory: String,
}

impl Progress {
    /// From here on the first signal is kept for [`check`](Self::check), and a second one ends the process.
    pub(super) fn start(directory: &Path) -> Result<Self, Error> {
        let is_stopped = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag unset.
            let second = signal_hook::flag::register_conditional_default(signal, Arc::clone(&is_stopped));
            let first = second.and_then(|_| signal_hook::flag::register(signal, Arc::clone(&is_stopped)));
            first.map_err(|error| Error::io("watch for signals", &error))?;
        }
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {percent} % {eta}") {
            bar.set_style(style);
        }
        bar.set_message("measuring");
        Ok(Self { bar, is_stopped, directory: directory.display().to_string() })
    }

    /// Expect this many measurements.
    pub(super) fn expect(&self, measurements: u64) {
        self.bar.set_length(measurements);
    }

    /// One measurement is done.
    pub(super) fn step(&self) {
        self.bar.inc(1);
    }

    /// All measurements are done, or as many as time allowed.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }

    /// Did a signal come?
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.is_stopped.load(Ordering::Relaxed) { Err(self.stopped()) } else { Ok(()) }
    }

    /// The error of a failed measurement: Ctrl-C ends the second process, too, which is no fault.
    pub(super) fn explain(&self, error: Error) -> Error {
        if self.is_stopped.load(Ordering::Relaxed) { self.stopped() } else { error }
    }

    fn stopped(&self) -> Error {
        self.bar.finish_and_clear();
        format!("stopped by a signal; nothing was written to {}, repeat the command for a report", self.directory).into()
    }
}
