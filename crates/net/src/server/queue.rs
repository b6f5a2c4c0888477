//! The queues of a port, on their worker's thread.

use std::any::Any;
use std::cell::LazyCell;
use std::sync::{Arc, LazyLock};

use fipsee_ring::channel::ServerQueue;
use fipsee_ring::control::ACCESS_READ;
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::memory::RegionTable;
use fipsee_ring::ring::{Reader, Writer};
use fipsee_ring::{Message, clock, cpu};
use fipsee_serve::session::Positions;
use fipsee_serve::{Blocks, Engine, Queue, Taken, Turn};

use super::events::Events;
use super::network::{Network, Outcome};
use super::port::ServedPort;
use super::stages::{self, Stage};
use crate::switch::PortNumber;
use crate::wire::{Addresses, KIND_RETURNED, OPERATION_SEND_PACKED, Packing, PostedBuffer, SendPacked, first_byte};

/// Most frames of one visit.
const BUDGET: u32 = 64;
/// More than one message, for the ring.
const BURST: usize = 2;
const NS_PER_SECOND: u64 = 1_000_000_000;

/// What another process needs to continue with a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QueueState {
    pub(super) positions: Positions,
    /// That were taken from a receive queue, and hold no frame yet.
    pub(super) buffers: Vec<PostedBuffer>,
    pub(super) events: Events,
    /// That a frame without addresses has.
    pub(super) addresses: Option<Addresses>,
}

/// Whose frames a transmit queue has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    pub(super) port: PortNumber,
    pub(super) pair: usize,
    /// In force.
    pub(super) offloads: u32,
}

/// A transmit queue.
pub(super) struct TransmitQueue {
    end: ServerQueue,
    memory: RegionTable,
    network: Arc<Network>,
    sender: Sender,
    depth: u32,
    addresses: Option<Addresses>,
    returned: Packing,
    blocks: Blocks,
}

impl TransmitQueue {
    /// `addresses`: that its client has last sent in a message with a frame.
    pub(super) fn new(
        end: ServerQueue,
        memory: RegionTable,
        (network, sender): (Arc<Network>, Sender),
        (depth, addresses): (u32, Option<Addresses>),
    ) -> Self {
        Self { end, memory, network, sender, depth, addresses, returned: Packing::default(), blocks: Blocks::default() }
    }
}

impl Drop for TransmitQueue {
    fn drop(&mut self) {
        self.network.data().left(self.sender.port);
    }
}

/// Time as the switch counts it. For each visit: a division of 128 bits would take longer than the switch.
#[inline(always)]
pub fn now_ns() -> u64 {
    const FRACTION_BITS: u32 = 32;
    static NS_PER_TICK: LazyLock<u64> = LazyLock::new(|| (NS_PER_SECOND << FRACTION_BITS) / clock::ticks_per_second().max(1));
    let ns = (u128::from(clock::ticks()) * u128::from(*NS_PER_TICK)) >> FRACTION_BITS;
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// What became of the frames of a visit.
struct Answers<'a> {
    returned: &'a mut Packing,
    completions: &'a mut Writer<MappedRing>,
    blocks: &'a mut Blocks,
    taken: Taken,
}

impl Answers<'_> {
    #[inline(always)]
    fn add(&mut self, tag: u16, outcome: Outcome) {
        // A visit ends with the message that has its 256th delivery.
        self.taken = self.taken.and(Taken::new(1, self.blocks.complete(outcome.bytes)).with_more_work(outcome.more_work()));
        self.returned.push(tag, outcome.status.to_wire());
        if self.returned.is_full() {
            self.publish();
            self.completions.prefetch(BURST);
        }
    }

    #[inline(always)]
    fn publish(&mut self) {
        if !self.returned.is_empty() {
            self.completions.publish(&self.returned.take(KIND_RETURNED));
        }
    }
}

/// Ask for the first lines of the frames that a message names, so that their transfers overlap.
#[inline(always)]
fn ask_for(message: &Message, memory: &RegionTable) {
    let packed = SendPacked::within(message);
    let spans = packed.named().unwrap_or_default().iter().map(|frame| memory.span(frame.extent(packed.memory), ACCESS_READ));
    spans.flatten().for_each(|span| cpu::prefetch_for_read(span.base().as_ptr()));
}

/// The same for the next message, if it is there; that it is says that more may follow.
#[inline(always)]
fn ask_for_next(requests: &Reader<MappedRing>, memory: &RegionTable) -> bool {
    let mut next = Message::ZERO;
    let is_there = requests.peek(&mut next) && first_byte(&next) == OPERATION_SEND_PACKED;
    if is_there {
        requests.prefetch_ahead(1);
        ask_for(&next, memory);
    }
    is_there
}

impl<E: Engine> Queue<E> for TransmitQueue {
    fn end(&self) -> Option<&ServerQueue> {
        Some(&self.end)
    }

    fn end_mut(&mut self) -> Option<&mut ServerQueue> {
        Some(&mut self.end)
    }

    fn visit(&mut self, _engine: &mut E, turn: Turn) -> Taken {
        let Self { end, memory, network, sender, depth, addresses, returned, blocks } = self;
        let ServerQueue { requests, completions, client_doorbell, .. } = end;
        if !requests.has_message() {
            return Taken::NOTHING;
        }
        let Some(mut data) = network.try_data() else {
            // Another thread has it at this moment: the next pass looks again. A queue that stayed armed would not be looked at before
            // the worker sleeps.
            requests.disarm();
            return Taken::NOTHING;
        };
        // Most frames need no time.
        let (now_ns, most) = (LazyCell::new(now_ns), BUDGET.min(*depth).min(turn.requests));
        let mut answers = Answers { returned, completions, blocks, taken: Taken::NOTHING };
        let (mut message, mut is_asked_for) = (Message::ZERO, false);
        while answers.taken.requests < most && answers.taken.units < turn.units && requests.receive(&mut message) {
            stages::stamp(Stage::Taken);
            if first_byte(&message) == OPERATION_SEND_PACKED {
                if !is_asked_for {
                    ask_for(&message, memory);
                }
                is_asked_for = ask_for_next(requests, memory);
                let packed = SendPacked::within(&message);
                data.transmit_packed(network, *sender, packed, memory, || *now_ns, |tag, outcome| answers.add(tag, outcome));
            } else {
                is_asked_for = false;
                let (tag, outcome) = data.transmit(network, (*sender, addresses), &message, memory, || *now_ns);
                answers.add(tag, outcome);
            }
        }
        let taken = answers.taken;
        answers.publish();
        let fenced = data.flush();
        drop(data);
        requests.disarm();
        if completions.reader_needs_doorbell_after(fenced) {
            client_doorbell.ring();
        }
        taken
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn moved(&mut self, _id: u32) {}

    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        let positions = (self.end.requests.cursor(), self.end.completions.cursor());
        let (buffers, events, addresses) = (Vec::new(), Events::default(), self.addresses);
        Some(Box::new(QueueState { positions, buffers, events, addresses }))
    }
}

/// A receive queue: the network has its [`Receiver`], and gives it frames. There is nothing to visit, and no doorbell to wait for: buffers are
/// looked for when there is a frame.
pub(super) struct ReceiveQueue {
    port: ServedPort,
    pair: usize,
}

impl ReceiveQueue {
    /// The network is given its receiver apart from it ([`Data::add`](super::network::Data::add)).
    pub(super) const fn new(port: ServedPort, pair: usize) -> Self {
        Self { port, pair }
    }
}

impl Drop for ReceiveQueue {
    fn drop(&mut self) {
        self.port.remove(self.pair);
    }
}

impl<E: Engine> Queue<E> for ReceiveQueue {
    fn visit(&mut self, _engine: &mut E, _turn: Turn) -> Taken {
        Taken::NOTHING
    }

    fn is_visited(&self) -> bool {
        false
    }

    fn moved(&mut self, _id: u32) {}

    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        let state: QueueState = self.port.network.data().endpoint(self.port.number, self.pair)?.state()?;
        Some(Box::new(state))
    }
}

#[cfg(test)]
mod tests;
