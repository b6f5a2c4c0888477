//! A network: its ports, the switch between them, and what each has done.

use std::fmt;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use fipsee_ring::control::ACCESS_READ;
use fipsee_ring::doorbell::EventDoorbell;
use fipsee_ring::memory::{Memory, RegionTable, Span};
use fipsee_ring::{Message, cpu};
use fipsee_serve::limit::Limiter;
use fipsee_serve::session::Credentials;

use super::endpoint::{Endpoint, Frame};
use super::events::PortState;
use super::flow::Flow;
use super::outputs::Outputs;
use super::queue::Sender;
use super::software::{Inspected, Software};
use super::stages::{self, Stage};
use crate::frame::{HEADER_BYTES, Header, Mac, ShortHead, Tagging, VLAN_TAG_BYTES};
use crate::switch::{Delivery, DetectionFrame, Learning, Link, PortNumber, Rules, Switch};
use crate::wire::{
    Addresses, MAX_COMPRESSED_BYTES, MAX_FIRST_BYTES, MAX_SEGMENTED_BYTES, OPERATION_ACKNOWLEDGE, OPERATION_ALL_GROUPS,
    OPERATION_JOIN, OPERATION_LEAVE, OPERATION_NO_GROUP, OPERATION_SEND, OPERATION_SEND_COMPRESSED, OPERATION_SEND_SMALL,
    Offload, Request, Send, Small, Status, first_byte, sent_offload, sent_tag,
};

/// Most ports of a network: more than any of a host has.
pub const MAX_PORTS: usize = 4096;

/// May a client with these credentials attach?
pub type Allow = Box<dyn Fn(&Credentials) -> bool + std::marker::Send + Sync>;

/// A port as it is configured.
pub struct PortSetup {
    pub name: String,
    pub rules: Rules,
    pub allow: Allow,
    /// What alone may have it, if not every client that is allowed to.
    pub reserved: Option<Reservation>,
}

/// A network as it is configured.
pub struct NetworkSetup {
    pub name: String,
    pub mtu: u16,
    pub learning: Learning,
    pub ports: Vec<PortSetup>,
}

impl fmt::Debug for PortSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortSetup").field("name", &self.name).field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// What a port has done since the daemon started.
#[derive(Debug, Default)]
pub(super) struct PortCounters {
    /// Frames that the switch took from it, and their bytes.
    pub(super) sent: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) received_bytes: AtomicU64,
    /// Frames for it for which it had not posted enough buffers.
    pub(super) dropped: AtomicU64,
    /// Frames of it that the switch did not take, by status.
    pub(super) refused: [AtomicU64; Status::ALL.len()],
    /// How often it was blocked because frames came back through it, and how many of these are in the log.
    pub(super) blocked: AtomicU64,
    logged: AtomicU64,
}

/// Only the thread that has the network's data counts, so that a load and a store are enough: a locked operation would wait for each frame until
/// what was stored for the one before has left this CPU.
#[inline(always)]
pub(super) fn count(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

fn number_of(Mac([a, b, c, d, e, f]): Mac) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

pub(super) struct Port {
    pub(super) setup: PortSetup,
    /// Of now, as a number: an administrator changes it.
    mac: AtomicU64,
    pub(super) counters: PortCounters,
    /// Of the frames that it sends, whatever has it.
    pub(super) limiter: Arc<Limiter>,
}

impl Port {
    pub(super) fn new(setup: PortSetup) -> Self {
        let mac = AtomicU64::new(number_of(setup.rules.mac));
        Self { setup, mac, counters: PortCounters::default(), limiter: Arc::default() }
    }

    pub(super) fn mac(&self) -> Mac {
        let [_, _, mac @ ..] = self.mac.load(Ordering::Relaxed).to_be_bytes();
        Mac(mac)
    }

    pub(super) fn set_mac(&self, mac: Mac) {
        self.mac.store(number_of(mac), Ordering::Relaxed);
    }

    /// As it is configured, with the address of now.
    pub(super) fn rules(&self) -> Rules {
        Rules { mac: self.mac(), ..self.setup.rules.clone() }
    }

    /// Count a frame that it sent: its bytes, and bytes moved for it, or why the switch did not take it.
    pub(super) fn counted(&self, sent: Result<(u64, u64), Status>, deliveries: u64) -> Outcome {
        let counters = &self.counters;
        match sent {
            Ok((frame_bytes, bytes)) => {
                count(&counters.sent, 1);
                count(&counters.sent_bytes, frame_bytes);
                Outcome { status: Status::Ok, bytes, deliveries }
            }
            Err(status) => {
                count(&counters.refused[usize::from(status.to_wire())], 1);
                Outcome { status, bytes: 0, deliveries }
            }
        }
    }
}

/// What has a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A client of the service, by its number.
    Client(u64),
    /// A virtual machine.
    Machine,
    /// A device of the host, by its name.
    Device(Arc<str>),
}

/// What alone may have a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// A virtual machine, which connects at this path.
    Machine(Arc<str>),
}

impl Reservation {
    pub(super) const fn is_for(&self, holder: &Holder) -> bool {
        matches!((self, holder), (Self::Machine(_), Holder::Machine))
    }
}

/// The control threads' view: which ports there are, and who is attached.
#[derive(Default)]
pub(super) struct Attached {
    /// By number. A number without a port is that of a removed one, and the next that is added has it.
    pub(super) ports: Vec<Option<Arc<Port>>>,
    /// What has each port, and whether it has hung up.
    pub(super) holders: Vec<Option<(Holder, bool)>>,
    /// The worker of all.
    pub(super) worker: Option<usize>,
}

pub(super) struct Network {
    pub(super) name: String,
    /// As it is configured: what clients are sent when they attach, and the most that it may be.
    pub(super) mtu: u16,
    mtu_now: AtomicU16,
    pub(super) attached: Mutex<Attached>,
    data: Mutex<Data>,
    /// Rung when a port was blocked.
    alarm: OnceLock<EventDoorbell>,
}

/// What queues change.
pub(super) struct Data {
    pub(super) switch: Switch,
    pub(super) outputs: Outputs,
    /// Of each port.
    pub(super) flows: Vec<Flow>,
    /// Places to work in.
    to: Vec<Delivery>,
    spans: Vec<Span>,
    software: Software,
}

/// What came of a frame that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub status: Status,
    /// Bytes that were moved.
    pub bytes: u64,
    /// How often a receiver was looked at for it, whether it got it or not, and other work that costs as much.
    pub deliveries: u64,
}

impl Outcome {
    /// The work beyond that of a request: a frame for one receiver costs a worker as much.
    pub fn more_work(&self) -> u64 {
        self.deliveries.saturating_sub(1)
    }
}

impl Network {
    pub(super) fn new(setup: NetworkSetup) -> Self {
        let NetworkSetup { name, mtu, learning, ports } = setup;
        let switch = Switch::new(ports.iter().map(|port| port.rules.clone()).collect(), learning);
        let (to, spans, software) = (Vec::with_capacity(ports.len()), Vec::with_capacity(1), Software::new());
        let ports: Vec<_> = ports.into_iter().map(|setup| Arc::new(Port::new(setup))).collect();
        let (holders, flows) = (vec![None; ports.len()], vec![Flow::default(); ports.len()]);
        let attached = Attached { ports: ports.iter().cloned().map(Some).collect(), holders, worker: None };
        let data = Mutex::new(Data { switch, outputs: Outputs::new(ports), flows, to, spans, software });
        let mtu_now = AtomicU16::new(mtu);
        Self { name, mtu, mtu_now, attached: Mutex::new(attached), data, alarm: OnceLock::new() }
    }

    /// No longer packet is sent.
    #[inline(always)]
    pub(super) fn mtu_now(&self) -> u16 {
        self.mtu_now.load(Ordering::Relaxed)
    }

    /// Longer packets are not sent from now on. Clients are notified.
    pub(super) fn set_mtu(&self, mtu: u16) {
        let mut data = self.data();
        self.mtu_now.store(mtu, Ordering::Relaxed);
        for number in (0..).take(data.flows.len()) {
            data.report_state(self, number);
        }
    }

    /// A port was blocked.
    #[cold]
    fn blocked(&self, port: &Port) {
        count(&port.counters.blocked, 1);
        self.alarm.get().into_iter().for_each(EventDoorbell::ring);
    }

    /// Ports that were blocked since this was called last, and how often since the start. From now on `alarm` is rung when there are some.
    pub(super) fn newly_blocked(&self, alarm: &EventDoorbell) -> Vec<(Arc<Port>, u64)> {
        let _ = self.alarm.set(alarm.clone());
        let ports = self.attached().ports.clone();
        let new = |port: Arc<Port>| {
            let blocked = port.counters.blocked.load(Ordering::Relaxed);
            (port.counters.logged.swap(blocked, Ordering::Relaxed) != blocked).then_some((port, blocked))
        };
        ports.into_iter().flatten().filter_map(new).collect()
    }

    pub(super) fn attached(&self) -> MutexGuard<'_, Attached> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For what happens once for a queue.
    pub(super) fn data(&self) -> MutexGuard<'_, Data> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a worker that serves: it never waits. `None`: another thread has it at this moment.
    pub(super) fn try_data(&self) -> Option<MutexGuard<'_, Data>> {
        match self.data.try_lock() {
            Ok(data) => Some(data),
            Err(TryLockError::Poisoned(data)) => Some(data.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Data {
    /// A port of this number is there from now on.
    pub(super) fn put(&mut self, number: PortNumber, port: Arc<Port>) {
        self.switch.put(number, port.rules());
        self.flows.resize(self.flows.len().max(usize::from(number) + 1), Flow::default());
        // One that was removed, and is put back, may be served.
        let is_served = self.outputs.put(number, port);
        self.switch.set_up(number, is_served);
        // A worker that serves allocates nothing.
        self.to.reserve(usize::from(number) + 1);
    }

    /// A receive queue of a port is served from now on.
    pub(super) fn add(&mut self, port: PortNumber, pair: usize, endpoint: Endpoint) {
        self.outputs.add(port, pair, endpoint);
        self.switch.set_up(port, true);
    }

    /// Report to the sides of a port what it is like, if that is not what they know.
    pub(super) fn report_state(&mut self, network: &Network, port: PortNumber) {
        let (down, mac) = (self.switch.link(port) == Link::Down, self.outputs.port(port).mac());
        self.outputs.set_state(port, PortState { down, mtu: network.mtu_now(), mac });
        self.flush();
    }

    /// A sender of the port is gone, perhaps after its receivers: what it has set since then does not stay.
    pub(super) fn left(&mut self, port: PortNumber) {
        if !self.outputs.is_served(port) {
            self.switch.set_up(port, false);
        }
    }

    /// It is served no more. With the last one the port is down.
    pub(super) fn remove(&mut self, port: PortNumber, pair: usize) -> Option<Endpoint> {
        let (removed, was_last) = self.outputs.remove(port, pair);
        if was_last {
            self.switch.set_up(port, false);
        }
        removed
    }

    /// Frames go to so many pairs of the port, until it is down.
    pub(super) fn use_pairs(&mut self, port: PortNumber, pairs: usize) {
        self.outputs.use_pairs(port, pairs);
    }

    pub(super) fn endpoint_mut(&mut self, port: PortNumber, pair: usize) -> Option<&mut Endpoint> {
        self.outputs.endpoint_mut(port, pair)
    }

    pub(super) fn endpoint(&self, port: PortNumber, pair: usize) -> Option<&Endpoint> {
        self.outputs.endpoint(port, pair)
    }

    /// For the frame that was sent last.
    pub(super) const fn deliveries(&self) -> u64 {
        self.outputs.deliveries
    }

    /// The end of a visit: ring for those that have got something and sleep. Returns whether a full fence was executed.
    pub(super) fn flush(&mut self) -> bool {
        if let Some(DetectionFrame { to: (port, tagging), frame }) = self.switch.take_detection_frame() {
            let head = ShortHead::new(&frame, tagging);
            let length_bytes = u32::try_from(head.bytes().len()).unwrap_or(u32::MAX);
            let frame = Frame { head: head.bytes(), rest: &[], length_bytes, offload: Offload::NONE };
            // SAFETY: there is no rest.
            unsafe { self.outputs.deliver(port, &frame) };
        }
        self.outputs.flush()
    }

    /// Carry out a message of a transmit queue, whose memory is `memory`, and which has last had these addresses in a message with a frame.
    pub(super) fn transmit(
        &mut self,
        network: &Network,
        (sender, addresses): (Sender, &mut Option<Addresses>),
        message: &Message,
        memory: &RegionTable,
        now_ns: impl Fn() -> u64,
    ) -> (u16, Outcome) {
        self.outputs.deliveries = 0;
        if first_byte(message) == OPERATION_SEND_COMPRESSED {
            let sent = self.transmit_compressed(network, sender, *addresses, message, now_ns);
            return (sent_tag(message), self.outputs.port(sender.port).counted(sent, self.deliveries()));
        }
        let (send, small) = (Send::within(message), Small::within(message));
        let parsed = match first_byte(message) {
            OPERATION_SEND => {
                let first = send.first.get(..usize::from(send.first_bytes)).ok_or(Status::Invalid);
                *addresses = first.ok().and_then(Addresses::of);
                first.map(|first| (first, send.rest_bytes, sent_offload(message)))
            }
            OPERATION_SEND_SMALL => {
                let first = small.bytes.get(..usize::from(small.length_bytes)).ok_or(Status::Invalid);
                *addresses = first.ok().and_then(Addresses::of);
                first.map(|first| (first, 0, Offload::NONE))
            }
            operation @ OPERATION_ACKNOWLEDGE..=OPERATION_NO_GROUP => {
                let status = self.request(sender, operation, Request::within(message)).err();
                status.into_iter().for_each(|status| _ = self.outputs.port(sender.port).counted(Err(status), 0));
                return (send.tag, Outcome { status: status.unwrap_or(Status::Ok), bytes: 0, deliveries: 0 });
            }
            _ => Err(Status::Unsupported),
        };
        let outcome = match parsed {
            Ok((first, rest_bytes, offload)) => {
                let rest = |spans: &mut Vec<Span>| {
                    memory.find(send.extent(), ACCESS_READ, spans).map_err(|_| Status::BadMemory)?;
                    // While the switch decides.
                    spans.iter().for_each(|span| cpu::prefetch_for_read(span.base().as_ptr()));
                    Ok(())
                };
                self.send(network, (sender.port, sender.offloads), (first, offload), (rest_bytes, rest), now_ns)
            }
            Err(status) => Err(status),
        };
        (send.tag, self.outputs.port(sender.port).counted(outcome, self.deliveries()))
    }

    /// A message that is no frame.
    fn request(&mut self, sender: Sender, operation: u8, request: &Request) -> Result<(), Status> {
        let (group, port) = (Mac(request.group), sender.port);
        if request.reserved != 0 || request.reserved_end != [0; 50] {
            return Err(Status::Invalid);
        }
        match operation {
            OPERATION_JOIN | OPERATION_LEAVE => return self.switch.join(port, group, operation == OPERATION_JOIN),
            _ if group != Mac::default() => return Err(Status::Invalid),
            OPERATION_ACKNOWLEDGE => return self.outputs.acknowledge(port, sender.pair),
            _ => self.switch.join_all(port, operation == OPERATION_ALL_GROUPS),
        }
        Ok(())
    }

    /// Give a frame of a port, which may leave to others what these offloads allow, to the ports that the switch names. Its first bytes have
    /// been copied; `find` looks for the rest once its length is known to be allowed. Returns the bytes of the frame, and bytes moved for it.
    pub(super) fn send(
        &mut self,
        network: &Network,
        (port, offloads): (PortNumber, u32),
        (first, offload): (&[u8], Offload),
        (rest_bytes, find): (u32, impl FnOnce(&mut Vec<Span>) -> Result<(), Status>),
        now_ns: impl Fn() -> u64,
    ) -> Result<(u64, u64), Status> {
        let Self { switch, outputs, flows, to, spans, software } = self;
        outputs.deliveries = 0;
        spans.clear();
        let (is_plain, deeply) = (offload == Offload::NONE, switch.looks_at_ips(port));
        if !is_plain && (offloads == 0 || offload.needs().is_none_or(|needs| needs & !offloads != 0)) {
            return Err(Status::Unsupported);
        }
        let header = Header::of(first).ok_or(Status::TooShort)?;
        let keys = (header.source.key(), header.destination.key());
        let packet = HEADER_BYTES + if header.tag.is_some() { VLAN_TAG_BYTES } else { 0 };
        let longest_packet = if offload.segmentation == 0 { network.mtu_now().into() } else { MAX_SEGMENTED_BYTES };
        let length_bytes = first.len() as u64 + u64::from(rest_bytes);
        if length_bytes > u64::from(longest_packet + packet) {
            return Err(Status::TooLong);
        }
        if rest_bytes > 0 {
            find(spans)?;
        }
        let (key, flow) = (if is_plain && !deeply { Flow::key(first) } else { None }, &mut flows[usize::from(port)]);
        if let Some(port) = flow.find(key, switch.changes()) {
            stages::stamp(Stage::Decided);
            let length_bytes_here = u32::try_from(length_bytes).unwrap_or(u32::MAX);
            let frame = Frame { head: first, rest: spans, length_bytes: length_bytes_here, offload };
            // SAFETY: found in memory that the sender's queue keeps mapped, which lends it during this call.
            return Ok((length_bytes, unsafe { outputs.deliver(port, &frame) }));
        }
        to.clear();
        let forward = |switch: &mut Switch, to: &mut Vec<Delivery>| {
            let forwarded = switch.forward_between(port, keys, &header, &now_ns, to);
            if forwarded.is_err() {
                switch.take_blocked().into_iter().for_each(|port| network.blocked(outputs.port(port)));
            }
            forwarded
        };
        if !is_plain || deeply {
            // SAFETY: found in memory that the sender's queue keeps mapped, which lends it during this call.
            let inspected = unsafe { Inspected::new(&offload, first, spans, (packet, network.mtu_now(), length_bytes), deeply) }?;
            if !switch.may_send(port, &header, &inspected.head()[packet as usize..]) {
                return Err(Status::WrongIp);
            }
            forward(switch, to)?;
            // SAFETY: likewise.
            return Ok((length_bytes, unsafe { inspected.deliver(outputs, to, spans, software) }));
        }
        let is_constant = forward(switch, to)?;
        stages::stamp(Stage::Decided);
        if let ([(only, Tagging::AsItIs)], true, None) = (&to[..], is_constant, header.tag) {
            flow.remember(key, *only, switch.changes());
        }
        let mut moved_bytes = 0;
        for (number, tagging) in to.iter() {
            let changed;
            let head = match tagging {
                Tagging::AsItIs => first,
                _ => {
                    changed = ShortHead::new(first, *tagging);
                    changed.bytes()
                }
            };
            let length_bytes = u32::try_from(head.len()).unwrap_or(u32::MAX).saturating_add(rest_bytes);
            let frame = Frame { head, rest: spans, length_bytes, offload };
            // SAFETY: likewise.
            moved_bytes += unsafe { outputs.deliver(*number, &frame) };
        }
        Ok((length_bytes, moved_bytes))
    }
}

const _: () = assert!(MAX_FIRST_BYTES <= MAX_COMPRESSED_BYTES, "a head holds the first bytes of each message");
