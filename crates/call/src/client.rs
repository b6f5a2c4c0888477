//! Calling a service.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use fipsee_ring::wait::{DEFAULT_LOOK, WaitMode};
use fipsee_ring::{Message, PeerFault, clock};

use crate::error::Error;
use crate::payload::Payload;
use crate::raw::RawClient;
use crate::service::{Service, from_message, sizes_of, to_message};

/// How to connect.
#[derive(Clone, Copy, Debug)]
pub struct ConnectOptions {
    /// Calls outstanding at a time; the server may grant fewer.
    pub depth: u32,
    /// How to wait for replies.
    pub wait: WaitMode,
    /// In adaptive mode, how long to look before sleeping.
    pub look: Duration,
}

impl Default for ConnectOptions {
    /// 64 calls outstanding, adaptive waiting.
    fn default() -> Self {
        Self { depth: 64, wait: WaitMode::Adaptive, look: DEFAULT_LOOK }
    }
}

/// A connection to a service: one channel, for one thread at a time. Other threads connect, too.
///
/// [`call`](Self::call) waits for its reply. Or: [`start`](Self::start) several, [`submit`](RawClient::submit) them together, and
/// take the replies, which come in the order of the calls, by [`poll`](Self::poll) or [`wait`](Self::wait), which fail as `call`
/// does.
#[derive(Debug)]
pub struct Client<S> {
    raw: RawClient,
    service: PhantomData<fn() -> S>,
}

impl<S: Service> Client<S> {
    /// Connect to the server at `socket_path`.
    pub fn connect(socket_path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::connect_with(socket_path.as_ref(), &ConnectOptions::default())
    }

    /// Connect with options.
    ///
    /// # Errors
    /// [`Error::Connect`] when nothing listens, [`Error::Refused`] with the server's words (another service or version, not
    /// allowed, too many clients), [`CallError::OtherTypes`](crate::CallError::OtherTypes), and whatever else can go wrong with a
    /// peer or the system.
    pub fn connect_with(socket_path: &Path, options: &ConnectOptions) -> Result<Self, Error> {
        let raw = RawClient::connect(socket_path, S::NAME, options)?;
        let (request_bytes, reply_bytes) = const { sizes_of::<S>() };
        raw.expect_sizes(request_bytes, reply_bytes)?;
        Ok(Self { raw, service: PhantomData })
    }

    /// The payload of the reply that was taken last.
    pub fn reply_payload(&self) -> Payload<'_> {
        self.raw.reply_payload(0)
    }

    /// Call and wait for the reply.
    ///
    /// # Errors
    /// [`CallError::RepliesDue`](crate::CallError::RepliesDue) when replies to started calls were not taken;
    /// [`Error::Disconnected`] when the server died,
    /// [`Error::Refused`] with its words when it closed the channel; [`Error::Fault`] when it broke the protocol. After the
    /// last three the call may or may not have been carried out; connect again.
    #[inline(always)]
    pub fn call(&mut self, request: &S::Request) -> Result<S::Reply, Error> {
        self.call_until(request, None)
    }

    /// As [`call`](Self::call), but wait no longer than `timeout`.
    ///
    /// # Errors
    /// As [`call`](Self::call), and [`Error::TimedOut`]: then its reply is still due, to be taken by
    /// [`wait`](Self::wait).
    pub fn call_timeout(&mut self, request: &S::Request, timeout: Duration) -> Result<S::Reply, Error> {
        self.call_until(request, deadline_ticks(timeout))
    }

    #[inline(always)]
    fn call_until(&mut self, request: &S::Request, deadline_ticks: Option<u64>) -> Result<S::Reply, Error> {
        let mut reply = Message::ZERO;
        self.raw.call(&to_message(request), deadline_ticks, &mut reply)?;
        self.value(&reply)
    }

    #[inline(always)]
    fn value(&self, reply: &Message) -> Result<S::Reply, Error> {
        from_message(reply)
            .ok_or_else(|| self.raw.close_for(PeerFault::Value { what: "a reply that begins", value: reply.word(0) }))
    }

    /// Start a call; [`submit`](RawClient::submit) publishes it.
    ///
    /// # Errors
    /// [`Error::Full`] when as many are outstanding as the channel takes.
    #[inline(always)]
    pub fn start(&mut self, request: &S::Request) -> Result<(), Error> {
        self.raw.start(&to_message(request))
    }

    /// Hand every reply that is there to `done`, with its payload; returns how many. Never blocks.
    #[inline(always)]
    pub fn poll(&mut self, done: &mut impl FnMut(S::Reply, Payload<'_>)) -> Result<u32, Error> {
        let mut message = Message::ZERO;
        let mut count = 0;
        while self.raw.poll(&mut message)? {
            done(self.value(&message)?, self.raw.reply_payload(0));
            count += 1;
        }
        Ok(count)
    }

    /// Publish what was started, wait until at least one reply is there, and hand those there are to `done`; returns how many: 0
    /// at once when nothing is outstanding.
    #[inline(always)]
    pub fn wait(&mut self, done: &mut impl FnMut(S::Reply, Payload<'_>)) -> Result<u32, Error> {
        self.wait_until(None, done)
    }

    /// As [`wait`](Self::wait), but returns 0 when nothing came within `timeout`.
    pub fn wait_timeout(&mut self, timeout: Duration, done: &mut impl FnMut(S::Reply, Payload<'_>)) -> Result<u32, Error> {
        self.wait_until(deadline_ticks(timeout), done)
    }

    #[inline(always)]
    fn wait_until(&mut self, deadline_ticks: Option<u64>, done: &mut impl FnMut(S::Reply, Payload<'_>)) -> Result<u32, Error> {
        let mut message = Message::ZERO;
        if !self.raw.wait(deadline_ticks, &mut message)? {
            return Ok(0);
        }
        done(self.value(&message)?, self.raw.reply_payload(0));
        Ok(1 + self.poll(done)?)
    }
}

fn deadline_ticks(timeout: Duration) -> Option<u64> {
    Some(clock::ticks().saturating_add(clock::duration_to_ticks(timeout)))
}

/// What does not depend on the types: the depth, payloads, publishing, event loops.
impl<S> Deref for Client<S> {
    type Target = RawClient;

    fn deref(&self) -> &RawClient {
        &self.raw
    }
}

impl<S> DerefMut for Client<S> {
    fn deref_mut(&mut self) -> &mut RawClient {
        &mut self.raw
    }
}

impl<S> AsFd for Client<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raw.as_fd()
    }
}
