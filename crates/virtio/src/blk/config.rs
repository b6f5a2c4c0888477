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

/// Bytes of the configuration space.
pub const SPACE_BYTES: usize = size_of::<Space>();
/// Offset of the cache mode, the only field that a driver writes.
pub const WRITEBACK_OFFSET: usize = core::mem::offset_of!(Space, writeback);
/// Segments of one discard. All of them together may be as long as one discard of the disk.
pub const MAX_DISCARD_SEGMENTS: u32 = 4;
/// Segments of one write-zeroes.
pub const MAX_WRITE_ZEROES_SEGMENTS: u32 = 1;
/// Data segments of one request: with header and status they fit a queue of 128, the smallest size that hypervisors choose.
const MAX_SEGMENTS: u32 = 126;
/// A segment of a guest is a page at least.
const MIN_SEGMENT_BYTES: u32 = 4096;

/// The features of a disk of this description, with those of every device.
#[must_use]
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
#[must_use]
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

#[cfg(test)]
mod tests {
    use fipsee_block::disk::{Disk, NullDisk, NullOptions};

    use super::*;
    use crate::core::{LOG_ALL, has};

    fn info() -> BlockInfo {
        let disk = NullDisk::new("null", &NullOptions { size_bytes: 512 << 20, ..Default::default() }).expect("a disk");
        BlockInfo { optimal_bytes: 4096, ..disk.info() }
    }

    #[test]
    fn every_field_of_the_space_is_at_its_virtio_offset() {
        let bytes = space(&info(), 3, true);
        let number = |offset: usize, length: usize| {
            bytes[offset..offset + length].iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte))
        };
        let fields = [
            ("capacity", 0, 8, 1 << 20),
            ("size_max", 8, 4, 128 << 10),
            ("seg_max", 12, 4, 126),
            ("geometry", 16, 4, 0),
            ("blk_size", 20, 4, 512),
            ("physical_block_exp", 24, 1, 3),
            ("alignment_offset", 25, 1, 0),
            ("min_io_size", 26, 2, 8),
            ("opt_io_size", 28, 4, 8),
            ("writeback", 32, 1, 1),
            ("num_queues", 34, 2, 3),
            ("max_discard_sectors", 36, 4, 2 << 20),
            ("max_discard_seg", 40, 4, 4),
            ("discard_sector_alignment", 44, 4, 1),
            ("max_write_zeroes_sectors", 48, 4, 8 << 20),
            ("max_write_zeroes_seg", 52, 4, 1),
            ("write_zeroes_may_unmap", 56, 1, 1),
        ];
        for (name, offset, length, value) in fields {
            assert_eq!(number(offset, length), value, "{name}");
        }
        assert_eq!(space(&info(), 3, false)[WRITEBACK_OFFSET], 0);
    }

    #[test]
    fn the_largest_request_fits_a_transfer() {
        for max_transfer_bytes in [4096, 65536, 1 << 20, (1 << 20) + 512, 16 << 20] {
            let info = BlockInfo { max_transfer_bytes, ..info() };
            let (count, bytes) = segments(&info);
            assert!(count >= 1 && bytes >= 4096 && u64::from(count) * u64::from(bytes) <= max_transfer_bytes.into());
        }
    }

    #[test]
    fn features_follow_what_the_disk_can_do() {
        let all = features(&info(), false);
        assert!(!has(all, VIRTIO_BLK_F_RO) && has(all, VIRTIO_BLK_F_DISCARD) && has(all, VIRTIO_BLK_F_WRITE_ZEROES));
        assert!(has(all, VIRTIO_BLK_F_FLUSH) && has(all, VIRTIO_BLK_F_CONFIG_WCE) && has(all, LOG_ALL));
        let read_only = features(&info(), true);
        assert!(has(read_only, VIRTIO_BLK_F_RO) && !has(read_only, VIRTIO_BLK_F_DISCARD));
        let plain = features(&BlockInfo { capabilities: CAPABILITY_WRITE, ..info() }, false);
        assert!(!has(plain, VIRTIO_BLK_F_FLUSH) && !has(plain, VIRTIO_BLK_F_CONFIG_WCE) && !has(plain, VIRTIO_BLK_F_DISCARD));
    }
}
