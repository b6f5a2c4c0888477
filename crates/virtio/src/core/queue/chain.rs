//! From a chain of descriptors to the pieces of guest memory it names.

use fipsee_ring::cpu::prefetch_for_read;
use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};

use super::{DESCRIPTOR_BYTES, Descriptor, Virtqueue, copy_descriptor};
use crate::core::memory::{Finder, GuestMemory};

/// Entries of an indirect table at most. Drivers use tables that are longer than their queue, though they should not; no
/// hypervisor lets them have more than this.
pub(crate) const MAX_TABLE_ENTRIES: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) address: u64,
    pub(crate) length_bytes: u32,
}

/// Faults of a chain, which no correct driver produces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChainFault {
    OutsideTable { index: u16 },
    TooLong { limit: usize },
    ReadableAfterWritable,
    IndirectNotOffered,
    IndirectWithNext,
    NestedIndirect,
    TableLength { length_bytes: u32 },
    TableOutsideMemory { address: u64 },
}

impl core::fmt::Display for ChainFault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::OutsideTable { index } => write!(f, "a descriptor has number {index}, which its table does not have"),
            Self::TooLong { limit } => write!(f, "a chain has a loop, or more than {limit} descriptors"),
            Self::ReadableAfterWritable => f.write_str("a chain has memory to read after memory to write"),
            Self::IndirectNotOffered => f.write_str("a descriptor is indirect, which was not negotiated"),
            Self::IndirectWithNext => f.write_str("an indirect descriptor has a next one"),
            Self::NestedIndirect => f.write_str("an indirect table holds an indirect descriptor"),
            Self::TableLength { length_bytes } => {
                let (entry, limit) = (DESCRIPTOR_BYTES, MAX_TABLE_ENTRIES);
                write!(f, "an indirect table has {length_bytes} bytes, which is not {entry} times 1 to {limit}")
            }
            Self::TableOutsideMemory { address } => write!(f, "the indirect table at {address:#x} is outside guest memory"),
        }
    }
}

/// The pieces of one chain; its memory is reused for the next.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    /// In order; first what we may read, then what we may write.
    pub(crate) pieces: Vec<Piece>,
    pub(crate) readable: usize,
    /// A copy of a table across regions or at an odd address.
    table: Vec<u8>,
}

impl Chain {
    pub(crate) fn with_capacity(pieces: usize) -> Self {
        Self { pieces: Vec::with_capacity(pieces), readable: 0, table: Vec::new() }
    }

    #[inline(always)]
    pub(crate) fn readable(&self) -> &[Piece] {
        &self.pieces[..self.readable]
    }

    #[inline(always)]
    pub(crate) fn writable(&self) -> &[Piece] {
        &self.pieces[self.readable..]
    }

    /// Follow the chain that begins with `first`. Every descriptor is copied once, so what the guest changes meanwhile is not
    /// seen.
    #[inline(always)]
    pub(crate) fn gather(
        &mut self,
        queue: &Virtqueue,
        finder: &mut Finder,
        first: Descriptor,
        indirect_offered: bool,
    ) -> Result<(), ChainFault> {
        self.pieces.clear();
        self.readable = 0;
        let limit = usize::from(queue.size);
        let mut descriptor = first;
        for _ in 0..limit {
            if descriptor.has(VRING_DESC_F_INDIRECT) {
                return match (indirect_offered, descriptor.has(VRING_DESC_F_NEXT)) {
                    (false, _) => Err(ChainFault::IndirectNotOffered),
                    (_, true) => Err(ChainFault::IndirectWithNext),
                    _ => self.gather_table(finder, descriptor),
                };
            }
            self.add(descriptor)?;
            if !descriptor.has(VRING_DESC_F_NEXT) {
                return Ok(());
            }
            let index = descriptor.next;
            descriptor = queue.descriptor(index).ok_or(ChainFault::OutsideTable { index })?;
        }
        Err(ChainFault::TooLong { limit })
    }

    #[inline(always)]
    fn add(&mut self, descriptor: Descriptor) -> Result<(), ChainFault> {
        if !descriptor.has(VRING_DESC_F_WRITE) {
            if self.readable != self.pieces.len() {
                return Err(ChainFault::ReadableAfterWritable);
            }
            self.readable += 1;
        }
        self.pieces.push(Piece { address: descriptor.address, length_bytes: descriptor.length_bytes });
        Ok(())
    }

    #[inline(always)]
    fn gather_table(&mut self, finder: &mut Finder, table: Descriptor) -> Result<(), ChainFault> {
        let length_bytes = table.length_bytes;
        let bytes = usize::try_from(length_bytes).unwrap_or(usize::MAX);
        let entries = bytes / DESCRIPTOR_BYTES;
        if bytes == 0 || !bytes.is_multiple_of(DESCRIPTOR_BYTES) || entries > MAX_TABLE_ENTRIES {
            return Err(ChainFault::TableLength { length_bytes });
        }
        match finder.host(table.address, u64::from(length_bytes)) {
            Some(place) if place.addr().get().is_multiple_of(8) => {
                prefetch_for_read(place.as_ptr().wrapping_add(64));
                // SAFETY: the table is in guest memory, which stays mapped during this call, and is aligned to 8.
                self.follow_table(entries, |index| unsafe {
                    copy_descriptor(place.as_ptr().wrapping_add(usize::from(index) * DESCRIPTOR_BYTES))
                })
            }
            _ => self.gather_copied_table(finder.memory(), table, bytes),
        }
    }

    /// A table across regions, or at an odd address.
    #[cold]
    fn gather_copied_table(&mut self, memory: &GuestMemory, table: Descriptor, bytes: usize) -> Result<(), ChainFault> {
        let mut copied = std::mem::take(&mut self.table);
        copied.clear();
        let result = if memory.read(table.address, bytes as u64, &mut copied) {
            let (entries, _) = copied.as_chunks::<DESCRIPTOR_BYTES>();
            self.follow_table(entries.len(), |index| zerocopy::transmute!(entries[usize::from(index)]))
        } else {
            Err(ChainFault::TableOutsideMemory { address: table.address })
        };
        self.table = copied;
        result
    }

    /// Follow the chain in a table; `entry` is asked for indices below `entries` only.
    #[inline(always)]
    fn follow_table(&mut self, entries: usize, entry: impl Fn(u16) -> Descriptor) -> Result<(), ChainFault> {
        let mut index = 0;
        for _ in 0..entries {
            if usize::from(index) >= entries {
                return Err(ChainFault::OutsideTable { index });
            }
            let descriptor = entry(index);
            if descriptor.has(VRING_DESC_F_INDIRECT) {
                return Err(ChainFault::NestedIndirect);
            }
            self.add(descriptor)?;
            if !descriptor.has(VRING_DESC_F_NEXT) {
                return Ok(());
            }
            index = descriptor.next;
        }
        if usize::from(index) >= entries {
            Err(ChainFault::OutsideTable { index })
        } else {
            Err(ChainFault::TooLong { limit: entries })
        }
    }
}

/// Remove the last byte of the pieces; returns its address, if there is one.
#[inline(always)]
pub(crate) fn take_last_byte(pieces: &mut [Piece]) -> Option<u64> {
    let piece = pieces.iter_mut().rev().find(|piece| piece.length_bytes > 0)?;
    piece.length_bytes -= 1;
    Some(piece.address.wrapping_add(piece.length_bytes.into()))
}

#[inline(always)]
pub(crate) fn total_bytes(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| u64::from(piece.length_bytes)).sum()
}
