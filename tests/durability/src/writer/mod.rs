//! The process that writes, is killed, or loses its daemon. It reports to the oracle before it submits and after each completion.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fipsee_oracle::content::{self, Found, Random, SECTOR_BYTES, Value};

use crate::record::{Action, MOST_READ, Record, RecordWriter};

pub mod library;
pub mod vhost_user;

/// Requests in flight.
pub const SLOTS: usize = 32;
/// Most sectors of one write, as a power of two.
const MOST_SECTORS_LOG: u64 = 6;
/// Sectors of the place where half of the requests go, so that many overlap.
const HOT_SECTORS: u64 = 256;
/// Bytes of the buffer that each request has.
pub const SLOT_BYTES: u64 = (SECTOR_BYTES as u64) << MOST_SECTORS_LOG;

/// A request of the writer, as a way to a disk is given it.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Its name.
    pub token: u64,
    /// Its buffer.
    pub slot: usize,
    /// What.
    pub action: Action,
    /// First sector.
    pub sector: u64,
    /// Sectors.
    pub count: u64,
}

/// What came of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The daemon runs; something came, or nothing did for a moment.
    Alive,
    /// It is gone, and all that it answered was taken.
    Gone,
}

/// A way to a disk.
pub trait Port {
    /// Can a write ask to be durable?
    const HAS_FUA: bool;

    /// Put `bytes` into a buffer.
    fn fill(&mut self, slot: usize, bytes: &[u8]);

    /// The first bytes of a buffer.
    fn content(&mut self, slot: usize, length_bytes: usize) -> Vec<u8>;

    /// Begin a request.
    ///
    /// # Errors
    /// It cannot be begun.
    fn submit(&mut self, request: Request) -> Result<(), String>;

    /// Wait for completions: token and status, 0 for success.
    ///
    /// # Errors
    /// The daemon broke the protocol.
    fn wait(&mut self, done: &mut Vec<(u64, u64)>) -> Result<Waited, String>;

    /// Find the daemon again, and repeat what has no answer.
    ///
    /// # Errors
    /// It does not come back.
    fn reconnect(&mut self) -> Result<(), String>;
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

struct Writer<P> {
    port: P,
    plan: Plan,
    random: Random,
    teller: RecordWriter,
    token: u64,
    free: Vec<usize>,
    in_flight: HashMap<u64, Request>,
}

/// Write until the oracle closes our standard input, then wait for the last completion.
///
/// # Errors
/// The daemon does not come back, or breaks the protocol.
pub fn run<P: Port>(port: P, plan: Plan) -> Result<(), String> {
    let stop = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&stop);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        is_over.store(true, Ordering::Relaxed);
    });
    let mut writer = Writer {
        port,
        plan,
        random: Random(plan.seed),
        teller: RecordWriter,
        token: plan.first_token,
        free: (0..SLOTS).collect(),
        in_flight: HashMap::new(),
    };
    let mut done = Vec::new();
    while !stop.load(Ordering::Relaxed) || !writer.in_flight.is_empty() {
        if !stop.load(Ordering::Relaxed) {
            writer.fill_up()?;
        }
        let waited = writer.port.wait(&mut done)?;
        for (token, status) in done.drain(..) {
            writer.complete(token, status);
        }
        if waited == Waited::Gone {
            writer.teller.report(Record::Lost);
            writer.port.reconnect()?;
            writer.teller.report(Record::Resumed);
        }
    }
    writer.teller.report(Record::End);
    Ok(())
}

impl<P: Port> Writer<P> {
    /// Begin a few requests.
    fn fill_up(&mut self) -> Result<(), String> {
        for _ in 0..=self.random.below(2 * SLOTS as u64) {
            let Some(slot) = self.free.pop() else { break };
            let (action, sector, count) = self.pick();
            let token = self.token;
            self.token += 1;
            if matches!(action, Action::Write | Action::WriteDurably) {
                let value = Value::try_from(token).map_err(|_| "too many requests for one campaign".to_owned())?;
                let mut bytes = vec![0; length_of(count)];
                content::fill(&mut bytes, value, sector);
                self.port.fill(slot, &bytes);
            }
            let request = Request { token, slot, action, sector, count };
            self.teller.report(Record::Submit { token, action, sector, count });
            self.in_flight.insert(token, request);
            self.port.submit(request)?;
        }
        Ok(())
    }

    /// Something, wherever others are: sizes by their logarithm, places within pages.
    fn pick(&mut self) -> (Action, u64, u64) {
        let action = match self.random.below(20) {
            0..11 => Action::Write,
            11..13 if P::HAS_FUA => Action::WriteDurably,
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
                let bytes = self.port.content(request.slot, length_of(request.count));
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
