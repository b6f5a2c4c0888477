//! Fronts: the ways by which requests reach a disk. Each gives its callers an arena of memory and takes requests with data in it.

pub mod guest;
pub mod library;
pub mod mount;
pub mod rings;
pub mod vhost_user;

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Action {
    Read,
    Write { fua: bool },
    Flush,
    Discard,
    WriteZeroes { unmap: bool, fua: bool },
}

/// Sectors of an arena: first and count.
pub type Piece = (u64, u64);

#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub token: u64,
    pub queue: usize,
    pub action: Action,
    pub sector: u64,
    pub count: u64,
    pub pieces: &'a [Piece],
}

#[derive(Clone, Debug)]
pub struct Limits {
    pub sector_count: u64,
    pub block_sectors: u64,
    pub transfer_sectors: u64,
    pub range_sectors: u64,
    pub pieces: usize,
    pub piece_sectors: u64,
    pub queues: usize,
    pub has_fua: bool,
    pub has_discard: bool,
    pub has_zeroes: bool,
    /// May the disk change its size below it?
    pub can_resize: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Something came, or nothing did for a moment.
    Alive,
    /// The daemon is gone, and all that it answered was taken.
    Gone,
}

/// A completion: the request's name, and its status, 0 for success.
pub type Done = (u64, u64);

/// A way to a disk.
pub trait Front {
    fn limits(&self) -> Limits;

    /// The arena: areas that no piece may leave.
    fn areas(&self) -> Vec<Piece>;

    /// Put bytes into the arena.
    fn fill(&mut self, sector: u64, bytes: &[u8]);

    /// Take bytes out of the arena.
    fn copy(&self, sector: u64, into: &mut [u8]);

    /// May another request of so many pieces be staged in a queue?
    fn has_room(&self, queue: usize, pieces: usize) -> bool;

    /// Prepare a request; the next `publish` submits it.
    fn stage(&mut self, request: &Request<'_>) -> Result<(), String>;

    /// Submit what was staged, together.
    fn publish(&mut self);

    /// Wait for completions, not for long.
    fn wait(&mut self, done: &mut Vec<Done>) -> Result<Waited, String>;

    /// Find the daemon again, and repeat what has no answer.
    fn reconnect(&mut self) -> Result<(), String>;
}
