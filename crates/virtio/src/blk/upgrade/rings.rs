//! Rings and payload in guest memory.

use std::ptr::NonNull;
use std::sync::Arc;

use fipsee_block::request::MAX_SPANS;
use fipsee_block::wire::SECTOR_SHIFT;
use fipsee_ring::layout::COLD_BYTES;
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::memory::{Extent, Memory, MemoryFault, Span};

use super::wire::{COLD_PAIR_BYTES, Entry, REGION_SHIFT};
use crate::core::memory::{Finder, GuestMemory};

const SECTOR: usize = 1 << SECTOR_SHIFT;
/// Bytes that one id covers.
const REGION_BYTES: u64 = 1 << REGION_SHIFT;

/// The whole of guest memory as requests name it: a segment's id and offset are bits of the guest-physical address.
#[derive(Debug)]
pub struct GuestView(Finder);

impl Memory for GuestView {
    #[inline(always)]
    fn find(&self, extent: Extent, _access: u16, spans: &mut Vec<Span>) -> Result<(), MemoryFault> {
        let Extent { region, offset_bytes, length_bytes } = extent;
        if length_bytes == 0 {
            return Err(MemoryFault::Empty);
        }
        let Some(1..=REGION_BYTES) = offset_bytes.checked_add(length_bytes) else {
            return Err(MemoryFault::Outside);
        };
        let address = u64::from(region) << REGION_SHIFT | offset_bytes;
        match (self.0.host(address, length_bytes), usize::try_from(length_bytes)) {
            (Some(base), Ok(length)) => {
                spans.push(span(base, length));
                Ok(())
            }
            _ => self.find_pieces(address, length_bytes, spans),
        }
    }
}

/// A span that [`GuestMemory`] has found.
#[inline(always)]
const fn span(base: NonNull<u8>, length_bytes: usize) -> Span {
    // SAFETY: the bytes are in guest memory that the view's owner keeps: it changes its view, or is dropped, only when no request
    // is in flight.
    unsafe { Span::new(base, length_bytes) }
}

impl GuestView {
    /// The whole of `memory`.
    pub fn new(memory: &Arc<GuestMemory>) -> Self {
        Self(Finder::new(Arc::clone(memory)))
    }

    /// A segment that crosses from one region into the next, or is not in guest memory.
    #[cold]
    fn find_pieces(&self, address: u64, length_bytes: u64, spans: &mut Vec<Span>) -> Result<(), MemoryFault> {
        let (mut is_whole, mut count) = (true, 0);
        let room = MAX_SPANS.saturating_sub(spans.len());
        let is_there = self.0.memory().pieces(address, length_bytes, &mut |base, length_bytes| {
            is_whole &= length_bytes.is_multiple_of(SECTOR);
            count += 1;
            if is_whole && count <= room {
                spans.push(span(base, length_bytes));
            }
        });
        match is_there && is_whole {
            true if count <= room => Ok(()),
            true => Err(MemoryFault::Scattered),
            false => Err(MemoryFault::Outside),
        }
    }
}

/// The rings of `entry` in `memory`: requests, then completions. `None`: a ring, or the pair of cold words, is not within one
/// region, or is not aligned in our memory as in the guest's.
pub fn open(memory: &Arc<GuestMemory>, entry: &Entry) -> Option<(MappedRing, MappedRing)> {
    let cold = memory.host(entry.cold_address, COLD_PAIR_BYTES)?;
    // SAFETY: the second half of the 256 bytes just found.
    let completion_cold = unsafe { cold.add(COLD_BYTES) };
    let requests = ring(memory, (entry.request_address, entry.request_bytes()), entry.request_slots, cold)?;
    let completions =
        ring(memory, (entry.completion_address, entry.completion_bytes()), entry.completion_slots, completion_cold)?;
    Some((requests, completions))
}

/// A ring whose cold words, at least 128 bytes in `memory`, are at `cold`.
fn ring(memory: &Arc<GuestMemory>, (address, bytes): (u64, u64), slots: u32, cold: NonNull<u8>) -> Option<MappedRing> {
    let base = memory.host(address, bytes)?;
    let mapping = Arc::<GuestMemory>::clone(memory);
    // SAFETY: `bytes` is 64 for each slot (`Entry`), found in this memory; the caller found the cold words there.
    unsafe { MappedRing::over(mapping, base, slots, cold) }.ok()
}
