//! Copies between guest memory and ours, of what is small and rare.

use crate::core::memory::GuestMemory;
use crate::core::queue::chain::{Piece, total_bytes};

/// The bytes of all pieces, copied once; none if one is no memory, or there are more than `limit`.
pub(crate) fn copy_in(memory: &GuestMemory, pieces: &[Piece], limit: usize) -> Option<Vec<u8>> {
    let total = usize::try_from(total_bytes(pieces)).ok().filter(|total| *total <= limit)?;
    let mut bytes = Vec::with_capacity(total);
    for piece in pieces {
        let is_memory = memory.pieces(piece.address, piece.length_bytes.into(), &mut |place, length| {
            // SAFETY: the piece is mapped guest memory; each byte is read once, and only the copy is looked at.
            bytes.extend((0..length).map(|offset| unsafe { place.as_ptr().wrapping_add(offset).read_volatile() }));
        });
        if !is_memory {
            return None;
        }
    }
    Some(bytes)
}

/// Write `bytes` to the beginning of the pieces, as far as they go; false, and a part may be written, if a piece that is needed is
/// no memory.
pub(crate) fn copy_out(memory: &GuestMemory, pieces: &[Piece], bytes: &[u8]) -> bool {
    let mut rest = bytes;
    for piece in pieces {
        let count = rest.len().min(usize::try_from(piece.length_bytes).unwrap_or(usize::MAX));
        let (mut now, later) = rest.split_at(count);
        rest = later;
        let is_memory = memory.pieces(piece.address, count as u64, &mut |place, length| {
            let (part, after) = now.split_at(length);
            now = after;
            // SAFETY: the piece is mapped guest memory, `length` bytes long, and overlaps nothing of ours.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), place.as_ptr(), length) };
        });
        if !is_memory {
            return false;
        }
    }
    true
}
