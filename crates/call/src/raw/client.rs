//! The calling end of a channel.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fipsee_ring::channel::ClientQueue;
use fipsee_ring::control::Control;
use fipsee_ring::handshake::{self, Attached, Wanted};
use fipsee_ring::pace::{CallerPace, let_answers_gather};
use fipsee_ring::region::Region;
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_ring::wait::{Backoff, Next};
use fipsee_ring::{Message, PeerFault, clock};

use crate::client::ConnectOptions;
use crate::error::Error;
use crate::payload::Payload;
use crate::wire::{PROFILE, Place, SERVICE_CALLS, ServiceInfo};

/// How many empty looks may pass before a polling client asks the kernel whether the server still lives: a few
/// milliseconds, far below the 100 ms in which a death must be noticed.
const LOOKS_PER_LIVENESS_CHECK: u32 = 4096;

/// A server that closes a channel hangs up on its doorbell and then says why. One that was killed says nothing, and is not
/// waited for: its end of the socket is closed.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection to a service, for one thread at a time.
#[derive(Debug)]
pub struct RawClient {
    queue: ClientQueue,
    control: Seqpacket,
    region: Arc<Region>,
    pool_offset_bytes: u64,
    info: ServiceInfo,
    backoff: Backoff,
    depth: u32,
    /// Calls started and not yet published.
    staged: Vec<Message>,
    /// Where the next call to be started has its payloads, and the next reply to be taken.
    next_start: Place,
    next_reply: Place,
    looks: u32,
    pace: CallerPace,
}

impl RawClient {
    /// Connect to the service `name` at `socket_path`.
    ///
    /// # Errors
    /// [`Error::Connect`] when nobody listens, [`Error::Refused`] with the server's words, and whatever else can go wrong
    /// with a peer or the system.
    pub fn connect(socket_path: &Path, name: &str, options: &ConnectOptions) -> Result<Self, Error> {
        options.wait.available()?;
        let depth = options.depth;
        let wanted = Wanted { service: SERVICE_CALLS, queue_count: 1, depth, flags: 0, pool_bytes: 0, name };
        let Attached { control, region, layout, service_info, mut queues } =
            handshake::attach(socket_path, 0, &PROFILE, &wanted)?;
        let info = ServiceInfo::from_bytes(&service_info)?;
        let (Some(queue), Some(geometry), true) = (queues.pop(), layout.queues.first(), queues.is_empty()) else {
            return Err(PeerFault::Count { what: "queues", value: layout.queues.len() as u64, limit: 1 }.into());
        };
        if info.pool_bytes(geometry.depth) > layout.pool_bytes {
            return Err(PeerFault::OutOfRegion {
                what: "payloads",
                offset_bytes: layout.pool_offset_bytes,
                length_bytes: info.pool_bytes(geometry.depth),
                region_bytes: layout.region_bytes,
            }
            .into());
        }
        let depth = geometry.depth;
        Ok(Self {
            pace: CallerPace::new(&queue.tuning),
            queue,
            control,
            region,
            pool_offset_bytes: layout.pool_offset_bytes,
            info,
            backoff: Backoff::new(options.wait, options.look),
            depth,
            staged: Vec::with_capacity(depth as usize),
            next_start: Place::first(depth),
            next_reply: Place::first(depth),
            looks: 0,
        })
    }

    /// Are the values at the server as long as these?
    ///
    /// # Errors
    /// [`Error::OtherTypes`] when they are not.
    pub fn expect_sizes(&self, request_bytes: u32, reply_bytes: u32) -> Result<(), Error> {
        let pairs = [("a request", self.info.request_bytes, request_bytes), ("a reply", self.info.reply_bytes, reply_bytes)];
        match pairs.into_iter().find(|(_, theirs_bytes, ours_bytes)| theirs_bytes != ours_bytes) {
            Some((what, theirs_bytes, ours_bytes)) => Err(Error::OtherTypes { what, theirs_bytes, ours_bytes }),
            None => Ok(()),
        }
    }

    /// What the server says of the service.
    #[must_use]
    pub const fn info(&self) -> ServiceInfo {
        self.info
    }

    /// Calls that can be outstanding at a time; the server may have granted fewer than wanted.
    #[must_use]
    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// Calls started whose replies were not taken.
    #[must_use]
    #[inline(always)]
    pub fn outstanding(&self) -> u32 {
        self.queue.requests.outstanding() + u32::try_from(self.staged.len()).unwrap_or(u32::MAX)
    }

    /// The payload of the next call to be started: fill it before that.
    ///
    /// # Errors
    /// [`Error::Full`]: the payload's place still belongs to a call that is outstanding.
    pub fn request_payload(&self) -> Result<Payload<'_>, Error> {
        if self.outstanding() >= self.depth {
            return Err(Error::Full);
        }
        let (offset_bytes, _) = self.next_start.offsets_bytes(&self.info);
        Ok(Payload::new(&self.region, self.pool_offset_bytes + offset_bytes, self.info.request_payload_bytes))
    }

    /// The payload of a reply that was taken: the newest when `age` is 0, the one before it when 1. It stays until `depth`
    /// calls have been started after its call.
    #[must_use]
    pub fn reply_payload(&self, age: u32) -> Payload<'_> {
        let place = self.next_reply.back(1 + age.min(self.depth - 1));
        let (_, offset_bytes) = place.offsets_bytes(&self.info);
        Payload::new(&self.region, self.pool_offset_bytes + offset_bytes, self.info.reply_payload_bytes)
    }

    /// Start a call; [`submit`](Self::submit) publishes it.
    ///
    /// # Errors
    /// [`Error::Full`] when as many calls are outstanding as the channel takes.
    #[inline(always)]
    pub fn start(&mut self, request: &Message) -> Result<(), Error> {
        if self.outstanding() >= self.depth {
            return Err(Error::Full);
        }
        self.staged.push(*request);
        self.next_start.advance();
        Ok(())
    }

    /// Publish what was started, in one burst, and wake the server if it sleeps.
    #[inline(always)]
    pub fn submit(&mut self) {
        if !self.staged.is_empty() {
            let published = self.queue.requests.publish_all(&self.staged);
            debug_assert!(published.is_ok(), "no more were staged than the ring takes");
            self.staged.clear();
            self.after_publishing();
        }
    }

    /// Wake the server if it sleeps, and guess when the reply comes.
    #[inline(always)]
    fn after_publishing(&mut self) {
        if self.queue.requests.reader_needs_doorbell() {
            self.queue.daemon_bell.ring();
        }
        if self.queue.requests.outstanding() == 1 {
            self.queue.completions.begin_run();
            if let Some(ownership) = self.pace.begin().and_then(|asked| asked.apply(&mut self.queue.completions)) {
                self.queue.requests.set_ownership(ownership);
            }
        } else {
            self.pace.interrupt();
        }
    }

    /// Call and wait for the reply, at most until `deadline_ticks`.
    ///
    /// # Errors
    /// [`Error::RepliesDue`] when calls are outstanding; [`Error::TimedOut`], after which the reply is due; and as
    /// [`wait`](Self::wait).
    #[inline(always)]
    pub fn call(&mut self, request: &Message, deadline_ticks: Option<u64>, reply: &mut Message) -> Result<(), Error> {
        if self.outstanding() != 0 || self.queue.requests.publish(request).is_err() {
            return Err(Error::RepliesDue { outstanding: self.outstanding() });
        }
        self.queue.requests.prefetch(1);
        self.next_start.advance();
        self.after_publishing();
        if self.await_reply(deadline_ticks, reply)? { Ok(()) } else { Err(Error::TimedOut("the call")) }
    }

    /// Take the next reply if it is there; replies come in the order of the calls. Never blocks.
    ///
    /// # Errors
    /// [`Error::Disconnected`] or [`Error::Refused`] when the server died or closed the channel, which is looked after once
    /// in so many empty looks.
    #[inline(always)]
    pub fn poll(&mut self, reply: &mut Message) -> Result<bool, Error> {
        if self.pace.is_early() {
            return Ok(false);
        }
        if self.take(reply) {
            return Ok(true);
        }
        if self.queue.requests.outstanding() > 0 {
            self.check_liveness_now_and_then()?;
        }
        Ok(false)
    }

    /// Publish what was started and take the next reply, waiting for it at most until `deadline_ticks`; `false` when it did
    /// not come by then, or at once when nothing is outstanding.
    ///
    /// # Errors
    /// [`Error::Disconnected`] when the server died, [`Error::Refused`] with its words when it closed the channel.
    #[inline(always)]
    pub fn wait(&mut self, deadline_ticks: Option<u64>, reply: &mut Message) -> Result<bool, Error> {
        self.submit();
        if self.queue.requests.outstanding() == 0 {
            return Ok(false);
        }
        self.await_reply(deadline_ticks, reply)
    }

    #[inline(always)]
    fn take(&mut self, reply: &mut Message) -> bool {
        // With nothing outstanding, looking would only take the line from the server.
        if self.queue.requests.outstanding() == 0 || !self.queue.completions.receive(reply) {
            return false;
        }
        self.queue.requests.answered();
        self.next_reply.advance();
        true
    }

    #[inline(always)]
    fn await_reply(&mut self, deadline_ticks: Option<u64>, reply: &mut Message) -> Result<bool, Error> {
        self.pace.hold();
        loop {
            if self.take(reply) {
                self.backoff.reset();
                return Ok(true);
            }
            if deadline_ticks.is_some_and(|deadline| clock::ticks() >= deadline) {
                self.backoff.reset();
                return Ok(false);
            }
            match self.backoff.step_watching(true, || Some(self.queue.completions.watch())) {
                Next::Look => {
                    self.check_liveness_now_and_then()?;
                    let_answers_gather(self.queue.requests.outstanding() as usize);
                }
                Next::Sleep => self.sleep(deadline_ticks)?,
            }
        }
    }

    #[inline(always)]
    fn check_liveness_now_and_then(&mut self) -> Result<(), Error> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS_PER_LIVENESS_CHECK) { self.check_liveness() } else { Ok(()) }
    }

    #[cold]
    fn check_liveness(&self) -> Result<(), Error> {
        // What the server published before it died still counts.
        let is_gone = self.queue.completions.is_over(|| self.control.is_hung_up());
        if is_gone { Err(self.obituary()) } else { Ok(()) }
    }

    /// Why the server hung up: it may have said so, or be about to.
    #[cold]
    fn obituary(&self) -> Error {
        let last_words = self.control.receive(LAST_WORDS_TIMEOUT).ok().and_then(|packet| Control::decode(&packet.bytes).ok());
        match last_words {
            Some(Control::Refused { code, text }) => Error::Refused { code, text },
            _ => Error::Disconnected,
        }
    }

    #[cold]
    fn sleep(&mut self, deadline_ticks: Option<u64>) -> Result<(), Error> {
        if !self.arm_and_reply_is_there() {
            let slept = self.queue.sleep(deadline_ticks);
            slept.map_err(|source| Error::Io { context: "wait for the server's doorbell", source })?;
        }
        self.woken()
    }

    /// For event loops: publish what was started and ask to have the descriptor ([`AsFd`]) made readable by the next reply,
    /// then look once more. Only on `false` may the caller wait on the descriptor; afterwards it calls
    /// [`woken`](Self::woken).
    #[must_use = "waiting while a reply is there loses a wake-up"]
    pub fn arm_and_reply_is_there(&mut self) -> bool {
        self.submit();
        self.queue.completions.arm_and_work_remains()
    }

    /// The descriptor became readable, or the wait was given up: silence it.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), when nothing is left to take.
    pub fn woken(&mut self) -> Result<(), Error> {
        self.backoff.reset();
        if self.queue.woken() { Ok(()) } else { Err(self.obituary()) }
    }

    /// Close the channel, because the server broke the protocol.
    #[cold]
    pub fn close_for(&self, fault: PeerFault) -> Error {
        let _ = rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both);
        Error::Fault(fault)
    }
}

impl AsFd for RawClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.our_bell.as_fd()
    }
}
