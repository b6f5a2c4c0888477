//! What a writer reports to the oracle, over its standard output: before it submits, and after each completion. Each is a line.

use std::io::BufRead;

use fipsee_oracle::content::Found;
use fipsee_oracle::front::Action;
use serde::{Deserialize, Serialize};

pub const MOST_READ: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// A request is about to be submitted.
    Submit {
        /// Its name; never used twice. For a write also the value that it leaves.
        token: u64,
        action: Action,
        sector: u64,
        count: u64,
    },
    /// A completion came.
    Done {
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
    /// The next record; `None` at the end.
    pub fn read(from: &mut impl BufRead) -> Result<Option<Self>, String> {
        let mut line = Vec::new();
        match from.read_until(b'\n', &mut line) {
            Ok(0) => Ok(None),
            Ok(count) if !line.ends_with(b"\n") => Err(format!("the writer's last record has {count} bytes")),
            Ok(_) => {
                serde_json::from_slice(&line).map(Some).map_err(|error| format!("the writer says what is no record: {error}"))
            }
            Err(error) => Err(format!("the writer's records cannot be read: {error}")),
        }
    }
}

/// Where records go. Each is one write(2) of less than PIPE_BUF, and comes whole or not at all, also of a writer that is killed.
#[derive(Debug, Default)]
pub struct RecordWriter;

impl RecordWriter {
    /// Send one. If the oracle is gone, the writer ends.
    pub fn report(&mut self, record: Record) {
        let line = serde_json::to_string(&record).map(|text| text + "\n");
        // Not through `std::io::Stdout`, whose buffer may be written in parts.
        if line.is_ok_and(|line| rustix::io::write(rustix::stdio::stdout(), line.as_bytes()) == Ok(line.len())) {
            return;
        }
        std::process::exit(3);
    }
}
