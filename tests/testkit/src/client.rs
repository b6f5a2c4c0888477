//! Correct clients, and what their requests carry.

use std::sync::atomic::{AtomicU64, Ordering};

use fipsee_block::client::{Blocking, Buffer, Completion, Error, Queue};
use fipsee_block::wire::Status;
use fipsee_ring::control::RefusalCode;

use crate::Daemon;

/// The text of a refusal.
#[track_caller]
pub fn refusal_of<T>(result: Result<T, Error>, expected: RefusalCode) -> String {
    match result {
        Err(Error::Refused { code, text }) => {
            assert_eq!(code, expected, "{text}");
            text
        }
        Err(other) => panic!("not refused, but: {other}"),
        Ok(_) => panic!("not refused"),
    }
}

/// A correct client on a disk of its own, beside faulty ones.
pub struct CorrectClient {
    blocking: Blocking,
    offset_bytes: u64,
    round: u8,
}

/// Bytes that a correct client writes.
const CORRECT_CLIENT_BYTES: u16 = 16 << 10;

impl CorrectClient {
    pub fn new(daemon: &Daemon, disk: &str) -> Self {
        Self::try_new(daemon, disk).expect("attached")
    }

    pub fn try_new(daemon: &Daemon, disk: &str) -> Result<Self, Error> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let blocking = Blocking::attach(&daemon.socket(), &Daemon::options(disk))?;
        let places = blocking.info().size_bytes() / u64::from(CORRECT_CLIENT_BYTES);
        let offset_bytes = COUNT.fetch_add(1, Ordering::Relaxed) % places * u64::from(CORRECT_CLIENT_BYTES);
        let mut correct_client = Self { blocking, offset_bytes, round: 0 };
        correct_client.check();
        Ok(correct_client)
    }

    /// The client still works, and what it wrote before is intact.
    #[track_caller]
    pub fn check(&mut self) {
        let mut block = vec![0; usize::from(CORRECT_CLIENT_BYTES)];
        if self.round > 0 {
            self.blocking.read_at(&mut block, self.offset_bytes).expect("the correct client reads");
            assert!(block.iter().all(|byte| *byte == self.round), "the correct client lost data");
        }
        // Never 0, which is the content of an unwritten disk.
        self.round = self.round % u8::MAX + 1;
        block.fill(self.round);
        self.blocking.write_at(&block, self.offset_bytes).expect("the correct client writes");
        self.blocking.flush().expect("the correct client flushes");
    }
}

/// Wait for the completion of the only request outstanding.
#[track_caller]
pub fn finish_one(queue: &mut Queue) -> Status {
    let all = finish_all(queue).expect("connected");
    assert_eq!(all.len(), 1, "one request was outstanding");
    all[0].status
}

/// Wait until nothing is outstanding.
pub fn finish_all(queue: &mut Queue) -> Result<Vec<Completion>, Error> {
    let mut completions = Vec::new();
    queue.submit();
    while queue.outstanding() > 0 {
        queue.wait(&mut |completion| completions.push(completion))?;
    }
    Ok(completions)
}

/// Fill with a pattern of the block number and the version.
pub fn stamp(length_bytes: usize, place: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; length_bytes];
    for (index, chunk) in bytes.chunks_exact_mut(16).enumerate() {
        chunk[..8].copy_from_slice(&(place * 1_000_003 + index as u64).to_le_bytes());
        chunk[8..].copy_from_slice(&version.to_le_bytes());
    }
    bytes
}

pub fn bytes_of(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(buffer.length_bytes()).expect("small")];
    buffer.copy_to(0, &mut bytes);
    bytes
}
