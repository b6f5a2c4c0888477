//! Distinguishing the process that opened a disk from its children: two processes on one ring would corrupt it.

use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

use crate::failure::Failure;

/// Number of fork()s between the first process and this one.
static GENERATION: AtomicU64 = AtomicU64::new(0);

type Handler = Option<extern "C" fn()>;

unsafe extern "C" {
    fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> c_int;
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The process that made a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opener(u64);

impl Opener {
    /// This process.
    pub(crate) fn this() -> Self {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            // SAFETY: the handler only adds to an atomic, which is allowed between fork() and exec. Failure (no memory)
            // costs the check, nothing else.
            let _ = unsafe { pthread_atfork(None, None, Some(in_child)) };
        });
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Fail in a child of the process that made the handle.
    #[inline(always)]
    pub(crate) fn check(self) -> Result<(), Failure> {
        if self.0 == GENERATION.load(Ordering::Relaxed) { Ok(()) } else { Err(forked()) }
    }
}

#[cold]
fn forked() -> Failure {
    Failure::new(Errno::PERM, "this was opened before fork(), and belongs to the parent; open it again in this process")
}
