//! The requests of a client, and what their answers must be.

use fipsee_block::client::Completion;
use fipsee_block::wire::{Segment, Status};
use fipsee_ring::control::Control;

use super::{Client, ClientChannel, MEMORY, Pool, Stage};
use crate::context::Context;
use crate::disk::{MIXTURE, SECTORS, bytes_of, word_in, word_of};
use crate::link::{Awake, Link};
use crate::oracle::Span;
use crate::rng::Rng;

/// Most sectors of a request.
pub(super) const SLOT_SECTORS: u16 = 4;

/// Places looked at for a request that is not to overlap one in flight.
const PLACES_TRIED: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write {
        fua: bool,
    },
    Zeroes {
        fua: bool,
        unmap: bool,
    },
    Discard,
    Flush,
    /// What a correct client would not have sent.
    Stray,
}

impl Kind {
    fn draw(rng: &mut Rng, is_write: bool) -> Self {
        let is_special = rng.percent(30);
        match (is_write, is_special) {
            (false, false) => Self::Read,
            (false, true) => Self::Flush,
            (true, false) => Self::Write { fua: false },
            (true, true) => match rng.below(4) {
                0 => Self::Zeroes { fua: rng.percent(30), unmap: rng.percent(50) },
                1 => Self::Discard,
                _ => Self::Write { fua: true },
            },
        }
    }
}

/// The place of a sector of a request's data, in bytes.
const fn offset_of(slot: usize, place: usize) -> u64 {
    (slot * SLOT_SECTORS as usize + place) as u64 * 512
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) span: Span,
    version: u64,
    in_own_memory: bool,
    /// The number of the disk's size that its queue knew of.
    size: usize,
}

impl Client {
    pub(super) fn work(&mut self, context: &Context, pool: &mut Pool, link: &mut Link, now_us: u64) {
        self.steps += 1;
        let Some(ClientChannel { queues, .. }) = &mut self.channel else { return };
        if self.awake == Awake::Drowsy {
            let remains = queues.iter_mut().any(|queue| queue.arm_and_work_remains());
            context.say(|| format!("client {}: {}", self.index, if remains { "stays awake" } else { "sleeps" }));
            (self.awake, self.is_stirred, self.has_rung) = (if remains { Awake::Yes } else { Awake::No }, true, true);
            return;
        }
        if self.awake == Awake::No {
            self.awake = Awake::Yes;
            let gone = queues.iter_mut().map(|queue| queue.woken().is_err()).fold(false, |any, gone| any | gone);
            context.say(|| format!("client {}: {}", self.index, if gone { "finds the daemon gone" } else { "wakes" }));
            if gone {
                // The connection says so, too, and then it connects again.
                self.stage = if link.down.is_empty() { Stage::Away(now_us) } else { self.stage };
            }
            return;
        }
        let reaped = self.reap(context, pool);
        if context.has_failed() {
            return;
        }
        let issued = if self.is_leaving { 0 } else { self.issue_some(context, pool) };
        if (pool.left() == 0 || self.is_leaving) && self.ends(context, link) {
            return;
        }
        if reaped + issued == 0 {
            self.awake = Awake::Drowsy;
        }
    }

    /// All requests are issued: end, as the parameters say.
    fn ends(&mut self, context: &Context, link: &mut Link) -> bool {
        let outstanding = self.outstanding();
        match self.parameters.end {
            0 if outstanding > 0 || self.stays && context.oracle().newest_size() > 0 => false,
            2 => {
                context.say(|| format!("client {}: hangs up, {outstanding} requests outstanding", self.index));
                self.hang_up(context, link);
                true
            }
            _ => {
                context.say(|| format!("client {}: detaches, {outstanding} requests outstanding", self.index));
                link.send(&Control::Detach);
                self.stage = Stage::Detaching;
                true
            }
        }
    }

    fn issue_some(&mut self, context: &Context, pool: &mut Pool) -> usize {
        let mut rng = Rng::new(pool.schedule, (1 + self.index as u64) << 32 | self.steps);
        let free = self.outstanding.iter().filter(|request| request.is_none()).count();
        let left = usize::try_from(pool.left()).unwrap_or(0);
        let is_idle = free == self.outstanding.len();
        let wanted = if is_idle { 1 + rng.below(free) } else { rng.below(free + 1) };
        let mut issued = 0;
        for _ in 0..wanted.min(left) {
            issued += usize::from(self.issue(context, pool));
        }
        self.has_rung |= issued > 0;
        if let Some(channel) = &mut self.channel {
            channel.queues.iter_mut().for_each(|queue| queue.submit());
        }
        issued
    }

    fn issue(&mut self, context: &Context, pool: &mut Pool) -> bool {
        let mut rng = Rng::new(pool.seed, 1 << 40 | u64::from(pool.first + pool.issued));
        let Some(slot) = self.outstanding.iter().position(Option::is_none) else { return false };
        let Some(channel) = &self.channel else { return false };
        let Some(queue) = channel.queues.iter().position(|queue| queue.free() > 0) else {
            // An acknowledgement of an event has the place.
            return false;
        };
        let mut oracle = context.oracle();
        let size = channel.sizes[queue];
        // Now and then beyond the end of a disk that has become smaller.
        let sectors = if rng.percent(10) { SECTORS } else { oracle.size(size) };
        let count = 1 + rng.below(usize::from(SLOT_SECTORS));
        let mut first = rng.below(1 + sectors - count);
        for _ in 0..PLACES_TRIED {
            if !pool.overlaps && oracle.is_busy(first, count) {
                first = rng.below(1 + sectors - count);
            }
        }
        let is_write = rng.percent(self.parameters.writes_percent);
        let in_own_memory = self.is_registered && rng.percent(50);
        let mut kind = Kind::draw(&mut rng, is_write);
        if !pool.overlaps && oracle.is_busy(first, count) {
            kind = Kind::Flush;
        }
        let version = if matches!(kind, Kind::Write { .. }) { oracle.new_version() } else { 0 };
        let span = match kind {
            Kind::Flush => oracle.reads(0, 0),
            Kind::Read => oracle.reads(first, count),
            _ => oracle.writes(first, count, version),
        };
        drop(oracle);
        pool.issued += 1;
        self.stage_one(context, slot, queue, Request { kind, span, version, in_own_memory, size });
        true
    }

    fn stage_one(&mut self, context: &Context, slot: usize, queue: usize, request: Request) {
        let Request { kind, span: Span { first, count, .. }, version, .. } = request;
        for place in 0..count {
            let word = if matches!(kind, Kind::Read) { MIXTURE } else { word_of(version, first + place) };
            self.put(slot, request.in_own_memory, place, word);
        }
        let segment = self.segment(slot, &request);
        let Some(ClientChannel { queues, .. }) = &mut self.channel else { return };
        let queue = &mut queues[queue];
        let (sector, length, token) = (first as u64, count as u64, slot as u64);
        let staged = match kind {
            Kind::Read => queue.read(sector, segment, token),
            Kind::Write { fua } => queue.write(sector, segment, fua, token),
            Kind::Stray => queue.write(sector, segment, false, token),
            Kind::Zeroes { fua, unmap } => queue.write_zeroes(sector, length, unmap, fua, token),
            Kind::Discard => queue.discard(sector, length, token),
            Kind::Flush => queue.flush(token),
        };
        context.say(|| format!("client {}: {kind:?} of {first}+{count}, version {version:x}, token {token}", self.index));
        if staged.is_err() {
            context.violated(|| "a queue is full with fewer requests than its depth".to_owned());
        }
        self.outstanding[slot] = Some(request);
    }

    fn segment(&self, slot: usize, request: &Request) -> Segment {
        let length_sectors = u16::try_from(request.span.count.max(1)).unwrap_or(1);
        if request.in_own_memory {
            let offset_sectors = u32::try_from(slot * usize::from(SLOT_SECTORS)).unwrap_or(0);
            return Segment { offset_sectors, length_sectors, region: MEMORY };
        }
        let channel = self.channel.as_ref().expect("it is attached");
        channel.buffer.segment(offset_of(slot, 0), u64::from(length_sectors) * 512)
    }

    fn put(&self, slot: usize, in_own_memory: bool, place: usize, word: u64) {
        let bytes = bytes_of(word);
        match (&self.memory, &self.channel) {
            (Some(memory), _) if in_own_memory => {
                let _ = memory.write(offset_of(slot, place), &bytes);
            }
            (_, Some(channel)) => channel.buffer.fill(offset_of(slot, place), &bytes),
            _ => {}
        }
    }

    fn get(&self, slot: usize, in_own_memory: bool, place: usize) -> u64 {
        let mut bytes = [0; 512];
        match (&self.memory, &self.channel) {
            (Some(memory), _) if in_own_memory => {
                let _ = memory.read(offset_of(slot, place), &mut bytes);
            }
            (_, Some(channel)) => channel.buffer.copy_to(offset_of(slot, place), &mut bytes),
            _ => {}
        }
        word_in(&bytes)
    }

    /// Take what was published so far.
    pub(crate) fn reap(&mut self, context: &Context, pool: &mut Pool) -> usize {
        let Some(ClientChannel { queues, .. }) = &mut self.channel else { return 0 };
        let mut completions: Vec<Completion> = Vec::new();
        for queue in queues {
            if let Err(error) = queue.reap(&mut |completion| completions.push(completion)) {
                context.violated(|| format!("the daemon broke the protocol: {error}"));
            }
        }
        for completion in &completions {
            self.completed(context, pool, completion);
        }
        // Events are acknowledged when there is a place for that, which rings.
        self.has_rung |= self.take_events(context) || !completions.is_empty();
        completions.len()
    }

    fn completed(&mut self, context: &Context, pool: &mut Pool, completion: &Completion) {
        let Completion { token, status } = *completion;
        let slot = usize::try_from(token).unwrap_or(usize::MAX);
        let Some(request) = self.outstanding.get_mut(slot).and_then(Option::take) else {
            return context.violated(|| format!("request {token} completed, which is not outstanding"));
        };
        let Request { kind, span, in_own_memory, .. } = request;
        let Span { first, count, .. } = span;
        context.say(|| format!("client {}: {kind:?} of {first}+{count}, token {token}: {status:?}", self.index));
        if kind == Kind::Stray {
            return context.oracle().is_over(span);
        }
        pool.answered += 1;
        self.answered += 1;
        let mut oracle = context.oracle();
        let (may_be_beyond, must_be_beyond) = oracle.is_beyond(request.size, first + count);
        let is_change = !matches!(kind, Kind::Read | Kind::Flush);
        let is_expected = match status {
            Status::Ok => !(must_be_beyond || is_change && self.parameters.terms.reads_only),
            Status::IoError => oracle.has_errors,
            Status::ReadOnly => is_change && self.parameters.terms.reads_only,
            Status::OutOfRange => may_be_beyond,
            Status::BadMemory => in_own_memory && self.has_unregistered,
            _ => false,
        };
        if !is_expected {
            let (terms, size) = (self.parameters.terms, oracle.size(oracle.newest_size()));
            context.violated(|| format!("{kind:?} of {first}+{count} of {size} sectors by {terms:?} ended with {status:?}"));
        }
        match (status, kind) {
            (Status::ReadOnly, _) => oracle.was_refused(span),
            (Status::Ok, Kind::Read) => {
                oracle.read(context, span, |place| self.get(slot, in_own_memory, place));
            }
            (Status::Ok, Kind::Write { fua } | Kind::Zeroes { fua, .. }) => oracle.wrote(context, span, fua),
            (Status::Ok, Kind::Flush) => oracle.flushed(context, span),
            _ => oracle.is_over(span),
        }
        if status == Status::Ok && matches!(kind, Kind::Write { .. }) {
            self.last_write = Some(request);
        }
    }

    /// What only a known-bad variant does.
    pub(super) fn submit_last_again(&mut self, context: &Context) {
        let slot = self.outstanding.iter().position(Option::is_none);
        let queue = self.channel.as_ref().and_then(|channel| channel.queues.iter().position(|queue| queue.free() > 0));
        let (Some(slot), Some(queue), Some(request)) = (slot, queue, self.last_write) else { return };
        let Span { first, count, .. } = request.span;
        // To the oracle it changes nothing.
        let span = context.oracle().reads(first, count);
        let request = Request { kind: Kind::Stray, span, in_own_memory: false, ..request };
        self.stage_one(context, slot, queue, request);
        if let Some(ClientChannel { queues, .. }) = &mut self.channel {
            queues[queue].submit();
        }
    }
}
