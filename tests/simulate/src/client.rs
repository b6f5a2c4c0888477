//! A client: the real queue on its side of the shared memory; the handshake packet by packet.

mod work;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fipsee_block::client::{AttachOptions, Buffer, Disk, Queue};
use fipsee_block::wire::{ATTACH_EXCLUSIVE, ATTACH_SOLE_WRITER, FEATURE_SOLE_WRITER, PROFILE, SERVICE_BLOCK};
use fipsee_ring::channel::{ClientQueue, RegionLayout};
use fipsee_ring::control::{ACCESS_READ, ACCESS_WRITE, Control, RefusalCode, SERVICE_INFO_BYTES, VERSION};
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::handshake::Attached;
use fipsee_ring::pace::FirstLook;
use fipsee_ring::region::{Access, Region};
use fipsee_ring::seqpacket::Seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec};

pub(crate) use self::work::Request;
use self::work::SLOT_SECTORS;
use crate::context::Context;
use crate::daemon::{Awake, Down, Link, Up};
use crate::referee::Referee;
use crate::rng::Rng;
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
pub struct Habits {
    /// Requests in all.
    pub requests: u32,
    /// The number of the first: shrinking leaves out what comes before.
    pub first: u32,
    /// Queues.
    pub queues: u16,
    /// Requests outstanding per queue.
    pub depth: u32,
    /// Is nobody else to be attached? Otherwise nobody else is to write.
    pub exclusive: bool,
    /// Does it hand over memory of its own?
    pub registers: bool,
    /// How it ends: 0: detaches when all is answered; 1: detaches at once; 2: hangs up.
    pub end: usize,
    /// How many of 100 requests are writes.
    pub writes_percent: usize,
}

impl Habits {
    /// Drawn from the seed.
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        Self {
            requests: 100 + u32::try_from(rng.below(20)).unwrap_or(0),
            first: 0,
            queues: if rng.percent(30) { 2 } else { 1 },
            depth: 4 + u32::try_from(rng.below(5)).unwrap_or(0),
            exclusive: rng.percent(50),
            registers: rng.percent(30),
            end: rng.below(4).saturating_sub(1),
            writes_percent: 30 + rng.below(50),
        }
    }

    const fn slots(&self) -> usize {
        self.queues as usize * self.depth as usize
    }
}

/// The channel and what is done over it.
struct Channel {
    queues: Vec<Queue>,
    /// One piece for every request in flight.
    buffer: Buffer,
    disk: Disk,
}

/// The client whose requests the referee watches. It may be another process after a fault; it goes on where that was.
pub(crate) struct Client {
    pub(crate) stage: Stage,
    pub(crate) link: usize,
    habits: Habits,
    seed: u64,
    schedule: u64,
    channel: Option<Channel>,
    memory: Option<Arc<Region>>,
    is_registered: bool,
    /// A new channel, until the daemon has the memory.
    attached: Option<Attached>,
    /// By token.
    pub(crate) outstanding: Vec<Option<Request>>,
    /// Of the process before, which the daemon may still be working on.
    lost: Vec<Request>,
    last_write: Option<Request>,
    awake: Awake,
    /// The daemon has run since it was last asked whether it rang.
    is_stirred: bool,
    /// It may have rung, or closed its end, in its last step.
    has_rung: bool,
    steps: u64,
    issued: u32,
    pub(crate) completed: u32,
    /// Has something been wrong with its packets?
    pub(crate) may_be_refused: bool,
    /// The daemon may have let it go before it took all requests.
    pub(crate) may_be_drained: bool,
    /// May a request fail?
    pub(crate) errors_allowed: bool,
}

impl Client {
    /// Not connected yet.
    #[must_use]
    pub(crate) fn new(habits: Habits, (seed, schedule): (u64, u64), link: usize) -> Self {
        Self {
            stage: Stage::Away(0),
            link,
            habits,
            seed,
            schedule,
            channel: None,
            memory: None,
            is_registered: false,
            attached: None,
            lost: Vec::new(),
            outstanding: vec![None; habits.slots()],
            last_write: None,
            awake: Awake::Yes,
            is_stirred: true,
            has_rung: false,
            steps: 0,
            issued: 0,
            completed: 0,
            may_be_refused: false,
            may_be_drained: false,
            errors_allowed: false,
        }
    }

    /// May it be scheduled?
    #[must_use]
    pub(crate) fn may_run(&mut self, link: &Link, now_us: u64) -> bool {
        match self.stage {
            Stage::Ended => false,
            _ if !link.down.is_empty() => true,
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

    /// The daemon has run and might have rung: it costs a system call to ask.
    pub(crate) const fn stir(&mut self) {
        self.is_stirred = true;
    }

    /// When it goes on by itself.
    #[must_use]
    pub(crate) const fn wakes_at(&self) -> Option<u64> {
        match self.stage {
            Stage::Away(until) => Some(until),
            _ => None,
        }
    }

    /// One step.
    pub(crate) fn run(&mut self, context: &Context, referee: &mut Referee, link: &mut Link, now_us: u64) {
        if let Some(down) = link.down.pop_front() {
            return self.take(context, referee, link, down, now_us);
        }
        match self.stage {
            Stage::Away(_) => {
                let (version, features) = (VERSION, FEATURE_SOLE_WRITER);
                let hello = Control::Hello { version_min: version, version_max: version, features };
                link.up.extend([Up::Connect, Up::Packet(hello.encode(), Vec::new())]);
                self.stage = Stage::Greeting;
                context.say(|| "client: connects".to_owned());
            }
            Stage::Running => self.work(context, referee, link, now_us),
            _ => {}
        }
    }

    fn take(&mut self, context: &Context, referee: &mut Referee, link: &mut Link, down: Down, now_us: u64) {
        context.say(|| match &down {
            Down::Packet(message, _) => format!("client: takes {message:?}"),
            Down::Closed => "client: its connection is closed".to_owned(),
        });
        let send = |link: &mut Link, message: Control, files| link.up.push_back(Up::Packet(message.encode(), files));
        match (down, self.stage) {
            (Down::Packet(Control::Welcome { .. }, _), Stage::Greeting) => {
                let flags = if self.habits.exclusive { ATTACH_EXCLUSIVE } else { ATTACH_SOLE_WRITER };
                let (queue_count, depth) = (self.habits.queues, self.habits.depth);
                let name = "disk".to_owned();
                send(
                    link,
                    Control::Attach { service: SERVICE_BLOCK, queue_count, depth, flags, pool_bytes: POOL_BYTES, name },
                    vec![],
                );
                self.stage = Stage::Attaching;
            }
            (Down::Packet(Control::Attached { region_bytes, service_info, .. }, files), Stage::Attaching) => {
                self.lost.drain(..).for_each(|request| referee.set_busy(request.first, request.count, false));
                let attached = open(region_bytes, service_info, files);
                if self.habits.registers {
                    self.register(link);
                }
                if self.channel.is_some() && self.habits.registers {
                    (self.attached, self.stage) = (Some(attached), Stage::Registering);
                } else {
                    self.begin(context, attached);
                }
            }
            (Down::Packet(Control::Registered { .. }, _), _) => {
                self.is_registered = true;
                if let Some(attached) = self.attached.take() {
                    self.begin(context, attached);
                }
            }
            (Down::Packet(Control::Unregistered { .. }, _), Stage::Running) => self.register(link),
            (Down::Packet(Control::Refused { code: RefusalCode::Malformed, text }, _), _) if !self.may_be_refused => {
                context.violated(|| format!("the client is refused, and nothing was wrong with its packets: {text}"));
            }
            (Down::Packet(Control::Unregistered { .. } | Control::Refused { .. }, _), _) => {}
            (Down::Packet(Control::Detached, _), Stage::Detaching) => self.detached(context, referee, now_us),
            // The daemon had it go; it connects again.
            (Down::Packet(Control::Detached, _), _) => {}
            (Down::Packet(message, _), stage) => {
                context.violated(|| format!("the client is told {message:?} while {stage:?}"));
            }
            (Down::Closed, Stage::Ended) => {}
            (Down::Closed, _) => self.lost(context, referee, now_us),
        }
    }

    /// Hand over memory of its own.
    fn register(&mut self, link: &mut Link) {
        let bytes = self.habits.slots() as u64 * u64::from(SLOT_SECTORS) * 512;
        let new = || Arc::new(Region::create("memory", bytes).expect("memory"));
        let memory = self.memory.get_or_insert_with(new);
        let file = memory.as_fd().try_clone_to_owned().expect("a descriptor");
        let access = ACCESS_READ | ACCESS_WRITE;
        let register = Control::Register { region: MEMORY, access, length_bytes: memory.length_bytes() };
        link.up.push_back(Up::Packet(register.encode(), vec![file]));
    }

    /// Take the memory back, whatever is in flight: the daemon must wait for that.
    pub(crate) fn unregister(&mut self, link: &mut Link) -> bool {
        if self.stage != Stage::Running || !self.is_registered {
            return false;
        }
        (self.is_registered, self.errors_allowed) = (false, true);
        link.up.push_back(Up::Packet(Control::Unregister { region: MEMORY }.encode(), Vec::new()));
        true
    }

    /// The channel is there.
    fn begin(&mut self, context: &Context, attached: Attached) {
        let options = AttachOptions { wait: fipsee_ring::wait::WaitMode::Sleep, ..AttachOptions::new("disk") };
        (self.stage, self.awake, self.has_rung) = (Stage::Running, Awake::Yes, true);
        if let Some(Channel { queues, disk, .. }) = &mut self.channel {
            if context.is_broken(Variant::NothingResubmitted) {
                queues.iter_mut().for_each(Queue::abandon);
            }
            if let Err(error) = disk.resume(attached, queues) {
                context.violated(|| format!("the client cannot resume: {error}"));
            }
            if context.is_broken(Variant::AnsweredResubmitted) {
                self.submit_last_again();
            }
            return;
        }
        match Disk::over(attached, &options) {
            Ok((disk, queues)) => {
                let bytes = self.habits.slots() as u64 * u64::from(SLOT_SECTORS) * 512;
                let buffer = disk.allocate(bytes).expect("the pool has room");
                self.channel = Some(Channel { queues, buffer, disk });
            }
            Err(error) => context.violated(|| format!("the client cannot attach: {error}")),
        }
    }

    /// Its connection is gone: what was published before still counts.
    fn lost(&mut self, context: &Context, referee: &mut Referee, now_us: u64) {
        let pause = if self.stage == Stage::Attaching { RETRY_US } else { 0 };
        if self.channel.is_some() {
            self.reap(context, referee);
        }
        (self.attached, self.is_registered) = (None, false);
        self.stage = Stage::Away(now_us + pause);
    }

    /// Take what was published so far.
    pub(crate) fn settle(&mut self, context: &Context, referee: &mut Referee) {
        self.reap(context, referee);
    }

    fn detached(&mut self, context: &Context, referee: &mut Referee, now_us: u64) {
        self.reap(context, referee);
        let left = self.outstanding.iter().flatten().count();
        if left > 0 && self.may_be_drained {
            // DETACHED was for the drain, and what was published after that was not taken.
            return self.lost(context, referee, now_us);
        }
        if left > 0 {
            context.violated(|| format!("the client is detached, and {left} of its requests are not answered"));
        }
        self.end();
    }

    fn end(&mut self) {
        (self.channel, self.memory, self.attached) = (None, None, None);
        (self.stage, self.has_rung) = (Stage::Ended, true);
    }

    /// The process ends without a word; another goes on in its place, at a new connection.
    pub(crate) fn die(&mut self, link: &mut Link, next_link: usize, now_us: u64) {
        link.up.push_back(Up::Gone);
        self.end();
        self.lost.extend(self.outstanding.iter_mut().filter_map(Option::take));
        (self.link, self.stage, self.is_registered, self.last_write) = (next_link, Stage::Away(now_us), false, None);
    }
}

/// Has the daemon rung, or closed its end?
fn is_rung(queue: &Queue) -> bool {
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut [PollFd::new(queue, PollFlags::IN)], Some(&none)).is_ok_and(|ready| ready > 0)
}

/// The client's end of what ATTACHED brings. Nothing in it depends on time.
fn open(region_bytes: u64, service_info: [u8; SERVICE_INFO_BYTES], files: Vec<OwnedFd>) -> Attached {
    let mut files = files.into_iter();
    let file = files.next().expect("the channel's memory");
    let control = Seqpacket::from_fd(file.try_clone().expect("a descriptor"));
    let region = Arc::new(Region::from_peer(file, region_bytes, Access::ReadWrite).expect("memory"));
    let layout = RegionLayout::read_from(&PROFILE, &region).expect("a layout");
    let mut queues = Vec::new();
    for geometry in &layout.queues {
        let (Some(daemon_bell), Some(our_bell)) = (files.next(), files.next()) else { break };
        let mut tuning = geometry.tuning();
        tuning.first_look = FirstLook::AtOnce;
        let bells = (EventDoorbell::from_fd(daemon_bell), SocketDoorbell::from_fd(our_bell));
        queues.push(ClientQueue::open_tuned(&region, geometry, bells.0, bells.1, &tuning).expect("it fits"));
    }
    Attached { control, region, layout, service_info, queues }
}
