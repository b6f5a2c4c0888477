//! What a writer reports to the oracle, over its standard output: before it submits, and after each completion.

use std::io::Read;

use fipsee_oracle::content::{Found, Value};
use fipsee_oracle::front::Action;

/// Sectors of a read, at most.
pub const MOST_READ: usize = 8;
const WORDS: usize = 12;
/// Bytes of a record. Below PIPE_BUF, so a writer that is killed leaves whole ones.
const RECORD_BYTES: usize = 8 * WORDS;
/// Beside the value: only the header of that write was found.
const TORN: u64 = 1 << 32;
/// Nothing that belongs there was found.
const GARBAGE: u64 = 1 << 33;

/// Operations of writers, by their number in a record.
const ACTIONS: [Action; 4] = [Action::Write { fua: false }, Action::Write { fua: true }, Action::Flush, Action::Read];

/// One line of the story.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A request is about to be submitted.
    Submit {
        /// Its name; never used twice. For a write also the value that it leaves.
        token: u64,
        /// What.
        action: Action,
        /// First sector.
        sector: u64,
        /// Sectors.
        count: u64,
    },
    /// A completion came.
    Done {
        /// Of which request.
        token: u64,
        /// 0: it succeeded.
        status: u64,
        /// What a read found, sector by sector.
        found: [Found; MOST_READ],
    },
    /// The daemon is gone, and all its answers were reported.
    Lost,
    /// Connected again; what had no answer was submitted again.
    Resumed,
    /// The writer ends: everything was answered.
    End,
}

impl Record {
    /// As bytes.
    #[must_use]
    pub fn to_bytes(self) -> Vec<u8> {
        let mut words = [0; WORDS];
        let head = match self {
            Self::Submit { token, action, sector, count } => {
                let number = ACTIONS.iter().position(|one| *one == action).unwrap_or(ACTIONS.len());
                [1, token, number as u64, sector, count]
            }
            Self::Done { token, status, found } => {
                words[3..3 + MOST_READ].copy_from_slice(&found.map(word_of));
                [2, token, status, words[3], words[4]]
            }
            Self::Lost => [3, 0, 0, 0, 0],
            Self::Resumed => [4, 0, 0, 0, 0],
            Self::End => [5, 0, 0, 0, 0],
        };
        words[..head.len()].copy_from_slice(&head);
        words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect()
    }

    fn from_words(words: [u64; WORDS]) -> Option<Self> {
        let [kind, token, a, b, c, ..] = words;
        Some(match kind {
            1 => {
                let action = *ACTIONS.get(usize::try_from(a).ok()?)?;
                Self::Submit { token, action, sector: b, count: c }
            }
            2 => {
                let found: &[u64; MOST_READ] = words[3..].first_chunk()?;
                Self::Done { token, status: a, found: found.map(found_in) }
            }
            3 => Self::Lost,
            4 => Self::Resumed,
            5 => Self::End,
            _ => return None,
        })
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// Half a record, or bytes that are none.
    pub fn read(from: &mut impl Read) -> Result<Option<Self>, String> {
        let mut bytes = [0; RECORD_BYTES];
        let mut filled = 0;
        while filled < RECORD_BYTES {
            match from.read(&mut bytes[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(format!("the writer's last record has {filled} bytes")),
                Ok(count) => filled += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("the writer's records cannot be read: {error}")),
            }
        }
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Self::from_words(words).map(Some).ok_or_else(|| format!("the writer says what is no record: {words:x?}"))
    }
}

fn word_of(found: Found) -> u64 {
    match found {
        Found::Value(value) => value.into(),
        Found::Torn(value) => TORN | u64::from(value),
        Found::Misplaced(..) | Found::Garbage(_) => GARBAGE,
    }
}

fn found_in(word: u64) -> Found {
    match (Value::try_from(word), Value::try_from(word & !TORN)) {
        (Ok(value), _) => Found::Value(value),
        (_, Ok(value)) => Found::Torn(value),
        _ => Found::Garbage(word),
    }
}

/// Where records go. Each is one write(2), and comes whole or not at all.
#[derive(Debug, Default)]
pub struct RecordWriter;

impl RecordWriter {
    /// Send one. If the oracle is gone, the writer ends.
    pub fn report(&mut self, record: Record) {
        let bytes = record.to_bytes();
        // Not through `std::io::Stdout`, which writes what is before a newline by itself: half a record, if the writer is killed
        // then.
        if rustix::io::write(rustix::stdio::stdout(), &bytes) != Ok(bytes.len()) {
            std::process::exit(3);
        }
    }
}
