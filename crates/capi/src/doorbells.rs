//! How often the two ends of a queue woke each other, for C. `include/fipsee_doorbells.h` documents every function.

use std::mem::offset_of;

use fipsee_ring::doorbell::DoorbellCounts;

use crate::caller::OpenCaller;
use crate::failure::Failure;
use crate::function::functions;
use crate::options::give;
use crate::port::OpenPort;
use crate::queue::OpenQueue;

/// `struct fipsee_doorbell_counts`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Doorbells {
    size_bytes: usize,
    doorbells: u64,
    suppressed: u64,
    wakeups: u64,
    spurious: u64,
}

impl Doorbells {
    /// Copy the counts to the caller, as far as the caller's version has them.
    ///
    /// # Safety
    /// `to` is null or leads to as many bytes as its first field says.
    unsafe fn give(counts: DoorbellCounts, to: *mut Self) -> Result<(), Failure> {
        let DoorbellCounts { doorbells, suppressed, wakeups, spurious } = counts;
        let found = Self { size_bytes: 0, doorbells, suppressed, wakeups, spurious };
        // SAFETY: promised by the caller; it begins with its size.
        unsafe { give(&found, to, offset_of!(Self, suppressed), ("counts", "fipsee_doorbell_counts")) }
    }
}

functions! {
    "The handle is null or open, and no other call on it runs meanwhile; `counts` is null or as the header says."

    fn fipsee_get_doorbell_counts(queue: OpenQueue, counts: *mut Doorbells) {
        // SAFETY: promised by the caller.
        unsafe { Doorbells::give(queue.queue.doorbell_counts(), counts) }?;
        Ok(0)
    }

    fn fipsee_caller_get_doorbell_counts(caller: OpenCaller, counts: *mut Doorbells) {
        // SAFETY: promised by the caller.
        unsafe { Doorbells::give(caller.doorbell_counts(), counts) }?;
        Ok(0)
    }

    fn fipsee_port_get_doorbell_counts(port: OpenPort, counts: *mut Doorbells) {
        // SAFETY: promised by the caller.
        unsafe { Doorbells::give(port.doorbell_counts(), counts) }?;
        Ok(0)
    }
}

/// This structure as in crates/capi/abi/abi.txt, from Rust's side.
#[cfg(test)]
pub(crate) fn layouts() -> [Vec<String>; 1] {
    use crate::options::tests::layout;
    [layout!("fipsee_doorbell_counts", Doorbells: size_bytes, doorbells, suppressed, wakeups, spurious)]
}
