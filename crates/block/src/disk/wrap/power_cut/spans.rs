//! Bytes from and to a client's memory.

use std::ptr::NonNull;

use fipsee_ring::memory::{Span, copy_from};

/// A copy of all that spans hold. Called only by `submit`, in whose time they are valid.
pub(super) fn gather(spans: &[Span]) -> Vec<u8> {
    let mut bytes = vec![0; spans.iter().map(Span::length_bytes).sum()];
    // SAFETY: the spans are valid by the contract of `submit`.
    unsafe { copy_from(spans, &mut bytes) };
    bytes
}

/// Put `bytes` over what spans hold from `offset_bytes` on. Called only before their request is reported.
pub(super) fn scatter(spans: &[Span], offset_bytes: u64, mut bytes: &[u8]) {
    let mut skip = usize::try_from(offset_bytes).unwrap_or(usize::MAX);
    for span in spans {
        let length = span.length_bytes();
        if skip >= length {
            skip -= length;
            continue;
        }
        let (now, later) = bytes.split_at(bytes.len().min(length - skip));
        // SAFETY: `skip` is inside the span, which is valid until its request is reported.
        let place = unsafe { span.base().add(skip) };
        // SAFETY: as above, and `now` ends within it; the source is ours.
        unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), place.as_ptr(), now.len()) };
        (bytes, skip) = (later, 0);
    }
}

/// The span of memory of our own; none of nothing.
pub(super) fn span_of(bytes: &mut [u8]) -> Vec<Span> {
    let length = bytes.len();
    let base = NonNull::from(bytes).cast();
    // SAFETY: whoever submits it keeps the memory until the request is reported.
    if length == 0 { Vec::new() } else { vec![unsafe { Span::new(base, length) }] }
}
