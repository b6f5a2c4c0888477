//! A guest's reports of its writes (`tests/vm/guest/kills.c`), compared with what is on the disk whenever the back end or the
//! guest was killed.

use std::collections::HashMap;
use std::path::Path;

const SECTOR: usize = 512;
const BLOCK_SECTORS: usize = 8;
/// Of the disk, as many as the guest writes.
const BLOCKS: usize = 1024;

/// A request without an answer: for a write, its first block, how many, and its number.
type Open = Option<(usize, usize, u64)>;

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// The newest write that was acknowledged.
    floor: u64,
    /// The newest that was submitted.
    newest: u64,
    /// Its guest was killed before that was acknowledged: it may be there, or a part of it.
    was_cut_off: bool,
}

/// What was reported so far.
#[derive(Debug)]
pub(super) struct Kills {
    seed: u64,
    blocks: Vec<Block>,
    open: HashMap<u64, Open>,
    kills: u64,
    requests: u64,
    in_flight: usize,
    compared: u64,
    has_ended: bool,
}

impl Kills {
    pub(super) fn new(seed: u64) -> Self {
        let (blocks, open) = (vec![Block::default(); BLOCKS], HashMap::new());
        Self { seed, blocks, open, kills: 0, requests: 0, in_flight: 0, compared: 0, has_ended: false }
    }

    /// Take a report; `false`: it is not about a request.
    pub(super) fn receive(&mut self, event: &str) -> Result<bool, String> {
        let mut words = event.split(' ');
        let kind = words.next().unwrap_or_default();
        let numbers = words.map(str::parse).collect::<Result<Vec<u64>, _>>();
        match (kind, numbers.as_deref()) {
            ("write", Ok(&[token, block, count, sequence])) => {
                let (first, count) = (usize::try_from(block).unwrap_or(0), usize::try_from(count).unwrap_or(0));
                self.of(first, count).iter_mut().for_each(|block| (block.newest, block.was_cut_off) = (sequence, false));
                self.submit(token, Some((first, count, sequence)))
            }
            ("other", Ok(&[token])) => self.submit(token, None),
            ("done", Ok(&[token])) => {
                let request =
                    self.open.remove(&token).ok_or_else(|| format!("DOUBLE: request {token} is done, and was not in flight"))?;
                if let Some((first, count, sequence)) = request {
                    self.of(first, count).iter_mut().for_each(|block| block.floor = sequence);
                }
                Ok(true)
            }
            ("end", Ok([])) => {
                self.has_ended = true;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn submit(&mut self, token: u64, request: Open) -> Result<bool, String> {
        self.requests += 1;
        match self.open.insert(token, request) {
            None => Ok(true),
            Some(_) => Err(format!("the guest uses its number {token} twice")),
        }
    }

    fn of(&mut self, first: usize, count: usize) -> &mut [Block] {
        if self.blocks.len() < first + count {
            self.blocks.resize(first + count, Block::default());
        }
        &mut self.blocks[first..first + count]
    }

    /// The back end was killed: is all on the disk that was acknowledged?
    pub(super) fn check_after_kill(&mut self, image: &Path) -> Result<(), String> {
        self.kills += 1;
        self.in_flight += self.open.len();
        // What the guest has submitted, and not reported yet, may be there.
        self.check(image, None)
    }

    /// The guest was killed, and the back end has released it: is all there that was acknowledged, and nothing else but what was
    /// under way? Its writes had numbers from `first` on; its last reports may be lost in a serial line.
    pub(super) fn check_after_machine_kill(&mut self, image: &Path, first: u64) -> Result<(), String> {
        self.kills += 1;
        self.in_flight += self.open.len();
        for (block, count, _) in std::mem::take(&mut self.open).into_values().flatten() {
            self.of(block, count).iter_mut().for_each(|block| block.was_cut_off = true);
        }
        self.check(image, Some(first))
    }

    /// The guest has ended: is all there, and nothing else, and everything answered? What to say of it.
    pub(super) fn finish(mut self, image: &Path) -> Result<String, String> {
        if !self.has_ended || !self.open.is_empty() {
            return Err(format!("MISSING: the guest ended, and {} requests have no answer", self.open.len()));
        }
        self.check(image, Some(u64::MAX))?;
        let Self { kills, requests, in_flight, compared, .. } = self;
        Ok(format!(
            "{kills} kills, {requests} requests, {in_flight} in flight at the kills, {compared} blocks compared, \
             0 lost, 0 double, 0 missing"
        ))
    }

    /// `unreported`: nothing is under way any more, and writes with numbers from there on may be there without a report.
    fn check(&mut self, image: &Path, unreported: Option<u64>) -> Result<(), String> {
        let bytes = crate::files::read(image)?;
        for (number, (block, content)) in self.blocks.iter_mut().zip(bytes.chunks(SECTOR * BLOCK_SECTORS)).enumerate() {
            self.compared += 1;
            for (piece, sector) in content.chunks(SECTOR).enumerate() {
                let sequence = sequence_of(number * BLOCK_SECTORS + piece, self.seed, sector)?;
                if sequence < block.floor {
                    let floor = block.floor;
                    return Err(format!(
                        "LOST: block {number}, sector {piece} holds write {sequence}, and write {floor} was acknowledged"
                    ));
                }
                let Some(unreported) = unreported else { continue };
                if sequence > block.newest && sequence >= unreported {
                    (block.newest, block.was_cut_off) = (sequence, true);
                }
                if !block.was_cut_off && sequence != block.newest {
                    let newest = block.newest;
                    return Err(format!("block {number}, sector {piece} holds write {sequence}, and the last was {newest}"));
                }
            }
        }
        Ok(())
    }
}

/// splitmix64, as `mixed` in tests/vm/guest/guest.h.
const fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A sector as `sector_fill` in tests/vm/guest/disk.c makes it.
fn sector_words(number: u64, sequence: u64, seed: u64) -> impl Iterator<Item = u64> {
    let first = mixed(seed ^ mixed(number ^ (sequence << 40)));
    (0..64_u64).map(move |index| match index {
        0 => number,
        1 => sequence,
        _ => first.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
    })
}

/// The write that a sector came with; 0: none.
fn sequence_of(number: usize, seed: u64, bytes: &[u8]) -> Result<u64, String> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(0);
    }
    let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let sequence = words.get(1).copied().unwrap_or(0);
    if words.iter().copied().eq(sector_words(number as u64, sequence, seed)) {
        return Ok(sequence);
    }
    Err(format!("sector {number} holds what was not written there: it begins with {:x?}", &words[..2.min(words.len())]))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn sectors(sequences: &[u64]) -> Vec<u8> {
        let sectors = (0..).zip(sequences).map(|(number, sequence)| match sequence {
            0 => vec![0; SECTOR],
            _ => sector_words(number, *sequence, 7).flat_map(u64::to_le_bytes).collect(),
        });
        sectors.flatten().collect()
    }

    fn judged(story: &[&str], sequences: &[u64]) -> (Result<(), String>, Result<String, String>) {
        let image = std::env::temp_dir().join(format!("fipsee-kills-{}-{:p}", std::process::id(), story));
        fs::write(&image, sectors(sequences)).expect("a file");
        let mut kills = Kills::new(7);
        for event in story {
            assert_eq!(kills.receive(event), Ok(true), "{event}");
        }
        let verdicts = (kills.check_after_kill(&image), kills.finish(&image));
        fs::remove_file(image).expect("it is there");
        verdicts
    }

    #[test]
    fn what_was_acknowledged_must_be_there_and_what_was_submitted_may() {
        let story = ["write 1 0 1 1", "done 1", "write 2 0 1 2", "other 3", "done 3"];
        let torn = [1, 2, 2, 1, 1, 1, 1, 1];
        let (at_kill, end) = judged(&story, &torn);
        assert_eq!(at_kill, Ok(()));
        assert!(end.expect_err("a request has no answer").contains("MISSING"));
        let whole = [&story[..], &["done 2", "end"]].concat();
        assert!(judged(&whole, &torn).0.expect_err("torn").contains("LOST: block 0, sector 0 holds write 1"));
        let (at_kill, end) = judged(&whole, &[2; 8]);
        assert_eq!((at_kill, end.is_ok_and(|text| text.starts_with("1 kills, 3 requests, 0 in flight"))), (Ok(()), true));
        assert!(judged(&whole, &[3; 8]).1.expect_err("from nowhere").contains("the last was 2"));
    }

    #[test]
    fn requests_of_a_killed_machine_may_be_there_in_part_and_nothing_else() {
        let image = std::env::temp_dir().join(format!("fipsee-machine-kills-{}", std::process::id()));
        let mut kills = Kills::new(7);
        let mut after = |story: &[&str], first: u64, sequences: &[u64]| {
            fs::write(&image, sectors(sequences)).expect("a file");
            for event in story {
                assert_eq!(kills.receive(event), Ok(true), "{event}");
            }
            kills.check_after_machine_kill(&image, first)
        };
        let (torn, other) = ([1, 2, 2, 1, 1, 1, 1, 1], [3; 8]);
        assert_eq!(after(&["write 1 0 1 1", "done 1", "write 2 0 1 2", "write 3 1 1 3"], 1, &[torn, other].concat()), Ok(()));
        // The next machine uses the numbers of requests again.
        assert_eq!(after(&["write 1 1 1 9", "done 1"], 5, &[torn, [9; 8]].concat()), Ok(()));
        assert!(after(&[], 20, &[torn, other].concat()).expect_err("late").contains("LOST: block 1, sector 0 holds write 3"));
        assert!(after(&[], 20, &[torn, [10; 8]].concat()).expect_err("from nowhere").contains("the last was 9"));
        // Its report of this one was lost.
        assert_eq!(after(&[], 20, &[torn, [9, 9, 21, 9, 9, 9, 9, 9]].concat()), Ok(()));
        fs::remove_file(image).expect("it is there");
    }

    #[test]
    fn answers_too_many_and_garbage_are_reported() {
        let mut kills = Kills::new(7);
        kills.receive("other 1").expect("a request");
        kills.receive("done 1").expect("its answer");
        assert!(kills.receive("done 1").expect_err("twice").contains("DOUBLE"));
        assert_eq!(kills.receive("kill"), Ok(false));
        let mut garbage = sectors(&[1]);
        garbage[300] ^= 1;
        assert!(sequence_of(0, 7, &garbage).is_err() && sequence_of(1, 7, &sectors(&[1])).is_err());
    }
}
