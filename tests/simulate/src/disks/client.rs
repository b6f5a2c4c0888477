//! A client: the real queue on its side of the shared memory; the handshake packet by packet.

mod requests;

use std::os::fd::AsFd;
use std::sync::Arc;

use fipsee_block::client::{AttachOptions, Buffer, Disk, Event, Queue};
use fipsee_block::wire::{BlockInfo, FEATURE_SOLE_WRITER, PROFILE, SERVICE_BLOCK};
use fipsee_ring::control::{ACCESS_READ, ACCESS_WRITE, Control, Refusal, RefusalCode, Wanted};
use fipsee_ring::handshake::AttachedChannel;
use fipsee_ring::region::Region;

use self::requests::{Request, SLOT_SECTORS};
use super::claims::Terms;
use super::layout::Disks;
use crate::context::Context;
use crate::link::{Awake, Down, Link, Up, is_rung, open};
use crate::rng::Rng;
use crate::script::Script;
use crate::service::POOL_BYTES;
use crate::variant::Variant;

/// A client that is refused tries again after so long.
const RETRY_US: u64 = 10_000;
const MEMORY: u16 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not connected before this time.
    Away(u64),
    Greeting,
    Attaching,
    Registering,
    Running,
    Detaching,
    /// It holds nothing.
    Ended,
}

/// How a client behaves, drawn from the seed.
#[derive(Clone, Copy, Debug)]
pub struct ClientParameters {
    /// Queues.
    pub queues: u16,
    /// Requests outstanding per queue.
    pub depth: u32,
    /// As what it attaches.
    pub terms: Terms,
    /// Does it hand over memory of its own?
    pub registers: bool,
    /// How it ends: 0: detaches when all is answered; 1: detaches at once; 2: hangs up.
    pub end: usize,
    /// How many of 100 requests are changes.
    pub writes_percent: usize,
}

impl ClientParameters {
    /// Drawn from the seed.
    pub(crate) fn draw(rng: &mut Rng, terms: Terms) -> Self {
        Self {
            queues: if rng.percent(30) { 2 } else { 1 },
            depth: 4 + rng.small(5),
            terms,
            registers: rng.percent(30),
            end: rng.below(4).saturating_sub(1),
            // A reader writes now and then, which is to be refused.
            writes_percent: if terms.reads_only { 10 } else { 30 + rng.below(50) },
        }
    }

    const fn slots(&self) -> usize {
        self.queues as usize * self.depth as usize
    }
}

/// The requests of a lifetime: any client takes the next one.
#[derive(Debug)]
pub(crate) struct Pool {
    seed: u64,
    schedule: u64,
    first: u32,
    requests: u32,
    overlaps: bool,
    pub(crate) issued: u32,
    pub(crate) answered: u32,
}

impl Pool {
    pub(crate) const fn new(script: &Script<Disks>) -> Self {
        let Script { seed, schedule, first, requests, ref layout, .. } = *script;
        Self { seed, schedule, first, requests, overlaps: layout.overlaps, issued: 0, answered: 0 }
    }

    /// Requests that were made, and that are to be made.
    pub(crate) const fn progress(&self) -> (u32, u32) {
        (self.issued, self.left())
    }

    const fn left(&self) -> u32 {
        self.requests.saturating_sub(self.issued)
    }
}

/// The channel and what is done over it.
struct ClientChannel {
    queues: Vec<Queue>,
    /// Of each queue: the number of the disk's size that was announced last.
    sizes: Vec<usize>,
    /// One piece for every request in flight.
    buffer: Buffer,
    disk: Disk,
}

/// A client. It may be another process after a fault; it goes on where that was.
pub(crate) struct Client {
    pub(crate) stage: Stage,
    pub(crate) link: usize,
    index: usize,
    parameters: ClientParameters,
    /// Do claims refuse no client?
    is_shared: bool,
    channel: Option<ClientChannel>,
    memory: Option<Arc<Region>>,
    is_registered: bool,
    /// It took its memory back although requests named it.
    has_unregistered: bool,
    /// A new channel, until the daemon has the memory.
    attached: Option<AttachedChannel>,
    /// By token.
    outstanding: Vec<Option<Request>>,
    last_write: Option<Request>,
    awake: Awake,
    /// The daemon has run since it was last asked whether it rang.
    is_stirred: bool,
    /// It may have rung, or closed its end, in its last step.
    has_rung: bool,
    steps: u64,
    /// It detaches only when no actor has anything to do, so that it sees every event.
    stays: bool,
    /// Has something been wrong with its packets?
    pub(crate) may_be_refused: bool,
    /// The daemon may have let it go before it took all requests.
    pub(crate) may_be_drained: bool,
    /// It ends as soon as its parameters let it, however many requests are left.
    is_leaving: bool,
    /// Requests that were answered.
    pub(crate) answered: u64,
}

impl Client {
    /// Not connected yet.
    pub(crate) fn new(parameters: ClientParameters, is_shared: bool, index: usize) -> Self {
        Self {
            stage: Stage::Away(0),
            link: index,
            index,
            parameters,
            is_shared,
            channel: None,
            memory: None,
            is_registered: false,
            has_unregistered: false,
            attached: None,
            outstanding: vec![None; parameters.slots()],
            last_write: None,
            awake: Awake::Yes,
            is_stirred: true,
            has_rung: false,
            steps: 0,
            stays: true,
            may_be_refused: false,
            may_be_drained: false,
            is_leaving: false,
            answered: 0,
        }
    }

    /// As what it attaches.
    pub(crate) const fn terms(&self) -> Terms {
        self.parameters.terms
    }

    /// Requests without an answer.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.iter().flatten().count()
    }

    /// It makes no more requests, and ends.
    pub(crate) const fn leave(&mut self) {
        (self.is_leaving, self.awake) = (true, Awake::Yes);
    }

    /// May it be scheduled?
    pub(crate) fn may_run(&mut self, links: &[Link], now_us: u64) -> bool {
        match self.stage {
            Stage::Ended => false,
            _ if !links[self.link].down.is_empty() => true,
            Stage::Away(until) => now_us >= until,
            Stage::Running if self.awake == Awake::No => {
                let asks = std::mem::take(&mut self.is_stirred);
                asks && self.channel.as_ref().is_some_and(|channel| channel.queues.iter().any(is_rung))
            }
            Stage::Running => true,
            _ => false,
        }
    }

    /// May it have rung since that was asked last?
    pub(crate) const fn take_rung(&mut self) -> bool {
        std::mem::replace(&mut self.has_rung, false)
    }

    /// The daemon has run and may have rung: to ask costs a system call.
    pub(crate) const fn stir(&mut self) {
        self.is_stirred = true;
    }

    /// When it goes on by itself.
    pub(crate) const fn wakes_at(&self) -> Option<u64> {
        match self.stage {
            Stage::Away(until) => Some(until),
            _ => None,
        }
    }

    /// One step.
    pub(crate) fn run(&mut self, context: &Context, pool: &mut Pool, link: &mut Link, now_us: u64) {
        if let Some(down) = link.down.pop_front() {
            return self.take(context, pool, link, down, now_us);
        }
        match self.stage {
            Stage::Away(_) => {
                let uid = 70_000 + u32::try_from(self.index % 2).unwrap_or(0);
                link.greet(uid, FEATURE_SOLE_WRITER);
                self.stage = Stage::Greeting;
                context.say(|| format!("client {}: connects", self.index));
            }
            Stage::Running => self.work(context, pool, link, now_us),
            _ => {}
        }
    }

    fn take(&mut self, context: &Context, pool: &mut Pool, link: &mut Link, down: Down, now_us: u64) {
        context.say(|| format!("client {}: takes {down:?}", self.index));
        match (down, self.stage) {
            (Down::Packet(Control::Welcome { .. }, _), Stage::Greeting) => {
                let (queue_count, depth, flags) = (self.parameters.queues, self.parameters.depth, self.parameters.terms.flags());
                let (service, pool_bytes, name) = (SERVICE_BLOCK, POOL_BYTES, "disk".to_owned());
                link.send(&Control::Attach(Wanted { service, queue_count, depth, flags, pool_bytes, name }));
                self.stage = Stage::Attaching;
            }
            (Down::Packet(Control::Attached { region_bytes, service_info, .. }, files), Stage::Attaching) => {
                let attached = open(&PROFILE, region_bytes, service_info, files);
                let is_smaller = self.channel.as_ref().is_some_and(|channel| {
                    BlockInfo::from_bytes(&service_info).is_ok_and(|info| info.sector_count < channel.disk.info().sector_count)
                });
                if is_smaller {
                    // The product takes it for another disk, and goes on with nothing.
                    self.forget(context, None);
                }
                if self.parameters.registers {
                    self.register(link);
                }
                if self.channel.is_some() && self.parameters.registers {
                    (self.attached, self.stage) = (Some(attached), Stage::Registering);
                } else {
                    self.begin(context, link, attached);
                }
            }
            (Down::Packet(Control::Registered { .. }, _), _) => {
                self.is_registered = true;
                if let Some(attached) = self.attached.take() {
                    self.begin(context, link, attached);
                }
            }
            (Down::Packet(Control::Unregistered { .. }, _), Stage::Running) => self.register(link),
            (Down::Packet(Control::Refused(Refusal { code: RefusalCode::Malformed, text }), _), _) if !self.may_be_refused => {
                context.violated(|| format!("a client is refused, and nothing was wrong with its packets: {text}"));
            }
            (Down::Packet(Control::Unregistered { .. } | Control::Refused(_), _), _) => {}
            (Down::Packet(Control::Detached, _), Stage::Detaching) => self.detached(context, pool, link, now_us),
            // The daemon asked it to detach; it connects again.
            (Down::Packet(Control::Detached, _), _) => {}
            (Down::Packet(message, _), stage) => {
                context.violated(|| format!("a client receives {message:?} while {stage:?}"));
            }
            (Down::Closed, Stage::Ended) => {}
            (Down::Closed, _) => self.lost(context, pool, link, now_us),
        }
    }

    /// Hand over memory of its own.
    fn register(&mut self, link: &mut Link) {
        let bytes = self.parameters.slots() as u64 * u64::from(SLOT_SECTORS) * 512;
        let new = || Arc::new(Region::create("memory", bytes).expect("memory"));
        let memory = self.memory.get_or_insert_with(new);
        let file = memory.as_fd().try_clone_to_owned().expect("a descriptor");
        let access = ACCESS_READ | ACCESS_WRITE;
        let register = Control::Register { region: MEMORY, access, length_bytes: memory.length_bytes() };
        link.up.push_back(Up::Packet(register.encode(), vec![file]));
    }

    /// Take the memory back, whatever is in flight: the daemon must wait for that.
    pub(crate) fn unregister(&mut self, link: &mut Link) -> bool {
        let has_some = self.stage == Stage::Running && self.is_registered;
        if has_some {
            (self.is_registered, self.has_unregistered) = (false, true);
            link.send(&Control::Unregister { region: MEMORY });
        }
        has_some
    }

    /// The channel is there.
    fn begin(&mut self, context: &Context, link: &Link, attached: AttachedChannel) {
        let options = AttachOptions { wait: fipsee_ring::wait::WaitMode::Sleep, ..AttachOptions::new("disk") };
        (self.stage, self.awake, self.has_rung) = (Stage::Running, Awake::Yes, true);
        let queues = attached.queues.len();
        let sizes = vec![link.attached_size; queues];
        if let Some(channel) = &mut self.channel {
            if context.is_broken(Variant::NothingResubmitted) {
                channel.queues.iter_mut().for_each(Queue::abandon);
            }
            if let Err(error) = channel.disk.resume(attached, &mut channel.queues) {
                context.violated(|| format!("a client cannot resume: {error}"));
            }
            channel.sizes = sizes;
            if context.is_broken(Variant::AnsweredResubmitted) {
                self.submit_last_again(context);
            }
            return;
        }
        match Disk::over(attached, &options) {
            Ok((disk, queues)) => {
                let bytes = self.parameters.slots() as u64 * u64::from(SLOT_SECTORS) * 512;
                let buffer = disk.allocate(bytes).expect("the pool has room");
                self.channel = Some(ClientChannel { queues, sizes, buffer, disk });
            }
            Err(error) => context.violated(|| format!("a client cannot attach: {error}")),
        }
    }

    /// Its connection is gone: what was published before still counts.
    fn lost(&mut self, context: &Context, pool: &mut Pool, link: &Link, now_us: u64) {
        let pause = if self.stage == Stage::Attaching { RETRY_US } else { 0 };
        self.reap(context, pool);
        let Terms { exclusive, claims, .. } = self.parameters.terms;
        let waits = exclusive || claims && !self.is_shared;
        // Its old requests may still be carried out beside new ones, unless it is attached when they are finished. Correct
        // clients of a daemon that runs do not lose their connection; this one begins anew.
        let holder = link.attached_as.filter(|session| context.holders().iter().any(|holder| holder.client == *session));
        if holder.is_some() && !waits {
            self.forget(context, holder);
        }
        (self.attached, self.is_registered) = (None, false);
        self.stage = Stage::Away(now_us + pause);
    }

    fn detached(&mut self, context: &Context, pool: &mut Pool, link: &Link, now_us: u64) {
        self.reap(context, pool);
        let left = self.outstanding();
        if left > 0 && self.may_be_drained {
            // DETACHED was for the drain, and what was published after that was not taken.
            return self.lost(context, pool, link, now_us);
        }
        if left > 0 {
            context.violated(|| format!("a client is detached, and {left} of its requests are not answered"));
        }
        self.end();
    }

    fn end(&mut self) {
        (self.channel, self.memory, self.attached) = (None, None, None);
        (self.stage, self.has_rung) = (Stage::Ended, true);
    }

    /// Its requests are no longer waited for; the daemon may still have it as `session`.
    fn forget(&mut self, context: &Context, session: Option<u64>) {
        let mut oracle = context.oracle();
        self.outstanding.iter_mut().filter_map(Option::take).for_each(|request| oracle.is_lost(request.span, session));
        (self.channel, self.memory, self.attached, self.last_write) = (None, None, None, None);
    }

    /// It hangs up without DETACH.
    fn hang_up(&mut self, context: &Context, link: &mut Link) {
        link.up.push_back(Up::Gone);
        let session = link.attached_as.filter(|session| context.holders().iter().any(|holder| holder.client == *session));
        self.forget(context, session);
        self.end();
    }

    /// The process ends; another goes on in its place, at a new connection.
    pub(crate) fn die(&mut self, context: &Context, link: &mut Link, next_link: usize, now_us: u64) {
        self.hang_up(context, link);
        (self.link, self.stage, self.is_registered) = (next_link, Stage::Away(now_us), false);
    }
}

/// The disk's size as announced to a client.
impl Client {
    /// Take the events that have come. Were there any?
    fn take_events(&mut self, context: &Context) -> bool {
        let Some(ClientChannel { queues, sizes, .. }) = &mut self.channel else { return false };
        let mut any = false;
        for (number, (queue, size)) in queues.iter_mut().zip(sizes).enumerate() {
            while let Some(event) = queue.next_event() {
                context.say(|| format!("client {}: queue {number}: {event:?}", self.index));
                any = true;
                let Event::Resized { sector_count } = event else {
                    context.violated(|| "a client is asked to detach".to_owned());
                    return any;
                };
                let oracle = context.oracle();
                match oracle.size_after(*size, sector_count) {
                    Some(newer) => *size = newer,
                    None => {
                        context.violated(|| {
                            format!("queue {number} receives the size {sector_count}, and knew of {} last", oracle.size(*size))
                        });
                    }
                }
            }
        }
        any
    }

    /// When no actor has anything to do, every queue has received the newest size. Has it stayed for that?
    pub(crate) fn check_events(&mut self, context: &Context) -> bool {
        let (Stage::Running, Some(channel)) = (self.stage, &self.channel) else { return false };
        let oracle = context.oracle();
        let size = oracle.size(oracle.newest_size());
        if let Some(number) = channel.sizes.iter().position(|known| oracle.size(*known) != size) {
            let known = oracle.size(channel.sizes[number]);
            context.violated(|| format!("queue {number} has not received the size {size}, and knows of {known}"));
        }
        self.awake = if self.stays { Awake::Yes } else { self.awake };
        std::mem::take(&mut self.stays)
    }
}
