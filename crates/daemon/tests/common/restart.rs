//! The next daemon, started while the kernel still tears down the killed one.

use super::{Daemon, forget, launch};

impl Daemon {
    /// Kill the daemon, and start another one in its place at once.
    #[track_caller]
    pub(crate) fn kill_9_and_start_at_once(&mut self) {
        self.child.kill().expect("a child can be killed");
        let new = launch(&self.dir, &self.prefix, &self.arguments);
        let mut old = std::mem::replace(&mut self.child, new);
        // Only now: a client that connected before might have found the old daemon's socket.
        old.wait().expect("a child can be awaited");
        forget(&old);
        self.await_ready();
    }
}
