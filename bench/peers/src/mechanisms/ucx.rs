//! UCX active messages, through `c/ucx.c`: its transport over POSIX shared memory alone, eager messages, one thread that
//! progresses its worker in a loop. The queue of the transport has as many elements as asked for.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use fipsee_ring::Message;

use crate::harness::spin_backoff::SpinBackoff;
use crate::harness::{End, Mechanism, Plan, Side, shared};

unsafe extern "C" {
    fn peers_ucx_exchange_bytes() -> usize;
    fn peers_ucx_open(exchange: *mut c_void, side: c_int, slots: c_uint, error: *mut *const c_char) -> *mut c_void;
    fn peers_ucx_send(end: *mut c_void, messages: *const c_void, count: usize) -> c_int;
    fn peers_ucx_receive(end: *mut c_void, into: *mut c_void, count: usize) -> usize;
}

/// Where the sides exchange their addresses.
pub struct Ucx(*mut c_void);

/// One side's worker and endpoint. The process ends with it.
pub struct UcxEnd(*mut c_void);

impl Mechanism for Ucx {
    type End = UcxEnd;

    fn share(_: &Plan) -> Result<Self, String> {
        // SAFETY: returns a constant.
        shared::map(unsafe { peers_ucx_exchange_bytes() }).map(|memory| Self(memory.cast()))
    }

    fn open(self, side: Side, plan: &Plan) -> Result<UcxEnd, String> {
        let mut error = std::ptr::null();
        let side = c_int::from(side == Side::Server);
        // SAFETY: zeroed memory of the size it wants, and an out-pointer.
        let end = unsafe { peers_ucx_open(self.0, side, plan.slots, &raw mut error) };
        if end.is_null() {
            // SAFETY: where there is no end, there is a static text.
            let text = unsafe { CStr::from_ptr(error) };
            return Err(format!("UCX: {}", text.to_string_lossy()));
        }
        Ok(UcxEnd(end))
    }
}

impl End for UcxEnd {
    #[inline(always)]
    fn send(&mut self, messages: &[Message]) {
        // SAFETY: the end was opened; there are as many messages of 64 bytes.
        let status = unsafe { peers_ucx_send(self.0, messages.as_ptr().cast(), messages.len()) };
        assert_eq!(status, 0, "UCX cannot send");
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [Message]) -> usize {
        let mut backoff = SpinBackoff::default();
        loop {
            // SAFETY: the end was opened; there is room for as many messages of 64 bytes.
            let count = unsafe { peers_ucx_receive(self.0, into.as_mut_ptr().cast(), into.len()) };
            if count > 0 {
                return count;
            }
            backoff.look_again();
        }
    }
}
