//! Disks for the tests.

use std::sync::Mutex;

use fipsee_block::disk::{Disk, Engine, FileDisk, FileOptions, MemoryDisk, MemoryOptions, Submitted, Ticket};
use fipsee_block::request::Request;
use fipsee_block::wire::{BlockInfo, CAPABILITY_FUA, Operation, Status};
use fipsee_ring::memory::Span;
use fipsee_testkit::Scratch;

pub(crate) const DISK_BYTES: u64 = 4 << 20;

pub(crate) fn memory_disk() -> MemoryDisk {
    MemoryDisk::new(&MemoryOptions { size_bytes: DISK_BYTES, ..MemoryOptions::default() }).expect("a disk")
}

/// In a file that has no name any more.
pub(crate) fn file_disk() -> FileDisk {
    let scratch = Scratch::new();
    FileDisk::open(&FileOptions { path: scratch.path("disk"), size_bytes: Some(DISK_BYTES), ..FileOptions::default() })
        .expect("a disk")
}

/// A disk that holds every request until the test releases it, and records them all.
pub(crate) struct HeldDisk {
    pub(crate) inner: MemoryDisk,
    pub(crate) info: BlockInfo,
    held: Mutex<Vec<(Request, Vec<Span>, Ticket)>>,
    seen: Mutex<Vec<Request>>,
    /// Answer at once after all.
    pub(crate) at_once: bool,
}

impl HeldDisk {
    pub(crate) fn new() -> Self {
        Self::over(memory_disk())
    }

    pub(crate) fn over(inner: MemoryDisk) -> Self {
        Self { info: inner.info(), inner, held: Mutex::default(), seen: Mutex::default(), at_once: false }
    }

    pub(crate) fn without_fua(mut self) -> Self {
        self.info.capabilities &= !CAPABILITY_FUA;
        self
    }

    /// The requests received so far: operation, sector, FUA.
    pub(crate) fn seen(&self) -> Vec<(Operation, u64, bool)> {
        self.seen.lock().expect("one thread").iter().map(|request| (request.operation, request.sector, request.fua)).collect()
    }

    pub(crate) fn held(&self) -> usize {
        self.held.lock().expect("one thread").len()
    }

    /// Execute the held request after `older` older ones.
    pub(crate) fn release(&self, older: usize, engine: &mut Engine) -> Option<(Ticket, Status)> {
        let mut held = self.held.lock().expect("one thread");
        if held.len() <= older {
            return None;
        }
        let (request, spans, ticket) = held.remove(older);
        // SAFETY: the server keeps the spans until the request is finished.
        match unsafe { self.inner.submit(&request, &spans, ticket, engine) } {
            Submitted::Done(status) => Some((ticket, status)),
            Submitted::Pending => panic!("a memory disk answers at once"),
        }
    }
}

impl Disk for HeldDisk {
    const ANSWERS_AT_ONCE: bool = false;

    fn info(&self) -> BlockInfo {
        self.info
    }

    unsafe fn submit(&self, request: &Request, spans: &[Span], ticket: Ticket, engine: &mut Engine) -> Submitted {
        self.seen.lock().expect("one thread").push(*request);
        if self.at_once {
            // SAFETY: the contract is passed on.
            return unsafe { self.inner.submit(request, spans, ticket, engine) };
        }
        self.held.lock().expect("one thread").push((*request, spans.to_vec(), ticket));
        Submitted::Pending
    }

    fn resize(&self, _: u64) -> Result<(), String> {
        Err("not this one".to_owned())
    }
}
