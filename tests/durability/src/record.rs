//! What a writer tells the referee, over its standard output: before it submits, and after each completion.

use std::io::{Read, Write};

/// Bytes of a record. Below PIPE_BUF, so a writer that is killed leaves whole ones.
const RECORD_BYTES: usize = 48;

/// What is asked of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Action {
    /// A write.
    Write = 1,
    /// A write that is durable when it completes.
    WriteDurably = 2,
    /// A flush.
    Flush = 3,
    /// A read of one block.
    Read = 4,
}

/// One line of the story.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A request is about to be submitted.
    Submit {
        /// Its name; never used twice.
        token: u64,
        /// What.
        action: Action,
        /// First block.
        block: u64,
        /// Blocks.
        count: u64,
        /// Of the write.
        sequence: u64,
    },
    /// A completion came.
    Done {
        /// Of which request.
        token: u64,
        /// 0: it succeeded.
        status: u64,
        /// What a read found: the oldest and the newest write.
        oldest: u64,
        /// See `oldest`.
        newest: u64,
    },
    /// The daemon is gone, and everything it answered was told.
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
        let words = match self {
            Self::Submit { token, action, block, count, sequence } => [1, token, action as u64, block, count, sequence],
            Self::Done { token, status, oldest, newest } => [2, token, status, oldest, newest, 0],
            Self::Lost => [3, 0, 0, 0, 0, 0],
            Self::Resumed => [4, 0, 0, 0, 0, 0],
            Self::End => [5, 0, 0, 0, 0, 0],
        };
        words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect()
    }

    fn from_words(words: [u64; 6]) -> Option<Self> {
        let [kind, token, a, b, c, d] = words;
        Some(match kind {
            1 => {
                let actions = [Action::Write, Action::WriteDurably, Action::Flush, Action::Read];
                let action = actions.into_iter().find(|action| *action as u64 == a)?;
                Self::Submit { token, action, block: b, count: c, sequence: d }
            }
            2 => Self::Done { token, status: a, oldest: b, newest: c },
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
                Err(error) => return Err(format!("the writer cannot be heard: {error}")),
            }
        }
        let mut words = [0; 6];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Self::from_words(words).map(Some).ok_or_else(|| format!("the writer says what is no record: {words:x?}"))
    }
}

/// Where records go. Each is one write(2), and comes whole or not at all.
#[derive(Debug, Default)]
pub struct Teller;

impl Teller {
    /// Tell one. A referee that is gone ends the writer.
    pub fn tell(&mut self, record: Record) {
        let mut output = std::io::stdout().lock();
        if output.write_all(&record.to_bytes()).and_then(|()| output.flush()).is_err() {
            std::process::exit(3);
        }
    }
}
