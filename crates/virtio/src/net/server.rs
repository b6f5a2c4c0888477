//! The virtqueues of a port, as the worker of its network serves them.
//!
//! A visit to a transmit queue takes frames and gives them to the switch. A receive queue is not visited: the network has it, and
//! the worker that has a frame for it takes buffers that its driver has posted. Each chain is used in the visit that takes it, in
//! order, so that nothing is in flight between two visits, and a hypervisor that connects again knows all by the used ring.

mod control;
mod held;
mod receive;
mod transmit;

use std::any::Any;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use fipsee_net::server::ServedPort;
use fipsee_ring::memory::Span;
use fipsee_serve::{Engine, Queue, Taken, Turn};

use self::control::Control;
use self::receive::Receiver;
use self::transmit::Transmitter;
pub use super::Role;
use super::config;
use crate::core::memory::{DirtyLog, GuestMemory};
use crate::core::{DeviceQueue, DeviceQueueSetup, RingAddresses, ServedVirtqueue, VirtqueueState};

/// Called once, with why a virtqueue is not served any more.
pub type Broke = Box<dyn FnOnce(&str) + Send>;

/// Pieces of memory of one frame at most; drivers use fewer than 20.
const MAX_SPANS: usize = 128;

/// A virtqueue of a port.
pub struct PortQueue {
    kind: Kind,
    broke: Option<Broke>,
}

enum Kind {
    Transmit(Transmitter),
    /// The network has its [`Receiver`].
    Receive(ServedPort, usize),
    Control(Control),
}

impl fmt::Debug for PortQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortQueue").field("broke", &self.broke.is_some()).finish_non_exhaustive()
    }
}

impl PortQueue {
    /// Serve a virtqueue of a device with so many pairs of them.
    ///
    /// # Errors
    /// A ring is outside the guest's memory, or is misaligned; a descriptor is not an eventfd.
    pub fn new(port: ServedPort, role: Role, pairs: u16, setup: DeviceQueueSetup, broke: Broke) -> Result<Self, String> {
        let (features, size) = (setup.features, setup.size);
        let queue = DeviceQueue::new(setup)?;
        let (kind, broke) = match role {
            Role::Transmit(_) => (Kind::Transmit(Transmitter::new((queue, size), port, features)), Some(broke)),
            Role::Control => (Kind::Control(Control::new(queue, port, pairs)), Some(broke)),
            Role::Receive(pair) => {
                port.add(pair, Box::new(Receiver::new(queue, features, broke)));
                if pair == 0 && config::driver_chooses_pairs(features) {
                    port.use_pairs(1);
                }
                (Kind::Receive(port, pair), None)
            }
        };
        Ok(Self { kind, broke })
    }

    /// The queue that is visited.
    const fn queue(&self) -> Option<&DeviceQueue> {
        match &self.kind {
            Kind::Transmit(transmitter) => Some(&transmitter.queue),
            Kind::Control(control) => Some(&control.queue),
            Kind::Receive(..) => None,
        }
    }

    const fn queue_mut(&mut self) -> Option<&mut DeviceQueue> {
        match &mut self.kind {
            Kind::Transmit(transmitter) => Some(&mut transmitter.queue),
            Kind::Control(control) => Some(&mut control.queue),
            Kind::Receive(..) => None,
        }
    }

    /// Change its virtqueue, wherever it is; `None`: it is gone.
    fn change<T>(&mut self, change: impl FnOnce(&mut DeviceQueue) -> T) -> Option<T> {
        match &mut self.kind {
            Kind::Receive(port, pair) => port.change(*pair, |receiver: &mut Receiver| change(&mut receiver.queue)),
            _ => self.queue_mut().map(change),
        }
    }

    /// The queue is removed: returns the index of the next available entry, for GET_VRING_BASE.
    #[must_use]
    pub fn stop(mut self) -> u16 {
        if let Kind::Transmit(transmitter) = &mut self.kind {
            transmitter.notify();
        }
        self.change(|queue| {
            if queue.flush() {
                queue.interrupt();
            }
            queue.next_available()
        })
        .unwrap_or(0)
    }

    /// Send a RARP frame of this address: switches learn where the machine is now.
    pub fn announce(&self, mac: [u8; 6]) {
        if let Kind::Transmit(transmitter) = &self.kind {
            transmitter.announce(mac);
        }
    }

    /// Its state; `None` while something is not published.
    pub fn state(&mut self) -> Option<VirtqueueState> {
        self.change(|queue| queue.state()).flatten()
    }
}

impl Drop for PortQueue {
    fn drop(&mut self) {
        if let Kind::Receive(port, pair) = &self.kind {
            drop(port.remove(*pair));
        }
    }
}

impl ServedVirtqueue for PortQueue {
    fn set_call(&mut self, call: Option<OwnedFd>) -> Result<(), String> {
        self.change(|queue| queue.set_call(call)).unwrap_or(Ok(()))
    }

    fn set_log(&mut self, log: Option<Arc<DirtyLog>>, used_log_address: Option<u64>) {
        self.change(|queue| queue.set_log(log, used_log_address));
    }

    fn set_memory(&mut self, memory: Arc<GuestMemory>, rings: RingAddresses) -> Result<(), String> {
        self.change(|queue| ServedVirtqueue::set_memory(queue, memory, rings)).unwrap_or(Ok(()))
    }
}

impl<E: Engine> Queue<E> for PortQueue {
    fn visit(&mut self, _engine: &mut E, turn: Turn) -> Taken {
        let taken = match &mut self.kind {
            Kind::Transmit(transmitter) => transmitter.visit(turn),
            Kind::Control(control) => control.visit(turn),
            Kind::Receive(..) => Taken::NOTHING,
        };
        if let Some(reason) = self.queue().and_then(DeviceQueue::fault)
            && self.broke.is_some()
        {
            let reason = reason.to_owned();
            self.broke.take().into_iter().for_each(|broke| broke(&reason));
        }
        taken
    }

    fn has_work(&self) -> bool {
        match &self.kind {
            Kind::Transmit(Transmitter { queue, .. }) | Kind::Control(Control { queue, .. }) => has_work(queue),
            Kind::Receive(..) => false,
        }
    }

    /// A visit reports a fault.
    fn is_quiet(&self) -> bool {
        let is_to_be_reported = self.broke.is_some() && self.queue().is_some_and(|queue| queue.fault().is_some());
        !Queue::<E>::has_work(self) && !is_to_be_reported
    }

    fn flush(&mut self) {
        if let Kind::Transmit(transmitter) = &mut self.kind {
            transmitter.notify_when_due();
        }
    }

    fn due(&self) -> Option<u64> {
        if let Kind::Transmit(transmitter) = &self.kind { transmitter.due() } else { None }
    }

    fn may_hold_back(&self) -> bool {
        matches!(self.kind, Kind::Transmit(_))
    }

    fn arm_and_work_remains(&mut self) -> bool {
        let Some(queue) = self.queue_mut().filter(|queue| !queue.is_over() && !queue.ring.is_armed) else { return false };
        queue.arm();
        Queue::<E>::has_work(self)
    }

    fn disarm(&mut self) {
        self.queue_mut().into_iter().for_each(DeviceQueue::disarm);
    }

    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        self.queue().map(DeviceQueue::doorbell)
    }

    fn moved(&mut self, _id: u32) {}

    fn saved_state(&mut self, own: bool) -> Option<Box<dyn Any + Send>> {
        // Another process goes on, and does not know what is held back.
        if own && let Kind::Transmit(transmitter) = &mut self.kind {
            transmitter.notify();
        }
        Some(Box::new(self.state()?))
    }
}

fn has_work(queue: &DeviceQueue) -> bool {
    !queue.is_over() && queue.ring.waiting() != 0
}

/// What is left of `spans` behind their first bytes.
fn behind(spans: &mut [Span], first_bytes: usize) -> &[Span] {
    let (mut left, mut done) = (first_bytes, 0);
    while let Some(span) = spans.get_mut(done).filter(|_| left > 0) {
        let whole = span.length_bytes();
        if whole > left {
            *span = span.without_first(left);
            break;
        }
        (left, done) = (left - whole, done + 1);
    }
    &spans[done..]
}
