//! Requests in flight, on the disk and in the model.

use std::collections::HashMap;
use std::time::Instant;

use fipsee_block::wire::Status;
use fipsee_testkit::{Random, TIMEOUT};

use super::{Arena, Counts, kind_of};
use crate::content::{self, SECTOR_BYTES, Value};
use crate::front::{Action, Done, Front, Limits, Piece, Request, Waited};
use crate::interrupt;
use crate::model::{Change, Kind, Model, Token};

struct InFlight {
    action: Action,
    sector: u64,
    count: u64,
    pieces: Vec<Piece>,
}

/// A front, and the model of its disk.
pub struct Runner<'a> {
    front: &'a mut dyn Front,
    pub model: Model,
    pub limits: Limits,
    arena: Arena,
    in_flight: HashMap<Token, InFlight>,
    next_token: Token,
    bytes: Vec<u8>,
    done: Vec<Done>,
    pub counts: Counts,
    came_last: Instant,
    failed: Option<String>,
    pub forgives: bool,
}

const UNSUPPORTED: u64 = Status::Unsupported as u64;

fn length_of(sectors: u64) -> usize {
    usize::try_from(sectors).unwrap_or(usize::MAX).saturating_mul(SECTOR_BYTES)
}

impl<'a> Runner<'a> {
    pub fn new(front: &'a mut dyn Front, forgives: bool) -> Self {
        let limits = front.limits();
        Self {
            model: Model::new(limits.sector_count),
            limits,
            arena: Arena::of(front),
            front,
            in_flight: HashMap::new(),
            next_token: 1,
            bytes: Vec::new(),
            done: Vec::new(),
            counts: Counts::default(),
            came_last: Instant::now(),
            failed: None,
            forgives,
        }
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Does a request in flight reach beyond this sector?
    pub fn reaches(&self, end: u64) -> bool {
        self.in_flight.values().any(|request| request.sector + request.count > end)
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        self.next_token - 1
    }

    /// Something happened that is no request.
    pub fn noted(&mut self, kind: Kind) {
        let token = self.token();
        self.model.note(token, kind, 0, 0);
    }

    /// Stage a request in any queue; `false`: there is no room for it now.
    pub fn begin(&mut self, random: &mut Random, action: Action, sector: u64, count: u64) -> Result<bool, String> {
        let first = random.below(self.limits.queues as u64);
        let has_memory = matches!(action, Action::Read | Action::Write { .. });
        let mut pieces = Vec::new();
        if has_memory {
            let most = self.limits.pieces as u64;
            match self.arena.take(random, count, most, self.limits.piece_sectors) {
                Some(taken) => pieces = taken,
                None => return Ok(false),
            }
        }
        let queues = (first..first + self.limits.queues as u64).map(|queue| queue % self.limits.queues as u64);
        let mut queues = queues.map(|queue| usize::try_from(queue).unwrap_or(0));
        let Some(queue) = queues.find(|queue| self.front.has_room(*queue, pieces.len())) else {
            self.arena.give_back(&pieces);
            return Ok(false);
        };
        let token = self.token();
        self.admit(token, action, sector, count, &pieces)?;
        let staged = self.front.stage(&Request { token, queue, action, sector, count, pieces: &pieces });
        staged.map_err(|error| format!("{action:?} of sectors {sector}..{}: {error}", sector + count))?;
        self.in_flight.insert(token, InFlight { action, sector, count, pieces });
        Ok(true)
    }

    /// The model learns of it, and its memory is filled.
    fn admit(&mut self, token: Token, action: Action, sector: u64, count: u64, pieces: &[Piece]) -> Result<(), String> {
        let value = match action {
            Action::Read => {
                self.model.begin_read(token, sector, count);
                return Ok(());
            }
            Action::Flush => {
                self.model.note(token, Kind::Flush, 0, 0);
                return Ok(());
            }
            Action::Write { .. } => Value::try_from(token).map_err(|_| "too many requests for one run".to_owned())?,
            Action::Discard | Action::WriteZeroes { .. } => 0,
        };
        let overlaps = |other: &InFlight| other.sector < sector + count && sector < other.sector + other.count;
        self.counts.overlapping += u64::from(self.in_flight.values().any(overlaps));
        self.model.begin(token, Change { kind: kind_of(action), sector, count, value });
        let mut place = sector;
        for (at, length) in pieces {
            self.bytes.resize(length_of(*length), 0);
            content::fill(&mut self.bytes, value, place);
            self.front.fill(*at, &self.bytes);
            place += length;
        }
        if !pieces.is_empty() {
            self.counts.written_bytes += count * SECTOR_BYTES as u64;
        }
        Ok(())
    }

    pub fn publish(&mut self) {
        self.front.publish();
    }

    pub fn step(&mut self) -> Result<(), String> {
        interrupt::check()?;
        let mut done = std::mem::take(&mut self.done);
        let waited = self.front.wait(&mut done)?;
        if !done.is_empty() || self.in_flight.is_empty() {
            self.came_last = Instant::now();
        }
        let outcome = done.drain(..).try_for_each(|(token, status)| self.complete(token, status));
        self.done = done;
        outcome?;
        if waited == Waited::Gone {
            return Err("the daemon closed the connection".to_owned());
        }
        if self.came_last.elapsed() > TIMEOUT {
            let (token, request) = self.in_flight.iter().min_by_key(|(token, _)| **token).ok_or("nothing is in flight")?;
            let InFlight { action, sector, count, .. } = request;
            let what = format!("{token}: {action:?} of sectors {sector}..{}", sector + count);
            return Err(format!("no completion within {TIMEOUT:?}; {} in flight, first {what}", self.in_flight.len()));
        }
        Ok(())
    }

    fn complete(&mut self, token: Token, status: u64) -> Result<(), String> {
        let Some(request) = self.in_flight.remove(&token) else {
            return Err(format!("request {token} completed twice, or was never submitted"));
        };
        let InFlight { action, sector, count, pieces } = request;
        if status == UNSUPPORTED && action == Action::Discard {
            // A device may find out late that it cannot (5.3: a status may also come from the disk).
            self.counts.unsupported += 1;
            self.model.abandon(token);
            return Ok(());
        }
        if status != 0 {
            let what =
                format!("request {token}, {action:?} of sectors {sector}..{}, failed with status {status}", sector + count);
            if self.forgives {
                self.counts.failed += 1;
            } else {
                self.failed.get_or_insert(what);
            }
            self.model.abandon(token);
            self.arena.give_back(&pieces);
            return Ok(()); // what is on the disk is still to be compared
        }
        self.counts.requests += 1;
        self.counts.durable +=
            u64::from(matches!(action, Action::Flush | Action::Write { fua: true } | Action::WriteZeroes { fua: true, .. }));
        let outcome = match action {
            Action::Read => self.compare(token, sector, count, &pieces),
            Action::Flush => {
                self.model.note_end(token);
                Ok(())
            }
            _ => self.model.end(token).map(drop).ok_or_else(|| format!("request {token} is unknown to the model")),
        };
        self.arena.give_back(&pieces);
        outcome
    }

    fn compare(&mut self, token: Token, sector: u64, count: u64, pieces: &[Piece]) -> Result<(), String> {
        self.counts.reads += 1;
        self.counts.read_bytes += count * SECTOR_BYTES as u64;
        self.bytes.resize(length_of(count), 0);
        let mut rest = self.bytes.as_mut_slice();
        for (at, length) in pieces {
            let (piece, after) = rest.split_at_mut(length_of(*length));
            self.front.copy(*at, piece);
            rest = after;
        }
        let sectors = self.bytes.as_chunks::<SECTOR_BYTES>().0;
        let mixed = |at: u64, values: &[Value]| {
            let place = usize::try_from(at - sector).unwrap_or(usize::MAX);
            sectors.get(place).is_some_and(|bytes| content::is_mixed_of(bytes, at, values))
        };
        self.model.end_read(token, content::identify_all(&self.bytes, sector), mixed)
    }

    pub fn drain(&mut self) -> Result<(), String> {
        while !self.in_flight.is_empty() {
            self.step()?;
        }
        Ok(())
    }

    /// A request that failed. What the disk holds by then is part of the report.
    pub fn verdict(&mut self) -> Result<(), String> {
        let Some(failed) = self.failed.take() else { return Ok(()) };
        let compared = self.drain().and_then(|()| read_all(self));
        let also = compared.map_or_else(|error| error, |()| "all sectors hold what they may".to_owned());
        Err(format!("{failed}\n{also}"))
    }

    /// One request without data, alone.
    pub fn submit_and_wait(&mut self, action: Action) -> Result<(), String> {
        self.drain()?;
        self.begin(&mut Random(0), action, 0, 0)?;
        self.publish();
        self.drain()
    }

    /// The daemon was killed: all it answered is taken, and the next one found.
    pub fn reconnect(&mut self) -> Result<(), String> {
        let mut done = Vec::new();
        let deadline = Instant::now() + TIMEOUT;
        while self.front.wait(&mut done)? == Waited::Alive {
            done.drain(..).try_for_each(|(token, status)| self.complete(token, status))?;
            if self.in_flight.is_empty() {
                break; // an idle front may not look whether its daemon is there
            }
            if Instant::now() > deadline {
                return Err("the front does not see that its daemon was killed".to_owned());
            }
        }
        done.drain(..).try_for_each(|(token, status)| self.complete(token, status))?;
        self.front.reconnect()
    }

    /// The disk was cut at `end`, and has its size again. Queues learn of that one after the other.
    pub fn regrown(&mut self, end: u64) -> Result<(), String> {
        let (token, all) = (self.token(), self.model.sector_count());
        self.model.regrow(token, end, all);
        self.counts.resized += 1;
        let block = self.limits.block_sectors;
        let pieces = self.arena.take(&mut Random(0), block, 1, block).ok_or("no memory for one block")?;
        for queue in 0..self.limits.queues {
            let deadline = Instant::now() + TIMEOUT;
            while self.probe(queue, all - block, &pieces)? != 0 {
                if Instant::now() > deadline {
                    return Err(format!("the new size does not reach queue {queue}"));
                }
            }
        }
        self.arena.give_back(&pieces);
        Ok(())
    }

    /// The status of a read of one block.
    fn probe(&mut self, queue: usize, sector: u64, pieces: &[Piece]) -> Result<u64, String> {
        interrupt::check()?;
        let (token, count) = (self.token(), self.limits.block_sectors);
        self.front.stage(&Request { token, queue, action: Action::Read, sector, count, pieces })?;
        self.front.publish();
        let (mut done, deadline) = (Vec::new(), Instant::now() + TIMEOUT);
        while done.is_empty() && Instant::now() < deadline {
            self.front.wait(&mut done)?;
        }
        match done.as_slice() {
            [(answered, status)] if *answered == token => Ok(*status),
            other => Err(format!("{other:?} instead of one completion of {token}")),
        }
    }
}

/// Read all of the disk, with nothing else in flight.
pub fn read_all(runner: &mut Runner<'_>) -> Result<(), String> {
    runner.drain()?;
    let (mut random, mut sector) = (Random(0), 0);
    let (end, most) = (runner.model.sector_count(), runner.limits.transfer_sectors.min(2048));
    while sector < end {
        let count = most.min(end - sector);
        if runner.begin(&mut random, Action::Read, sector, count)? {
            sector += count;
        } else {
            runner.publish();
            runner.step()?;
        }
    }
    runner.publish();
    runner.drain()
}
