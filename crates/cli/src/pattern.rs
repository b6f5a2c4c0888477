//! The expected content of blocks: patterns for verified runs.

use fipsee_block::client::Buffer;

/// Data that was read back wrong.
#[derive(Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Byte offset on the disk of the first wrong 512-byte piece.
    pub offset_bytes: u64,
    /// The bytes found at its start.
    pub found: [u64; 2],
    /// The bytes expected there.
    pub expected: [u64; 2],
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ([sector, sequence], [found_sector, found_sequence]) = (self.expected, self.found);
        write!(
            f,
            "wrong data at byte {}: expected sector {sector} of write {sequence}, found {found_sector:#x} and {found_sequence:#x}; \
             something else wrote there, or the disk lost a write",
            self.offset_bytes
        )
    }
}

const PIECE_BYTES: usize = 512;

/// A range of blocks for one queue alone.
#[derive(Debug)]
pub struct Blocks {
    first: u64,
    count: u64,
    block_bytes: u64,
    /// By block: number of the last finished write, 0 for none; empty when nothing is verified.
    sequences: Vec<u64>,
    /// By block: is a request in flight?
    busy: Vec<bool>,
    /// By block: number of the write in flight.
    pending: Vec<u64>,
    next_sequence: u64,
}

impl Blocks {
    /// `count` blocks of `block_bytes` from block `first` of the disk on.
    pub fn new(first: u64, count: u64, block_bytes: u64, verify: bool) -> Self {
        let tracked = if verify { usize::try_from(count).unwrap_or(0) } else { 0 };
        Self {
            first,
            count,
            block_bytes,
            sequences: vec![0; tracked],
            busy: vec![false; tracked],
            pending: vec![0; tracked],
            next_sequence: 1,
        }
    }

    /// The number of blocks.
    #[inline(always)]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Is anything verified?
    #[inline(always)]
    pub const fn verifies(&self) -> bool {
        !self.sequences.is_empty()
    }

    /// The number of a block on the disk.
    #[inline(always)]
    pub const fn number(&self, block: u64) -> u64 {
        self.first + block
    }

    /// Is a request for the block in flight?
    pub fn is_busy(&self, block: u64) -> bool {
        self.busy[index(block)]
    }

    /// A request for the block begins.
    pub fn begin(&mut self, block: u64) {
        self.busy[index(block)] = true;
    }

    /// A request for the block has ended.
    pub fn end(&mut self, block: u64, write: bool) {
        self.busy[index(block)] = false;
        if write {
            self.sequences[index(block)] = self.pending[index(block)];
        }
    }

    /// The blocks that were written.
    pub fn written(&self) -> impl Iterator<Item = u64> + use<> {
        let written: Vec<u64> = (0..self.count).filter(|block| self.sequences[index(*block)] != 0).collect();
        written.into_iter()
    }

    /// Fill a buffer with the content of the block's next write: each 512 bytes name their sector and the write, and
    /// the rest follows from both, so that a piece in a wrong place, an old one, or a torn one is recognised.
    pub fn write_pattern(&mut self, block: u64, buffer: &Buffer) {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.pending[index(block)] = sequence;
        let mut bytes = vec![0; index(self.block_bytes)];
        for (piece, sector) in bytes.as_chunks_mut::<PIECE_BYTES>().0.iter_mut().zip(self.first_sector(block)..) {
            fill(piece, sector, sequence);
        }
        buffer.fill(0, &bytes);
    }

    /// Compare a buffer with the last finished write of the block; `false` when the block was never written.
    pub fn check(&self, block: u64, buffer: &Buffer) -> Result<bool, Mismatch> {
        let sequence = self.sequences[index(block)];
        if sequence == 0 {
            return Ok(false);
        }
        let mut bytes = vec![0; index(self.block_bytes)];
        buffer.copy_to(0, &mut bytes);
        let mut expected = [0; PIECE_BYTES];
        for (piece, sector) in bytes.as_chunks::<PIECE_BYTES>().0.iter().zip(self.first_sector(block)..) {
            fill(&mut expected, sector, sequence);
            if *piece != expected {
                let offset_bytes = sector * PIECE_BYTES as u64;
                return Err(Mismatch { offset_bytes, found: head(piece), expected: head(&expected) });
            }
        }
        Ok(true)
    }

    const fn first_sector(&self, block: u64) -> u64 {
        (self.first + block) * (self.block_bytes / PIECE_BYTES as u64)
    }
}

fn index(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

fn head(piece: &[u8; PIECE_BYTES]) -> [u64; 2] {
    let words = piece.as_chunks::<8>().0;
    [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])]
}

fn fill(piece: &mut [u8; PIECE_BYTES], sector: u64, sequence: u64) {
    let mut word = sector.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ sequence;
    for (position, chunk) in piece.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let value = match position {
            0 => sector,
            1 => sequence,
            _ => {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                word
            }
        };
        *chunk = value.to_le_bytes();
    }
}
