//! The one copy of a frame: from the sender's memory into the receiver's.

use fipsee_ring::memory::{Span, copy_from};

use crate::frame::MAX_FIRST_COPIED_BYTES;

/// The first bytes of a frame in memory, copied once.
///
/// # Safety
/// It is mapped for loads.
#[inline(always)]
pub(super) unsafe fn copy_first<'a>(frame: &Span, into: &'a mut [u8; MAX_FIRST_COPIED_BYTES]) -> &'a [u8] {
    let count = MAX_FIRST_COPIED_BYTES.min(frame.length_bytes());
    if count == MAX_FIRST_COPIED_BYTES {
        // As a rule: it has a length that the compiler knows, and so no call.
        // SAFETY: by the caller; the frame is as long.
        unsafe { std::ptr::copy_nonoverlapping(frame.base().as_ptr(), into.as_mut_ptr(), MAX_FIRST_COPIED_BYTES) };
        // Without this the compiler may read a byte again from where it was copied from.
        std::hint::black_box(&mut *into);
        return into;
    }
    // SAFETY: by the caller.
    unsafe { copy_from(std::slice::from_ref(frame), &mut into[..count]) };
    &into[..count]
}

/// Memory that is filled from its beginning.
struct Target<'a> {
    spans: &'a [Span],
    /// What is left of the first.
    left: Option<Span>,
}

impl<'a> Target<'a> {
    fn new(spans: &'a [Span]) -> Self {
        let (left, spans) = spans.split_first().map_or((None, spans), |(first, rest)| (Some(*first), rest));
        Self { spans, left }
    }

    /// A piece of at most so many bytes, which is not given again.
    fn piece(&mut self, most_bytes: usize) -> Option<Span> {
        let whole = self.left.filter(|left| left.length_bytes() > 0)?;
        let length_bytes = whole.length_bytes().min(most_bytes);
        let rest = whole.without_first(length_bytes);
        self.left = if rest.length_bytes() > 0 {
            Some(rest)
        } else {
            let (next, spans) = self.spans.split_first().map_or((None, self.spans), |(first, rest)| (Some(*first), rest));
            self.spans = spans;
            next
        };
        // SAFETY: the beginning of a span that the caller vouches for.
        Some(unsafe { Span::new(whole.base(), length_bytes) })
    }
}

/// Put `head` and then `rest` at the beginning of `into`. What does not fit is left out: the caller has seen that all does.
///
/// # Safety
/// `rest` is mapped for loads, `into` for stores. Other processes may change both meanwhile.
#[inline(always)]
pub unsafe fn copy_frame(head: &[u8], rest: &[Span], into: &[Span]) {
    if let ([] | [_], [into]) = (rest, into)
        && head.len() + rest.first().map_or(0, Span::length_bytes) <= into.length_bytes()
    {
        let to = into.base().as_ptr();
        // SAFETY: both are mapped, by the caller, and there is room for both parts, as was seen just now.
        unsafe { copy_head(head, to) };
        if let [rest] = rest {
            // SAFETY: as above.
            unsafe { copy(rest.base().as_ptr(), to.wrapping_add(head.len()), rest.length_bytes()) };
        }
        return;
    }
    // SAFETY: by the caller.
    unsafe { copy_pieces(head, rest, into) };
}

/// # Safety
/// `to` is mapped for stores of as many bytes.
#[inline(always)]
unsafe fn copy_head(head: &[u8], to: *mut u8) {
    match head.first_chunk::<MAX_FIRST_COPIED_BYTES>() {
        // Of a frame in memory: in pieces as it was stored in.
        // SAFETY: by the caller.
        Some(line) if head.len() == line.len() => unsafe { std::ptr::copy_nonoverlapping(line.as_ptr(), to, line.len()) },
        // SAFETY: by the caller.
        _ => unsafe { copy(head.as_ptr(), to, head.len()) },
    }
}

/// # Safety
/// As [`copy_frame`].
#[inline(never)]
unsafe fn copy_pieces(head: &[u8], rest: &[Span], into: &[Span]) {
    let mut target = Target::new(into);
    let mut copy = |mut from: *const u8, mut left_bytes: usize| {
        while left_bytes > 0 {
            let Some(piece) = target.piece(left_bytes) else { return };
            // SAFETY: both are mapped, by the caller, and as long.
            unsafe { copy(from, piece.base().as_ptr(), piece.length_bytes()) };
            from = from.wrapping_add(piece.length_bytes());
            left_bytes -= piece.length_bytes();
        }
    };
    copy(head.as_ptr(), head.len());
    for span in rest {
        copy(span.base().as_ptr(), span.length_bytes());
    }
}

/// As `ptr::copy`, but for what becomes of bytes if they overlap, which a client alone can cause, with its own memory. What is short goes word by word: `from` may be a part of a message, which was stored in pieces of 16 bytes, and
/// a load across two of them would wait until these, and all that was stored before, have left this CPU. No call, either.
///
/// # Safety
/// `from` is mapped for loads and `to` for stores of so many bytes.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, length_bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if (WORD_BYTES..=SHORT_BYTES).contains(&length_bytes) {
        let (last, mut offset) = (length_bytes - WORD_BYTES, 0);
        while offset < last {
            // SAFETY: the word ends before the last one does, so that it is within both.
            unsafe { copy_word(from.wrapping_add(offset), to.wrapping_add(offset)) };
            offset += WORD_BYTES;
        }
        // It may have bytes of the one before.
        // SAFETY: it ends where both end.
        unsafe { copy_word(from.wrapping_add(last), to.wrapping_add(last)) };
        return;
    }
    // SAFETY: by the caller.
    unsafe { std::ptr::copy(from, to, length_bytes) };
}

const WORD_BYTES: usize = 8;
/// More is copied faster by what the library has for it.
const SHORT_BYTES: usize = 64;

/// In assembly: the compiler would make words wider.
///
/// # Safety
/// As [`copy`], of a word.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn copy_word(from: *const u8, to: *mut u8) {
    // SAFETY: by the caller.
    unsafe {
        std::arch::asm!(
            "mov {word}, [{from}]",
            "mov [{to}], {word}",
            from = in(reg) from,
            to = in(reg) to,
            word = out(reg) _,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;

    fn spans(memory: &mut [u8], pieces: &[(usize, usize)]) -> Vec<Span> {
        let base = NonNull::new(memory.as_mut_ptr()).expect("memory");
        let span = |(offset, length): &(usize, usize)| {
            assert!(offset + length <= memory.len());
            // SAFETY: checked just now.
            let first = unsafe { base.add(*offset) };
            // SAFETY: likewise.
            unsafe { Span::new(first, *length) }
        };
        pieces.iter().map(span).collect()
    }

    #[test]
    fn frame_is_copied_across_pieces_and_no_further() {
        let (mut from, mut to): (Vec<u8>, Vec<u8>) = ((100..200).collect(), vec![0; 100]);
        let rest = spans(&mut from, &[(0, 5), (50, 7)]);
        let into = spans(&mut to, &[(10, 3), (20, 6), (40, 9)]);
        // SAFETY: both are memory of this test.
        unsafe { copy_frame(&[1, 2, 3, 4], &rest, &into) };
        let mut expected = vec![0; 100];
        expected[10..13].copy_from_slice(&[1, 2, 3]);
        expected[20..26].copy_from_slice(&[4, 100, 101, 102, 103, 104]);
        expected[40..47].copy_from_slice(&[150, 151, 152, 153, 154, 155, 156]);
        assert_eq!(to, expected);
    }

    #[test]
    fn frame_of_any_length_is_copied_whole_and_no_further() {
        let mut from: Vec<u8> = (0..200).collect();
        for (head, length) in (0..60).flat_map(|head| [0, 1, 7, 8, 9, 15, 28, 63, 64, 65, 130].map(|length| (head, length))) {
            let first: Vec<u8> = (100..100 + u8::try_from(head).expect("small")).collect();
            let mut to = vec![0; 200];
            let (rest, into) = (spans(&mut from, &[(3, length)]), spans(&mut to, &[(1, head + length)]));
            // SAFETY: both are memory of this test.
            unsafe { copy_frame(&first, &rest, &into) };
            assert_eq!((to[0], &to[1..=head], &to[1 + head..][..length]), (0, &first[..], &from[3..][..length]));
            assert!(to[1 + head + length..].iter().all(|byte| *byte == 0), "{head} and {length} bytes");
        }
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let (mut from, mut to): (Vec<u8>, Vec<u8>) = ((100..200).collect(), vec![0; 8]);
        let (rest, into) = (spans(&mut from, &[(0, 50)]), spans(&mut to, &[(1, 2), (5, 1)]));
        // SAFETY: both are memory of this test.
        unsafe { copy_frame(&[1], &rest, &into) };
        assert_eq!(to, [0, 1, 100, 0, 0, 101, 0, 0]);
        // SAFETY: likewise.
        unsafe { copy_frame(&[1], &rest, &[]) };
    }
}
