//! Content that names itself: each sector holds the id of its write and its own number, and every other byte follows from these.
//! What is torn inside a sector, or is in another sector's place, is none of them.

use fipsee_testkit::random::{STEP, mix};

pub const SECTOR_BYTES: usize = 512;
const WORDS: usize = SECTOR_BYTES / 8;
const MAGIC: u64 = u64::from_le_bytes(*b"oracle!\n");
/// What a sector holds: 0 for zeroes, else the id of the write it came with.
pub type Value = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Found {
    /// Zeroes, or a whole sector of a write that belongs there.
    Value(Value),
    /// The header of a write, but not its bytes.
    Torn(Value),
    /// A whole header that belongs to another sector.
    Misplaced(Value, u64),
    /// Nothing that was written; how it begins.
    Garbage(u64),
}

fn key_of(value: Value, sector: u64) -> u64 {
    mix((u64::from(value) << 32) ^ mix(sector.wrapping_add(1)))
}

fn word(value: Value, sector: u64, key: u64, index: u64) -> u64 {
    match index {
        0 => MAGIC,
        1 => value.into(),
        2 => sector,
        _ => key.wrapping_add(index.wrapping_mul(STEP)),
    }
}

/// Fill `into`, whole sectors from number `first` on, as the write `value` does.
pub fn fill(into: &mut [u8], value: Value, first: u64) {
    for (bytes, sector) in into.as_chunks_mut::<SECTOR_BYTES>().0.iter_mut().zip(first..) {
        let key = key_of(value, sector);
        for (chunk, index) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(0..) {
            *chunk = word(value, sector, key, index).to_le_bytes();
        }
    }
}

/// The content of the sector of this number.
pub fn identify(bytes: &[u8; SECTOR_BYTES], sector: u64) -> Found {
    let words = bytes.as_chunks::<8>().0;
    let at = |index: usize| u64::from_le_bytes(words[index]);
    if at(0) == 0 && bytes.iter().all(|byte| *byte == 0) {
        return Found::Value(0);
    }
    let (Ok(value), MAGIC) = (Value::try_from(at(1)), at(0)) else { return Found::Garbage(at(0)) };
    if at(2) != sector {
        return Found::Misplaced(value, at(2));
    }
    let key = key_of(value, sector);
    let wrong = (3_u64..WORDS as u64).zip(&words[3..]).fold(0, |wrong, (index, bytes)| {
        wrong | (u64::from_le_bytes(*bytes) ^ word(value, sector, key, index)) // all of them: a loop without branches
    });
    if wrong == 0 && value != 0 { Found::Value(value) } else { Found::Torn(value) }
}

/// Is each word of the sector of this number one that it would have by one of `values`? A read that overlaps a write may find
/// parts of both.
pub fn is_mixed_of(bytes: &[u8; SECTOR_BYTES], sector: u64, values: &[Value]) -> bool {
    let expected = |value: Value, index: u64| match value {
        0 => 0,
        value => word(value, sector, key_of(value, sector), index),
    };
    let mut words = bytes.as_chunks::<8>().0.iter().zip(0..);
    words.all(|(bytes, index)| values.iter().any(|value| u64::from_le_bytes(*bytes) == expected(*value, index)))
}

/// The content of whole sectors from number `first` on.
pub fn identify_all(bytes: &[u8], first: u64) -> impl Iterator<Item = Found> {
    bytes.as_chunks::<SECTOR_BYTES>().0.iter().zip(first..).map(|(bytes, sector)| identify(bytes, sector))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sectors(value: Value, first: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count * SECTOR_BYTES];
        fill(&mut bytes, value, first);
        bytes
    }

    fn found(bytes: &[u8], first: u64) -> Vec<Found> {
        identify_all(bytes, first).collect()
    }

    #[test]
    fn each_sector_names_its_write_and_nothing_else_passes() {
        let mut bytes = sectors(42, 7, 3);
        assert_eq!(found(&bytes, 7), [Found::Value(42); 3]);
        assert_eq!(found(&[0; 1024], 7), [Found::Value(0); 2]);
        bytes[512..1024].copy_from_slice(&sectors(43, 8, 1));
        assert_eq!(found(&bytes, 7), [Found::Value(42), Found::Value(43), Found::Value(42)]);
        assert_eq!(found(&bytes, 8)[0], Found::Misplaced(42, 7));
        bytes[256..512].copy_from_slice(&sectors(41, 7, 1)[256..]);
        assert_eq!(found(&bytes, 7)[0], Found::Torn(42));
        let torn = bytes.first_chunk().expect("a sector");
        assert!(is_mixed_of(torn, 7, &[42, 41]) && !is_mixed_of(torn, 7, &[42, 40]));
        assert!(is_mixed_of(&[0; 512], 7, &[0]) && !is_mixed_of(&[0; 512], 7, &[42]));
        assert_eq!(found(&[0xa1; 512], 7), [Found::Garbage(0xa1a1_a1a1_a1a1_a1a1)]);
        assert_eq!(found(&sectors(0, 7, 1), 7), [Found::Torn(0)], "no write has the id of zeroes");
        let mut half = [0; 512];
        half[300] = 1;
        assert_eq!(identify(&half, 7), Found::Garbage(0));
    }
}
