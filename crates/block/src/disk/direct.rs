//! A disk called as a function, with the caller's memory: for comparisons and tools.

use fipsee_ring::memory::Span;
use std::ptr::NonNull;

use super::{Disk, Engine, Submitted, Ticket};
use crate::request::Request;
use crate::wire::Status;

/// Execute `request` on `disk` with `buffer` and return when it is done. Only for disks that answer at once.
#[inline(always)]
pub fn call<D: Disk>(disk: &D, request: &Request, buffer: &mut [u8], engine: &mut Engine) -> Status {
    const { assert!(D::ANSWERS_AT_ONCE, "the buffer is lent for the time of the call only") };
    let ticket = Ticket { queue: 0, tag: request.tag, started_ticks: 0 };
    let base = NonNull::from(&mut *buffer).cast();
    // SAFETY: the buffer is valid for its length and borrowed, and thus not used otherwise, until this function returns.
    let span = unsafe { Span::new(base, buffer.len()) };
    // SAFETY: a disk that answers at once has finished with the span when this returns.
    match unsafe { disk.submit(request, &[span], ticket, engine) } {
        Submitted::Done(status) => status,
        Submitted::Pending => Status::IoError,
    }
}
