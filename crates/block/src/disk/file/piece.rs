//! Direct I/O takes whole units from aligned memory: how a transfer of anything else is done.

use fipsee_serve::uring::MAX_BUFFER_BYTES;

/// What direct transfers must keep to. Masks are powers of two, minus one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::disk) struct Alignment {
    /// Of addresses and lengths of memory.
    pub(in crate::disk) memory_mask: u64,
    /// Of offset and length in the file: the unit, minus one.
    pub(in crate::disk) unit_mask: u64,
    /// Of ranges that are deallocated or zeroed by the file system: smaller parts it would change in the page cache.
    pub(in crate::disk) range_mask: u64,
}

/// The next part of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// So many bytes, between the file and the client's memory.
    Plain { length_bytes: u64 },
    /// Whole units from `start_bytes` on, between the file and a buffer. They begin with the first byte of the transfer or before it.
    Window { start_bytes: u64, length_bytes: usize },
}

/// How to go on at `offset_bytes` with `length_bytes`, not 0. `memory_fits`: is the client's memory aligned?
///
/// What fits a buffer is done in one. Of longer transfers only the ends need one, unless the memory does not fit.
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
    fn short_transfers_go_through_one_buffer() {
        assert_eq!(next(512, 512, true), window(0, 4096));
        assert_eq!(next(3584, 1024, true), window(0, 8192));
        assert_eq!(next(4096, 65536, false), window(4096, 65536));
        assert_eq!(next(512, (256 << 10) - 512, true), window(0, 256 << 10));
    }

    #[test]
    fn long_transfers_use_buffers_for_their_ends_only() {
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
