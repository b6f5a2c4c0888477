//! The process that writes, is killed, or loses its daemon. It tells the referee before it submits and after each completion.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::record::{Action, Record, Teller};
use crate::stamp::{self, BLOCK_BYTES, Random};

pub mod library;
pub mod vhost_user;

/// Requests in flight.
pub const SLOTS: usize = 32;
/// Most blocks of one write.
pub const MOST_BLOCKS: u64 = 4;
/// Bytes of the buffer that each request has.
pub const SLOT_BYTES: u64 = MOST_BLOCKS * BLOCK_BYTES;

/// A request of the writer, as a way to a disk is given it.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Its name.
    pub token: u64,
    /// Its buffer.
    pub slot: usize,
    /// What.
    pub action: Action,
    /// First block.
    pub block: u64,
    /// Blocks.
    pub count: u64,
}

/// What came of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The daemon lives; something came, or nothing did for a moment.
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

    /// The first block of a buffer.
    fn content(&mut self, slot: usize) -> Vec<u8>;

    /// Begin a request.
    ///
    /// # Errors
    /// It cannot be begun.
    fn submit(&mut self, request: Request) -> Result<(), String>;

    /// Wait for completions: token and status, 0 for success.
    ///
    /// # Errors
    /// The daemon broke its word.
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
    /// Blocks of the disk.
    pub block_count: u64,
    /// The first write's number.
    pub first_sequence: u64,
    /// The first request's name.
    pub first_token: u64,
    /// What is random.
    pub seed: u64,
}

struct Writer<P> {
    port: P,
    plan: Plan,
    random: Random,
    teller: Teller,
    sequence: u64,
    token: u64,
    free: Vec<usize>,
    in_flight: HashMap<u64, Request>,
    /// Blocks that a request in flight touches.
    busy: Vec<bool>,
}

/// Write until the referee closes our standard input, then wait for the last completion.
///
/// # Errors
/// The daemon does not come back, or breaks its word.
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
        teller: Teller,
        sequence: plan.first_sequence,
        token: plan.first_token,
        free: (0..SLOTS).collect(),
        in_flight: HashMap::new(),
        busy: vec![false; usize::try_from(plan.block_count).unwrap_or(0)],
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
            writer.teller.tell(Record::Lost);
            writer.port.reconnect()?;
            writer.teller.tell(Record::Resumed);
        }
    }
    writer.teller.tell(Record::End);
    Ok(())
}

impl<P: Port> Writer<P> {
    /// Begin a few requests.
    fn fill_up(&mut self) -> Result<(), String> {
        for _ in 0..=self.random.below(2 * SLOTS as u64) {
            let Some(slot) = self.free.pop() else { break };
            let Some((action, block, count)) = self.pick() else {
                self.free.push(slot);
                break;
            };
            let (token, sequence) = (self.token, self.sequence);
            self.token += 1;
            if matches!(action, Action::Write | Action::WriteDurably) {
                self.sequence += 1;
                let bytes: Vec<u8> = (block..block + count).flat_map(|number| stamp::block(number, sequence)).collect();
                self.port.fill(slot, &bytes);
            }
            self.mark(block, count, true);
            let request = Request { token, slot, action, block, count };
            self.teller.tell(Record::Submit { token, action, block, count, sequence });
            self.in_flight.insert(token, request);
            self.port.submit(request)?;
        }
        Ok(())
    }

    /// Something that touches no block of a request in flight.
    fn pick(&mut self) -> Option<(Action, u64, u64)> {
        let action = match self.random.below(20) {
            0..11 => Action::Write,
            11..13 if P::HAS_FUA => Action::WriteDurably,
            11..15 => Action::Flush,
            _ => Action::Read,
        };
        if action == Action::Flush {
            return Some((action, 0, 0));
        }
        let count = if action == Action::Read { 1 } else { 1 + self.random.below(MOST_BLOCKS) };
        let block = self.random.below(self.plan.block_count - count + 1);
        self.range(block, count).iter().all(|is_busy| !is_busy).then_some((action, block, count))
    }

    fn range(&mut self, block: u64, count: u64) -> &mut [bool] {
        let at = |number| usize::try_from(number).unwrap_or(usize::MAX);
        &mut self.busy[at(block)..at(block + count)]
    }

    fn mark(&mut self, block: u64, count: u64, is_busy: bool) {
        self.range(block, count).fill(is_busy);
    }

    fn complete(&mut self, token: u64, status: u64) {
        let (mut oldest, mut newest) = (0, 0);
        // One that is not in flight is told as well: the referee knows what to say.
        if let Some(request) = self.in_flight.remove(&token) {
            self.mark(request.block, request.count, false);
            if request.action == Action::Read && status == 0 {
                match stamp::sequences(request.block, &self.port.content(request.slot)) {
                    Ok(found) => {
                        (oldest, newest) = (found.iter().copied().min().unwrap_or(0), found.iter().copied().max().unwrap_or(0));
                    }
                    Err(garbage) => {
                        eprintln!("error: {garbage}");
                        newest = u64::MAX;
                    }
                }
            }
            self.free.push(request.slot);
        }
        self.teller.tell(Record::Done { token, status, oldest, newest });
    }
}
