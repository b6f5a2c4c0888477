//! Disks: one file per kind, behind one small trait.

use crate::request::{Request, Span};
use crate::wire::{BlockInfo, Status};

pub mod engine;
pub mod file;
pub mod memory;
pub mod null;
pub mod spec;

pub use engine::Engine;

/// Names one request in flight to whoever is told of its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The queue it came from, by the worker's numbering.
    pub queue: u32,
    /// The client's tag.
    pub tag: u16,
    /// When it was taken from its queue; 0 for disks that answer at once.
    pub started_ticks: u64,
}

/// What became of a request handed to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// It is finished.
    Done(Status),
    /// The [`Engine`] will report its ticket.
    Pending,
}

/// A disk: takes checked requests, several threads at a time.
pub trait Disk: Send + Sync {
    /// Does `submit` always return [`Submitted::Done`]? The server then times only a sample of its visits.
    const ANSWERS_AT_ONCE: bool;

    /// What clients are told. The size may change; everything else is fixed.
    fn info(&self) -> BlockInfo;

    /// Do, or begin, a read, write, flush, discard or write-zeroes. Requests may complete in any order; a flush covers
    /// the writes that were completed before it was submitted.
    ///
    /// # Safety
    /// The spans stay valid until the request is finished: on return for [`Submitted::Done`], when the engine reports
    /// the ticket for [`Submitted::Pending`].
    unsafe fn submit(&self, request: &Request, spans: &[Span], ticket: Ticket, engine: &mut Engine) -> Submitted;

    /// Change the size.
    ///
    /// # Errors
    /// Why not, in words that say what to do.
    fn resize(&self, sector_count: u64) -> Result<(), String>;
}
