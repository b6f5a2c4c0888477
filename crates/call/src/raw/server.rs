//! Serving: the socket and its clients.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use fipsee_ring::channel::{MAX_DEPTH, MAX_POOL_BYTES};
use fipsee_ring::control::MAX_NAME_BYTES;
use fipsee_ring::mailbox::Mailbox;
use fipsee_ring::wait::Backoff;
use fipsee_serve::Groups;
use fipsee_serve::unix::listener::Listener;
use rustix::net::SocketType;

use super::clients::{Clients, Event, Serving};
use super::worker::RawWorker;
use crate::error::{CallError, Error};
use crate::server::ServerOptions;
use crate::wire::{MAX_VALUE_BYTES, PAYLOAD_UNIT_BYTES, ServiceInfo};

/// A service at a socket. Clients are accepted once it has a [`worker`](Self::worker). Dropped, it hangs up on all clients
/// at once and ends its workers' loops; [`Stopper::stop`] lets them finish.
pub struct RawServer {
    info: ServiceInfo,
    wait: (fipsee_ring::wait::WaitMode, std::time::Duration),
    events: Arc<Mailbox<Event>>,
    thread: Option<JoinHandle<()>>,
    next_worker: AtomicUsize,
}

impl RawServer {
    /// Serve `name` at `socket_path`, with requests and replies of these lengths in bytes.
    ///
    /// # Errors
    /// [`CallError::Serve`] when the socket cannot be had or the sizes cannot be served; [`Error::Io`] when the process has no
    /// descriptor or thread left.
    pub fn bind(
        socket_path: &Path,
        name: &str,
        (request_bytes, reply_bytes): (u32, u32),
        options: ServerOptions,
    ) -> Result<Self, Error> {
        let socket_mode = options.socket_mode;
        let (mut server, serving) = Self::without_socket(name, (request_bytes, reply_bytes), options)?;
        let listener = Listener::bind(socket_path, SocketType::SEQPACKET, socket_mode);
        let listener = listener.map_err(|text| Error::Service(CallError::Serve(text)))?;
        let looking = Clients::new(serving, listener).map_err(no_descriptor)?;
        let thread = std::thread::Builder::new().name("fip-call-clients".to_owned()).spawn(move || looking.run());
        server.thread = Some(thread.map_err(|source| Error::Io { context: "start the thread that accepts clients", source })?);
        Ok(server)
    }

    /// A server without a socket: the caller adds clients to the sessions of the `Serving` returned beside it.
    #[doc(hidden)]
    pub fn without_socket(
        name: &str,
        (request_bytes, reply_bytes): (u32, u32),
        options: ServerOptions,
    ) -> Result<(Self, Serving), Error> {
        options.wait.available()?;
        let max_depth = options.max_depth.min(MAX_DEPTH);
        let payload_bytes = |bytes: u32| bytes.checked_next_multiple_of(PAYLOAD_UNIT_BYTES).unwrap_or(u32::MAX);
        let info = ServiceInfo {
            request_bytes,
            reply_bytes,
            request_payload_bytes: payload_bytes(options.request_payload_bytes),
            reply_payload_bytes: payload_bytes(options.reply_payload_bytes),
        };
        let refused = |text| Err(Error::Service(CallError::Serve(text)));
        let (name_bytes, call_bytes) = (name.len(), info.pool_bytes(1));
        if name.is_empty() || name_bytes > MAX_NAME_BYTES || name.contains('\0') {
            return refused(format!(
                "the name '{name}' has {name_bytes} bytes; a name has 1 to {MAX_NAME_BYTES}, none of them 0"
            ));
        }
        if request_bytes > MAX_VALUE_BYTES || reply_bytes > MAX_VALUE_BYTES {
            return refused(format!(
                "requests of {request_bytes} and replies of {reply_bytes} bytes; at most {MAX_VALUE_BYTES} fit a message, send the rest as payload"
            ));
        }
        if info.pool_bytes(max_depth) > MAX_POOL_BYTES || max_depth == 0 {
            return refused(format!(
                "{max_depth} calls with {call_bytes} bytes of payload each; a client has at least one call and at most {MAX_POOL_BYTES} bytes: choose a smaller depth or payload"
            ));
        }
        let events = Arc::new(Mailbox::new().map_err(no_descriptor)?);
        let serving = Serving {
            name: name.into(),
            info,
            max_clients: options.max_clients,
            max_depth,
            // By default: the server's own user, and root.
            allow: options.allow.unwrap_or_else(|| Box::new(|user| [0, rustix::process::geteuid().as_raw()].contains(&user.uid))),
            choices: options.choices,
            workers: BTreeMap::new(),
            clients: 0,
            groups: Groups::default(),
            events: Arc::clone(&events),
            ending: None,
        };
        Ok((Self { info, wait: (options.wait, options.look), events, thread: None, next_worker: AtomicUsize::new(0) }, serving))
    }

    /// One more thread's share of the clients. New ones go to the worker with the fewest.
    ///
    /// # Errors
    /// [`Error::Io`] when the process has no descriptor left.
    pub fn worker(&self) -> Result<RawWorker, Error> {
        let (wait, look) = self.wait;
        let id = self.next_worker.fetch_add(1, Ordering::Relaxed);
        RawWorker::new(id, self.info, Backoff::new(wait, look), Arc::clone(&self.events))
            .map_err(|source| Error::Io { context: "make a worker", source })
    }

    /// For stopping it from elsewhere.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.events))
    }
}

fn no_descriptor(source: std::io::Error) -> Error {
    Error::Io { context: "serve calls", source }
}

impl Drop for RawServer {
    fn drop(&mut self) {
        self.events.send(Event::Abort);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Stops a server, from any thread.
#[derive(Clone)]
pub struct Stopper(Arc<Mailbox<Event>>);

impl Stopper {
    /// Accept no new clients, answer what clients have published, let them go, and end the workers' loops. Returns at once.
    pub fn stop(&self) {
        self.0.send(Event::Stop);
    }
}
