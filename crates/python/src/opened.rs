//! What disks and ports have in common: the process that opened them, attaching again, and their end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fipsee_ring::error::Error;
use fipsee_ring::port::ReconnectPolicy;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::wait::check_signals;

/// Pause between attempts to reconnect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(20);

/// The number of forks between the first process and this one.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// For os.register_at_fork: what was opened before belongs to the parent.
#[pyfunction]
#[pyo3(name = "_forked")]
pub(crate) fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The process that opened something.
pub(crate) struct Opener {
    /// "disk" or "port".
    what: &'static str,
    generation: u64,
}

impl Opener {
    /// This process opens it.
    pub(crate) fn this(what: &'static str) -> Self {
        Self { what, generation: GENERATION.load(Ordering::Relaxed) }
    }

    /// Is this a child of that process?
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation != GENERATION.load(Ordering::Relaxed)
    }

    pub(crate) fn check(&self) -> PyResult<()> {
        if self.is_inherited() {
            let what = self.what;
            let text = format!("the {what} was opened before fork, by the parent; open it in this process");
            return Err(PyValueError::new_err(text));
        }
        Ok(())
    }
}

/// After the daemon was lost: attach again, for so long, with signal handlers in between.
pub(crate) fn keep_trying<E: From<PyErr>>(
    give_up_after: Duration,
    mut attempt: impl FnMut() -> Result<(), E>,
    is_transient: impl Fn(&E) -> bool,
) -> Result<(), E> {
    let policy = ReconnectPolicy { give_up_after, pause_first: RECONNECT_PAUSE, pause_max: RECONNECT_PAUSE };
    let attempt = || {
        check_signals()?;
        attempt()
    };
    policy.keep_trying(attempt, is_transient, &mut |_| {})
}

/// What came of detaching: a daemon that is gone has detached, too.
pub(crate) fn detached<S>(outcome: Result<(), Error<S>>) -> Result<(), Error<S>> {
    if matches!(outcome, Err(Error::Disconnected)) { Ok(()) } else { outcome }
}

/// What a call raises that comes after close.
pub(crate) fn closed(what: &str) -> PyErr {
    PyValueError::new_err(format!("the {what} is closed; open it again"))
}
