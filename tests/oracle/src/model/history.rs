//! Recent requests, for a report.

use std::collections::VecDeque;
use std::fmt;

use super::Token;

/// Requests that are remembered.
const REMEMBERED: usize = 1 << 14;
/// Requests that a report lists.
const LISTED: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Write,
    WriteDurably,
    Zero {
        unmap: bool,
        fua: bool,
    },
    Discard,
    Read,
    Flush,
    /// The disk was cut there, and grew again.
    Regrown,
    CacheDropped,
    Killed,
    /// Another client reads all of the disk.
    Check,
}

/// A request, when it began and ended.
#[derive(Clone, Copy, Debug)]
pub struct Note {
    /// Its name; for a write also its value.
    pub token: Token,
    pub kind: Kind,
    pub sector: u64,
    /// Sectors; 0: all of the disk.
    pub count: u64,
    pub begun: u64,
    pub ended: Option<u64>,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.token, self.kind)?;
        if self.count > 0 {
            write!(f, " of sectors {}..{}", self.sector, self.sector + self.count)?;
        }
        match self.ended {
            Some(ended) => write!(f, ", events {} to {ended}", self.begun),
            None => write!(f, ", from event {} on", self.begun),
        }
    }
}

/// The last requests, as they began.
#[derive(Clone, Debug, Default)]
pub(super) struct History(VecDeque<Note>);

impl History {
    pub(super) fn begin(&mut self, note: Note) {
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(note);
    }

    pub(super) fn end(&mut self, token: Token, now: u64) {
        // Most that end began lately.
        if let Some(note) = self.0.iter_mut().rev().find(|note| note.token == token) {
            note.ended = Some(now);
        }
    }

    /// Those that touched a sector, the oldest first.
    pub(super) fn of(&self, sector: u64) -> impl Iterator<Item = &Note> {
        let touches = move |note: &&Note| note.count == 0 || (note.sector..note.sector + note.count).contains(&sector);
        let count = self.0.iter().filter(touches).count();
        self.0.iter().filter(touches).skip(count.saturating_sub(LISTED))
    }
}
