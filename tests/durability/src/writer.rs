//! The process that writes, is killed, or loses its daemon. It reports to the oracle before it submits and after each completion.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fipsee_oracle::content::{self, Found, Random, SECTOR_BYTES, Value};
use fipsee_oracle::front::{self, Front, Waited};

use crate::record::{Action, MOST_READ, Record, RecordWriter};

/// Requests in flight.
pub const SLOTS: u32 = 32;
/// Most sectors of one write, as a power of two.
const MOST_SECTORS_LOG: u64 = 6;
/// Sectors of the place where half of the requests go, so that many overlap.
const HOT_SECTORS: u64 = 256;
/// Bytes of the buffer that each request has.
pub const SLOT_BYTES: u64 = (SECTOR_BYTES as u64) << MOST_SECTORS_LOG;

/// Bytes of all buffers.
pub const ARENA_BYTES: u64 = SLOTS as u64 * SLOT_BYTES;

/// A request of the writer.
#[derive(Clone, Copy, Debug)]
struct Request {
    /// Its buffer.
    slot: u64,
    action: Action,
    /// First sector.
    sector: u64,
    /// Sectors.
    count: u64,
}

/// How a writer goes on.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Sectors of the disk.
    pub sector_count: u64,
    /// The first request's name.
    pub first_token: u64,
    /// What is random.
    pub seed: u64,
}

struct Writer<'a> {
    front: &'a mut dyn Front,
    plan: Plan,
    random: Random,
    teller: RecordWriter,
    token: u64,
    free: Vec<u64>,
    in_flight: HashMap<u64, Request>,
}

/// Write until the oracle closes our standard input, then wait for the last completion.
///
/// # Errors
/// The daemon does not come back, or breaks the protocol.
pub fn run(front: &mut dyn Front, plan: Plan) -> Result<(), String> {
    let stop = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&stop);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        is_over.store(true, Ordering::Relaxed);
    });
    let mut writer = Writer {
        front,
        plan,
        random: Random(plan.seed),
        teller: RecordWriter,
        token: plan.first_token,
        free: (0..SLOTS.into()).collect(),
        in_flight: HashMap::new(),
    };
    let mut done = Vec::new();
    while !stop.load(Ordering::Relaxed) || !writer.in_flight.is_empty() {
        if !stop.load(Ordering::Relaxed) {
            writer.fill_up()?;
        }
        let waited = writer.front.wait(&mut done)?;
        for (token, status) in done.drain(..) {
            writer.complete(token, status);
        }
        if waited == Waited::Gone {
            writer.teller.report(Record::Lost);
            writer.front.reconnect()?;
            writer.teller.report(Record::Resumed);
        }
    }
    writer.teller.report(Record::End);
    Ok(())
}

impl Writer<'_> {
    /// The first sector of a buffer: they are in both halves of the arena in turn.
    fn buffer(&self, slot: u64) -> u64 {
        self.front.areas()[usize::from(!slot.is_multiple_of(2))].0 + slot / 2 * (SLOT_BYTES / SECTOR_BYTES as u64)
    }

    /// Begin a few requests.
    fn fill_up(&mut self) -> Result<(), String> {
        for _ in 0..=self.random.below(2 * u64::from(SLOTS)) {
            let Some(slot) = self.free.pop() else { break };
            let (action, sector, count) = self.pick();
            let token = self.token;
            self.token += 1;
            if matches!(action, Action::Write | Action::WriteDurably) {
                let value = Value::try_from(token).map_err(|_| "too many requests for one campaign".to_owned())?;
                let mut bytes = vec![0; length_of(count)];
                content::fill(&mut bytes, value, sector);
                self.front.fill(self.buffer(slot), &bytes);
            }
            self.teller.report(Record::Submit { token, action, sector, count });
            self.in_flight.insert(token, Request { slot, action, sector, count });
            let pieces = [(self.buffer(slot), count)];
            let (action, pieces) = match action {
                Action::Write => (front::Action::Write { fua: false }, &pieces[..]),
                Action::WriteDurably => (front::Action::Write { fua: true }, &pieces[..]),
                Action::Read => (front::Action::Read, &pieces[..]),
                Action::Flush => (front::Action::Flush, &[][..]),
            };
            self.front.stage(&front::Request { token, queue: 0, action, sector, count, pieces })?;
        }
        self.front.publish();
        Ok(())
    }

    /// Something, wherever others are: sizes by their logarithm, places within pages.
    fn pick(&mut self) -> (Action, u64, u64) {
        let action = match self.random.below(20) {
            0..11 => Action::Write,
            11..13 if self.front.limits().has_fua => Action::WriteDurably,
            11..15 => Action::Flush,
            _ => Action::Read,
        };
        if action == Action::Flush {
            return (action, 0, 0);
        }
        let base = 1 << self.random.below(MOST_SECTORS_LOG);
        let most = if action == Action::Read { MOST_READ as u64 } else { u64::MAX };
        let count = (base + 1 + self.random.below(base)).min(most);
        let end = if self.random.percent(50) { HOT_SECTORS } else { self.plan.sector_count };
        (action, self.random.below(end - count + 1), count)
    }

    fn complete(&mut self, token: u64, status: u64) {
        let mut found = [Found::Value(0); MOST_READ];
        // One that is not in flight is reported as well: the oracle judges it.
        if let Some(request) = self.in_flight.remove(&token) {
            if request.action == Action::Read && status == 0 {
                let mut bytes = vec![0; length_of(request.count)];
                self.front.copy(self.buffer(request.slot), &mut bytes);
                for (place, one) in found.iter_mut().zip(content::identify_all(&bytes, request.sector)) {
                    *place = one;
                }
            }
            self.free.push(request.slot);
        }
        self.teller.report(Record::Done { token, status, found });
    }
}

fn length_of(sectors: u64) -> usize {
    usize::try_from(sectors).unwrap_or(0) * SECTOR_BYTES
}
