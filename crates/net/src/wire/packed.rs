//! Messages with several frames.

use std::sync::atomic::{AtomicU64, Ordering};

use fipsee_ring::Message;
use fipsee_ring::memory::Extent;

use super::{KIND_RECEIVED_PACKED, OPERATION_SEND_PACKED};

/// Most frames in a message that sends several, and in one by which several have come.
pub const MAX_PACKED_SENT: usize = 7;
pub const MAX_PACKED_RECEIVED: usize = 14;

fipsee_ring::wire_structures! {
    /// A frame in memory.
    #[derive(Default, PartialEq, Eq)]
    pub PackedFrame: 8 { 0 tag: u16, 2 length_bytes: u16, 4 offset_bytes: u32 }
    /// Frames in memory that are sent, without offloads.
    #[derive(PartialEq, Eq)]
    pub SendPacked: 64 { 0 operation: u8, 1 count: u8, 2 memory: u16, 4 frames: [PackedFrame; MAX_PACKED_SENT], 60 stamp: u32 }
    /// A buffer that a frame has come in.
    #[derive(Default, PartialEq, Eq)]
    pub PackedBuffer: 4 { 0 tag: u16, 2 length_bytes: u16 }
    /// Frames that have come in a buffer each, without offloads.
    #[derive(PartialEq, Eq)]
    pub FilledPacked: 64 {
        0 kind: u8,
        1 count: u8,
        2 reserved: u16,
        4 frames: [PackedBuffer; MAX_PACKED_RECEIVED],
        60 stamp: u32,
    }
}

messages! { SendPacked FilledPacked }

impl PackedFrame {
    /// Where it is; any values.
    #[inline(always)]
    pub fn extent(&self, memory: u16) -> Extent {
        Extent { region: memory, offset_bytes: self.offset_bytes.into(), length_bytes: self.length_bytes.into() }
    }
}

impl SendPacked {
    /// At most [`MAX_PACKED_SENT`] frames; more are left out.
    pub fn new(memory: u16, frames: &[PackedFrame]) -> Self {
        let count = u8::try_from(frames.len().min(MAX_PACKED_SENT)).unwrap_or(0);
        let frames = std::array::from_fn(|index| frames.get(index).copied().unwrap_or_default());
        Self { operation: OPERATION_SEND_PACKED, count, memory, frames, stamp: 0 }
    }

    /// Those that the count names; `None`: a count that there may not be.
    #[inline(always)]
    pub fn named(&self) -> Option<&[PackedFrame]> {
        self.frames.get(..usize::from(self.count)).filter(|frames| !frames.is_empty())
    }
}

impl FilledPacked {
    /// At most [`MAX_PACKED_RECEIVED`] frames; more are left out.
    pub fn new(frames: &[PackedBuffer]) -> Self {
        let count = u8::try_from(frames.len().min(MAX_PACKED_RECEIVED)).unwrap_or(0);
        let frames = std::array::from_fn(|index| frames.get(index).copied().unwrap_or_default());
        Self { kind: KIND_RECEIVED_PACKED, count, reserved: 0, frames, stamp: 0 }
    }

    /// Those that the count names; `None`: a count that there may not be.
    #[inline(always)]
    pub fn named(&self) -> Option<&[PackedBuffer]> {
        self.frames.get(..usize::from(self.count)).filter(|frames| !frames.is_empty())
    }
}

/// A message that is filled bit by bit. Each word is stored and loaded as a whole, one at a time: a load of what was stored in other pieces waits until
/// that, and all that was stored before, has left this CPU. The compiler joins plain loads; those of atomics it leaves as they are.
#[derive(Debug, Default)]
struct Words([AtomicU64; 8]);

impl Words {
    #[inline(always)]
    fn set(&mut self, index: usize, value: u64) {
        *self.0[index].get_mut() = value;
    }

    /// Put something where 0 is.
    #[inline(always)]
    fn add(&mut self, index: usize, value: u64) {
        *self.0[index].get_mut() |= value;
    }

    #[inline(always)]
    fn get(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::Relaxed)
    }

    /// The message, with this in place of its first half word; empty from now on.
    #[inline(always)]
    fn take(&mut self, first: u32) -> Message {
        let mut words = [0; 8];
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.get(index);
            self.set(index, 0);
        }
        words[0] |= u64::from(first);
        Message::from_words(words)
    }
}

/// Frames for a [`SendPacked`], one after the other.
#[derive(Debug, Default)]
pub(crate) struct SendPacking {
    words: Words,
    count: u8,
}

impl SendPacking {
    #[inline(always)]
    pub(crate) fn count(&self) -> u8 {
        self.count
    }

    /// There is room: it is not [full](Self::is_full).
    #[inline(always)]
    pub(crate) fn push(&mut self, PackedFrame { tag, length_bytes, offset_bytes }: PackedFrame) {
        let at = usize::from(self.count);
        self.words.add(at, (u64::from(tag) | u64::from(length_bytes) << 16) << 32);
        self.words.set(at + 1, offset_bytes.into());
        self.count += 1;
    }

    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        usize::from(self.count) == MAX_PACKED_SENT
    }

    #[inline(always)]
    pub(crate) fn tags(&self) -> impl Iterator<Item = u16> {
        (0..usize::from(self.count)).map(|at| {
            let [_, _, _, _, low, high, ..] = self.words.get(at).to_le_bytes();
            u16::from_le_bytes([low, high])
        })
    }

    /// The message; empty from now on.
    #[inline(always)]
    pub(crate) fn take(&mut self, memory: u16) -> Message {
        let count = std::mem::take(&mut self.count);
        self.words.take(u32::from(OPERATION_SEND_PACKED) | u32::from(count) << 8 | u32::from(memory) << 16)
    }
}

/// Entries of two numbers for a [`FilledPacked`] or a [`Returned`](super::Returned), one after the other.
#[cfg(feature = "server")]
#[derive(Debug, Default)]
pub(crate) struct Packing {
    words: Words,
    count: u8,
}

#[cfg(feature = "server")]
impl Packing {
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        usize::from(self.count) == MAX_PACKED_RECEIVED
    }

    /// There is room: it is not [full](Self::is_full).
    #[inline(always)]
    pub(crate) fn push(&mut self, tag: u16, number: u16) {
        self.count += 1;
        let (word, half) = (usize::from(self.count / 2), self.count % 2);
        self.words.add(word, (u64::from(tag) | u64::from(number) << 16) << (32 * half));
    }

    /// The message; empty from now on.
    #[inline(always)]
    pub(crate) fn take(&mut self, kind: u8) -> Message {
        let count = std::mem::take(&mut self.count);
        self.words.take(u32::from(kind) | u32::from(count) << 8)
    }
}

const _: () =
    assert!(MAX_PACKED_RECEIVED == super::MAX_RETURNED && size_of::<PackedBuffer>() == size_of::<super::ReturnedEntry>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_filled_bit_by_bit_are_those_made_at_once() {
        let mut packing = SendPacking::default();
        for count in 1..=7_u8 {
            let frames: Vec<PackedFrame> = (0..count)
                .map(|index| PackedFrame {
                    tag: 0xff00 + u16::from(index),
                    length_bytes: 0x8000 + u16::from(index),
                    offset_bytes: 0xf000_0000 + u32::from(index),
                })
                .collect();
            frames.iter().for_each(|frame| packing.push(*frame));
            assert_eq!((packing.count(), packing.is_full()), (count, count == 7));
            assert!(packing.tags().eq(frames.iter().map(|frame| frame.tag)));
            assert_eq!(packing.take(0xabcd), SendPacked::new(0xabcd, &frames).to_message());
            assert_eq!(packing.count(), 0);
        }
    }

    #[cfg(feature = "server")]
    #[test]
    fn entries_filled_one_by_one_are_those_made_at_once() {
        use crate::wire::{KIND_RETURNED, Returned, Status};

        let mut packing = Packing::default();
        for count in 1..=14 {
            let frames: Vec<PackedBuffer> =
                (0..count).map(|index| PackedBuffer { tag: 0xff00 + index, length_bytes: 0x8000 + index }).collect();
            frames.iter().for_each(|frame| packing.push(frame.tag, frame.length_bytes));
            assert!(packing.is_full() == (count == 14) && !packing.is_empty());
            assert_eq!(packing.take(KIND_RECEIVED_PACKED), FilledPacked::new(&frames).to_message());
            assert!(packing.is_empty());
            let given_back: Vec<(u16, Status)> = (0..count).map(|tag| (tag, Status::WrongVlan)).collect();
            given_back.iter().for_each(|(tag, status)| packing.push(*tag, status.to_wire()));
            assert_eq!(packing.take(KIND_RETURNED), Returned::new(&given_back).to_message());
        }
    }
}
