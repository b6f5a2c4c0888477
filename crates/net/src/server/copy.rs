//! The one copy of a frame: from the sender's memory into the receiver's.

use fipsee_ring::memory::Span;

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
pub unsafe fn copy_frame(head: &[u8], rest: &[Span], into: &[Span]) {
    let mut target = Target::new(into);
    let mut copy = |mut from: *const u8, mut left_bytes: usize| {
        while left_bytes > 0 {
            let Some(piece) = target.piece(left_bytes) else { return };
            // SAFETY: both are mapped, by the caller, and as long; `copy` allows that they overlap.
            unsafe { std::ptr::copy(from, piece.base().as_ptr(), piece.length_bytes()) };
            from = from.wrapping_add(piece.length_bytes());
            left_bytes -= piece.length_bytes();
        }
    };
    copy(head.as_ptr(), head.len());
    for span in rest {
        copy(span.base().as_ptr(), span.length_bytes());
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
