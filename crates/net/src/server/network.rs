//! A network: its ports, the switch between them, and what each has done.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use fipsee_ring::Message;
use fipsee_ring::control::ACCESS_READ;
use fipsee_ring::memory::{Memory, RegionTable, Span};
use fipsee_serve::session::Credentials;

use super::receiver::Receiver;
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

/// The control thread's view: who is attached.
#[derive(Debug, Default)]
pub(super) struct Attached {
    /// The client of each port, and whether it has hung up.
    pub(super) clients: Vec<Option<(u64, bool)>>,
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
    receivers: Vec<Vec<Option<Receiver>>>,
    /// Those that were given a frame since they were last flushed.
    touched: Vec<(PortNumber, usize)>,
    /// Attempts to give a frame to a port, and useless messages of receivers, for the frame that is being sent.
    deliveries: u64,
    /// Places to work in.
    to: Vec<Delivery>,
    spans: Vec<Span>,
}

/// What came of a message of a transmit queue.
pub(super) struct Outcome {
    pub(super) tag: u16,
    pub(super) status: Status,
    /// Bytes that were moved.
    pub(super) bytes: u64,
    /// How often a receiver was looked at for it, whether it got it or not.
    pub(super) deliveries: u64,
}

impl Network {
    pub(super) fn new(setup: NetworkSetup) -> Self {
        let NetworkSetup { name, mtu, learning, ports } = setup;
        let switch = Switch::new(ports.iter().map(|port| port.rules.clone()).collect(), learning);
        let receivers = ports.iter().map(|_| Vec::new()).collect();
        let (touched, to, spans) = (Vec::with_capacity(64), Vec::with_capacity(ports.len()), Vec::with_capacity(1));
        let data = Mutex::new(Data { switch, receivers, touched, deliveries: 0, to, spans });
        let attached = Attached { clients: vec![None; ports.len()], worker: None };
        let ports = ports.into_iter().map(|setup| Port { setup, counters: PortCounters::default() }).collect();
        Self { name, mtu, ports, attached: Mutex::new(attached), data }
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
    /// A receive queue of a port is served from now on.
    pub(super) fn add(&mut self, port: PortNumber, pair: usize, receiver: Receiver) {
        let receivers = &mut self.receivers[usize::from(port)];
        if receivers.len() <= pair {
            receivers.resize_with(pair + 1, || None);
        }
        receivers[pair] = Some(receiver);
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

    pub(super) fn receiver(&self, port: PortNumber, pair: usize) -> Option<&Receiver> {
        self.receivers.get(usize::from(port))?.get(pair)?.as_ref()
    }

    /// Carry out a message of a transmit queue of `port`, whose memory is `memory`.
    pub(super) fn transmit(
        &mut self,
        network: &Network,
        port: PortNumber,
        message: &Message,
        memory: &RegionTable,
        now_ns: u64,
    ) -> Outcome {
        let send = Send::of(message);
        let (counters, tag) = (&network.ports[usize::from(port)].counters, send.tag);
        self.deliveries = 0;
        match self.try_transmit(network, port, message, &send, memory, now_ns) {
            Ok((frame_bytes, bytes)) => {
                count(&counters.sent, 1);
                count(&counters.sent_bytes, frame_bytes);
                Outcome { tag, status: Status::Ok, bytes, deliveries: self.deliveries }
            }
            Err(status) => {
                count(&counters.refused[usize::from(status.to_wire())], 1);
                Outcome { tag, status, bytes: 0, deliveries: self.deliveries }
            }
        }
    }

    /// Bytes of the frame, and bytes moved for it.
    fn try_transmit(
        &mut self,
        network: &Network,
        port: PortNumber,
        message: &Message,
        send: &Send,
        memory: &RegionTable,
        now_ns: u64,
    ) -> Result<(u64, u64), Status> {
        let small = Small::of(message);
        self.spans.clear();
        let first = match first_byte(message) {
            OPERATION_SEND if send.offload != Offload::default() => return Err(Status::Unsupported),
            OPERATION_SEND => send.first.get(..usize::from(send.first_bytes)).ok_or(Status::Invalid)?,
            OPERATION_SEND_SMALL => small.bytes.get(..usize::from(small.length_bytes)).ok_or(Status::Invalid)?,
            _ => return Err(Status::Unsupported),
        };
        let rest_bytes = if first_byte(message) == OPERATION_SEND { send.rest_bytes } else { 0 };
        let header = Header::of(first).ok_or(Status::TooShort)?;
        let tag_bytes = if header.tag.is_some() { VLAN_TAG_BYTES } else { 0 };
        let length_bytes = first.len() as u64 + u64::from(rest_bytes);
        if length_bytes > u64::from(u32::from(network.mtu) + HEADER_BYTES + tag_bytes) {
            return Err(Status::TooLong);
        }
        if rest_bytes > 0 {
            memory.find(send.extent(), ACCESS_READ, &mut self.spans).map_err(|_| Status::BadMemory)?;
        }
        let mut to = std::mem::take(&mut self.to);
        to.clear();
        let verdict = self.switch.forward(port, &header, now_ns, &mut to);
        let mut moved_bytes = 0;
        for (number, tagging) in &to {
            moved_bytes += self.deliver(network, *number, &Head::new(first, *tagging), rest_bytes);
        }
        self.to = to;
        verdict.map(|()| (length_bytes, moved_bytes))
    }

    /// Give a frame to a port: `head`, then what `spans` has. Returns the bytes moved.
    fn deliver(&mut self, network: &Network, port: PortNumber, head: &Head, rest_bytes: u32) -> u64 {
        let counters = &network.ports[usize::from(port)].counters;
        let receivers = &mut self.receivers[usize::from(port)];
        let pair = flow(head.bytes()) % receivers.len().max(1);
        let length_bytes = u32::try_from(head.bytes().len()).unwrap_or(u32::MAX).saturating_add(rest_bytes);
        self.deliveries += 1;
        let Some(receiver) = receivers.get_mut(pair).and_then(Option::as_mut) else {
            count(&counters.dropped, 1);
            return 0;
        };
        let was_touched = receiver.touched;
        // SAFETY: found in memory that the sender's queue keeps mapped, which lends it during this call.
        let is_delivered = unsafe { receiver.deliver(head.bytes(), &self.spans, length_bytes) };
        self.deliveries += u64::from(std::mem::take(&mut receiver.useless));
        if receiver.touched && !was_touched {
            self.touched.push((port, pair));
        }
        if !is_delivered {
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
