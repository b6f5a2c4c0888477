//! What must be on the disk, by what was told.
//!
//! A block is written by one request at a time, so its writes have an order. Of each block the referee knows the *floor*,
//! the newest write that must not be lost, and the newest that was submitted. Whatever a sector holds must lie between.

use std::collections::HashMap;

use crate::record::{Action, Record};

/// When is a write safe from what we do to it?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// When it completes: only processes die, and the storage keeps what it was given.
    Completion,
    /// When a flush that follows its completion completes, or at once with FUA: the power fails.
    Flush,
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// Must not be lost.
    floor: u64,
    /// Completed, by a disk that has not lost its cache since.
    completed: u64,
    /// Submitted.
    newest: u64,
}

#[derive(Debug)]
struct Outstanding {
    action: Action,
    block: u64,
    count: u64,
    sequence: u64,
    /// Of a flush: what was complete when it was submitted.
    covers: Vec<(u64, u64)>,
    /// Of a read: what must be found at least.
    at_least: u64,
}

/// Numbers for the report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Requests submitted.
    pub submitted: u64,
    /// Completions.
    pub completed: u64,
    /// Of those, flushes and writes with FUA.
    pub hardened: u64,
    /// Requests without an answer when their writer was killed.
    pub died: u64,
    /// Times that a writer lost its daemon.
    pub losses: u64,
    /// Times that it went on.
    pub resumed: u64,
    /// Requests in flight at those times.
    pub in_flight_at_loss: u64,
    /// Blocks compared after a kill.
    pub checked: u64,
    /// Times that a sector was older than what was last submitted for it, and had to be no newer.
    pub forgotten: u64,
}

/// Knows the story, and judges.
#[derive(Debug)]
pub struct Referee {
    promise: Promise,
    blocks: Vec<Block>,
    outstanding: HashMap<u64, Outstanding>,
    /// Blocks completed and above their floor.
    unflushed: Vec<u64>,
    /// The highest sequence told.
    pub last_sequence: u64,
    /// The highest token told.
    pub last_token: u64,
    /// The writer has ended in order.
    pub has_ended: bool,
    /// For the report.
    pub counts: Counts,
}

impl Referee {
    /// Of a disk of so many blocks of zeroes.
    #[must_use]
    pub fn new(promise: Promise, block_count: u64) -> Self {
        let blocks = (0..block_count).map(|_| Block::default()).collect();
        Self {
            promise,
            blocks,
            outstanding: HashMap::new(),
            unflushed: Vec::new(),
            last_sequence: 0,
            last_token: 0,
            has_ended: false,
            counts: Counts::default(),
        }
    }

    fn of(&mut self, first: u64, count: u64) -> &mut [Block] {
        let range = |at| usize::try_from(at).unwrap_or(usize::MAX);
        &mut self.blocks[range(first)..range(first + count)]
    }

    /// Requests without an answer.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.outstanding.len()
    }

    /// Hear one record.
    ///
    /// # Errors
    /// What is wrong with it: a completion too many, a failed request, data that is too old.
    pub fn hear(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Submit { token, action, block, count, sequence } => self.submit(token, action, block, count, sequence),
            Record::Done { token, status, oldest, newest } => self.done(token, status, (oldest, newest)),
            Record::Lost => {
                self.counts.losses += 1;
                self.counts.in_flight_at_loss += self.outstanding.len() as u64;
                self.lose_cache();
                Ok(())
            }
            Record::Resumed => {
                self.counts.resumed += 1;
                Ok(())
            }
            Record::End if self.outstanding.is_empty() => {
                self.has_ended = true;
                Ok(())
            }
            Record::End => Err(format!("the writer ends, and {} requests have no completion", self.outstanding.len())),
        }
    }

    fn submit(&mut self, token: u64, action: Action, block: u64, count: u64, sequence: u64) -> Result<(), String> {
        self.counts.submitted += 1;
        self.last_token = self.last_token.max(token);
        let mut request = Outstanding { action, block, count, sequence, covers: Vec::new(), at_least: 0 };
        match action {
            Action::Write | Action::WriteDurably => {
                self.last_sequence = self.last_sequence.max(sequence);
                self.of(block, count).iter_mut().for_each(|block| block.newest = sequence);
            }
            Action::Flush => {
                let completed = |number: &u64| (*number, self.blocks[usize::try_from(*number).unwrap_or(0)].completed);
                request.covers = self.unflushed.iter().map(completed).collect();
            }
            Action::Read => request.at_least = self.of(block, 1)[0].floor,
        }
        match self.outstanding.insert(token, request) {
            Some(_) => Err(format!("the writer's token {token} is in use")),
            None => Ok(()),
        }
    }

    fn done(&mut self, token: u64, status: u64, (oldest, newest): (u64, u64)) -> Result<(), String> {
        let Some(request) = self.outstanding.remove(&token) else {
            return Err(format!("request {token} completed twice, or was never submitted"));
        };
        if status != 0 {
            return Err(format!("{request:?} failed with status {status}"));
        }
        self.counts.completed += 1;
        match (request.action, self.promise) {
            (Action::Write, Promise::Flush) => {
                self.of(request.block, request.count).iter_mut().for_each(|block| block.completed = request.sequence);
                self.unflushed.extend(request.block..request.block + request.count);
            }
            (Action::Write | Action::WriteDurably, _) => {
                self.counts.hardened += u64::from(request.action == Action::WriteDurably);
                for block in self.of(request.block, request.count) {
                    (block.completed, block.floor) = (request.sequence, request.sequence);
                }
            }
            (Action::Flush, _) => {
                self.counts.hardened += 1;
                for (number, sequence) in &request.covers {
                    let block = &mut self.of(*number, 1)[0];
                    block.floor = block.floor.max(*sequence);
                }
                let blocks = &self.blocks;
                self.unflushed.retain(|number| {
                    let block = &blocks[usize::try_from(*number).unwrap_or(0)];
                    block.completed > block.floor
                });
            }
            (Action::Read, _) => {
                let known = self.of(request.block, 1)[0].newest;
                if oldest < request.at_least || newest > known {
                    let (block, least) = (request.block, request.at_least);
                    return Err(format!("a read of block {block} found writes {oldest} to {newest}, not {least} to {known}"));
                }
            }
        }
        Ok(())
    }

    /// The cache of the disk is gone: what it had and nobody flushed is no longer promised, not even by a flush that is
    /// in flight and will be submitted to the next daemon.
    pub fn lose_cache(&mut self) {
        if self.promise == Promise::Flush {
            self.unflushed.clear();
            self.blocks.iter_mut().for_each(|block| block.completed = block.floor);
            self.outstanding.values_mut().for_each(|request| request.covers.clear());
        }
    }

    /// The writer was killed: what it had in flight was done or not.
    pub fn writer_died(&mut self) {
        self.counts.died += self.outstanding.len() as u64;
        self.outstanding.clear();
    }

    /// What must be found at least, by block. `is_up`: the disk has kept its cache, so completed writes are seen.
    #[must_use]
    pub fn floors(&self, is_up: bool) -> Vec<u64> {
        self.blocks.iter().map(|block| if is_up { block.completed.max(block.floor) } else { block.floor }).collect()
    }

    /// Compare what a block's sectors came with to `floor` and to what has been submitted.
    ///
    /// # Errors
    /// Something acknowledged is lost, or something is there that nobody wrote.
    pub fn check(&mut self, number: u64, found: &[u64], floor: u64) -> Result<(), String> {
        self.counts.checked += 1;
        let block = self.of(number, 1)[0];
        for (piece, sequence) in found.iter().enumerate() {
            if *sequence < floor {
                return Err(format!(
                    "LOST: block {number}, sector {piece} holds write {sequence}, and write {floor} was acknowledged"
                ));
            }
            if *sequence > block.newest {
                let newest = block.newest;
                return Err(format!("block {number}, sector {piece} holds write {sequence}; the newest submitted is {newest}"));
            }
            self.counts.forgotten += u64::from(*sequence < block.newest);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submit(token: u64, action: Action, block: u64, sequence: u64) -> Record {
        Record::Submit { token, action, block, count: 1, sequence }
    }

    fn done(token: u64) -> Record {
        Record::Done { token, status: 0, oldest: 0, newest: 0 }
    }

    fn told(promise: Promise, records: &[Record]) -> Referee {
        let mut referee = Referee::new(promise, 4);
        records.iter().for_each(|record| referee.hear(*record).expect("a story"));
        referee
    }

    #[test]
    fn floor_rises_with_completions_or_with_flushes_as_was_promised() {
        let story =
            [submit(1, Action::Write, 0, 1), done(1), submit(2, Action::Flush, 0, 0), submit(3, Action::Write, 1, 2), done(3)];
        assert_eq!(told(Promise::Completion, &story).floors(false), [1, 2, 0, 0]);
        let mut referee = told(Promise::Flush, &story);
        assert_eq!((referee.floors(false), referee.floors(true)), (vec![0; 4], vec![1, 2, 0, 0]));
        referee.hear(done(2)).expect("a flush");
        assert_eq!(referee.floors(false), [1, 0, 0, 0], "it covers what was complete before it");
        referee.hear(submit(4, Action::WriteDurably, 2, 3)).expect("a write");
        referee.hear(done(4)).expect("a write");
        assert_eq!(referee.floors(false), [1, 0, 3, 0]);
    }

    #[test]
    fn flush_that_met_a_power_cut_promises_nothing_of_before() {
        let story = [submit(1, Action::Write, 0, 1), done(1), submit(2, Action::Flush, 0, 0), Record::Lost, done(2)];
        assert_eq!(told(Promise::Flush, &story).floors(false), [0; 4]);
    }

    #[test]
    fn everything_that_must_not_be_is_reported() {
        let mut referee = told(Promise::Completion, &[submit(1, Action::Write, 0, 5), done(1), submit(2, Action::Read, 0, 0)]);
        assert!(referee.hear(done(1)).expect_err("twice").contains("twice"));
        assert!(referee.hear(Record::End).expect_err("missing").contains("1 requests have no completion"));
        assert!(referee.hear(done(2)).expect_err("old").contains("found writes 0 to 0"));
        assert!(referee.check(0, &[5, 4], 5).expect_err("old").contains("LOST: block 0, sector 1"));
        assert!(referee.check(0, &[6], 5).expect_err("from nowhere").contains("holds write 6"));
        referee.check(0, &[5], 5).expect("all is well");
        referee.hear(submit(3, Action::Write, 0, 6)).expect("a write");
        let failed = Record::Done { token: 3, status: 1, oldest: 0, newest: 0 };
        assert!(referee.hear(failed).expect_err("failed").contains("status 1"));
    }
}
