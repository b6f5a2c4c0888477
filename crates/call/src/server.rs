//! Serving a service.

use std::marker::PhantomData;
use std::path::Path;
use std::time::Duration;

use fipsee_ring::notify::Policy;
use fipsee_ring::tuning::Choices;
use fipsee_ring::wait::{DEFAULT_LOOK, WaitMode};
use fipsee_ring::{Message, clock};
pub use fipsee_serve::session::Credentials;
use fipsee_topology::cache::choices_here;

use crate::error::Error;
use crate::payload::Payload;
use crate::raw::{RawServer, RawWorker, Stopper, Taken};
use crate::service::{Service, from_message, sizes_of, to_message};

/// Decides whether a client may call.
pub type Allow = Box<dyn Fn(&Credentials) -> bool + Send>;

/// How to serve.
pub struct ServerOptions {
    /// Clients at a time.
    pub max_clients: usize,
    /// Calls that one client may have outstanding, at most 4096.
    pub max_depth: u32,
    /// Bytes of payload with each request, rounded up to 64; 0 for none. Every call that may be outstanding has its own:
    /// a client costs `max_depth` times both payloads of shared memory, once it used them.
    pub request_payload_bytes: u32,
    /// Bytes of payload with each reply.
    pub reply_payload_bytes: u32,
    /// How workers wait for calls.
    pub wait: WaitMode,
    /// In adaptive mode, how long to look before sleeping.
    pub look: Duration,
    /// Permissions of the socket.
    pub socket_mode: u32,
    /// How the server's ends of the rings go about their work, and what it advises clients (docs/protocol.md section 2.6).
    pub choices: Choices,
    /// When clients that sleep are woken for replies; `None`: at once.
    pub notify: Option<Policy>,
    /// The users that may call; `None`: the server's own user, and root.
    pub allow: Option<Allow>,
}

impl Default for ServerOptions {
    /// 1000 clients of depth 256 without payload, for this user and root; adaptive waiting; the choices that `fipsee topology` measured, where
    /// its file can be read, else those of this CPU's family.
    fn default() -> Self {
        Self {
            max_clients: 1000,
            max_depth: 256,
            request_payload_bytes: 0,
            reply_payload_bytes: 0,
            wait: WaitMode::Adaptive,
            look: DEFAULT_LOOK,
            socket_mode: 0o666,
            choices: choices_here(),
            notify: None,
            allow: None,
        }
    }
}

/// A service at a socket.
///
/// Clients are accepted once a thread serves: [`serve`](Self::serve) on this thread, or a [`worker`](Self::worker) for each of
/// several. Dropped, it hangs up on all clients at once and ends its workers' loops; [`Stopper::stop`] lets them finish.
pub struct Server<S> {
    raw: RawServer,
    service: PhantomData<fn() -> S>,
}

impl<S: Service> Server<S> {
    /// Serve at `socket_path`, with default options.
    pub fn bind(socket_path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::bind_with(socket_path.as_ref(), ServerOptions::default())
    }

    /// Serve at `socket_path`. A socket that an ended server left there is taken over.
    ///
    /// # Errors
    /// [`CallError::Serve`](crate::CallError::Serve) when another server listens there, the directory cannot be used, or the
    /// options cannot be met;
    /// [`Error::Io`] when the process has no descriptor or thread left.
    pub fn bind_with(socket_path: &Path, options: ServerOptions) -> Result<Self, Error> {
        let raw = RawServer::bind(socket_path, S::NAME, const { sizes_of::<S>() }, options)?;
        Ok(Self { raw, service: PhantomData })
    }

    /// One more thread's share of the clients.
    ///
    /// # Errors
    /// [`Error::Io`] when the process has no descriptor left.
    pub fn worker(&self) -> Result<Worker<S>, Error> {
        Ok(Worker { raw: self.raw.worker()?, service: PhantomData })
    }

    /// For stopping it from elsewhere.
    pub fn stopper(&self) -> Stopper {
        self.raw.stopper()
    }

    /// Answer calls on this thread until the server is stopped.
    pub fn serve(&self, handler: impl FnMut(S::Request, &Call<'_>) -> S::Reply) -> Result<(), Error> {
        self.worker()?.serve(handler);
        Ok(())
    }
}

/// What a handler may know of a call besides the request.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The client's number: no two clients of a server have the same.
    pub client: u64,
    /// The client's credentials.
    pub credentials: &'a Credentials,
    /// What came with the request.
    pub request_payload: Payload<'a>,
    /// What goes with the reply.
    pub reply_payload: Payload<'a>,
}

/// One thread's share of a service: answers the calls of its clients in turn.
pub struct Worker<S> {
    raw: RawWorker,
    service: PhantomData<fn() -> S>,
}

impl<S: Service> Worker<S> {
    /// Answer calls until the server is stopped.
    pub fn serve(&mut self, mut handler: impl FnMut(S::Request, &Call<'_>) -> S::Reply) {
        while self.serve_until(None, &mut handler) != Taken::Stopped {}
    }

    /// Answer one call, waiting for it no longer than `timeout`: for threads that have other things to do.
    pub fn serve_one(&mut self, timeout: Duration, mut handler: impl FnMut(S::Request, &Call<'_>) -> S::Reply) -> Taken {
        let deadline_ticks = clock::ticks().saturating_add(clock::duration_to_ticks(timeout));
        self.serve_until(Some(deadline_ticks), &mut handler)
    }

    #[inline(always)]
    fn serve_until(&mut self, deadline_ticks: Option<u64>, handler: &mut impl FnMut(S::Request, &Call<'_>) -> S::Reply) -> Taken {
        let mut message = Message::ZERO;
        let taken = self.raw.take(&mut message, deadline_ticks);
        if taken != Taken::Call {
            return taken;
        }
        let request = from_message::<S::Request>(&message);
        let (Some(request), Some(call)) = (request, self.raw.call()) else {
            self.raw.refuse(
                "a message on the request ring is no request of this service; build client and server with the same types",
            );
            return Taken::Call;
        };
        let reply = to_message(&handler(request, &call));
        self.raw.reply(&reply);
        Taken::Call
    }
}
