//! The next daemon, started while the kernel still ends the one that was killed.

use super::{Daemon, forget, launch};

impl Daemon {
    /// Kill it, and start another one in its place at once.
    #[track_caller]
    pub(crate) fn kill_9_and_start_at_once(&mut self) {
        self.child.kill().expect("a child can be killed");
        let new = launch(&self.dir, &self.prefix, &self.arguments);
        let mut old = std::mem::replace(&mut self.child, new);
        // Only now: whoever connected before might have found the old one's socket.
        old.wait().expect("a child can be awaited");
        forget(&old);
        self.await_ready();
    }
}
