//! What a virtio-blk device shows its driver: feature bits and configuration space.

use fipsee_block::wire::{
    BlockInfo, CAPABILITY_DISCARD, CAPABILITY_FLUSH, CAPABILITY_WRITE, CAPABILITY_WRITE_ZEROES, MAX_INDIRECT_ENTRIES,
};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO,
    VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
};
use zerocopy::FromZeros;
use zerocopy::little_endian::U64;

use crate::core::{FEATURES, bit};

pub const SPACE_BYTES: usize = size_of::<Space>();
/// Offset of the cache mode, the only field that a driver writes.
pub const WRITEBACK_OFFSET: usize = core::mem::offset_of!(Space, writeback);
/// Segments of one discard. All of them together may be as long as one discard of the disk.
pub const MAX_DISCARD_SEGMENTS: u32 = 4;
pub const MAX_WRITE_ZEROES_SEGMENTS: u32 = 1;
/// Data segments of one request: with header and status they fit a queue of 128, the smallest size that hypervisors choose.
const MAX_SEGMENTS: u32 = 126;
/// A segment of a guest is a page at least.
const MIN_SEGMENT_BYTES: u32 = 4096;

/// The features of a disk of this description, with those of every device.
pub fn features(info: &BlockInfo, read_only: bool) -> u64 {
    let mut features = FEATURES
        | bit(VIRTIO_BLK_F_SIZE_MAX)
        | bit(VIRTIO_BLK_F_SEG_MAX)
        | bit(VIRTIO_BLK_F_BLK_SIZE)
        | bit(VIRTIO_BLK_F_TOPOLOGY)
        | bit(VIRTIO_BLK_F_MQ);
    if info.can(CAPABILITY_FLUSH) {
        features |= bit(VIRTIO_BLK_F_FLUSH) | bit(VIRTIO_BLK_F_CONFIG_WCE);
    }
    if read_only || !info.can(CAPABILITY_WRITE) {
        return features | bit(VIRTIO_BLK_F_RO);
    }
    // A disk whose longest range is shorter than its segments together has no length to report.
    if info.can(CAPABILITY_DISCARD) && info.max_range_sectors / MAX_DISCARD_SEGMENTS > 0 {
        features |= bit(VIRTIO_BLK_F_DISCARD);
    }
    if info.can(CAPABILITY_WRITE_ZEROES) && info.max_range_sectors > 0 {
        features |= bit(VIRTIO_BLK_F_WRITE_ZEROES);
    }
    features
}

/// Most data segments of a request, and most bytes of one: a request within these limits fits a transfer of the disk.
fn segments(info: &BlockInfo) -> (u32, u32) {
    let entries = u32::try_from(MAX_INDIRECT_ENTRIES).unwrap_or(u32::MAX);
    let count = MAX_SEGMENTS.min(info.max_segments).min(entries).min(info.max_transfer_bytes / MIN_SEGMENT_BYTES).max(1);
    let bytes = info.max_transfer_bytes / count;
    // A power of two, so that pieces of this length keep the alignment that the first one has.
    (count, bytes.checked_ilog2().map_or(bytes, |log| 1 << log))
}

fipsee_ring::wire_structures! {
    /// `struct virtio_blk_config` up to the fields of write-zeroes, whose length is not a multiple of 8.
    pub Space: 60 {
        0 capacity: U64, 8 size_max: u32, 12 seg_max: u32, 16 geometry: [u8; 4], 20 blk_size: u32, 24 physical_block_exp: u8,
        25 alignment_offset: u8, 26 min_io_size: u16, 28 opt_io_size: u32, 32 writeback: u8, 33 unused0: u8, 34 num_queues: u16,
        36 max_discard_sectors: u32, 40 max_discard_seg: u32, 44 discard_sector_alignment: u32, 48 max_write_zeroes_sectors: u32,
        52 max_write_zeroes_seg: u32, 56 write_zeroes_may_unmap: u8, 57 unused1: [u8; 3],
    }
}

/// The [`Space`] of a disk of this description.
pub fn space(info: &BlockInfo, num_queues: u16, writeback: bool) -> [u8; SPACE_BYTES] {
    let (segment_count, segment_bytes) = segments(info);
    let blocks_of = |bytes: u32| bytes / info.block_bytes;
    let optimal_blocks = blocks_of(info.optimal_bytes).max(1);
    let block_sectors = info.block_bytes >> 9;
    let whole_blocks = |sectors: u32| sectors / block_sectors * block_sectors;
    // Logical blocks in a physical one, as a power of two: a page at most, larger ones confuse mkfs programs.
    let physical_blocks = optimal_blocks.min(blocks_of(MIN_SEGMENT_BYTES)).max(1);
    zerocopy::transmute!(Space {
        capacity: info.sector_count.into(),
        size_max: segment_bytes,
        seg_max: segment_count,
        blk_size: info.block_bytes,
        physical_block_exp: u8::try_from(physical_blocks.ilog2()).unwrap_or(0),
        min_io_size: u16::try_from(optimal_blocks).unwrap_or(u16::MAX),
        opt_io_size: optimal_blocks,
        writeback: writeback.into(),
        num_queues,
        max_discard_sectors: whole_blocks(info.max_range_sectors / MAX_DISCARD_SEGMENTS),
        max_discard_seg: MAX_DISCARD_SEGMENTS,
        discard_sector_alignment: block_sectors,
        max_write_zeroes_sectors: whole_blocks(info.max_range_sectors),
        max_write_zeroes_seg: MAX_WRITE_ZEROES_SEGMENTS,
        // With UNMAP, blocks may be deallocated.
        write_zeroes_may_unmap: 1,
        ..FromZeros::new_zeroed()
    })
}
