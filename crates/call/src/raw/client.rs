//! The calling end of a channel.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fipsee_ring::channel::FEATURE_CHOICES;
use fipsee_ring::control::{Control, Refusal, Wanted};
use fipsee_ring::doorbell::DoorbellCounts;
use fipsee_ring::handshake::{self, AttachedChannel};
use fipsee_ring::port::Port;
use fipsee_ring::region::Region;
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_ring::tuning::Choices;
use fipsee_ring::wait::Backoff;
use fipsee_ring::{Message, PeerFault};

use crate::client::ConnectOptions;
use crate::error::{CallError, Error};
use crate::payload::Payload;
use crate::wire::{PROFILE, PayloadSlot, SERVICE_CALLS, ServiceInfo};

/// A server that closes a channel hangs up on its doorbell and then says why. One that was killed says nothing, and is not
/// waited for: its end of the socket is closed.
const REASON_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection to a service, for one thread at a time.
#[derive(Debug)]
pub struct RawClient {
    port: Port,
    control: Seqpacket,
    region: Arc<Region>,
    pool_offset_bytes: u64,
    info: ServiceInfo,
    depth: u32,
    /// Calls started and not yet published.
    staged: Vec<Message>,
    /// Where the next call to be started has its payloads, and the next reply to be taken.
    next_start: PayloadSlot,
    next_reply: PayloadSlot,
}

impl RawClient {
    /// Connect to the service `name` at `socket_path`.
    ///
    /// # Errors
    /// [`Error::Connect`] when nothing listens, [`Error::Refused`] with the server's words, and whatever else can go wrong
    /// with a peer or the system.
    pub fn connect(socket_path: &Path, name: &str, options: &ConnectOptions) -> Result<Self, Error> {
        options.wait.available()?;
        let depth = options.depth;
        let wanted = Wanted { service: SERVICE_CALLS, queue_count: 1, depth, flags: 0, pool_bytes: 0, name: name.to_owned() };
        Self::over(handshake::attach(socket_path, FEATURE_CHOICES, &PROFILE, wanted)?, options)
    }

    /// Over a channel that the caller attached.
    ///
    /// # Errors
    /// A grant that no correct server makes.
    #[doc(hidden)]
    pub fn over(attached: AttachedChannel, options: &ConnectOptions) -> Result<Self, Error> {
        let AttachedChannel { control, region, layout, service_info, mut queues } = attached;
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
            port: Port::new(queue, Backoff::new(options.wait, options.look)),
            control,
            region,
            pool_offset_bytes: layout.pool_offset_bytes,
            info,
            depth,
            staged: Vec::with_capacity(depth as usize),
            next_start: PayloadSlot::first(depth),
            next_reply: PayloadSlot::first(depth),
        })
    }

    /// Are the values at the server as long as these?
    ///
    /// # Errors
    /// [`CallError::OtherTypes`] when they are not.
    pub fn expect_sizes(&self, request_bytes: u32, reply_bytes: u32) -> Result<(), Error> {
        let pairs = [("a request", self.info.request_bytes, request_bytes), ("a reply", self.info.reply_bytes, reply_bytes)];
        match pairs.into_iter().find(|(_, theirs_bytes, ours_bytes)| theirs_bytes != ours_bytes) {
            Some((what, theirs_bytes, ours_bytes)) => {
                Err(Error::Service(CallError::OtherTypes { what, theirs_bytes, ours_bytes }))
            }
            None => Ok(()),
        }
    }

    /// What the server says of the service.
    pub const fn info(&self) -> ServiceInfo {
        self.info
    }

    /// How the rings go about their work: as the server advises, else as this CPU's family likes.
    pub fn choices(&self) -> Choices {
        self.port.queue.tuning.to_choices()
    }

    /// Calls that can be outstanding at a time; the server may have granted fewer than wanted.
    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// Calls started, less the replies taken.
    #[inline(always)]
    pub fn outstanding(&self) -> u32 {
        self.port.queue.requests.outstanding() + u32::try_from(self.staged.len()).unwrap_or(u32::MAX)
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
            let published = self.port.queue.requests.publish_all(&self.staged);
            debug_assert!(published.is_ok(), "no more were staged than the ring takes");
            self.staged.clear();
            self.port.published();
        }
    }

    /// Call and wait for the reply, at most until `deadline_ticks`.
    ///
    /// # Errors
    /// [`CallError::RepliesDue`] when calls are outstanding; [`Error::TimedOut`], after which the reply is due; and as
    /// [`wait`](Self::wait).
    #[inline(always)]
    pub fn call(&mut self, request: &Message, deadline_ticks: Option<u64>, reply: &mut Message) -> Result<(), Error> {
        if self.outstanding() != 0 || self.port.queue.requests.publish(request).is_err() {
            return Err(Error::Service(CallError::RepliesDue { outstanding: self.outstanding() }));
        }
        self.port.queue.requests.prefetch(1);
        self.next_start.advance();
        self.port.published();
        if self.await_reply(deadline_ticks, reply)? { Ok(()) } else { Err(Error::TimedOut("the call")) }
    }

    /// Take the next reply if it is there; replies come in the order of the calls. Never blocks.
    ///
    /// # Errors
    /// [`Error::Disconnected`] or [`Error::Refused`] when the server died or closed the channel, which is checked once
    /// in many empty looks.
    #[inline(always)]
    pub fn poll(&mut self, reply: &mut Message) -> Result<bool, Error> {
        if self.port.pace.hold.is_early() {
            return Ok(false);
        }
        if self.take(reply) {
            return Ok(true);
        }
        if self.port.queue.requests.outstanding() > 0 {
            let looked = self.port.check_liveness_now_and_then(|| self.control.is_hung_up());
            looked.map_err(|error| self.reason_of_loss(error))?;
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
        if self.port.queue.requests.outstanding() == 0 {
            return Ok(false);
        }
        self.await_reply(deadline_ticks, reply)
    }

    #[inline(always)]
    fn take(&mut self, reply: &mut Message) -> bool {
        // With nothing outstanding, looking would only take the line from the server.
        if self.port.queue.requests.outstanding() == 0 || !self.port.queue.completions.receive(reply) {
            return false;
        }
        self.port.queue.requests.answered();
        self.next_reply.advance();
        true
    }

    #[inline(always)]
    fn await_reply(&mut self, deadline_ticks: Option<u64>, reply: &mut Message) -> Result<bool, Error> {
        self.port.pace.hold.wait();
        loop {
            if self.take(reply) {
                self.port.backoff.reset();
                return Ok(true);
            }
            match self.port.pause(deadline_ticks, true, || self.control.is_hung_up()) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => return Err(self.reason_of_loss(error)),
            }
        }
    }

    /// What the loss of the server means: it may have said why, or be about to.
    #[cold]
    fn reason_of_loss(&self, error: Error) -> Error {
        if !matches!(error, Error::Disconnected) {
            return error;
        }
        let reason = self.control.receive(REASON_TIMEOUT).ok().and_then(|packet| Control::decode(&packet.bytes).ok());
        match reason {
            Some(Control::Refused(Refusal { code, text })) => Error::Refused { code, text },
            _ => Error::Disconnected,
        }
    }

    /// For event loops: publish what was started and ask to have the descriptor ([`AsFd`]) made readable by the next reply, then
    /// look once more. Only on `false` may the caller wait on the descriptor; afterwards it calls [`woken`](Self::woken).
    #[must_use = "waiting while a reply is there loses a wake-up"]
    pub fn arm_and_reply_is_there(&mut self) -> bool {
        self.submit();
        self.port.queue.completions.arm_and_work_remains()
    }

    /// How often server and client woke each other.
    pub const fn doorbell_counts(&self) -> DoorbellCounts {
        self.port.counts
    }

    /// The descriptor became readable, or the wait was given up: silence it.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), when nothing is left to take.
    pub fn woken(&mut self) -> Result<(), Error> {
        self.port.woken().map_err(|error| self.reason_of_loss(error))
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
        self.port.queue.our_doorbell.as_fd()
    }
}
