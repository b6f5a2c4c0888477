//! What must be on the disk, by the records: two models. One is of what reads find. The other is of what outlives the disk's
//! cache: there a write replaces others only when a flush or FUA has made it durable.

use std::collections::HashMap;

use fipsee_oracle::content::{Found, Value};
use fipsee_oracle::front::Action;
use fipsee_oracle::model::{Change, Ended, Kind, Model, Token};
use fipsee_oracle::workload::kind_of;

use crate::record::{MOST_READ, Record};

/// When is a write safe from what we do to it?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurabilityPoint {
    /// When it completes: only processes die, and the storage keeps what it was given.
    Completion,
    /// When a flush that follows its completion completes, or at once with FUA: the power fails.
    Flush,
}

/// Names of our own reads: none of a writer's.
const OWN_TOKENS: Token = 1 << 40;

#[derive(Debug)]
struct Outstanding {
    action: Action,
    sector: u64,
    count: u64,
    /// Of a flush: the first so many of all writes that were ever unflushed.
    covers: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub submitted: u64,
    /// Of those, writes that overlapped another in flight.
    pub overlapping: u64,
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
    /// Sectors compared after a kill.
    pub checked: u64,
    /// Times that a sector held another write than the last that was submitted for it.
    pub forgotten: u64,
}

/// Keeps the models, and compares.
#[derive(Debug)]
pub struct Oracle {
    point: DurabilityPoint,
    seen: Model,
    /// What outlives the cache.
    safe: Model,
    outstanding: HashMap<Token, Outstanding>,
    /// Completed writes that no flush has covered, and how many there were before the first of them.
    unflushed: Vec<Ended>,
    flushed: u64,
    /// The last write submitted for each sector.
    newest: Vec<Value>,
    /// The highest token reported.
    pub last_token: u64,
    own_token: Token,
    /// The writer has ended in order.
    pub has_ended: bool,
    pub counts: Counts,
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl Oracle {
    /// Of a disk of so many sectors of zeroes.
    pub fn new(point: DurabilityPoint, sector_count: u64) -> Self {
        Self {
            point,
            seen: Model::new(sector_count),
            safe: Model::new(sector_count),
            outstanding: HashMap::new(),
            unflushed: Vec::new(),
            flushed: 0,
            newest: vec![0; index(sector_count)],
            last_token: 0,
            own_token: OWN_TOKENS,
            has_ended: false,
            counts: Counts::default(),
        }
    }

    /// Requests without an answer.
    pub fn in_flight(&self) -> usize {
        self.outstanding.len()
    }

    /// Take one record.
    pub fn receive(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Submit { token, action, sector, count } => self.submit(token, action, sector, count),
            Record::Done { token, status, found } => self.done(token, status, found),
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

    fn submit(&mut self, token: Token, action: Action, sector: u64, count: u64) -> Result<(), String> {
        self.counts.submitted += 1;
        self.last_token = self.last_token.max(token);
        let request = Outstanding { action, sector, count, covers: self.flushed + self.unflushed.len() as u64 };
        match action {
            Action::Flush => self.both(|model| model.note(token, Kind::Flush, 0, 0)),
            Action::Read => {
                self.seen.begin_read(token, sector, count);
                self.safe.note(token, Kind::Read, sector, count);
            }
            _ => {
                let overlaps = |other: &Outstanding| {
                    let writes = matches!(other.action, Action::Write { .. });
                    writes && other.sector < sector + count && sector < other.sector + other.count
                };
                self.counts.overlapping += u64::from(self.outstanding.values().any(overlaps));
                let value = Value::try_from(token).map_err(|_| "too many requests for one campaign".to_owned())?;
                self.newest[index(sector)..index(sector + count)].fill(value);
                let change = Change { kind: kind_of(action), sector, count, value };
                self.seen.begin(token, change);
                self.safe.begin(token, change);
            }
        }
        match self.outstanding.insert(token, request) {
            Some(_) => Err(format!("the writer's token {token} is in use")),
            None => Ok(()),
        }
    }

    fn both(&mut self, mut act: impl FnMut(&mut Model)) {
        act(&mut self.seen);
        act(&mut self.safe);
    }

    fn done(&mut self, token: Token, status: u64, found: [Found; MOST_READ]) -> Result<(), String> {
        let Some(request) = self.outstanding.remove(&token) else {
            return Err(format!("request {token} completed twice, or was never submitted"));
        };
        if status != 0 {
            return Err(format!("{request:?} failed with status {status}"));
        }
        self.counts.completed += 1;
        match request.action {
            Action::Write { fua: false } => {
                self.seen.end(token);
                self.unflushed.extend(self.safe.abandon(token));
            }
            Action::Write { fua: true } => {
                self.counts.hardened += 1;
                self.both(|model| _ = model.end(token));
            }
            Action::Flush => {
                self.counts.hardened += 1;
                self.both(|model| model.note_end(token));
                let covered = index(request.covers.saturating_sub(self.flushed)).min(self.unflushed.len());
                self.flushed += covered as u64;
                for ended in self.unflushed.drain(..covered) {
                    self.safe.replace(&ended);
                }
            }
            _ => {
                self.safe.note_end(token);
                let sectors = found.into_iter().take(index(request.count));
                // Of overlapping writes the writer reports that they are mixed, and not how.
                return self.seen.end_read(token, sectors, |_, _| true);
            }
        }
        Ok(())
    }

    /// The cache of the disk is gone: unflushed data in it is no longer promised, not even by a flush that is
    /// in flight and will be submitted to the next daemon.
    pub fn lose_cache(&mut self) {
        if self.point == DurabilityPoint::Flush {
            self.flushed += self.unflushed.len() as u64;
            self.unflushed.clear();
            self.seen.fall_back(&self.safe);
        }
    }

    /// The writer was killed: what it had in flight was done or not.
    pub fn writer_died(&mut self) {
        self.counts.died += self.outstanding.len() as u64;
        for (token, request) in std::mem::take(&mut self.outstanding) {
            match request.action {
                Action::Write { .. } => self.both(|model| _ = model.abandon(token)),
                Action::Flush => {}
                _ => self.seen.forget_read(token),
            }
        }
    }

    fn of(&mut self, is_up: bool) -> &mut Model {
        if is_up || self.point == DurabilityPoint::Completion { &mut self.seen } else { &mut self.safe }
    }

    /// All of the disk is about to be read. `is_up`: the disk has kept its cache, so completed writes are seen.
    pub fn begin_check(&mut self, is_up: bool) -> Token {
        self.own_token += 1;
        let (token, count) = (self.own_token, self.seen.sector_count());
        self.both(|model| model.note(token, Kind::Check, 0, 0));
        self.of(is_up).watch(token, 0, count);
        if !is_up {
            self.of(is_up).settle_nothing_by(token);
        }
        token
    }

    /// It was read; all records until then were taken.
    pub fn end_check(&mut self, token: Token, is_up: bool, found: &[Found]) -> Result<(), String> {
        self.counts.checked += found.len() as u64;
        let is_newest = |(found, newest): &(&Found, &Value)| **found == Found::Value(**newest);
        self.counts.forgotten += found.iter().zip(&self.newest).filter(|pair| !is_newest(pair)).count() as u64;
        self.of(is_up).compare(token, found.iter().copied(), |_, _| true).map_err(|error| format!("LOST: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: Action = Action::Write { fua: false };
    const DURABLE: Action = Action::Write { fua: true };
    const ZEROES: [Found; MOST_READ] = [Found::Value(0); MOST_READ];

    fn submit(token: Token, action: Action, sector: u64) -> Record {
        Record::Submit { token, action, sector, count: 1 }
    }

    fn done(token: Token) -> Record {
        Record::Done { token, status: 0, found: ZEROES }
    }

    fn reported(point: DurabilityPoint, records: &[Record]) -> Oracle {
        let mut oracle = Oracle::new(point, 4);
        records.iter().for_each(|record| oracle.receive(*record).expect("a story"));
        oracle
    }

    fn check(oracle: &mut Oracle, is_up: bool, values: [Value; 4]) -> Result<(), String> {
        let token = oracle.begin_check(is_up);
        oracle.end_check(token, is_up, &values.map(Found::Value))
    }

    #[test]
    fn writes_are_safe_when_they_complete_or_when_a_flush_does_as_was_promised() {
        let story = [submit(1, WRITE, 0), done(1), submit(2, Action::Flush, 0), submit(3, WRITE, 1), done(3)];
        let mut oracle = reported(DurabilityPoint::Completion, &story);
        assert!(
            check(&mut oracle, false, [0, 3, 0, 0]).expect_err("lost").contains("sector 0 (page 0, 0): zeroes; allowed: write 1")
        );
        let mut oracle = reported(DurabilityPoint::Flush, &story);
        check(&mut oracle, false, [0; 4]).expect("nothing was flushed");
        assert!(check(&mut oracle, true, [0; 4]).is_err(), "the disk has its cache");
        oracle.receive(done(2)).expect("a flush");
        check(&mut oracle, false, [1, 0, 0, 0]).expect("it covers what was complete before it");
        assert!(check(&mut oracle, false, [0, 3, 0, 0]).is_err());
        oracle.receive(submit(4, DURABLE, 2)).expect("a write");
        oracle.receive(done(4)).expect("a write");
        assert!(check(&mut oracle, false, [1, 3, 0, 0]).is_err());
        check(&mut oracle, false, [1, 3, 4, 0]).expect("all is well");
    }

    #[test]
    fn flush_that_met_a_power_cut_promises_nothing_of_before() {
        let story = [submit(1, WRITE, 0), done(1), submit(2, Action::Flush, 0), Record::Lost, done(2)];
        check(&mut reported(DurabilityPoint::Flush, &story), false, [0; 4]).expect("it was lost before");
        check(&mut reported(DurabilityPoint::Flush, &story), true, [0; 4]).expect("it was lost before");
    }

    #[test]
    fn either_of_two_that_overlapped_survives_and_what_a_third_replaced_does_not() {
        let story = [submit(1, DURABLE, 0), done(1), submit(2, WRITE, 0), submit(3, WRITE, 0), done(2), done(3)];
        let mut oracle = reported(DurabilityPoint::Flush, &story);
        for value in [1, 2, 3] {
            check(&mut oracle, false, [value, 0, 0, 0]).expect("none was flushed");
        }
        oracle.receive(submit(4, Action::Flush, 0)).expect("a flush");
        oracle.receive(done(4)).expect("a flush");
        assert!(check(&mut oracle, false, [1, 0, 0, 0]).is_err());
        for value in [2, 3] {
            check(&mut oracle, false, [value, 0, 0, 0]).expect("they overlapped");
        }
        assert_eq!(oracle.counts.overlapping, 1);
    }

    #[test]
    fn what_a_killed_writer_had_in_flight_was_done_or_not() {
        for value in [1, 2] {
            let mut oracle = reported(DurabilityPoint::Completion, &[submit(1, WRITE, 0), done(1), submit(2, WRITE, 0)]);
            oracle.writer_died();
            check(&mut oracle, true, [value, 0, 0, 0]).expect("done or not");
            assert!(check(&mut oracle, true, [3 - value, 0, 0, 0]).is_err(), "it stays as it was found");
        }
    }

    #[test]
    fn everything_that_must_not_be_is_reported() {
        let mut oracle = reported(DurabilityPoint::Completion, &[submit(1, WRITE, 0), done(1), submit(2, Action::Read, 0)]);
        assert!(oracle.receive(done(1)).expect_err("twice").contains("twice"));
        assert!(oracle.receive(Record::End).expect_err("missing").contains("1 requests have no completion"));
        assert!(oracle.receive(done(2)).expect_err("old").contains("zeroes; allowed: write 1"));
        assert!(check(&mut oracle, true, [6, 0, 0, 0]).expect_err("from nowhere").contains("write 6"));
        oracle.receive(submit(3, WRITE, 0)).expect("a write");
        let failed = Record::Done { token: 3, status: 1, found: ZEROES };
        assert!(oracle.receive(failed).expect_err("failed").contains("status 1"));
    }
}
