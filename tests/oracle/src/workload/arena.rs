//! Memory for requests: pieces of an arena, sector by sector, so that most begin and end within a page.

use std::collections::BTreeMap;

use fipsee_testkit::Random;

use crate::front::{Front, Piece};

const PAGE_SECTORS: u64 = 8;

#[derive(Debug)]
pub struct Arena {
    /// First sector and count, never adjacent within an area.
    free: BTreeMap<u64, u64>,
}

impl Arena {
    pub fn of(front: &dyn Front) -> Self {
        Self { free: front.areas().into_iter().collect() }
    }

    /// Memory for `count` sectors in at most `most` pieces; `None` when there is no room now.
    pub fn take(&mut self, random: &mut Random, count: u64, most: u64, piece_sectors: u64) -> Option<Vec<Piece>> {
        let aligned = random.percent(40);
        let pieces = match random.below(4) {
            0 => 1 + random.below(most.min(count)),
            1 => 1 + random.below(most.min(count).min(6)),
            _ => 1,
        };
        let usual = (count / pieces).max(1);
        let (mut taken, mut rest) = (Vec::new(), count);
        while rest > 0 {
            let is_last = taken.len() as u64 + 1 == most;
            let wanted = if is_last || pieces == 1 { rest } else { 1 + random.below(2 * usual) };
            let wanted = wanted.min(rest).min(piece_sectors);
            match self.take_one(wanted, if aligned { PAGE_SECTORS } else { 1 }) {
                Some(first) => taken.push((first, wanted)),
                None => break,
            }
            rest -= wanted;
            if rest > 0 && is_last {
                break;
            }
        }
        if rest == 0 {
            return Some(taken);
        }
        self.give_back(&taken);
        None
    }

    fn take_one(&mut self, count: u64, align: u64) -> Option<u64> {
        let fits = |(first, length): (&u64, &u64)| {
            let start = first.next_multiple_of(align);
            (start + count <= first + length).then_some((*first, *length, start))
        };
        let (first, length, start) = self.free.iter().find_map(fits)?;
        self.free.remove(&first);
        if start > first {
            self.free.insert(first, start - first);
        }
        if start + count < first + length {
            self.free.insert(start + count, first + length - start - count);
        }
        Some(start)
    }

    pub fn give_back(&mut self, pieces: &[Piece]) {
        for (first, count) in pieces {
            let (mut first, mut count) = (*first, *count);
            if let Some((before, length)) = self.free.range(..first).next_back().map(|(place, length)| (*place, *length))
                && before + length == first
            {
                self.free.remove(&before);
                (first, count) = (before, length + count);
            }
            if let Some(length) = self.free.remove(&(first + count)) {
                count += length;
            }
            self.free.insert(first, count);
        }
    }
}
