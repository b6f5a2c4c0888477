//! The process that writes, is killed, or loses its daemon. It reports to the oracle before it submits and after each completion.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fipsee_oracle::content::{self, Found, SECTOR_BYTES, Value};
use fipsee_oracle::front::guest::Setup as GuestSetup;
use fipsee_oracle::front::library::Library;
use fipsee_oracle::front::vhost_user::VhostUser;
use fipsee_oracle::front::{Action, Front, Piece, Request, Waited};
use fipsee_testkit::Random;

use crate::campaign::Way;
use crate::record::{MOST_READ, Record, RecordWriter};

const SLOTS: u64 = 32;
/// Most sectors of one write, as a power of two.
const MOST_SECTORS_LOG: u64 = 6;
/// Sectors of the place where half of the requests go, so that many overlap.
const HOT_SECTORS: u64 = 256;
/// Sectors of the buffer that each request has.
const SLOT_SECTORS: u64 = 1 << MOST_SECTORS_LOG;

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub sector_count: u64,
    pub first_token: u64,
    pub seed: u64,
}

struct Writer {
    front: Box<dyn Front>,
    has_fua: bool,
    plan: Plan,
    random: Random,
    teller: RecordWriter,
    token: u64,
    /// First sectors of buffers in the front's arena.
    free: Vec<u64>,
    in_flight: HashMap<u64, (Action, u64, Piece)>,
}

/// Attach to disk `d` at that socket.
pub fn attach(way: Way, socket: &Path) -> Result<Box<dyn Front>, String> {
    let arena_bytes = SLOTS * SLOT_SECTORS * SECTOR_BYTES as u64;
    Ok(match way {
        Way::Library => Box::new(Library::attach(socket, 1, 64, arena_bytes)?),
        Way::VhostUser => Box::new(VhostUser::start(socket, GuestSetup { queues: 1, arena_bytes, write_cache: false })?),
    })
}

/// Write until the oracle closes our standard input, then wait for the last completion.
pub fn run(front: Box<dyn Front>, plan: Plan) -> Result<(), String> {
    let stop = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&stop);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        is_over.store(true, Ordering::Relaxed);
    });
    let slots = |(first, count): Piece| (0..count / SLOT_SECTORS).map(move |slot| first + slot * SLOT_SECTORS);
    let free = front.areas().into_iter().flat_map(slots).collect();
    let mut writer = Writer {
        has_fua: front.limits().has_fua,
        front,
        plan,
        random: Random(plan.seed),
        teller: RecordWriter,
        token: plan.first_token,
        free,
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

impl Writer {
    /// Begin a few requests.
    fn fill_up(&mut self) -> Result<(), String> {
        for _ in 0..=self.random.below(2 * SLOTS) {
            let Some(slot) = self.free.pop() else { break };
            let (action, sector, count) = self.pick();
            let (token, piece) = (self.token, (slot, count));
            self.token += 1;
            if matches!(action, Action::Write { .. }) {
                let value = Value::try_from(token).map_err(|_| "too many requests for one campaign".to_owned())?;
                let mut bytes = vec![0; length_of(count)];
                content::fill(&mut bytes, value, sector);
                self.front.fill(slot, &bytes);
            }
            let pieces = if action == Action::Flush { &[][..] } else { &[piece] };
            self.teller.report(Record::Submit { token, action, sector, count });
            self.in_flight.insert(token, (action, sector, piece));
            self.front.stage(&Request { token, queue: 0, action, sector, count, pieces })?;
        }
        self.front.publish();
        Ok(())
    }

    /// Something, wherever others are: sizes by their logarithm, places within pages.
    fn pick(&mut self) -> (Action, u64, u64) {
        let action = match self.random.below(20) {
            0..11 => Action::Write { fua: false },
            11..13 if self.has_fua => Action::Write { fua: true },
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
        if let Some((action, sector, (slot, count))) = self.in_flight.remove(&token) {
            if action == Action::Read && status == 0 {
                let mut bytes = vec![0; length_of(count)];
                self.front.copy(slot, &mut bytes);
                for (place, one) in found.iter_mut().zip(content::identify_all(&bytes, sector)) {
                    *place = one;
                }
            }
            self.free.push(slot);
        }
        self.teller.report(Record::Done { token, status, found });
    }
}

fn length_of(sectors: u64) -> usize {
    usize::try_from(sectors).unwrap_or(0) * SECTOR_BYTES
}
