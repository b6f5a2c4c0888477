//! Memory of the engine's own, for transfers that cannot use the client's as it is.

use std::ptr::NonNull;

/// The longest of them; longer transfers go piece by piece.
pub const MAX_BUFFER_BYTES: usize = 256 << 10;
/// What an engine takes for them at most: 128 of the longest, 8192 of the shortest. Further requests wait for one.
const MAX_TOTAL_BYTES: usize = 32 << 20;

const PAGE_BYTES: usize = 4096;
const CLASSES: usize = (MAX_BUFFER_BYTES / PAGE_BYTES).ilog2() as usize + 1;

#[derive(Clone, Debug)]
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

/// Memory aligned to 4096 bytes.
#[derive(Debug)]
pub struct Buffer(Box<[Page]>);

impl Buffer {
    pub const fn length_bytes(&self) -> usize {
        self.0.len() * PAGE_BYTES
    }

    /// Its first byte, for the kernel.
    pub fn base(&mut self) -> NonNull<u8> {
        NonNull::from(&mut *self.0).cast()
    }

    /// Its bytes. The kernel is not at work on it.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the pages are `length_bytes` initialised bytes without padding, borrowed as long as the slice.
        unsafe { std::slice::from_raw_parts_mut(self.base().as_ptr(), self.length_bytes()) }
    }
}

#[derive(Debug, Default)]
pub struct Buffers {
    /// By size: 1, 2, 4 ... pages.
    spare: [Vec<Buffer>; CLASSES],
    /// In use and spare.
    total_bytes: usize,
    /// Has one been given back since [`was_given`](Self::was_given) was asked?
    given: bool,
}

impl Buffers {
    /// A buffer of at least `length_bytes`, which is at most [`MAX_BUFFER_BYTES`]; `None` while too many are in use.
    pub fn take(&mut self, length_bytes: usize) -> Option<Buffer> {
        debug_assert!(length_bytes <= MAX_BUFFER_BYTES);
        let pages = length_bytes.div_ceil(PAGE_BYTES).next_power_of_two();
        let class = (pages.ilog2() as usize).min(CLASSES - 1);
        if let Some(buffer) = self.spare[class].pop() {
            return Some(buffer);
        }
        let bytes = pages * PAGE_BYTES;
        if self.total_bytes + bytes > MAX_TOTAL_BYTES {
            // Spare ones of other sizes make room.
            let spare = self.spare.iter_mut().flat_map(std::mem::take);
            self.total_bytes -= spare.map(|buffer| buffer.length_bytes()).sum::<usize>();
        }
        (self.total_bytes + bytes <= MAX_TOTAL_BYTES).then(|| {
            self.total_bytes += bytes;
            Buffer(vec![Page([0; PAGE_BYTES]); pages].into_boxed_slice())
        })
    }

    pub fn give(&mut self, buffer: Buffer) {
        let class = (buffer.0.len().ilog2() as usize).min(CLASSES - 1);
        self.spare[class].push(buffer);
        self.given = true;
    }

    /// Has one been given back since the last time? Requests that wait for one may try again.
    pub(super) const fn was_given(&mut self) -> bool {
        std::mem::replace(&mut self.given, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_long_enough_and_bounded() {
        let mut buffers = Buffers::default();
        let mut taken = Vec::new();
        for length in [1, 4096, 4097, 65536, MAX_BUFFER_BYTES] {
            let mut buffer = buffers.take(length).expect("there is room");
            assert!(buffer.length_bytes() >= length && buffer.length_bytes() <= MAX_BUFFER_BYTES);
            assert_eq!(buffer.base().addr().get() % 4096, 0);
            assert!(buffer.bytes().iter().all(|byte| *byte == 0));
            taken.push(buffer);
        }
        while let Some(buffer) = buffers.take(MAX_BUFFER_BYTES) {
            taken.push(buffer);
        }
        let sum: usize = taken.iter().map(Buffer::length_bytes).sum();
        assert!(sum <= MAX_TOTAL_BYTES && sum + MAX_BUFFER_BYTES > MAX_TOTAL_BYTES);
        taken.into_iter().for_each(|buffer| buffers.give(buffer));
        let small: Vec<_> = std::iter::from_fn(|| buffers.take(1)).collect();
        assert_eq!(small.len(), MAX_TOTAL_BYTES / PAGE_BYTES, "spare buffers of other sizes make room");
    }
}
