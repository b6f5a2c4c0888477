//! A thread that answers at sockets: it begins when the daemon serves, and ends before it does.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};

use fipsee_ring::doorbell::EventDoorbell;

pub(crate) struct ServiceThread {
    begin: Sender<()>,
    stop: Arc<EventDoorbell>,
    thread: JoinHandle<()>,
}

impl ServiceThread {
    /// `run` is called at [`begin`](Self::begin), and returns once `stop` rings.
    pub(crate) fn spawn(name: &str, stop: Arc<EventDoorbell>, run: impl FnOnce() + Send + 'static) -> std::io::Result<Self> {
        let (begin, begun) = channel();
        let run = move || {
            if begun.recv().is_ok() {
                run();
            }
        };
        Ok(Self { begin, stop, thread: Builder::new().name(name.to_owned()).spawn(run)? })
    }

    pub(crate) fn begin(&self) {
        let _ = self.begin.send(());
    }

    /// End, without waiting for clients; a request that is being carried out is finished.
    pub(crate) fn stop(self) {
        let Self { begin, stop, thread } = self;
        drop(begin);
        stop.ring();
        let _ = thread.join();
    }
}
