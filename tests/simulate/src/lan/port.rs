//! A client of a port: rings of the product, and the handshake packet by packet. It may be a faulty one.

use std::collections::VecDeque;

use fipsee_net::wire::{
    Addresses, MAX_COMPRESSED_BYTES, MAX_PACKED_SENT, OPERATION_POST, OPERATION_SEND_COMPRESSED, PROFILE, PackedFrame, PortInfo,
    Post, PostedBuffer, QUEUES_PER_PAIR, SERVICE_NET, Send, SendPacked, Status, compressed,
};
use fipsee_ring::Message;
use fipsee_ring::channel::ClientQueue;
use fipsee_ring::control::{Control, Refusal, RefusalCode, Wanted};
use fipsee_ring::handshake::AttachedChannel;

use super::{Due, Lan, NAME, POOL_BYTES, PortParameters, Posted, RECEIVED, SENT, View};
use crate::context::Context;
use crate::link::{Awake, Down, Link, Up, is_rung, open};
use crate::rng::Rng;

/// A client that is refused, or has lost its daemon, tries again after so long.
const RETRY_US: u64 = 10_000;
/// Bytes of a transmit buffer: a longest frame fits.
const SEND_BYTES: u32 = 384;
/// Frames of one that floods, beyond what the lifetime has.
const FLOOD: u32 = 60;

/// How a client is faulty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misuse {
    /// It takes no frame.
    NeverReads,
    /// It sends as much as it can, whatever is allowed.
    Floods,
    /// Most of its frames are wrong, or have addresses and VLANs of others.
    WrongFrames,
    /// It posts buffers that are posted.
    PostsTwice,
    /// It posts buffers outside of its memory, and messages that are none.
    PostsNonsense,
}

impl Misuse {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        [Self::NeverReads, Self::Floods, Self::WrongFrames, Self::PostsTwice, Self::PostsNonsense][rng.below(5)]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not connected before this time.
    Away(u64),
    Greeting,
    Attaching,
    Running,
    /// It has found the daemon gone, and waits for its connection to say so.
    Losing,
    Detaching,
    Ended,
}

/// A pair of queues, and what of its memory is free.
struct Pair {
    free: Vec<u16>,
    unposted: VecDeque<u16>,
    /// That a message without them refers to.
    addresses: Option<Addresses>,
}

struct PortChannel {
    attached: AttachedChannel,
    pairs: Vec<Pair>,
}

pub(crate) struct PortClient {
    pub(crate) stage: Stage,
    pub(crate) link: usize,
    port: usize,
    parameters: PortParameters,
    channel: Option<PortChannel>,
    awake: Awake,
    is_stirred: bool,
    rng: Rng,
    misuse: Option<Misuse>,
    flooded: u32,
    /// The daemon may have let it go before it took all frames.
    pub(crate) may_be_drained: bool,
}

impl PortClient {
    pub(crate) const fn new(parameters: PortParameters, port: usize, link: usize, rng: Rng) -> Self {
        Self {
            stage: Stage::Away(0),
            link,
            port,
            parameters,
            channel: None,
            awake: Awake::Yes,
            is_stirred: true,
            rng,
            misuse: None,
            flooded: 0,
            may_be_drained: false,
        }
    }

    /// An actor that may have rung has run.
    pub(crate) const fn stir(&mut self) {
        self.is_stirred = true;
    }

    /// When it goes on by itself.
    pub(crate) const fn wakes_at(&self) -> Option<u64> {
        if let Stage::Away(until) = self.stage { Some(until) } else { None }
    }

    /// It is faulty from now on.
    pub(crate) const fn begin_misuse(&mut self, misuse: Misuse) {
        (self.misuse, self.awake) = (Some(misuse), Awake::Yes);
    }

    /// Frames without an answer.
    pub(crate) fn unanswered(&self) -> u32 {
        let queues = self.channel.iter().flat_map(|channel| channel.attached.queues.iter().step_by(2));
        queues.map(|queue| queue.requests.outstanding()).sum()
    }

    /// May it be scheduled?
    pub(crate) fn may_run(&mut self, lan: &Lan, links: &[Link], now_us: u64) -> bool {
        match self.stage {
            Stage::Ended => false,
            _ if !links[self.link].down.is_empty() => true,
            Stage::Away(until) => now_us >= until,
            Stage::Running if self.awake == Awake::No => self.has_more_to_do(lan) || self.is_rung(),
            Stage::Running => true,
            _ => false,
        }
    }

    fn has_more_to_do(&self, lan: &Lan) -> bool {
        let has_free = self.channel.iter().flat_map(|channel| &channel.pairs).any(|pair| !pair.free.is_empty());
        lan.may_send() && has_free || lan.is_used_up() && self.unanswered() == 0
    }

    fn is_rung(&mut self) -> bool {
        std::mem::take(&mut self.is_stirred)
            && self.channel.iter().flat_map(|channel| &channel.attached.queues).any(|queue| is_rung(&queue.our_doorbell))
    }

    /// It sleeps, something is there for it, and nothing rang.
    pub(crate) fn check_rung(&self, context: &Context, lan: &Lan) {
        let (Awake::No, Stage::Running, Some(channel)) = (self.awake, self.stage, &self.channel) else { return };
        let Some(view) = &lan.views[self.port] else { return };
        let takes: &[usize] = if self.misuse == Some(Misuse::NeverReads) { &[SENT] } else { &[SENT, RECEIVED] };
        for (pair, number) in view.pairs.iter().zip(0..) {
            for ring in takes.iter().filter(|ring| !pair.due[**ring].is_empty()) {
                if !is_rung(&channel.attached.queues[2 * number + ring].our_doorbell) {
                    context.violated(|| format!("port {} sleeps, messages are there for it, and nothing rang", self.port));
                }
            }
        }
    }

    /// One step.
    pub(crate) fn run(&mut self, context: &Context, link: &mut Link, now_us: u64) {
        if let Some(down) = link.down.pop_front() {
            return self.take(context, link, down, now_us);
        }
        match self.stage {
            Stage::Away(_) if context.lan().is_used_up() => self.stage = Stage::Ended,
            Stage::Away(_) => {
                link.greet(0, 0);
                (self.stage, self.may_be_drained) = (Stage::Greeting, false);
            }
            Stage::Running => self.work(context, link),
            _ => {}
        }
    }

    fn take(&mut self, context: &Context, link: &mut Link, down: Down, now_us: u64) {
        context.say(|| format!("port {}: takes {down:?}", self.port));
        match (down, self.stage) {
            (Down::Packet(Control::Welcome { .. }, _), Stage::Greeting) => {
                let (service, depth, name) = (SERVICE_NET, self.parameters.depth, format!("{NAME}/{}", self.port));
                let queue_count = self.parameters.pairs * QUEUES_PER_PAIR;
                link.send(&Control::Attach(Wanted {
                    service,
                    queue_count,
                    depth,
                    flags: 0,
                    pool_bytes: POOL_BYTES.into(),
                    name,
                }));
                self.stage = Stage::Attaching;
            }
            (Down::Packet(Control::Attached { region_bytes, service_info, .. }, files), Stage::Attaching) => {
                let rules = &self.parameters.rules;
                let is_right = PortInfo::from_bytes(&service_info, 0)
                    .is_ok_and(|info| info.mac == rules.mac.0 && info.mtu == super::MTU && info.pairs == self.parameters.pairs);
                if !is_right {
                    context.violated(|| format!("port {} is described otherwise: {service_info:02x?}", self.port));
                }
                self.begin(context, open(&PROFILE, region_bytes, service_info, files));
            }
            (Down::Packet(Control::Refused(Refusal { code: RefusalCode::Malformed, text }), _), _) => {
                context.violated(|| format!("port {} is refused: {text}", self.port));
            }
            (Down::Packet(Control::Refused(_), _), _) | (Down::Closed, Stage::Ended) => {}
            (Down::Packet(Control::Detached, _), stage) => {
                self.reap(context, usize::MAX);
                // What is published beside a drain may come too late.
                if self.unanswered() > 0 && !self.may_be_drained {
                    let left = self.unanswered();
                    context.violated(|| format!("port {} is detached, and {left} of its frames have no answer", self.port));
                }
                if stage == Stage::Detaching {
                    self.end(context);
                }
            }
            (Down::Packet(message, _), stage) => {
                context.violated(|| format!("port {} receives {message:?} while {stage:?}", self.port));
            }
            (Down::Closed, _) => {
                self.reap(context, usize::MAX);
                self.end(context);
                self.stage = Stage::Away(now_us + RETRY_US);
            }
        }
    }

    fn begin(&mut self, context: &Context, attached: AttachedChannel) {
        context.lan().begin(self.port, &attached);
        let pair = |queues: &[ClientQueue]| {
            let [_, receive] = queues else { return Pair { free: Vec::new(), unposted: VecDeque::new(), addresses: None } };
            let tags = 0..u16::try_from(receive.requests.free()).unwrap_or(0);
            Pair { free: tags.clone().collect(), unposted: tags.collect(), addresses: None }
        };
        let pairs = attached.queues.chunks(2).map(pair).collect();
        self.channel = Some(PortChannel { attached, pairs });
        (self.stage, self.awake) = (Stage::Running, Awake::Yes);
    }

    fn end(&mut self, context: &Context) {
        context.lan().end(self.port);
        (self.channel, self.stage) = (None, Stage::Ended);
    }

    /// The process ends without DETACH; another goes on in its place, at a new connection.
    pub(crate) fn die(&mut self, context: &Context, link: &mut Link, next_link: usize, now_us: u64) {
        link.up.push_back(Up::Gone);
        self.end(context);
        (self.link, self.stage, self.misuse) = (next_link, Stage::Away(now_us), None);
    }

    fn work(&mut self, context: &Context, link: &mut Link) {
        match self.awake {
            Awake::Drowsy => return self.arm(),
            Awake::No => return self.wake(),
            Awake::Yes => {}
        }
        let most = 1 + self.rng.below(12);
        let done = self.reap(context, most) + self.post(context) + self.send(context);
        if context.has_failed() || done > 0 {
            return;
        }
        if context.lan().is_used_up() {
            if self.parameters.end == 2 {
                link.up.push_back(Up::Gone);
                return self.end(context);
            }
            if self.parameters.end == 1 || self.unanswered() == 0 {
                link.send(&Control::Detach);
                self.stage = Stage::Detaching;
                return;
            }
        }
        self.awake = Awake::Drowsy;
    }

    fn arm(&mut self) {
        let reads = self.misuse != Some(Misuse::NeverReads);
        let Some(PortChannel { attached, .. }) = &mut self.channel else { return };
        let is_taken = |index: usize| index.is_multiple_of(2) || reads;
        let mut queues = attached.queues.iter_mut().enumerate().filter(|(index, _)| is_taken(*index));
        let remains = queues.any(|(_, queue)| queue.completions.arm_and_work_remains());
        if remains {
            attached.queues.iter_mut().for_each(|queue| queue.completions.disarm());
        }
        (self.awake, self.is_stirred) = (if remains { Awake::Yes } else { Awake::No }, true);
    }

    fn wake(&mut self) {
        self.awake = Awake::Yes;
        let Some(PortChannel { attached, .. }) = &mut self.channel else { return };
        // Each is asked, whatever the others say.
        let are_there: Vec<bool> = attached.queues.iter_mut().map(ClientQueue::woken).collect();
        if are_there.contains(&false) {
            self.stage = Stage::Losing;
        }
    }

    /// Take what is there, at most so many messages of each ring: it must be what the oracle has seen.
    fn reap(&mut self, context: &Context, most: usize) -> usize {
        let (port, reads, mut lan) = (self.port, self.misuse != Some(Misuse::NeverReads), context.lan());
        let Some(PortChannel { attached, pairs }) = &mut self.channel else { return 0 };
        let (region, pool) = (&attached.region, attached.layout.pool_offset_bytes);
        let mut taken = 0;
        for (index, queue) in attached.queues.iter_mut().enumerate().filter(|(index, _)| index.is_multiple_of(2) || reads) {
            let (number, ring, mut message) = (index / 2, index % 2, Message::ZERO);
            let Some(View { pairs: views, .. }) = &mut lan.views[port] else { return taken };
            let view = &mut views[number];
            let mut count = 0;
            while count < most && queue.completions.receive(&mut message) {
                count += 1;
                let due = view.due[ring].pop_front();
                let Some(Due { buffers, .. }) = due.filter(|due| due.message == message) else {
                    context.violated(|| format!("port {port} finds {message:?}, which the daemon has not published so"));
                    return taken;
                };
                let tags = super::arrivals::tags(&message);
                for (tag, expected) in tags.iter().zip(&buffers) {
                    let mut bytes = vec![0; expected.len()];
                    let offset_bytes = pool + u64::from(receive_offset(&self.parameters, number, *tag));
                    region.read(offset_bytes, &mut bytes).expect("within the pool");
                    if bytes != *expected {
                        context.violated(|| format!("buffer {tag} of port {port} has changed: {bytes:02x?} {expected:02x?}"));
                    }
                }
                for tag in tags {
                    queue.requests.answered();
                    if ring == SENT { pairs[number].free.push(tag) } else { pairs[number].unposted.push_back(tag) }
                }
            }
            taken += count;
        }
        taken
    }

    /// Post some of the buffers that are free, in messages with 1 to 4.
    fn post(&mut self, context: &Context) -> usize {
        let (port, misuse, mut lan) = (self.port, self.misuse, context.lan());
        let Some(PortChannel { attached, pairs }) = &mut self.channel else { return 0 };
        let mut posted = 0;
        for (number, pair) in pairs.iter_mut().enumerate() {
            let requests = &mut attached.queues[2 * number + 1].requests;
            let Some(view) = &mut lan.views[port] else { return posted };
            if matches!(misuse, Some(Misuse::PostsTwice | Misuse::PostsNonsense)) {
                view.is_faulty = true;
            }
            let view_pair = &mut view.pairs[number];
            if self.rng.percent(40) {
                continue;
            }
            loop {
                let most = 4.min(requests.free() as usize);
                let count = 1 + self.rng.below(4);
                let buffer = |tag: u16| {
                    let (offset_bytes, length_bytes) =
                        (receive_offset(&self.parameters, number, tag), self.parameters.buffer_bytes);
                    PostedBuffer { tag, memory: 0, offset_bytes, length_bytes }
                };
                let (message, calls) = match misuse {
                    Some(Misuse::PostsNonsense) if most > 0 => nonsense(buffer(0), &mut self.rng),
                    Some(Misuse::PostsTwice) if most > 0 => {
                        let tag = u16::try_from(self.rng.below(2)).unwrap_or(0);
                        let twice = vec![Posted { buffer: buffer(tag), expected: Status::Ok }; count.min(most)];
                        (Post::new(&twice.iter().map(|posted| posted.buffer).collect::<Vec<_>>()), twice)
                    }
                    None | Some(Misuse::NeverReads | Misuse::Floods | Misuse::WrongFrames) if !pair.unposted.is_empty() => {
                        let count = count.min(pair.unposted.len()).min(most);
                        let buffers: Vec<PostedBuffer> = pair.unposted.drain(..count).map(buffer).collect();
                        let calls = buffers.iter().map(|buffer| Posted { buffer: *buffer, expected: Status::Ok }).collect();
                        (Post::new(&buffers), calls)
                    }
                    _ => break,
                };
                if calls.is_empty() {
                    break;
                }
                let published = requests.publish_several(&message.to_message(), u32::try_from(calls.len()).unwrap_or(0));
                if published.is_err() {
                    context.violated(|| format!("port {port} has no room for buffers, of which {most} are free"));
                    return posted;
                }
                posted += calls.len();
                view_pair.posted.extend(calls);
                if self.rng.percent(30) {
                    break;
                }
            }
        }
        posted
    }

    fn send(&mut self, context: &Context) -> usize {
        let (port, mut lan) = (self.port, context.lan());
        let mut sent = 0;
        for number in 0..self.parameters.pairs.into() {
            let mut wanted = self.rng.below(5);
            let Some(PortChannel { attached, pairs }) = &mut self.channel else { return sent };
            if self.misuse == Some(Misuse::Floods) && self.flooded < FLOOD {
                wanted = pairs[number].free.len();
                self.flooded += u32::try_from(wanted).unwrap_or(0);
            } else if !lan.may_send() {
                continue;
            }
            let (queue, region) = (&mut attached.queues[2 * number], &attached.region);
            let (mut published, mut packed) = (0, Vec::new());
            let mut publish = |message: Message, calls: usize| {
                if calls > 0 && queue.requests.publish_several(&message, u32::try_from(calls).unwrap_or(u32::MAX)).is_err() {
                    context.violated(|| format!("port {port} has no room for a frame"));
                }
            };
            while published < wanted
                && let Some(tag) = pairs[number].free.pop()
            {
                let is_wrong = self.rng.percent(if self.misuse == Some(Misuse::WrongFrames) { 80 } else { 0 });
                let (message, rest) = lan.draw_frame(port, number, tag, is_wrong, &mut self.rng);
                let place = send_offset(&self.parameters, number, tag);
                let (whole, known) = (super::frames::whole(&message, &rest), pairs[number].addresses);
                let is_short = |bytes: &&Vec<u8>| bytes.len() <= MAX_COMPRESSED_BYTES && Addresses::of(bytes) == known;
                let short = whole.as_ref().filter(is_short).filter(|_| self.rng.percent(50));
                let short = short.map(|bytes| compressed(OPERATION_SEND_COMPRESSED, tag, bytes));
                let whole = whole.filter(|_| short.is_none() && self.rng.percent(60));
                let bytes = whole.as_ref().unwrap_or(&rest);
                region.write(attached.layout.pool_offset_bytes + u64::from(place), bytes).expect("within the pool");
                if whole.is_some() {
                    let length_bytes = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
                    packed.push(PackedFrame { tag, length_bytes, offset_bytes: place });
                }
                if whole.is_none() || packed.len() == MAX_PACKED_SENT || self.rng.percent(10) {
                    publish(SendPacked::new(0, &packed).to_message(), packed.len());
                    packed.clear();
                }
                if whole.is_none() {
                    let alone = short.unwrap_or_else(|| placed(&message, tag, place));
                    pairs[number].addresses = super::frames::addresses(&alone, known);
                    publish(alone, 1);
                }
                published += 1;
            }
            publish(SendPacked::new(0, &packed).to_message(), packed.len());
            if published > 0 {
                context.say(|| format!("port {port}: {published} frames"));
            }
            if published > 0 && queue.requests.reader_needs_doorbell() {
                queue.daemon_doorbell.ring();
            }
            sent += published;
        }
        sent
    }
}

/// Where buffers are in the pool: those of the first pair, to send and to receive, then those of the next.
fn send_offset(parameters: &PortParameters, pair: usize, tag: u16) -> u32 {
    let of_pair = parameters.depth * (SEND_BYTES + parameters.buffer_bytes);
    u32::try_from(pair).unwrap_or(0) * of_pair + u32::from(tag) * SEND_BYTES
}

fn receive_offset(parameters: &PortParameters, pair: usize, tag: u16) -> u32 {
    send_offset(parameters, pair, 0) + parameters.depth * SEND_BYTES + u32::from(tag) * parameters.buffer_bytes
}

/// A message with its tag, and with the place of its rest unless that is wrong already.
fn placed(message: &Message, tag: u16, place: u32) -> Message {
    let mut send = Send::of(message);
    send.tag = tag;
    if send.operation == fipsee_net::wire::OPERATION_SEND && send.offset_bytes == 0 {
        send.offset_bytes = place;
    }
    send.to_message()
}

/// A message that no correct client posts, and how it is to be answered.
fn nonsense(buffer: PostedBuffer, rng: &mut Rng) -> (Post, Vec<Posted>) {
    let good = Post::new(&[buffer]);
    let mut outside = buffer;
    match rng.below(3) {
        0 => outside.memory = 1,
        1 => outside.offset_bytes = POOL_BYTES,
        _ => outside.length_bytes = 0,
    }
    let (post, expected) = match rng.below(5) {
        0 => (Post { count: [0, 5][rng.below(2)], ..good }, Status::Invalid),
        1 => (Post { reserved_end: [0, 1], ..good }, Status::Invalid),
        2 => (Post { operation: 9, reserved: buffer.tag, ..good }, Status::Unsupported),
        3 => (Post::new(&[outside]), Status::BadMemory),
        _ => (Post { operation: OPERATION_POST, ..good }, Status::Ok),
    };
    (post, vec![Posted { buffer, expected }])
}
