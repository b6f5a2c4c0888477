//! DPDK's rte_ring, through `c/rte_ring.c`: the fastest of its modes, one producer and one consumer, elements of a cache
//! line, bursts. It is in memory that both processes map; DPDK's own memory would be huge pages, which do not help here.

use std::ffi::{c_int, c_uint, c_void};

use fipsee_ring::Message;

use super::queue::Queue;
use crate::harness::shared;

unsafe extern "C" {
    fn peers_rte_ring_bytes(slots: c_uint) -> usize;
    fn peers_rte_ring_init(memory: *mut c_void, slots: c_uint) -> c_int;
    fn peers_rte_ring_send(ring: *mut c_void, messages: *const c_void, count: c_uint) -> c_uint;
    fn peers_rte_ring_receive(ring: *mut c_void, into: *mut c_void, count: c_uint) -> c_uint;
}

pub struct RteRing;

/// The number of messages, in the type of the C side.
#[inline(always)]
fn count_of(messages: &[Message]) -> c_uint {
    c_uint::try_from(messages.len()).unwrap_or(c_uint::MAX)
}

impl Queue for RteRing {
    type Writer = *mut c_void;
    type Reader = *mut c_void;
    const IS_FOR_THREADS: bool = false;

    fn make(slots: u32) -> Result<(Self::Writer, Self::Reader), String> {
        // SAFETY: it computes a number from a number and touches no memory of ours.
        let length_bytes = unsafe { peers_rte_ring_bytes(slots) };
        let memory = shared::map(length_bytes)?.cast();
        // SAFETY: `memory` is mapped for good, aligned to a page, and as long as it asked for with as many slots.
        match unsafe { peers_rte_ring_init(memory, slots) } {
            0 => Ok((memory, memory)),
            code => Err(format!("rte_ring_init of {slots} slots: error {code}")),
        }
    }

    #[inline(always)]
    fn push(writer: &mut Self::Writer, messages: &[Message]) -> usize {
        // SAFETY: the ring was made by `make`, has this one producer, and copies from at most these messages, of 64 bytes each.
        unsafe { peers_rte_ring_send(*writer, messages.as_ptr().cast(), count_of(messages)) as usize }
    }

    #[inline(always)]
    fn pop(reader: &mut Self::Reader, into: &mut [Message]) -> usize {
        let count = count_of(into);
        // SAFETY: the ring was made by `make`, has this one consumer, and copies to at most these messages, of 64 bytes each.
        unsafe { peers_rte_ring_receive(*reader, into.as_mut_ptr().cast(), count) as usize }
    }
}
