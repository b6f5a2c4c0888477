//! Data written and read back.

use std::path::Path;
use std::time::Instant;

use fipsee_block::client::{AttachOptions, Blocking};

use super::MEMORY_BYTES;
use crate::error::Error;
use crate::units;

/// Lengths of successive writes, in bytes: from one sector to more than the client sends in one request.
const WRITE_BYTES: [usize; 7] = [512, 4096, 1536, 65_536, 1 << 20, 131_072 + 512, 8192];
/// Lengths of successive reads: others, so that they cross the borders of the writes.
const READ_BYTES: [usize; 5] = [1 << 20, 2560, 32_768, 512, 262_144 + 1024];

/// Fill the memory disk, make it durable, read it and compare; returns a summary.
pub(super) fn write_and_verify(socket: &Path) -> Result<String, Error> {
    let length = usize::try_from(MEMORY_BYTES).map_err(|_| "this machine's address space is too small for the demo")?;
    let written = pseudo_random(length);
    let mut disk = Blocking::attach(socket, &AttachOptions::new("memory"))?;
    let started = Instant::now();
    let mut write_count = 0;
    for range in ranges(length, &WRITE_BYTES) {
        disk.write_at(&written[range.clone()], range.start as u64)?;
        write_count += 1;
    }
    disk.flush()?;
    let mut read = vec![0; length];
    let mut read_count = 0;
    for range in ranges(length, &READ_BYTES) {
        disk.read_at(&mut read[range.clone()], range.start as u64)?;
        read_count += 1;
    }
    let elapsed = started.elapsed();
    if let Some(offset_bytes) = written.iter().zip(&read).position(|(written, read)| written != read) {
        return Err(format!(
            "byte {offset_bytes} came back different; this must never happen, report it with this machine's CPU model"
        )
        .into());
    }
    disk.detach()?;
    Ok(format!(
        "{} of pseudo-random data written in {write_count} calls of 512 B to 1 MiB, flushed, read back in {read_count}: identical ({} ms)",
        units::bytes(MEMORY_BYTES),
        elapsed.as_millis()
    ))
}

/// Cut `0..length` into pieces of these lengths, in turn.
fn ranges(length: usize, piece_lengths: &[usize]) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut start = 0;
    piece_lengths.iter().cycle().map_while(move |piece| {
        let range = start..length.min(start + piece);
        start = range.end;
        (!range.is_empty()).then_some(range)
    })
}

fn pseudo_random(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes = vec![0; length];
    for chunk in bytes.as_chunks_mut::<8>().0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *chunk = state.to_le_bytes();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_everything_once() {
        let pieces: Vec<_> = ranges(10_000, &[512, 4096]).collect();
        assert_eq!(pieces.first(), Some(&(0..512)));
        assert_eq!(pieces.last().map(|range| range.end), Some(10_000));
        assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start));
    }
}
