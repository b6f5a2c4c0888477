//! SIGINT and SIGTERM while a command works: the first asks it to end early and to report what it did, the second ends it at once.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::{Error, exit_code_of_signal};

/// Whether the command has been asked to end.
#[derive(Debug)]
pub(crate) struct Interrupt {
    /// The first signal, or 0.
    signal: Arc<AtomicI32>,
    /// Hung up after it.
    asked: UnixStream,
}

impl Interrupt {
    /// Watch from now on. `at_first` and `at_second` run in a thread of their own, the second before the process ends.
    pub(crate) fn watch(
        at_first: impl FnOnce() + Send + 'static,
        at_second: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<Self>, Error> {
        let cannot = |error: io::Error| Error::io("watch for signals", &error);
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(cannot)?;
        let (asked, ask) = UnixStream::pair().map_err(cannot)?;
        let signal = Arc::new(AtomicI32::new(0));
        let first = Arc::clone(&signal);
        let watch = move || {
            let mut arrived = signals.forever();
            if let Some(number) = arrived.next() {
                first.store(number, Ordering::Relaxed);
                drop(ask);
                at_first();
            }
            if let Some(number) = arrived.next() {
                at_second();
                std::process::exit(exit_code_of_signal(number).into());
            }
        };
        std::thread::Builder::new().name("fip-signals".to_owned()).spawn(watch).map_err(cannot)?;
        Ok(Arc::new(Self { signal, asked }))
    }

    /// The signal that asked.
    pub(crate) fn signal(&self) -> Option<i32> {
        Some(self.signal.load(Ordering::Relaxed)).filter(|number| *number != 0)
    }

    /// Wait until `file` can be read, or its end; returns `false` when a signal came first.
    pub(crate) fn wait_to_read(&self, file: &impl AsFd) -> io::Result<bool> {
        loop {
            let mut fds = [PollFd::new(&self.asked, PollFlags::IN), PollFd::new(file, PollFlags::IN)];
            match rustix::event::poll(&mut fds, None) {
                Ok(_) if !fds[0].revents().is_empty() => return Ok(false),
                Ok(_) if !fds[1].revents().is_empty() => return Ok(true),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
