//! One queue: stage requests, publish them in a burst, reap completions.

mod stage;

use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fipsee_ring::channel::ClientQueue;
use fipsee_ring::doorbell::DoorbellCounts;
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::port::Port;
use fipsee_ring::ring::{CallWriter, Full};
use fipsee_ring::tuning::Choices;
use fipsee_ring::{Message, PeerFault, clock};

use super::{Error, connection::Shared, memory::Buffer};
use crate::packed::{Short, pack};
use crate::wire::{
    BlockInfo, CAPABILITY_PACKED, CompletionEntry, KIND_COMPLETIONS, KIND_DETACH, KIND_RESIZE, MAX_SECTOR_COUNT, RawCompletion,
    RawEvent, Status,
};

/// A finished request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The caller's token.
    pub token: u64,
    /// Its status.
    pub status: Status,
}

/// A notification of the daemon about the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The disk has a new size.
    Resized {
        /// In sectors of 512 bytes.
        sector_count: u64,
    },
    /// The disk is being removed; requests are answered with [`Status::Detached`].
    Detached,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    Caller,
    /// An internal acknowledgement, not visible to the caller.
    Internal,
}

/// One queue of an attached disk, for one thread at a time.
///
/// Requests are staged by [`read`](Self::read) and its siblings, published together by [`submit`](Self::submit), and
/// come back through [`reap`](Self::reap) or [`wait`](Self::wait) in any order. Staging fails with [`Full`] while `depth`
/// requests are outstanding.
#[derive(Debug)]
pub struct Queue {
    port: Port,
    shared: Arc<Shared>,
    /// By tag: the request, until it is answered, for resubmission; none: its message is in `others`.
    requests: Vec<Option<Short>>,
    others: Vec<Message>,
    tokens: Vec<u64>,
    uses: Vec<Use>,
    /// By tag: the indirect table of its request; kept for the next one.
    tables: Vec<Option<Buffer>>,
    free_tags: Vec<u16>,
    staged: Vec<u16>,
    /// Events to be acknowledged, by kind.
    unacknowledged: Vec<u8>,
    /// Requests of our own in flight.
    acknowledging: usize,
    events: Vec<Event>,
    /// Does the daemon accept packed messages?
    packs: bool,
    /// Most segments of one request.
    max_segments: usize,
}

impl Queue {
    pub(super) fn new(channel: ClientQueue, depth: u32, shared: Arc<Shared>, info: &BlockInfo) -> Self {
        let slots = depth as usize;
        let free_tags = (0..u16::try_from(depth).unwrap_or(u16::MAX)).rev().collect();
        Self {
            port: shared.port(channel),
            shared,
            requests: vec![None; slots],
            others: vec![Message::ZERO; slots],
            tokens: vec![0; slots],
            uses: vec![Use::Free; slots],
            tables: std::iter::repeat_with(|| None).take(slots).collect(),
            free_tags,
            staged: Vec::with_capacity(slots),
            unacknowledged: Vec::new(),
            acknowledging: 0,
            events: Vec::new(),
            packs: info.can(CAPABILITY_PACKED),
            max_segments: info.most_segments(),
        }
    }

    /// The CPU that the daemon's worker for this queue is bound to, as far as is known; `fipsee_topology::plan::clients_of` names
    /// CPUs near it. No thread is bound: only the caller knows its threads and their other work.
    pub fn worker_cpu(&self) -> Option<usize> {
        self.port.queue.worker_cpu.and_then(|cpu| usize::try_from(cpu).ok())
    }

    /// The choices of the queue's rings: those that the daemon advises, else those of this CPU's family.
    pub fn choices(&self) -> Choices {
        self.port.queue.tuning.to_choices()
    }

    /// How often daemon and client woke each other, since the queue was attached first.
    pub const fn doorbell_counts(&self) -> DoorbellCounts {
        self.port.counts
    }

    /// Requests that can be staged now.
    #[inline(always)]
    pub const fn free(&self) -> usize {
        self.free_tags.len()
    }

    /// Requests that can be outstanding at a time.
    pub const fn depth(&self) -> usize {
        self.uses.len()
    }

    /// The caller's requests staged or published and not yet reaped. With [`free`](Self::free) less than the depth while
    /// an event is being acknowledged.
    pub const fn outstanding(&self) -> usize {
        self.depth() - self.free_tags.len() - self.acknowledging
    }

    #[inline(always)]
    const fn is_idle(&self) -> bool {
        self.free_tags.len() == self.depth()
    }

    /// Publish what is staged, in one burst, several short requests in a message, and wake the daemon if it sleeps.
    #[inline(always)]
    pub fn submit(&mut self) {
        if !self.unacknowledged.is_empty() {
            self.stage_acknowledgements();
        }
        if self.staged.is_empty() {
            return;
        }
        let burst = self.staged.len();
        let mut rest = self.staged.as_slice();
        let short = |tag: &u16| self.requests[usize::from(*tag)].as_ref();
        let writer = &mut self.port.queue.requests;
        while let [first, later @ ..] = rest {
            let (second, third) = match later {
                [second, third, ..] if self.packs => (short(second), Some(short(third))),
                [second] if self.packs => (short(second), None),
                _ => (None, None),
            };
            let (published, count) = match (short(first), second, third) {
                (Some(first), Some(second), Some(Some(third))) => (writer.publish_several(&pack([first, second, third]), 3), 3),
                (Some(first), Some(second), None) => (writer.publish_several(&pack([first, second]), 2), 2),
                (Some(first), ..) => (writer.publish(&first.to_message()), 1),
                (None, ..) => (publish_other(writer, &self.others[usize::from(*first)]), 1),
            };
            debug_assert!(published.is_ok(), "as many tags as the ring may hold");
            writer.prefetch(burst);
            rest = &rest[count..];
        }
        self.staged.clear();
        self.port.published();
    }

    /// Pass every available completion to `done`; returns how many. Never blocks.
    ///
    /// # Errors
    /// [`Error::Fault`] when the daemon broke the protocol.
    #[inline(always)]
    pub fn reap(&mut self, done: &mut impl FnMut(Completion)) -> Result<usize, Error> {
        if self.port.pace.hold.is_early() {
            return Ok(0);
        }
        let mut message = Message::ZERO;
        let mut count = 0;
        while self.port.queue.completions.receive(&mut message) {
            let RawCompletion { head, entries, .. } = zerocopy::transmute_ref!(message.words());
            if head.kind != KIND_COMPLETIONS {
                self.take_event(&message)?;
                continue;
            }
            let used = entries.get(..head.count.into()).filter(|used| !used.is_empty() && head.reserved == 0);
            for entry in used.ok_or_else(|| bad_head(&message))? {
                count += self.finish(*entry, done)?;
            }
            if self.is_idle() {
                break; // Nothing outstanding: reading the next slot would only take its cache line from the daemon.
            }
        }
        if count == 0 {
            self.port.ring_if_due(true);
        }
        if !self.unacknowledged.is_empty() && !self.free_tags.is_empty() {
            self.submit(); // Now: a caller that keeps the queue full would never leave room for it.
        }
        Ok(count)
    }

    #[inline(always)]
    fn finish(&mut self, entry: CompletionEntry, done: &mut impl FnMut(Completion)) -> Result<usize, Error> {
        let CompletionEntry { tag, status } = entry;
        let index = usize::from(tag);
        let in_use = self.uses.get(index).copied().unwrap_or(Use::Free);
        if in_use == Use::Free || self.port.queue.requests.outstanding() == 0 {
            return Err(Error::Fault(PeerFault::Value { what: "the tag of a completion without a request", value: tag.into() }));
        }
        let Some(status) = Status::from_wire(status) else {
            return Err(Error::Fault(PeerFault::Value { what: "a completion's status", value: status.into() }));
        };
        self.uses[index] = Use::Free;
        self.free_tags.push(tag);
        self.port.queue.requests.answered();
        if in_use == Use::Internal {
            self.acknowledging -= 1;
            return Ok(0);
        }
        done(Completion { token: self.tokens[index], status });
        Ok(1)
    }

    #[cold]
    fn take_event(&mut self, message: &Message) -> Result<(), Error> {
        let RawEvent { head, reserved_too, sector_count, reserved_end, .. } = zerocopy::transmute!(*message.words());
        let kind = head.kind;
        let unused_set = reserved_too != 0 || reserved_end != [0; 44] || (kind != KIND_RESIZE && sector_count != 0);
        if head.count != 1 || head.reserved != 0 || unused_set {
            return Err(bad_head(message));
        }
        if self.unacknowledged.contains(&kind) {
            return Err(Error::Fault(PeerFault::Count { what: "unacknowledged events of one kind", value: 2, limit: 1 }));
        }
        match kind {
            KIND_RESIZE => {
                if sector_count == 0 || sector_count > MAX_SECTOR_COUNT {
                    return Err(Error::Fault(PeerFault::Value { what: "the new size in sectors", value: sector_count }));
                }
                self.shared.sector_count.store(sector_count, Ordering::Relaxed);
                self.events.retain(|event| *event == Event::Detached);
                self.events.push(Event::Resized { sector_count });
            }
            KIND_DETACH => self.events.push(Event::Detached),
            _ => return Err(Error::Fault(PeerFault::Value { what: "the kind of an event", value: kind.into() })),
        }
        self.unacknowledged.push(kind);
        self.submit();
        Ok(())
    }

    /// The oldest event not yet taken. Call after [`reap`](Self::reap) or [`wait`](Self::wait).
    pub fn next_event(&mut self) -> Option<Event> {
        (!self.events.is_empty()).then(|| self.events.remove(0))
    }

    /// Publish what is staged and wait, in the way chosen when attaching, until at least one completion or event came;
    /// returns how many completions were passed to `done`. Returns 0 at once when nothing is outstanding.
    ///
    /// # Errors
    /// [`Error::Disconnected`] when the daemon died or closed the channel; [`Error::Fault`] when it broke the protocol.
    #[inline(always)]
    pub fn wait(&mut self, done: &mut impl FnMut(Completion)) -> Result<usize, Error> {
        self.wait_until(None, done)
    }

    /// As [`wait`](Self::wait), but returns 0 when nothing came within `timeout`.
    pub fn wait_timeout(&mut self, timeout: Duration, done: &mut impl FnMut(Completion)) -> Result<usize, Error> {
        self.wait_until(Some(clock::ticks().saturating_add(clock::duration_to_ticks(timeout))), done)
    }

    #[inline(always)]
    pub(super) fn wait_until(&mut self, deadline_ticks: Option<u64>, done: &mut impl FnMut(Completion)) -> Result<usize, Error> {
        self.submit();
        self.port.pace.hold.wait();
        let known_events = self.events.len();
        loop {
            let count = self.reap(done)?;
            if count > 0 || self.events.len() > known_events || self.is_idle() {
                self.port.backoff.reset();
                return Ok(count);
            }
            if !self.port.pause(deadline_ticks, false, || self.shared.is_hung_up())? {
                return Ok(0);
            }
        }
    }

    /// For event loops: ask to have the descriptor ([`AsFd`]) made readable by the next completion, then check once
    /// more. Only on `false` may the caller wait on the descriptor; afterwards it calls [`woken`](Self::woken).
    #[must_use = "waiting while work remains loses a wake-up"]
    pub fn arm_and_work_remains(&mut self) -> bool {
        self.submit();
        self.port.ring_what_is_held();
        self.port.queue.completions.arm_and_work_remains()
    }

    /// Undo [`arm_and_work_remains`](Self::arm_and_work_remains) without a system call, because the caller is about to
    /// poll. The descriptor may be or become readable once more; a caller that waits on it calls [`woken`](Self::woken).
    pub fn disarm(&mut self) {
        self.port.queue.completions.disarm();
    }

    /// The descriptor became readable, or the wait was abandoned: clear it.
    ///
    /// # Errors
    /// [`Error::Disconnected`] when the daemon died or closed the channel and nothing is left to reap.
    pub fn woken(&mut self) -> Result<(), Error> {
        self.port.woken()
    }

    /// The daemon has detached: take its completions, which must cover all that was published.
    pub(super) fn take_last(&mut self) -> Result<(), Error> {
        let unpublished = self.staged.len();
        self.port.pace.hold.wait();
        self.reap(&mut |_| {})?;
        if self.outstanding() > unpublished { Err(Error::Disconnected) } else { Ok(()) }
    }

    /// After an error of the channel: forget every request without an answer, so that a reconnection does not repeat it.
    /// Whether it was done is unknown.
    pub fn abandon(&mut self) {
        self.acknowledging = 0;
        for tag in self.staged.drain(..) {
            self.uses[usize::from(tag)] = Use::Free;
            self.free_tags.push(tag);
        }
        for tag in (0..u16::MAX).take(self.uses.len()) {
            if std::mem::replace(&mut self.uses[usize::from(tag)], Use::Free) != Use::Free {
                self.port.queue.requests.answered();
                self.free_tags.push(tag);
            }
        }
    }

    /// Replace the failed channel by a new one and resubmit everything unanswered, lowest tags first. The
    /// order among requests in flight was never guaranteed. `info`: the description from the new daemon.
    pub(super) fn resume(&mut self, channel: ClientQueue, info: &BlockInfo) {
        let counts = self.port.counts;
        self.port = self.shared.port(channel);
        self.port.counts = counts;
        self.packs = info.can(CAPABILITY_PACKED);
        self.max_segments = info.most_segments();
        self.unacknowledged.clear();
        self.acknowledging = 0;
        self.staged.clear();
        for tag in 0..u16::try_from(self.uses.len()).unwrap_or(u16::MAX) {
            match self.uses[usize::from(tag)] {
                Use::Caller => self.staged.push(tag),
                Use::Internal => {
                    self.uses[usize::from(tag)] = Use::Free;
                    self.free_tags.push(tag);
                }
                Use::Free => {}
            }
        }
        self.submit();
    }
}

/// Out of line: the path of short requests needs no copy of a whole message.
#[inline(never)]
fn publish_other(writer: &mut CallWriter<MappedRing>, message: &Message) -> Result<(), Full> {
    writer.publish(message)
}

#[cold]
fn bad_head(message: &Message) -> Error {
    Error::Fault(PeerFault::Value {
        what: "the head of a completion message",
        value: message.word_at(offset_of!(RawCompletion, head)),
    })
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.queue.our_doorbell.as_fd()
    }
}
