//! The requests of a client, and what their answers must be.

use fipsee_block::client::Completion;
use fipsee_block::wire::{Segment, Status};
use fipsee_ring::control::Control;

use super::{Channel, Client, MEMORY, Stage};
use crate::context::Context;
use crate::daemon::{Awake, Link, Up};
use crate::disk::{MIXTURE, SECTORS, bytes_of, word_in, word_of};
use crate::referee::Referee;
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
    Zeroes,
    /// And when it began, by the referee's count.
    Flush(u64),
    /// What a correct client would not have sent.
    Stray,
}

/// Where a sector of a request's data lies, in bytes.
const fn offset_of(slot: usize, place: usize) -> u64 {
    (slot * SLOT_SECTORS as usize + place) as u64 * 512
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) first: usize,
    pub(crate) count: usize,
    version: u64,
    in_own_memory: bool,
}

impl Client {
    pub(super) fn work(&mut self, context: &Context, referee: &mut Referee, link: &mut Link, now_us: u64) {
        self.steps += 1;
        let Some(Channel { queues, .. }) = &mut self.channel else { return };
        if self.awake == Awake::Drowsy {
            let remains = queues.iter_mut().any(|queue| queue.arm_and_work_remains());
            context.say(|| format!("client: {}", if remains { "stays awake" } else { "sleeps" }));
            (self.awake, self.is_stirred) = (if remains { Awake::Yes } else { Awake::No }, true);
            return;
        }
        if self.awake == Awake::No {
            self.awake = Awake::Yes;
            let gone = queues.iter_mut().map(|queue| queue.woken().is_err()).fold(false, |any, gone| any | gone);
            context.say(|| format!("client: {}", if gone { "finds the daemon gone" } else { "wakes" }));
            if gone {
                // The connection says so, too, and then it connects again.
                self.stage = if link.down.is_empty() { Stage::Away(now_us) } else { self.stage };
            }
            return;
        }
        let reaped = self.reap(context, referee);
        if context.has_failed() {
            return;
        }
        let issued = self.issue_some(context, referee);
        if self.issued == self.habits.requests && self.ends(context, link) {
            return;
        }
        if reaped + issued == 0 {
            self.awake = Awake::Drowsy;
        }
    }

    /// All requests are issued: leave, as the habits say.
    fn ends(&mut self, context: &Context, link: &mut Link) -> bool {
        let outstanding = self.outstanding.iter().flatten().count();
        match self.habits.end {
            0 if outstanding > 0 => false,
            2 => {
                context.say(|| format!("client: hangs up, {outstanding} requests outstanding"));
                link.up.push_back(Up::Gone);
                self.end();
                true
            }
            _ => {
                context.say(|| format!("client: detaches, {outstanding} requests outstanding"));
                link.up.push_back(Up::Packet(Control::Detach.encode(), Vec::new()));
                self.stage = Stage::Detaching;
                true
            }
        }
    }

    fn issue_some(&mut self, context: &Context, referee: &mut Referee) -> usize {
        let mut rng = Rng::new(self.schedule, 1 << 32 | self.steps);
        let free = self.outstanding.iter().filter(|request| request.is_none()).count();
        let left = usize::try_from(self.habits.requests - self.issued).unwrap_or(0);
        let is_idle = free == self.outstanding.len();
        let wanted = if is_idle { 1 + rng.below(free) } else { rng.below(free + 1) };
        let mut issued = 0;
        for _ in 0..wanted.min(left) {
            issued += usize::from(self.issue(context, referee));
        }
        self.has_rung |= issued > 0;
        if let Some(channel) = &mut self.channel {
            channel.queues.iter_mut().for_each(|queue| queue.submit());
        }
        issued
    }

    fn issue(&mut self, context: &Context, referee: &mut Referee) -> bool {
        let mut rng = Rng::new(self.seed, 2 << 32 | u64::from(self.habits.first + self.issued));
        let Some(slot) = self.outstanding.iter().position(Option::is_none) else { return false };
        let count = 1 + rng.below(usize::from(SLOT_SECTORS));
        let mut first = rng.below(SECTORS - count);
        for _ in 0..PLACES_TRIED {
            if referee.is_busy(first, count) {
                first = rng.below(SECTORS - count);
            }
        }
        let is_write = rng.percent(self.habits.writes_percent);
        let in_own_memory = self.is_registered && rng.percent(50);
        let is_special = rng.percent(20);
        if is_special && !is_write || referee.is_busy(first, count) {
            let kind = Kind::Flush(referee.flushes());
            return self.stage_one(context, slot, Request { kind, first: 0, count: 0, version: 0, in_own_memory: false });
        }
        let kind = match (is_write, is_special) {
            (false, _) => Kind::Read,
            (true, true) if rng.percent(40) => Kind::Zeroes,
            (true, fua) => Kind::Write { fua },
        };
        let version = if matches!(kind, Kind::Write { .. }) { referee.new_version() } else { 0 };
        referee.set_busy(first, count, true);
        if kind != Kind::Read {
            referee.writes(first, count, version);
        }
        self.stage_one(context, slot, Request { kind, first, count, version, in_own_memory })
    }

    fn stage_one(&mut self, context: &Context, slot: usize, request: Request) -> bool {
        let Request { kind, first, count, version, .. } = request;
        for place in 0..count {
            let word = if matches!(kind, Kind::Read) { MIXTURE } else { word_of(version, first + place) };
            self.put(slot, request.in_own_memory, place, word);
        }
        let segment = self.segment(slot, &request);
        let Some(Channel { queues, .. }) = &mut self.channel else { return false };
        let Some(queue) = queues.iter_mut().find(|queue| queue.free() > 0) else {
            context.violated(|| "the client's queues are full with fewer requests than their depth".to_owned());
            return false;
        };
        let (sector, length, token) = (first as u64, count as u64, slot as u64);
        let staged = match kind {
            Kind::Read => queue.read(sector, segment, token),
            Kind::Write { fua } => queue.write(sector, segment, fua, token),
            Kind::Stray => queue.write(sector, segment, false, token),
            Kind::Zeroes => queue.write_zeroes(sector, length, false, false, token),
            Kind::Flush(_) => queue.flush(token),
        };
        context.say(|| format!("client: {kind:?} of {first}+{count}, version {version:x}, token {token}: {staged:?}"));
        self.outstanding[slot] = Some(request);
        self.issued += u32::from(kind != Kind::Stray);
        true
    }

    fn segment(&self, slot: usize, request: &Request) -> Segment {
        let length_sectors = u16::try_from(request.count.max(1)).unwrap_or(1);
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

    pub(super) fn reap(&mut self, context: &Context, referee: &mut Referee) -> usize {
        let Some(Channel { queues, .. }) = &mut self.channel else { return 0 };
        let mut completions: Vec<Completion> = Vec::new();
        for queue in queues {
            if let Err(error) = queue.reap(&mut |completion| completions.push(completion)) {
                context.violated(|| format!("the daemon broke the protocol: {error}"));
            }
        }
        for completion in &completions {
            self.completed(context, referee, completion);
        }
        completions.len()
    }

    fn completed(&mut self, context: &Context, referee: &mut Referee, completion: &Completion) {
        let Completion { token, status } = *completion;
        let slot = usize::try_from(token).unwrap_or(usize::MAX);
        let Some(request) = self.outstanding.get_mut(slot).and_then(Option::take) else {
            return context.violated(|| format!("request {token} completed, which is not outstanding"));
        };
        let Request { kind, first, count, version, in_own_memory } = request;
        context.say(|| format!("client: {kind:?} of {first}+{count}, token {token}, is answered: {status:?}"));
        if kind == Kind::Stray {
            return;
        }
        self.completed += 1;
        referee.set_busy(first, count, false);
        if status != Status::Ok {
            if !self.errors_allowed {
                context.violated(|| format!("{kind:?} of sector {first} failed with {status:?}, although nothing was wrong"));
            }
            return;
        }
        match kind {
            Kind::Read => (0..count).for_each(|place| referee.read(context, first + place, self.get(slot, in_own_memory, place))),
            Kind::Write { fua } => {
                referee.wrote(context, first, count, version, fua);
                self.last_write = Some(request);
            }
            Kind::Zeroes => referee.wrote(context, first, count, 0, false),
            Kind::Flush(began) => referee.flushed(context, began),
            Kind::Stray => {}
        }
    }

    /// What only a known-bad variant does.
    pub(super) fn submit_last_again(&mut self) {
        let slot = self.outstanding.iter().position(Option::is_none);
        let (Some(slot), Some(request)) = (slot, self.last_write) else { return };
        let request = Request { kind: Kind::Stray, in_own_memory: false, ..request };
        for place in 0..request.count {
            self.put(slot, false, place, word_of(request.version, request.first + place));
        }
        let segment = self.segment(slot, &request);
        let Some(queue) = self.channel.as_mut().and_then(|channel| channel.queues.iter_mut().find(|queue| queue.free() > 0))
        else {
            return;
        };
        if queue.write(request.first as u64, segment, false, slot as u64).is_ok() {
            queue.submit();
            self.outstanding[slot] = Some(request);
        }
    }
}
