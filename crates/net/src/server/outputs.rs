//! Where frames leave a network: the receiving sides of its ports.

use std::sync::Arc;

use fipsee_ring::memory::Span;

use super::endpoint::{Delivered, Endpoint, Frame};
use super::events::PortState;
use super::network::{Port, count};
use super::steering;
use crate::switch::PortNumber;
use crate::wire::Status;

pub(super) struct Outputs {
    /// Also those that were removed, as long as no other has their number.
    ports: Vec<Arc<Port>>,
    /// Of each port, by pair.
    pub(super) receivers: Vec<Vec<Option<Endpoint>>>,
    /// Of each port: how many pairs are used, if not all.
    used_pairs: Vec<usize>,
    /// Those that were given a frame since they were last flushed.
    pub(super) touched: Vec<(PortNumber, usize)>,
    /// Attempts to give a frame to a port, and work that costs as much, for the frame that is being sent.
    pub(super) deliveries: u64,
    /// More frames of the sender follow at once.
    pub(super) is_burst: bool,
}

impl Outputs {
    pub(super) fn new(ports: Vec<Arc<Port>>) -> Self {
        let receivers = ports.iter().map(|_| Vec::new()).collect();
        let used_pairs = vec![usize::MAX; ports.len()];
        Self { ports, receivers, used_pairs, touched: Vec::with_capacity(64), deliveries: 0, is_burst: false }
    }

    /// A port of this number is there from now on. Returns whether it is served.
    pub(super) fn put(&mut self, number: PortNumber, port: Arc<Port>) -> bool {
        match self.ports.get_mut(usize::from(number)) {
            Some(removed) => *removed = port,
            None => {
                self.ports.push(port);
                self.receivers.push(Vec::new());
                self.used_pairs.push(usize::MAX);
            }
        }
        self.receivers[usize::from(number)].iter().any(Option::is_some)
    }

    pub(super) fn port(&self, number: PortNumber) -> &Port {
        &self.ports[usize::from(number)]
    }

    /// A receive queue of a port is served from now on.
    pub(super) fn add(&mut self, port: PortNumber, pair: usize, endpoint: Endpoint) {
        let receivers = &mut self.receivers[usize::from(port)];
        if receivers.len() <= pair {
            receivers.resize_with(pair + 1, || None);
        }
        receivers[pair] = Some(endpoint);
        // Each is there once at most: a worker that serves allocates nothing.
        self.touched.reserve(self.receivers.iter().map(Vec::len).sum());
    }

    /// It is served no more. `true`: it was the last one of the port.
    pub(super) fn remove(&mut self, port: PortNumber, pair: usize) -> (Option<Endpoint>, bool) {
        let receivers = &mut self.receivers[usize::from(port)];
        let removed = receivers.get_mut(pair).and_then(Option::take);
        // The flows of those at the end go to the others.
        while receivers.last().is_some_and(Option::is_none) {
            receivers.pop();
        }
        let was_last = receivers.is_empty();
        if was_last {
            self.used_pairs[usize::from(port)] = usize::MAX;
        }
        (removed, was_last)
    }

    pub(super) fn is_served(&self, port: PortNumber) -> bool {
        self.receivers[usize::from(port)].iter().any(Option::is_some)
    }

    /// Frames go to so many pairs of the port, until it has none any more.
    pub(super) fn use_pairs(&mut self, port: PortNumber, pairs: usize) {
        self.used_pairs[usize::from(port)] = pairs;
    }

    pub(super) fn endpoint_mut(&mut self, port: PortNumber, pair: usize) -> Option<&mut Endpoint> {
        self.receivers.get_mut(usize::from(port))?.get_mut(pair)?.as_mut()
    }

    /// The pair of a port that gets this frame.
    ///
    /// # Safety
    /// `rest` is mapped for loads.
    #[inline(always)]
    pub(super) unsafe fn pair(&self, port: PortNumber, head: &[u8], rest: &[Span]) -> usize {
        let port = usize::from(port);
        match self.receivers[port].len().min(self.used_pairs[port]) {
            ..=1 => 0,
            pairs => {
                // SAFETY: by the caller.
                let flow = unsafe { steering::flow(head, rest) };
                flow % pairs
            }
        }
    }

    pub(super) fn endpoint(&self, port: PortNumber, pair: usize) -> Option<&Endpoint> {
        self.receivers.get(usize::from(port))?.get(pair)?.as_ref()
    }

    /// What a port is like now.
    pub(super) fn set_state(&mut self, port: PortNumber, state: PortState) {
        for (pair, endpoint) in self.receivers[usize::from(port)].iter_mut().enumerate() {
            if endpoint.as_mut().is_some_and(|endpoint| endpoint.set_state(state)) {
                self.touched.push((port, pair));
            }
        }
    }

    /// The client of a port has taken the last event of this pair.
    pub(super) fn acknowledge(&mut self, port: PortNumber, pair: usize) -> Result<(), Status> {
        let endpoint = self.receivers[usize::from(port)].get_mut(pair).and_then(Option::as_mut).ok_or(Status::Invalid)?;
        if endpoint.acknowledge()? {
            self.touched.push((port, pair));
        }
        Ok(())
    }

    /// The offloads of a pair. One that is not there takes any: the frame is dropped.
    pub(super) fn offloads(&self, port: PortNumber, pair: usize) -> u32 {
        self.endpoint(port, pair).map_or(u32::MAX, Endpoint::offloads)
    }

    /// Give a frame to a port. Returns the bytes moved.
    ///
    /// # Safety
    /// The rest of the frame is mapped for loads.
    pub(super) unsafe fn deliver(&mut self, port: PortNumber, frame: &Frame<'_>) -> u64 {
        // SAFETY: by the caller.
        let pair = unsafe { self.pair(port, frame.head, frame.rest) };
        // SAFETY: likewise.
        unsafe { self.deliver_to((port, pair), frame) }
    }

    /// Give a frame to this pair of a port. Returns the bytes moved.
    ///
    /// # Safety
    /// As [`deliver`](Self::deliver).
    #[inline(always)]
    pub(super) unsafe fn deliver_to(&mut self, (port, pair): (PortNumber, usize), frame: &Frame<'_>) -> u64 {
        let delivered = match self.receivers[usize::from(port)].get_mut(pair).and_then(Option::as_mut) {
            // SAFETY: by the caller.
            Some(receiver) => unsafe { receiver.deliver(frame, self.is_burst) },
            None => Delivered::default(),
        };
        self.delivered((port, pair), delivered, frame.length_bytes.into())
    }

    /// A pair of a port has got a frame of so many bytes, or has not. Returns the bytes moved.
    #[inline(always)]
    pub(super) fn delivered(&mut self, (port, pair): (PortNumber, usize), delivered: Delivered, length_bytes: u64) -> u64 {
        let counters = &self.ports[usize::from(port)].counters;
        self.deliveries += 1 + u64::from(delivered.extra_work);
        if delivered.is_first {
            self.touched.push((port, pair));
        }
        if !delivered.is_taken {
            count(&counters.dropped, 1);
            return 0;
        }
        count(&counters.received, 1);
        count(&counters.received_bytes, length_bytes);
        length_bytes
    }

    /// A port does not get the rest of a frame.
    pub(super) fn lose(&self, port: PortNumber) {
        count(&self.ports[usize::from(port)].counters.dropped, 1);
    }

    /// Ring for those that have got something and sleep. Returns whether a full fence was executed: one serves all.
    pub(super) fn flush(&mut self) -> bool {
        for (port, pair) in &self.touched {
            if let Some(Some(Endpoint::Rings(receiver))) = self.receivers[usize::from(*port)].get_mut(*pair) {
                receiver.publish_collected();
            }
        }
        let mut fenced = false;
        while let Some((port, pair)) = self.touched.pop() {
            if let Some(receiver) = self.receivers[usize::from(port)].get_mut(pair).and_then(Option::as_mut) {
                fenced = receiver.flush(fenced);
            }
        }
        fenced
    }
}
