//! Fronts: the ways by which requests reach a disk. Each gives its callers an arena of memory and takes requests with data in it.

/// What both fronts of a guest share.
pub mod guest;
pub mod library;
pub mod mount;
pub mod rings;
pub mod vhost_user;

/// What is asked of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Action {
    /// Into the pieces.
    Read,
    /// From the pieces.
    Write {
        /// Durable when it completes.
        fua: bool,
    },
    /// Without pieces.
    Flush,
    /// Without pieces.
    Discard,
    /// Without pieces.
    WriteZeroes {
        /// May deallocate.
        unmap: bool,
        /// Durable when it completes.
        fua: bool,
    },
}

/// Sectors of an arena: first and count.
pub type Piece = (u64, u64);

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its name.
    pub token: u64,
    /// Where to submit it.
    pub queue: usize,
    /// What.
    pub action: Action,
    /// First sector.
    pub sector: u64,
    /// Sectors.
    pub count: u64,
    /// Memory of a read or write.
    pub pieces: &'a [Piece],
}

/// What a front can do.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Sectors of the disk.
    pub sector_count: u64,
    /// Sectors of a logical block.
    pub block_sectors: u64,
    /// Most sectors of a read or write.
    pub transfer_sectors: u64,
    /// Most sectors of a discard or write-zeroes.
    pub range_sectors: u64,
    /// Most pieces of a request.
    pub pieces: usize,
    /// Most sectors of a piece.
    pub piece_sectors: u64,
    /// Queues.
    pub queues: usize,
    /// Can a write ask to be durable?
    pub has_fua: bool,
    /// Can it discard?
    pub has_discard: bool,
    /// Can it write zeroes?
    pub has_zeroes: bool,
    /// May the disk change its size below it?
    pub can_resize: bool,
}

/// What came of waiting.
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
    /// What it can do.
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
    ///
    /// # Errors
    /// It cannot be begun.
    fn stage(&mut self, request: &Request<'_>) -> Result<(), String>;

    /// Submit what was staged, together.
    fn publish(&mut self);

    /// Wait for completions, not for long.
    ///
    /// # Errors
    /// The daemon broke the protocol.
    fn wait(&mut self, done: &mut Vec<Done>) -> Result<Waited, String>;

    /// Find the daemon again, and repeat what has no answer.
    ///
    /// # Errors
    /// It does not come back, or this front cannot.
    fn reconnect(&mut self) -> Result<(), String>;
}
