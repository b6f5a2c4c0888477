//! The baseline of the memory disk: a plain copy loop over the same amounts of memory, one thread, no channel.

use std::time::{Duration, Instant};

use fipsee_ring::region::Region;

use crate::generator::Random;

/// Copy random blocks of a disk-sized region into one of `depth` buffers, as the back end does for random reads;
/// returns bytes per second.
pub(crate) fn run(disk: &Region, buffers: &Region, block_bytes: u64, depth: u64, duration: Duration) -> Result<f64, String> {
    let blocks = disk.length_bytes() / block_bytes;
    if buffers.length_bytes() < block_bytes * depth || blocks == 0 {
        return Err("the buffers are too small for the copy loop".to_owned());
    }
    let (depth, length) = (usize::try_from(depth).unwrap_or(1), usize::try_from(block_bytes).unwrap_or(0));
    let mut random = Random::default();
    let (started, mut copied) = (Instant::now(), 0_u64);
    while started.elapsed() < duration {
        for slot in 0..1024 {
            let block = usize::try_from(random.below(blocks)).unwrap_or(0);
            let from = disk.base().as_ptr().wrapping_add(block * length);
            let to = buffers.base().as_ptr().wrapping_add(slot % depth * length);
            // SAFETY: the block is in the disk's region and the slot in the buffers' (both checked above); the two
            // regions are different mappings.
            unsafe { std::ptr::copy_nonoverlapping(from, to, length) };
        }
        copied += 1024;
    }
    let bytes = fipsee::load::count_f64(copied * block_bytes);
    Ok(bytes / started.elapsed().as_secs_f64())
}
