//! What is given back to a sender, collected until a message is full or the visit ends.

use std::hint::black_box;
use std::mem::offset_of;

use fipsee_ring::Message;

use crate::wire::{KIND_RETURNED, MAX_RETURNED, Returned, ReturnedEntry, Status};

#[derive(Debug, Default)]
pub(super) struct Returns {
    words: [u64; 8],
    count: usize,
}

impl Returns {
    /// Give this back; a message that is full now.
    #[must_use = "what is in it is not given back otherwise"]
    #[inline(always)]
    pub(super) fn push(&mut self, tag: u16, status: Status) -> Option<Message> {
        // So entry n, counted from 1, is half word n.
        const { assert!(offset_of!(Returned, entries) == size_of::<ReturnedEntry>() && size_of::<ReturnedEntry>() == 4) };
        self.count += 1;
        let entry = u64::from(tag) | u64::from(status.to_wire()) << u16::BITS;
        self.words[self.count / 2] |= entry << (u32::BITS * u32::from(self.count % 2 != 0));
        if self.count == MAX_RETURNED { self.take() } else { None }
    }

    /// The message, if anything is in it.
    #[must_use = "what is in it is not given back otherwise"]
    #[inline(always)]
    pub(super) fn take(&mut self) -> Option<Message> {
        if self.count == 0 {
            return None;
        }
        let Self { mut words, count } = std::mem::take(self);
        words[0] |= u64::from(KIND_RETURNED) | u64::try_from(count).unwrap_or(0) << u8::BITS;
        // Word by word, as they were stored: the compiler would make wider loads of it, which wait until the words have left this CPU.
        Some(Message::from_words(words.map(black_box)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_those_of_the_wire_with_every_count_of_entries() {
        for count in 1..=MAX_RETURNED {
            let entries: Vec<(u16, Status)> = (0..count)
                .map(|index| (0xfff0 + u16::try_from(index).expect("few"), Status::ALL[index % Status::ALL.len()]))
                .collect();
            let mut returns = Returns::default();
            for turn in 0..2 {
                let full = entries.iter().filter_map(|(tag, status)| returns.push(*tag, *status)).next();
                assert_eq!(full.is_some(), count == MAX_RETURNED);
                let message = full.or_else(|| returns.take()).expect("something was given back");
                assert_eq!(message, Returned::new(&entries).to_message(), "{count} entries, turn {turn}");
                assert_eq!(returns.take(), None);
            }
        }
    }
}
