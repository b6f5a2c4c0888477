//! Content that names itself: each sector says which block it is of, which piece of it, and which write it came with.

use fipsee_block::wire::SECTOR_BYTES;

/// Bytes of a block, the unit in which is written.
pub const BLOCK_BYTES: u64 = 4096;
/// Sectors of a block: the unit that no power cut may tear.
pub const SECTORS_PER_BLOCK: u64 = BLOCK_BYTES / SECTOR_BYTES;

const SECTOR_LENGTH: usize = 512;
const MAGIC: u64 = u64::from_le_bytes(*b"stamped!");

/// splitmix64's last step: mixes all bits.
const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A random sequence, the same for the same seed.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number below `end`.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0) % end
    }
}

/// Every byte of a sector follows from what it names, so that a comparison is its checksum.
fn sector(block: u64, piece: u64, sequence: u64) -> [u8; SECTOR_LENGTH] {
    let mut bytes = [0; SECTOR_LENGTH];
    let key = mix(block.wrapping_mul(0x0100_0193).wrapping_add(piece)) ^ mix(sequence);
    for (index, chunk) in (0..).zip(bytes.chunks_exact_mut(8)) {
        let word = match index {
            0 => MAGIC,
            1 => block,
            2 => piece,
            3 => sequence,
            _ => mix(key.wrapping_add(index)),
        };
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The content of a block as the write `sequence` makes it.
#[must_use]
pub fn block(number: u64, sequence: u64) -> Vec<u8> {
    (0..SECTORS_PER_BLOCK).flat_map(|piece| sector(number, piece, sequence)).collect()
}

/// The writes that the sectors of a block came with; 0: never written.
///
/// # Errors
/// A sector is none of ours: torn inside, of another place, garbage.
pub fn sequences(number: u64, bytes: &[u8]) -> Result<Vec<u64>, String> {
    let sequence_of = |(piece, bytes): (u64, &[u8])| {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(0);
        }
        let sequence = bytes.get(24..32).and_then(|word| word.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word));
        if bytes == sector(number, piece, sequence) {
            return Ok(sequence);
        }
        Err(format!("block {number}, sector {piece}: garbage, which begins with {:x?}", &bytes[..32.min(bytes.len())]))
    };
    (0..).zip(bytes.chunks(SECTOR_LENGTH)).map(sequence_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_tell_their_write_and_nothing_else_passes() {
        let mut bytes = block(7, 42);
        assert_eq!(sequences(7, &bytes), Ok(vec![42; 8]));
        assert_eq!(sequences(7, &[0; 4096]), Ok(vec![0; 8]));
        bytes[512..1024].copy_from_slice(&block(7, 43)[512..1024]);
        assert_eq!(sequences(7, &bytes), Ok(vec![42, 43, 42, 42, 42, 42, 42, 42]));
        assert!(sequences(8, &bytes).is_err(), "of another block");
        bytes.swap(0, 1);
        assert!(sequences(7, &bytes).is_err());
        let mut torn = block(7, 42);
        torn[300..512].copy_from_slice(&block(7, 41)[300..512]);
        assert!(sequences(7, &torn).is_err(), "torn inside a sector");
    }
}
