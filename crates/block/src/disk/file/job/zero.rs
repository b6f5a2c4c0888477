//! Zeroing a range: by the file system where it can, else by writing.

use std::ptr::NonNull;
use std::sync::Arc;

use fipsee_ring::memory::Span;
use fipsee_serve::uring::Buffers;
use io_uring::types;
use rustix::fs::FallocateFlags;

use super::{Asked, Job, Prepared, Target, ZeroMethod};
use crate::disk::file::target::ZeroPart;
use crate::wire::MAX_INDIRECT_ENTRIES;

/// Bytes of zeroes that one span of a written-out write-zeroes names.
const ZERO_BYTES: usize = 64 << 10;

#[repr(align(4096))]
struct Zeroes([u8; ZERO_BYTES]);

static ZEROES: Zeroes = Zeroes([0; ZERO_BYTES]);

impl Job {
    pub(super) fn zero(&mut self, file: types::Fd, unmap: bool, buffers: &mut Buffers) -> Prepared {
        let part = |target: &Arc<Target>| target.next_zero_part(self.offset_bytes, self.length_bytes, unmap);
        match self.target.as_ref().filter(|_| self.span_bytes == 0).map(part) {
            Some(ZeroPart::Allocate { method, length_bytes }) => {
                self.asked = Asked::Allocate(method, length_bytes);
                let keep = method == ZeroMethod::ZeroRange;
                let how = if keep { FallocateFlags::ZERO_RANGE } else { FallocateFlags::PUNCH_HOLE };
                return Prepared::Entry(self.allocate(file, how, length_bytes));
            }
            Some(ZeroPart::Write { length_bytes }) => self.fill_with_zeroes(length_bytes),
            None => {}
        }
        self.transfer(file, buffers)
    }

    fn fill_with_zeroes(&mut self, length_bytes: u64) {
        self.spans.clear();
        self.first = 0;
        let mut rest = length_bytes;
        while rest > 0 && self.spans.len() < MAX_INDIRECT_ENTRIES {
            let piece = usize::try_from(rest).unwrap_or(ZERO_BYTES).min(ZERO_BYTES);
            // SAFETY: the zeroes live for ever, and a job that names them only ever writes them to a file.
            self.spans.push(unsafe { Span::new(NonNull::from(&ZEROES.0).cast(), piece) });
            rest -= piece as u64;
        }
        self.span_bytes = length_bytes - rest;
    }
}
