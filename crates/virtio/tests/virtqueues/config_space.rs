//! What a virtio-blk device shows its driver.

use fipsee_block::disk::{Disk, NullDisk, NullOptions};
use fipsee_block::wire::{BlockInfo, CAPABILITY_WRITE};
use fipsee_virtio::blk::config::{WRITEBACK_OFFSET, features, space};
use fipsee_virtio::core::LOG_ALL;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_WRITE_ZEROES,
};

fn has(features: u64, feature: u32) -> bool {
    features >> feature & 1 == 1
}

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
        let bytes = space(&info, 1, true);
        let [bytes, count] = [8, 12].map(|offset| u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("four")));
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
