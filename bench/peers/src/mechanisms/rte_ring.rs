//! DPDK's rte_ring, through `c/rte_ring.c`: the fastest of its modes, one producer and one consumer, elements of a cache
//! line, bursts. It is in memory that both processes map; DPDK's own memory would be huge pages, which do not help here.

use std::ffi::{c_int, c_uint, c_void};

use fipsee_ring::Message;

use crate::harness::spin_backoff::SpinBackoff;
use crate::harness::{End, Mechanism, Plan, Side, shared};

unsafe extern "C" {
    fn peers_rte_ring_bytes(slots: c_uint) -> usize;
    fn peers_rte_ring_init(memory: *mut c_void, slots: c_uint) -> c_int;
    fn peers_rte_ring_send(ring: *mut c_void, messages: *const c_void, count: c_uint) -> c_uint;
    fn peers_rte_ring_receive(ring: *mut c_void, into: *mut c_void, count: c_uint) -> c_uint;
}

/// One ring each way.
pub struct RteRing {
    calls: *mut c_void,
    answers: *mut c_void,
}

/// One side of it.
pub struct RteRingEnd {
    outgoing: *mut c_void,
    incoming: *mut c_void,
}

fn make(slots: u32) -> Result<*mut c_void, String> {
    // SAFETY: a number from a number.
    let length_bytes = unsafe { peers_rte_ring_bytes(slots) };
    let memory = shared::map(length_bytes)?.cast();
    // SAFETY: the memory is as long as it wants for as many slots.
    match unsafe { peers_rte_ring_init(memory, slots) } {
        0 => Ok(memory),
        code => Err(format!("rte_ring_init of {slots} slots: error {code}")),
    }
}

impl Mechanism for RteRing {
    type End = RteRingEnd;

    fn share(plan: &Plan) -> Result<Self, String> {
        Ok(Self { calls: make(plan.slots)?, answers: make(plan.slots)? })
    }

    fn open(self, side: Side, _: &Plan) -> Result<RteRingEnd, String> {
        let Self { calls, answers } = self;
        let (outgoing, incoming) = if side == Side::Client { (calls, answers) } else { (answers, calls) };
        Ok(RteRingEnd { outgoing, incoming })
    }
}

impl End for RteRingEnd {
    #[inline(always)]
    fn send(&mut self, mut messages: &[Message]) {
        let mut backoff = SpinBackoff::default();
        while !messages.is_empty() {
            let count = c_uint::try_from(messages.len()).unwrap_or(c_uint::MAX);
            // SAFETY: the ring was made by `make`; there are as many messages of 64 bytes.
            let sent = unsafe { peers_rte_ring_send(self.outgoing, messages.as_ptr().cast(), count) };
            if sent == 0 {
                backoff.pause();
            }
            messages = &messages[sent as usize..];
        }
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [Message]) -> usize {
        let mut backoff = SpinBackoff::default();
        let count = c_uint::try_from(into.len()).unwrap_or(c_uint::MAX);
        loop {
            // SAFETY: the ring was made by `make`; there is room for as many messages of 64 bytes.
            let received = unsafe { peers_rte_ring_receive(self.incoming, into.as_mut_ptr().cast(), count) };
            if received > 0 {
                return received as usize;
            }
            backoff.pause();
        }
    }
}
