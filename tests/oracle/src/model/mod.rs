//! What each sector of a disk may hold, under requests that overlap (docs/protocol.md 5.4).
//!
//! A sector has *candidates*: the values that a read may find. A change adds its value when it begins, since it may be carried
//! out at any time until it ends. When it ends, every candidate that ended before this change began is gone: it was overwritten.
//! Of changes that overlapped in time all stay, since either may win, sector by sector. A discard adds zeroes and overwrites
//! nothing. A read of a sector over which nothing was in flight settles it: from then on it holds what was found.

mod history;

use std::collections::HashMap;

use crate::content::{Found, Value};
use history::History;
pub use history::{Kind, Note};

/// Names a request; never used twice, and higher for later ones.
pub type Token = u64;

/// In the place of a value: the sector has several candidates, or requests in flight; the rest is an index.
const MIXED: u32 = 1 << 31;
/// The end of what has not ended.
const IN_FLIGHT: u64 = u64::MAX;
/// So many wrong places of one read are listed.
const LISTED: usize = 12;

/// A request that may change sectors.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub kind: Kind,
    pub sector: u64,
    pub count: u64,
    pub value: Value,
}

#[derive(Clone, Copy, Debug)]
pub struct Ended {
    pub token: Token,
    pub change: Change,
    pub begun: u64,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    value: Value,
    token: Token,
    end: u64,
}

#[derive(Clone, Debug, Default)]
struct Mixed {
    candidates: Vec<Candidate>,
    in_flight: u32,
}

/// A read in flight, with what its sectors might have held when it began.
#[derive(Clone, Debug)]
struct Reading {
    sector: u64,
    /// By sector: its value, or the index of its list.
    seen: Vec<u32>,
    lists: Vec<List>,
    /// Does what it finds settle anything?
    settles: bool,
    /// Changes that began during the read: first sector, end, value.
    later: Vec<(u64, u64, Value)>,
}

#[derive(Clone, Debug)]
struct List {
    values: Vec<Value>,
    /// Was anything in flight over the sector?
    alone: bool,
}

/// All sectors of a disk.
#[derive(Clone, Debug)]
pub struct Model {
    sectors: Vec<u32>,
    mixed: Vec<Mixed>,
    free: Vec<u32>,
    clock: u64,
    changes: HashMap<Token, Ended>,
    reads: HashMap<Token, Reading>,
    history: History,
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl Model {
    pub fn new(sector_count: u64) -> Self {
        Self {
            sectors: vec![0; index(sector_count)],
            mixed: Vec::new(),
            free: Vec::new(),
            clock: 0,
            changes: HashMap::new(),
            reads: HashMap::new(),
            history: History::default(),
        }
    }

    pub const fn sector_count(&self) -> u64 {
        self.sectors.len() as u64
    }

    pub fn in_flight(&self) -> usize {
        self.changes.len() + self.reads.len()
    }

    /// Something happened that a report should mention.
    pub fn note(&mut self, token: Token, kind: Kind, sector: u64, count: u64) {
        self.clock += 1;
        self.history.begin(Note { token, kind, sector, count, begun: self.clock, ended: None });
    }

    /// What was noted has ended.
    pub fn note_end(&mut self, token: Token) {
        self.clock += 1;
        self.history.end(token, self.clock);
    }

    fn mixed_of(&mut self, sector: u64) -> &mut Mixed {
        let state = self.sectors[index(sector)];
        let place = if state & MIXED == 0 {
            let place = self.free.pop().unwrap_or_else(|| {
                self.mixed.push(Mixed::default());
                u32::try_from(self.mixed.len() - 1).unwrap_or(u32::MAX)
            });
            let mixed = &mut self.mixed[place as usize];
            mixed.candidates.clear();
            mixed.candidates.push(Candidate { value: state, token: 0, end: 0 });
            self.sectors[index(sector)] = MIXED | place;
            place
        } else {
            state & !MIXED
        };
        &mut self.mixed[place as usize]
    }

    /// What a sector may hold: nothing but one value without overlap and discards.
    fn values(&self, sector: u64) -> Vec<Value> {
        let state = self.sectors[index(sector)];
        if state & MIXED == 0 {
            return vec![state];
        }
        self.mixed[(state & !MIXED) as usize].candidates.iter().map(|candidate| candidate.value).collect()
    }

    fn settle(&mut self, sector: u64, value: Value) {
        let state = self.sectors[index(sector)];
        if state & MIXED != 0 {
            self.free.push(state & !MIXED);
        }
        self.sectors[index(sector)] = value;
    }

    /// A sector over which nothing is in flight and that has one candidate needs no list.
    fn tidy(&mut self, sector: u64) {
        let mixed = self.mixed_of(sector);
        if let ([only], 0) = (mixed.candidates.as_slice(), mixed.in_flight) {
            let value = only.value;
            self.settle(sector, value);
        }
    }

    /// A change is about to be submitted.
    pub fn begin(&mut self, token: Token, change: Change) {
        self.note(token, change.kind, change.sector, change.count);
        let end = change.sector + change.count;
        for sector in change.sector..end {
            let mixed = self.mixed_of(sector);
            mixed.candidates.push(Candidate { value: change.value, token, end: IN_FLIGHT });
            mixed.in_flight += 1;
        }
        for read in self.reads.values_mut() {
            if change.sector < read.sector + read.seen.len() as u64 && read.sector < end {
                read.later.push((change.sector, end, change.value));
            }
        }
        self.changes.insert(token, Ended { token, change, begun: self.clock });
    }

    /// A change succeeded: it replaces whatever ended before it began.
    pub fn end(&mut self, token: Token) -> Option<Ended> {
        let ended = self.abandon(token)?;
        if ended.change.kind != Kind::Discard {
            self.replace(&ended);
        }
        Some(ended)
    }

    /// A change has ended that may have been carried out, or not, sector by sector.
    pub fn abandon(&mut self, token: Token) -> Option<Ended> {
        let ended = self.changes.remove(&token)?;
        self.note_end(token);
        let now = self.clock;
        for sector in ended.change.sector..ended.change.sector + ended.change.count {
            let mixed = self.mixed_of(sector);
            mixed.in_flight -= 1;
            let same = |candidate: &Candidate| candidate.value == ended.change.value && candidate.end != IN_FLIGHT;
            mixed.candidates.retain(|candidate| !same(candidate)); // zeroes, of an earlier request
            for candidate in mixed.candidates.iter_mut().filter(|candidate| candidate.token == token) {
                candidate.end = now;
            }
            self.tidy(sector);
        }
        Some(ended)
    }

    /// Everything that ended before `by` began is gone from its sectors. Where `by` is no candidate any more, whatever replaced
    /// it has replaced these, too; what a sector was settled to since may have ended later.
    pub fn replace(&mut self, by: &Ended) {
        for sector in by.change.sector..by.change.sector + by.change.count {
            if self.sectors[index(sector)] & MIXED != 0 {
                let candidates = &mut self.mixed_of(sector).candidates;
                if candidates.iter().any(|candidate| candidate.token == by.token) {
                    candidates.retain(|candidate| candidate.end > by.begun);
                    self.tidy(sector);
                }
            }
        }
    }

    /// A read is about to be submitted.
    pub fn begin_read(&mut self, token: Token, sector: u64, count: u64) {
        self.note(token, Kind::Read, sector, count);
        self.watch(token, sector, count);
    }

    /// The same, without a place in the report.
    pub fn watch(&mut self, token: Token, sector: u64, count: u64) {
        let states = &self.sectors[index(sector)..index(sector + count)];
        let mut lists = Vec::new();
        let seen = states.iter().map(|state| {
            if state & MIXED == 0 {
                return *state;
            }
            let mixed = &self.mixed[(state & !MIXED) as usize];
            let values = mixed.candidates.iter().map(|candidate| candidate.value).collect();
            lists.push(List { values, alone: mixed.in_flight == 0 });
            MIXED | u32::try_from(lists.len() - 1).unwrap_or(0)
        });
        let seen = seen.collect();
        self.reads.insert(token, Reading { sector, seen, lists, settles: true, later: Vec::new() });
    }

    /// The caller of a read is gone.
    pub fn forget_read(&mut self, token: Token) {
        self.reads.remove(&token);
    }

    /// What this read finds says nothing about what this model is of: it may come from a cache above that.
    pub fn settle_nothing_by(&mut self, token: Token) {
        if let Some(read) = self.reads.get_mut(&token) {
            read.settles = false;
        }
    }

    /// A read has ended; `found`: its sectors. A sector that changed meanwhile may hold parts of several values (5.4: mixed
    /// data); `is_mixed` says whether those it is given are enough for what was found.
    pub fn end_read(
        &mut self,
        token: Token,
        found: impl Iterator<Item = Found>,
        is_mixed: impl Fn(u64, &[Value]) -> bool,
    ) -> Result<(), String> {
        self.note_end(token);
        self.compare(token, found, is_mixed)
    }

    /// The end of what [`watch`](Self::watch) began.
    pub fn compare(
        &mut self,
        token: Token,
        found: impl Iterator<Item = Found>,
        is_mixed: impl Fn(u64, &[Value]) -> bool,
    ) -> Result<(), String> {
        let Some(read) = self.reads.remove(&token) else { return Err(format!("read {token} ended twice, or never began")) };
        let mut wrong = Vec::new();
        let mut count = 0;
        for ((place, state), found) in read.seen.iter().enumerate().zip(found) {
            count += 1;
            if *state & MIXED == 0 && found == Found::Value(*state) && read.later.is_empty() {
                continue;
            }
            let sector = read.sector + place as u64;
            if let Err(allowed) = self.judge(&read, sector, *state, found, &is_mixed) {
                wrong.push((sector, found, allowed));
            }
        }
        if count != read.seen.len() {
            return Err(format!("read {token} returned {count} sectors, not {}", read.seen.len()));
        }
        if wrong.is_empty() { Ok(()) } else { Err(self.report(token, &wrong)) }
    }

    /// A sector of a read; what it could have been if it was not.
    fn judge(
        &mut self,
        read: &Reading,
        sector: u64,
        state: u32,
        found: Found,
        is_mixed: &impl Fn(u64, &[Value]) -> bool,
    ) -> Result<(), Vec<Value>> {
        let covering = read.later.iter().filter(|(first, end, _)| (*first..*end).contains(&sector));
        let later: Vec<Value> = covering.map(|(_, _, value)| *value).collect();
        let (mut allowed, alone) = if state & MIXED == 0 {
            (vec![state], true)
        } else {
            let list = &read.lists[(state & !MIXED) as usize];
            (list.values.clone(), list.alone)
        };
        let alone = alone && later.is_empty();
        if alone {
            allowed = self.values(sector); // another read may have settled it meanwhile
        }
        allowed.extend(later);
        match found {
            Found::Value(value) if allowed.contains(&value) => {
                if alone && read.settles {
                    self.settle(sector, value);
                }
                Ok(())
            }
            Found::Torn(_) | Found::Garbage(_) | Found::Misplaced(..) if !alone && is_mixed(sector, &allowed) => Ok(()),
            _ => Err(allowed),
        }
    }

    /// The part from `sector` on was cut off, and came back as zeroes.
    pub fn regrow(&mut self, token: Token, sector: u64, sector_count: u64) {
        for cut in sector..self.sector_count() {
            if self.sectors[index(cut)] & MIXED != 0 {
                assert_eq!(self.mixed_of(cut).in_flight, 0, "sector {cut} was cut off below a request");
            }
            self.settle(cut, 0);
        }
        self.sectors.resize(index(sector_count), 0);
        self.note(token, Kind::Regrown, sector, sector_count - sector);
    }

    /// What may be there when a cache was lost: whatever `other`, which runs in step with this one, allows.
    pub fn fall_back(&mut self, other: &Self) {
        assert_eq!(self.clock, other.clock, "the models run in step");
        for read in self.reads.values_mut() {
            for sector in read.sector..read.sector + read.seen.len() as u64 {
                read.later.extend(other.values(sector).into_iter().map(|value| (sector, sector + 1, value)));
            }
        }
        self.sectors.clone_from(&other.sectors);
        self.mixed.clone_from(&other.mixed);
        self.free.clone_from(&other.free);
    }

    fn report(&self, token: Token, wrong: &[(u64, Found, Vec<Value>)]) -> String {
        let mut lines = Vec::new();
        if let Some(((first, _, _), (last, _, _))) = wrong.first().zip(wrong.last()) {
            lines.push(format!("read {token}: {} sectors between {first} and {last} hold what they cannot", wrong.len()));
        }
        for (sector, found, allowed) in wrong.iter().take(LISTED) {
            let mut allowed: Vec<String> = allowed.iter().map(|value| describe(*value)).collect();
            allowed.sort_unstable();
            allowed.dedup();
            let found = match found {
                Found::Value(value) => describe(*value),
                Found::Torn(value) => format!("the header of write {value} and other bytes"),
                Found::Misplaced(value, of) => format!("what write {value} has for sector {of}"),
                Found::Garbage(word) => format!("bytes of no write, which begin with {word:#018x}"),
            };
            let (page, place) = (sector / 8, sector % 8);
            lines.push(format!("  sector {sector} (page {page}, {place}): {found}; allowed: {}", allowed.join(", ")));
        }
        lines.push(format!("requests that touched sector {} lately (event {} is now):", wrong[0].0, self.clock));
        lines.extend(self.history.of(wrong[0].0).map(|note| format!("  {note}")));
        lines.join("\n")
    }
}

fn describe(value: Value) -> String {
    if value == 0 { "zeroes".to_owned() } else { format!("write {value}") }
}

#[cfg(test)]
mod tests;
