//! A network beside the disk: its ports as they are drawn, and an oracle that says what each of them may and must receive.

mod arrivals;
pub(crate) mod broken;
mod frames;
pub(crate) mod port;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use fipsee_net::frame::Mac;
use fipsee_net::server::{NetworkSetup, Networks, PortSetup, Switches};
use fipsee_net::switch::{Learning, Rules, Vlans};
use fipsee_net::wire::{Addresses, PostedBuffer, Status};
use fipsee_ring::Message;
use fipsee_ring::handshake::AttachedChannel;
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::region::Region;
use fipsee_ring::ring::{Cursor, Reader};
use fipsee_serve::WorkerHandle;

use self::frames::{Frame, own};
use crate::context::Context;
use crate::queue::SimEngine;
use crate::rng::Rng;
use crate::variant::Variant;

const NAME: &str = "lan";
const MTU: u16 = 300;
/// Bytes of the pool that a port asks for, and gets.
const POOL_BYTES: u32 = 16 << 10;
/// Rings of a pair that the daemon writes: of frames that were sent, and of those that come.
const SENT: usize = 0;
const RECEIVED: usize = 1;

/// A port as it is configured, and how its client uses it.
#[derive(Clone, Debug)]
pub struct PortParameters {
    /// As configured.
    pub(crate) rules: Rules,
    /// Pairs of queues.
    pub(crate) pairs: u16,
    /// Frames on their way in each direction of a pair.
    pub(crate) depth: u32,
    /// Length of a receive buffer.
    pub(crate) buffer_bytes: u32,
    /// How it ends: 0: detaches when all is answered; 1: detaches at once; 2: hangs up.
    pub(crate) end: usize,
}

impl PortParameters {
    /// Of 2 to 4 ports. The first two are in one VLAN and reach each other.
    pub(crate) fn draw_all(rng: &mut Rng) -> Vec<Self> {
        let (count, has_vlans) = (2 + rng.below(3), rng.percent(60));
        (0..count).map(|port| Self::draw(rng, port, has_vlans)).collect()
    }

    fn draw(rng: &mut Rng, port: usize, has_vlans: bool) -> Self {
        let vlan = |rng: &mut Rng| [10, 20, 30][rng.below(3)];
        let vlans = match rng.below(2) {
            _ if !has_vlans => Vlans::Access(0),
            0 if port > 1 => Vlans::Access(vlan(rng)),
            _ if port < 2 => Vlans::Access(10),
            _ => {
                let tagged = [10, 20, 30].into_iter().filter(|_| rng.percent(60)).collect::<Vec<u16>>();
                let native = (tagged.is_empty() || rng.percent(50)).then(|| vlan(rng));
                Vlans::Trunk { tagged: tagged.into_iter().filter(|vlan| native != Some(*vlan)).collect(), native }
            }
        };
        let rules = Rules {
            vlans,
            any_source: rng.percent(40),
            isolated: port != 0 && rng.percent(25),
            mirror: port > 1 && rng.percent(25),
            // By a real clock, which no seed determines.
            flood_limit: 1_000_000_000,
            ..Rules::new(own(port))
        };
        Self {
            rules,
            pairs: if rng.percent(30) { 2 } else { 1 },
            depth: 2 + rng.small(7),
            buffer_bytes: [64, 100, 160, 384][rng.below(4)],
            end: rng.below(4).saturating_sub(1),
        }
    }
}

/// A buffer that was posted, and the status that it comes back with unless it holds a frame.
#[derive(Clone, Copy, Debug)]
struct Posted {
    buffer: PostedBuffer,
    expected: Status,
}

/// What the client of a port is to find in a ring.
#[derive(Debug)]
struct Due {
    message: Message,
    /// What is in the buffers that it answers, unless the client may have overwritten that itself.
    buffers: Vec<Vec<u8>>,
}

/// A pair of queues of a client, as the oracle sees it: by readers of its own.
struct PairView {
    readers: [Reader<MappedRing>; 2],
    /// Frames without an answer, by tag.
    sent: HashMap<u16, usize>,
    /// Oldest first.
    posted: VecDeque<Posted>,
    due: [VecDeque<Due>; 2],
    /// Of the last short frame that came alone with them.
    addresses: Option<Addresses>,
}

/// A client of a port.
struct View {
    attachment: u64,
    region: Arc<Region>,
    pool_offset_bytes: u64,
    /// It posts buffers that no correct client posts.
    is_faulty: bool,
    pairs: Vec<PairView>,
}

/// A frame that was sent.
struct Sent {
    frame: Frame,
    port: usize,
    pair: usize,
    attachment: u64,
    status: Option<Status>,
    /// Ports that have received it.
    received: Vec<usize>,
}

/// Where an address is that is no port's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressLocation {
    Behind(usize),
    /// The switch may have forgotten it, or learned it from a client that is gone.
    Uncertain,
}

/// The network of a lifetime. Without ports there is none.
#[derive(Default)]
pub(crate) struct Lan {
    ports: Vec<PortParameters>,
    rules: Vec<Rules>,
    views: Vec<Option<View>>,
    frames: Vec<Sent>,
    learned: HashMap<(u16, Mac), AddressLocation>,
    /// The newest frame from a pair of an attachment to another's.
    newest: HashMap<[(u64, usize); 2], usize>,
    attachments: u64,
    /// Frames that may be sent so far, and whether more will be.
    allowed: usize,
    grows: bool,
    /// Frames that ports have received.
    pub(crate) received: u32,
}

impl Lan {
    pub(crate) fn new(ports: Vec<PortParameters>) -> Self {
        let rules: Vec<Rules> = ports.iter().map(|port| port.rules.clone()).collect();
        Self { views: ports.iter().map(|_| None).collect(), rules, ports, grows: true, ..Self::default() }
    }

    /// As a daemon has it.
    pub(crate) fn networks(&self, context: &Context, workers: Vec<WorkerHandle<SimEngine>>) -> Networks<SimEngine> {
        let port = |(number, parameters): (usize, &PortParameters)| {
            let mut rules = parameters.rules.clone();
            if context.is_broken(Variant::SourceUnchecked) {
                rules.any_source = true;
            }
            if context.is_broken(Variant::VlansJoined) && matches!(rules.vlans, Vlans::Access(_)) {
                rules.vlans = Vlans::Access(10);
            }
            PortSetup { name: number.to_string(), rules, allow: Box::new(|_| true), reserved: None }
        };
        let ports = self.ports.iter().enumerate().map(port).collect();
        let setup = NetworkSetup { name: NAME.to_owned(), mtu: MTU, learning: Learning::default(), ports };
        Networks::new(Switches::new(vec![setup]), workers, Arc::new(|_, _| {}))
    }

    /// So many frames may be sent by now.
    pub(crate) const fn allow(&mut self, frames: u32, grows: bool) {
        (self.allowed, self.grows) = (frames as usize, grows);
    }

    fn may_send(&self) -> bool {
        self.frames.len() < self.allowed
    }

    fn is_used_up(&self) -> bool {
        !self.grows && !self.may_send()
    }

    /// A client is attached to a port.
    fn begin(&mut self, port: usize, attached: &AttachedChannel) {
        self.attachments += 1;
        let reader = |queue: usize| {
            let (geometry, tuning) = (&attached.layout.queues[queue], attached.layout.queues[queue].tuning());
            let ring = geometry.completion_ring(&attached.region, &tuning).expect("it fits");
            Reader::new(ring, Cursor::at_start(geometry.completion_start), &tuning)
        };
        let pair = |pair| {
            let readers = [reader(2 * pair + SENT), reader(2 * pair + RECEIVED)];
            let due = [VecDeque::new(), VecDeque::new()];
            PairView { readers, sent: HashMap::new(), posted: VecDeque::new(), due, addresses: None }
        };
        self.views[port] = Some(View {
            attachment: self.attachments,
            region: Arc::clone(&attached.region),
            pool_offset_bytes: attached.layout.pool_offset_bytes,
            is_faulty: false,
            pairs: (0..attached.layout.queues.len() / 2).map(pair).collect(),
        });
    }

    /// A client is gone. What it has published may still be taken.
    fn end(&mut self, port: usize) {
        let Some(view) = self.views[port].take() else { return };
        let frames = &self.frames;
        for frame in view.pairs.iter().flat_map(|pair| pair.sent.values()).map(|index| &frames[*index].frame) {
            if frame.source != own(port) {
                self.learned.insert((frame.vlan, frame.source), AddressLocation::Uncertain);
            }
        }
        self.may_be_forgotten(port);
    }

    /// The switch forgets what it has learned of a port when that goes down.
    fn may_be_forgotten(&mut self, port: usize) {
        for location in self.learned.values_mut().filter(|location| **location == AddressLocation::Behind(port)) {
            *location = AddressLocation::Uncertain;
        }
    }

    /// Another daemon may serve it.
    pub(crate) fn daemon_may_be_another(&mut self) {
        self.learned.values_mut().for_each(|location| *location = AddressLocation::Uncertain);
    }

    /// A frame of a port: the message, without place and tag, and the bytes behind its first ones.
    fn draw_frame(&mut self, port: usize, pair: usize, tag: u16, is_wrong: bool, rng: &mut Rng) -> (Message, Vec<u8>) {
        let number = u32::try_from(self.frames.len()).unwrap_or(u32::MAX);
        let (frame, message, rest) = frames::draw(&self.rules, port, number, is_wrong, rng);
        let Some(view) = &mut self.views[port] else { return (message, rest) };
        view.pairs[pair].sent.insert(tag, self.frames.len());
        let attachment = view.attachment;
        self.frames.push(Sent { frame, port, pair, attachment, status: None, received: Vec::new() });
        (message, rest)
    }
}

fn is_member(rules: &Rules, vlan: u16) -> bool {
    match &rules.vlans {
        Vlans::Access(own) => *own == vlan,
        Vlans::Trunk { tagged, native } => *native == Some(vlan) || tagged.contains(&vlan),
    }
}
