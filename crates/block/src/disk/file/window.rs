//! Direct I/O takes whole units from aligned memory: how any other transfer is done. A part of it goes through a buffer: whole
//! units of the file, of which the client's bytes are a part.

use fipsee_serve::uring::{Buffer, MAX_BUFFER_BYTES};
use io_uring::squeue::Entry;
use io_uring::{opcode, types};

use fipsee_ring::memory::{Span, copy_from, copy_to};

/// The alignment of direct transfers. Masks are powers of two, minus one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::disk) struct Alignment {
    /// Of addresses and lengths of memory.
    pub(in crate::disk) memory_mask: u64,
    /// Of offset and length in the file: the unit, minus one.
    pub(in crate::disk) unit_mask: u64,
    /// Of ranges that are deallocated or zeroed by the file system: smaller parts it would change in the page cache.
    pub(in crate::disk) range_mask: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// This many bytes, between the file and the client's memory.
    Plain { length_bytes: u64 },
    /// Whole units from `start_bytes` on, between the file and a buffer. They begin with the first byte of the transfer or before
    /// it.
    Window { start_bytes: u64, length_bytes: usize },
}

/// The next step at `offset_bytes` with `length_bytes`, not 0. `memory_fits`: is the client's memory aligned?
///
/// A transfer that fits a buffer is done in one. Of longer ones only the ends need one, unless the memory does not fit.
pub(super) fn next_piece(alignment: Alignment, offset_bytes: u64, length_bytes: u64, memory_fits: bool) -> Piece {
    let mask = alignment.unit_mask;
    let end = offset_bytes + length_bytes;
    let is_whole = (offset_bytes | length_bytes) & mask == 0;
    if is_whole && memory_fits {
        return Piece::Plain { length_bytes };
    }
    let start_bytes = offset_bytes & !mask;
    let covering = ((end + mask) & !mask) - start_bytes;
    let window = |bytes: u64| Piece::Window {
        start_bytes,
        length_bytes: usize::try_from(bytes).unwrap_or(MAX_BUFFER_BYTES).min(MAX_BUFFER_BYTES),
    };
    if !memory_fits || covering <= MAX_BUFFER_BYTES as u64 {
        return window(covering);
    }
    if offset_bytes & mask != 0 {
        return window(mask + 1);
    }
    Piece::Plain { length_bytes: length_bytes & !mask }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The file's units are read, for the client.
    Read,
    /// They are read because the client writes only a part of them.
    Fill,
    Store,
}

pub(super) struct Window {
    pub(super) buffer: Buffer,
    /// File offset of the buffer's first byte.
    start_bytes: u64,
    length_bytes: usize,
    /// Transferred in this phase.
    moved_bytes: usize,
    /// The client's bytes in the buffer: from, to.
    data: (usize, usize),
    phase: Phase,
}

impl Window {
    /// `range`: start and length of the units. `data`: the file offset of the client's bytes, and their number;
    /// those that the units hold are transferred. A write takes them from `spans`, once.
    pub(super) fn new(buffer: Buffer, range: (u64, usize), data: (u64, u64), is_read: bool, spans: &[Span]) -> Self {
        let (start_bytes, length_bytes) = range;
        let length_bytes = length_bytes.min(buffer.length_bytes());
        let from = usize::try_from(data.0 - start_bytes).unwrap_or(length_bytes).min(length_bytes);
        let to = usize::try_from(data.1).map_or(length_bytes, |bytes| from.saturating_add(bytes)).min(length_bytes);
        let phase = if is_read { Phase::Read } else { Phase::Fill };
        let mut window = Self { buffer, start_bytes, length_bytes, moved_bytes: 0, data: (from, to), phase };
        if !is_read && (from, to) == (0, length_bytes) {
            window.merge(spans);
        }
        window
    }

    const fn left_bytes(&self) -> usize {
        self.length_bytes - self.moved_bytes
    }

    /// For a transfer of `bytes`, the bytes that count, and the bytes wanted: a read needs no more than the client asked for.
    pub(super) fn counted(&self, bytes: usize) -> (u64, u64) {
        let is_enough = self.phase == Phase::Read && self.moved_bytes + bytes >= self.data.1;
        (if is_enough { self.left_bytes() } else { bytes } as u64, self.left_bytes() as u64)
    }

    /// The kernel's form of the next transfer. `flags`: of writes.
    pub(super) fn entry(&mut self, file: types::Fd, flags: i32) -> Entry {
        let offset_bytes = self.start_bytes + self.moved_bytes as u64;
        let length = u32::try_from(self.left_bytes()).unwrap_or(0);
        // SAFETY: `moved_bytes` is within the buffer.
        let memory = unsafe { self.buffer.base().add(self.moved_bytes) }.as_ptr();
        match self.phase {
            Phase::Read | Phase::Fill => opcode::Read::new(file, memory, length).offset(offset_bytes).build(),
            Phase::Store => opcode::Write::new(file, memory, length).offset(offset_bytes).rw_flags(flags).build(),
        }
    }

    /// This much was transferred. Returns the client's bytes that are done once all are; `spans` are its memory.
    pub(super) fn advance(&mut self, bytes: u64, spans: &[Span]) -> Option<u64> {
        self.moved_bytes += usize::try_from(bytes).unwrap_or(0);
        let (from, to) = self.data;
        if self.moved_bytes < self.length_bytes {
            return None;
        }
        match self.phase {
            Phase::Read => {
                // SAFETY: memory of a request in flight, which stays mapped; the buffer is the engine's.
                let _ = unsafe { copy_to(spans, &self.buffer.bytes()[from..to]) };
            }
            Phase::Fill => {
                self.merge(spans);
                return None;
            }
            Phase::Store => {}
        }
        Some((to - from) as u64)
    }

    fn merge(&mut self, spans: &[Span]) {
        let (from, to) = self.data;
        // SAFETY: memory of a request in flight, which stays mapped; the buffer is the engine's.
        unsafe { copy_from(spans, &mut self.buffer.bytes()[from..to]) };
        self.phase = Phase::Store;
        self.moved_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALIGNMENT: Alignment = Alignment { memory_mask: 511, unit_mask: 4095, range_mask: 4095 };
    const LONG: u64 = 16 << 20;

    fn next(offset: u64, length: u64, memory_fits: bool) -> Piece {
        next_piece(ALIGNMENT, offset, length, memory_fits)
    }

    const fn window(start_bytes: u64, length_bytes: usize) -> Piece {
        Piece::Window { start_bytes, length_bytes }
    }

    #[test]
    fn short_transfers_go_through_one_buffer_and_of_long_ones_the_ends() {
        assert_eq!(next(512, 512, true), window(0, 4096));
        assert_eq!(next(3584, 1024, true), window(0, 8192));
        assert_eq!(next(4096, 65536, false), window(4096, 65536));
        assert_eq!(next(512, (256 << 10) - 512, true), window(0, 256 << 10));
        assert_eq!(next(512, LONG, true), window(0, 4096));
        assert_eq!(next(4096, LONG - 3584, true), Piece::Plain { length_bytes: LONG - 4096 });
        assert_eq!(next(LONG, 512, true), window(LONG, 4096));
        assert_eq!(next(512, LONG, false), window(0, MAX_BUFFER_BYTES));
    }

    /// Piece after piece, a transfer of any shape is covered without gaps and ends.
    #[test]
    fn pieces_cover_the_transfer() {
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..2000 {
            let unit = [512, 4096, 65536][usize::try_from(random(3)).expect("small")];
            let alignment = Alignment { memory_mask: 511, unit_mask: unit - 1, range_mask: unit - 1 };
            let (mut offset, mut left) = (random(1000) * 512, (1 + random(2048)) * 512);
            let memory_fits = random(2) == 0;
            for count in 0.. {
                assert!(count < 16, "too many pieces");
                let done = match next_piece(alignment, offset, left, memory_fits) {
                    Piece::Plain { length_bytes } => {
                        assert!(memory_fits && (offset | length_bytes) & alignment.unit_mask == 0);
                        length_bytes
                    }
                    Piece::Window { start_bytes, length_bytes } => {
                        assert!((start_bytes | length_bytes as u64) & alignment.unit_mask == 0);
                        assert!(start_bytes <= offset && start_bytes + length_bytes as u64 > offset);
                        left.min(start_bytes + length_bytes as u64 - offset)
                    }
                };
                assert!(done > 0);
                (offset, left) = (offset + done, left - done);
                if left == 0 {
                    break;
                }
            }
        }
    }
}
