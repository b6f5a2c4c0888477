//! A network: its ports, the switch between them, and what each has done.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use fipsee_ring::Message;
use fipsee_ring::control::ACCESS_READ;
use fipsee_ring::memory::{Memory, RegionTable, Span};
use fipsee_serve::session::Credentials;

use super::endpoint::{Endpoint, Frame};
use crate::frame::{HEADER_BYTES, Head, Header, VLAN_TAG_BYTES};
use crate::switch::{Delivery, Learning, PortNumber, Rules, Switch};
use crate::wire::{
    MAX_FIRST_BYTES, MAX_SMALL_BYTES, OPERATION_SEND, OPERATION_SEND_SMALL, Offload, Send, Small, Status, first_byte,
};

/// May a client with these credentials attach?
pub type Allow = Box<dyn Fn(&Credentials) -> bool + std::marker::Send + Sync>;

/// A port as it is configured.
pub struct PortSetup {
    pub name: String,
    pub rules: Rules,
    pub allow: Allow,
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
}

/// One worker serves all queues of a network as a rule, and nothing else writes.
fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

pub(super) struct Port {
    pub(super) setup: PortSetup,
    pub(super) counters: PortCounters,
}

/// What has a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A client of the service, by its number.
    Client(u64),
    /// A virtual machine.
    Machine,
    /// A device of the host.
    Device,
}

/// The control threads' view: who is attached.
#[derive(Debug, Default)]
pub(super) struct Attached {
    /// What has each port, and whether it has hung up.
    pub(super) holders: Vec<Option<(Holder, bool)>>,
    /// The worker of all.
    pub(super) worker: Option<usize>,
}

pub(super) struct Network {
    pub(super) name: String,
    pub(super) mtu: u16,
    pub(super) ports: Vec<Port>,
    pub(super) attached: Mutex<Attached>,
    data: Mutex<Data>,
}

/// What queues change.
pub(super) struct Data {
    pub(super) switch: Switch,
    /// Of each port, by pair.
    receivers: Vec<Vec<Option<Endpoint>>>,
    /// Those that were given a frame since they were last flushed.
    touched: Vec<(PortNumber, usize)>,
    /// Attempts to give a frame to a port, and useless messages of receivers, for the frame that is being sent.
    deliveries: u64,
    /// Places to work in.
    to: Vec<Delivery>,
    spans: Vec<Span>,
}

/// What came of a frame that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub status: Status,
    /// Bytes that were moved.
    pub bytes: u64,
    /// How often a receiver was looked at for it, whether it got it or not.
    pub deliveries: u64,
}

impl Network {
    pub(super) fn new(setup: NetworkSetup) -> Self {
        let NetworkSetup { name, mtu, learning, ports } = setup;
        let switch = Switch::new(ports.iter().map(|port| port.rules.clone()).collect(), learning);
        let receivers = ports.iter().map(|_| Vec::new()).collect();
        let (touched, to, spans) = (Vec::with_capacity(64), Vec::with_capacity(ports.len()), Vec::with_capacity(1));
        let data = Mutex::new(Data { switch, receivers, touched, deliveries: 0, to, spans });
        let attached = Attached { holders: vec![None; ports.len()], worker: None };
        let ports = ports.into_iter().map(|setup| Port { setup, counters: PortCounters::default() }).collect();
        Self { name, mtu, ports, attached: Mutex::new(attached), data }
    }

    pub(super) fn attached(&self) -> MutexGuard<'_, Attached> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Count a frame of `port`: its bytes, and bytes moved for it, or why the switch did not take it.
    pub(super) fn counted(&self, port: PortNumber, sent: Result<(u64, u64), Status>, deliveries: u64) -> Outcome {
        let counters = &self.ports[usize::from(port)].counters;
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
    /// A receive queue of a port is served from now on.
    pub(super) fn add(&mut self, port: PortNumber, pair: usize, endpoint: Endpoint) {
        let receivers = &mut self.receivers[usize::from(port)];
        if receivers.len() <= pair {
            receivers.resize_with(pair + 1, || None);
        }
        receivers[pair] = Some(endpoint);
        // Each is there once at most: a worker that serves allocates nothing.
        self.touched.reserve(self.receivers.iter().map(Vec::len).sum());
        self.switch.set_up(port, true);
    }

    /// It is served no more. With the last one the port is down.
    pub(super) fn remove(&mut self, port: PortNumber, pair: usize) {
        let receivers = &mut self.receivers[usize::from(port)];
        if let Some(receiver) = receivers.get_mut(pair) {
            *receiver = None;
        }
        if receivers.iter().all(Option::is_none) {
            receivers.clear();
            self.switch.set_up(port, false);
        }
    }

    pub(super) fn endpoint(&self, port: PortNumber, pair: usize) -> Option<&Endpoint> {
        self.receivers.get(usize::from(port))?.get(pair)?.as_ref()
    }

    /// For the frame that was sent last.
    pub(super) const fn deliveries(&self) -> u64 {
        self.deliveries
    }

    /// Carry out a message of a transmit queue of `port`, whose memory is `memory`.
    pub(super) fn transmit(
        &mut self,
        network: &Network,
        port: PortNumber,
        message: &Message,
        memory: &RegionTable,
        now_ns: u64,
    ) -> (u16, Outcome) {
        let send = Send::of(message);
        let small = Small::of(message);
        let parsed = match first_byte(message) {
            OPERATION_SEND => {
                let first = send.first.get(..usize::from(send.first_bytes)).ok_or(Status::Invalid);
                first.map(|first| (first, send.rest_bytes, send.offload))
            }
            OPERATION_SEND_SMALL => {
                let first = small.bytes.get(..usize::from(small.length_bytes)).ok_or(Status::Invalid);
                first.map(|first| (first, 0, Offload::default()))
            }
            _ => Err(Status::Unsupported),
        };
        let outcome = match parsed {
            Ok((first, rest_bytes, offload)) => {
                let rest = |spans: &mut Vec<Span>| memory.find(send.extent(), ACCESS_READ, spans).map_err(|_| Status::BadMemory);
                self.send(network, port, (first, offload), (rest_bytes, rest), now_ns)
            }
            Err(status) => Err(status),
        };
        (send.tag, network.counted(port, outcome, self.deliveries))
    }

    /// Give a frame of `port` to the ports that the switch names. Its first bytes have been copied; `find` looks for the rest once its length is known to be
    /// allowed. Returns the bytes of the frame, and bytes moved for it.
    pub(super) fn send(
        &mut self,
        network: &Network,
        port: PortNumber,
        (first, offload): (&[u8], Offload),
        (rest_bytes, find): (u32, impl FnOnce(&mut Vec<Span>) -> Result<(), Status>),
        now_ns: u64,
    ) -> Result<(u64, u64), Status> {
        self.deliveries = 0;
        self.spans.clear();
        if offload != Offload::default() {
            return Err(Status::Unsupported);
        }
        let header = Header::of(first).ok_or(Status::TooShort)?;
        let tag_bytes = if header.tag.is_some() { VLAN_TAG_BYTES } else { 0 };
        let length_bytes = first.len() as u64 + u64::from(rest_bytes);
        if length_bytes > u64::from(u32::from(network.mtu) + HEADER_BYTES + tag_bytes) {
            return Err(Status::TooLong);
        }
        if rest_bytes > 0 {
            find(&mut self.spans)?;
        }
        let mut to = std::mem::take(&mut self.to);
        to.clear();
        let verdict = self.switch.forward(port, &header, now_ns, &mut to);
        let mut moved_bytes = 0;
        for (number, tagging) in &to {
            moved_bytes += self.deliver(network, *number, &Head::new(first, *tagging), (rest_bytes, offload));
        }
        self.to = to;
        verdict.map(|()| (length_bytes, moved_bytes))
    }

    /// Give a frame to a port: `head`, then what `spans` has. Returns the bytes moved.
    fn deliver(&mut self, network: &Network, port: PortNumber, head: &Head, (rest_bytes, offload): (u32, Offload)) -> u64 {
        let counters = &network.ports[usize::from(port)].counters;
        let receivers = &mut self.receivers[usize::from(port)];
        let pair = flow(head.bytes()) % receivers.len().max(1);
        let length_bytes = u32::try_from(head.bytes().len()).unwrap_or(u32::MAX).saturating_add(rest_bytes);
        self.deliveries += 1;
        let Some(receiver) = receivers.get_mut(pair).and_then(Option::as_mut) else {
            count(&counters.dropped, 1);
            return 0;
        };
        let frame = Frame { head: head.bytes(), rest: &self.spans, length_bytes, offload };
        // SAFETY: found in memory that the sender's queue keeps mapped, which lends it during this call.
        let delivered = unsafe { receiver.deliver(&frame) };
        self.deliveries += u64::from(delivered.useless);
        if delivered.is_first {
            self.touched.push((port, pair));
        }
        if !delivered.is_taken {
            count(&counters.dropped, 1);
            return 0;
        }
        count(&counters.received, 1);
        count(&counters.received_bytes, length_bytes.into());
        length_bytes.into()
    }

    /// Ring for those that have got something and sleep.
    pub(super) fn flush(&mut self) {
        while let Some((port, pair)) = self.touched.pop() {
            if let Some(receiver) = self.receivers[usize::from(port)].get_mut(pair).and_then(Option::as_mut) {
                receiver.flush();
            }
        }
    }
}

/// A number that is the same for all frames of a flow: from the addresses, and those of IPv4.
fn flow(first: &[u8]) -> usize {
    const ADDRESSES: usize = 12;
    let (macs, rest) = first.split_at(ADDRESSES.min(first.len()));
    let ips = match rest.first_chunk() {
        Some([8, 0]) => rest.get(14..22).unwrap_or_default(),
        _ => &[],
    };
    // FNV-1a.
    let mix = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let hash = macs.iter().chain(ips).fold(0x811c_9dc5, mix);
    // The last bytes have not reached all bits yet.
    ((hash ^ (hash >> 15)).wrapping_mul(0x2c1b_3c6d) >> 16) as usize
}

const _: () = assert!(MAX_FIRST_BYTES <= MAX_SMALL_BYTES, "a head holds the first bytes of either message");
