//! A piece of a direct transfer through a buffer: whole units of the file, of which the client's bytes are a part.

use fipsee_serve::uring::Buffer;
use io_uring::squeue::Entry;
use io_uring::{opcode, types};

use fipsee_ring::memory::{Span, copy_from, copy_to};

/// What is done with the buffer now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The file's units are read, for the client.
    Read,
    /// They are read because the client writes only a part of them.
    Fill,
    /// They are written.
    Store,
}

/// The buffer of a request, and where it stands.
pub(super) struct Window {
    pub(super) buffer: Buffer,
    /// Where the buffer's first byte lies in the file.
    start_bytes: u64,
    length_bytes: usize,
    /// Transferred in this phase.
    moved_bytes: usize,
    /// The client's bytes in the buffer: from, to.
    data: (usize, usize),
    phase: Phase,
}

impl Window {
    /// `range`: start and length of the units. `data`: where the client's bytes begin in the file, and how many there are from there on;
    /// those that the units hold are transferred. A write takes them from `spans`, once.
    pub(super) fn new(buffer: Buffer, range: (u64, usize), data: (u64, u64), is_read: bool, spans: &[Span]) -> Self {
        let (start_bytes, length_bytes) = range;
        let length_bytes = length_bytes.min(buffer.length_bytes());
        let from = usize::try_from(data.0 - start_bytes).unwrap_or(length_bytes).min(length_bytes);
        let to = usize::try_from(data.1).map_or(length_bytes, |bytes| from.saturating_add(bytes)).min(length_bytes);
        let phase = if is_read { Phase::Read } else { Phase::Fill };
        let mut window = Self { buffer, start_bytes, length_bytes, moved_bytes: 0, data: (from, to), phase };
        if !is_read && (from, to) == (0, length_bytes) {
            window.merge(spans);
        }
        window
    }

    const fn left_bytes(&self) -> usize {
        self.length_bytes - self.moved_bytes
    }

    /// Of a transfer of `bytes`, what counts, and what was asked for: a read needs no more than the client asked for.
    pub(super) fn counted(&self, bytes: usize) -> (u64, u64) {
        let is_enough = self.phase == Phase::Read && self.moved_bytes + bytes >= self.data.1;
        (if is_enough { self.left_bytes() } else { bytes } as u64, self.left_bytes() as u64)
    }

    /// The kernel's form of the next transfer. `flags`: of writes.
    pub(super) fn entry(&mut self, file: types::Fd, flags: i32) -> Entry {
        let offset_bytes = self.start_bytes + self.moved_bytes as u64;
        let length = u32::try_from(self.left_bytes()).unwrap_or(0);
        // SAFETY: `moved_bytes` lies within the buffer.
        let memory = unsafe { self.buffer.base().add(self.moved_bytes) }.as_ptr();
        match self.phase {
            Phase::Read | Phase::Fill => opcode::Read::new(file, memory, length).offset(offset_bytes).build(),
            Phase::Store => opcode::Write::new(file, memory, length).offset(offset_bytes).rw_flags(flags).build(),
        }
    }

    /// So much was transferred. Returns the client's bytes that are done once all are; `spans` are its memory.
    pub(super) fn advance(&mut self, bytes: u64, spans: &[Span]) -> Option<u64> {
        self.moved_bytes += usize::try_from(bytes).unwrap_or(0);
        let (from, to) = self.data;
        if self.moved_bytes < self.length_bytes {
            return None;
        }
        match self.phase {
            Phase::Read => {
                // SAFETY: memory of a request in flight, which stays mapped; the buffer is the engine's.
                let _ = unsafe { copy_to(spans, &self.buffer.bytes()[from..to]) };
            }
            Phase::Fill => {
                self.merge(spans);
                return None;
            }
            Phase::Store => {}
        }
        Some((to - from) as u64)
    }

    /// Put the client's bytes among those of the file.
    fn merge(&mut self, spans: &[Span]) {
        let (from, to) = self.data;
        // SAFETY: memory of a request in flight, which stays mapped; the buffer is the engine's.
        unsafe { copy_from(spans, &mut self.buffer.bytes()[from..to]) };
        self.phase = Phase::Store;
        self.moved_bytes = 0;
    }
}
