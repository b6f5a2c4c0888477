//! File disks, and a thread that has disks carry out requests, as the daemon's workers do, one request at a time.

use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use fipsee_block::disk::{Disk, Engine, FileDisk, FileOptions, Submitted, Ticket};
use fipsee_block::request::Request;
use fipsee_block::wire::{Operation, SECTOR_BYTES, Status};
use fipsee_ring::memory::Span;
use fipsee_ring::region::Region;
use fipsee_serve::Engine as _;

use crate::Scratch;

/// A request without flags.
pub fn request(operation: Operation, sector: u64, length_sectors: u64) -> Request {
    Request { operation, tag: 0, fua: false, unmap: false, sector, length_sectors, aux: 0 }
}

/// A worker with client memory, for one request at a time.
pub struct Worker {
    pub engine: Engine,
    pub memory: Region,
}

impl Default for Worker {
    fn default() -> Self {
        Self::new()
    }
}

impl Worker {
    pub fn new() -> Self {
        Self { engine: Engine::new(16).expect("engine"), memory: Region::create("disk-test", 20 << 20).expect("memory") }
    }

    /// The span of `length_bytes` at `offset_bytes` of the client's memory.
    pub fn span(&self, offset_bytes: u64, length_bytes: u64) -> Span {
        let base: NonNull<u8> = self.memory.pointer("test", offset_bytes, length_bytes).expect("within the memory");
        // SAFETY: checked just now, and the tests keep the memory until their requests are done.
        unsafe { Span::new(base, usize::try_from(length_bytes).expect("small")) }
    }

    pub fn finish(&mut self, disk: &impl Disk, request: &Request, spans: &[Span]) -> Status {
        let ticket = Ticket { queue: 7, tag: request.tag, started_ticks: 0 };
        // SAFETY: the spans name memory of ours that outlives this call, which waits for the end.
        match unsafe { disk.submit(request, spans, ticket, &mut self.engine) } {
            Submitted::Done(status) => status,
            Submitted::Pending => {
                let mut result = None;
                self.wait(1, |got, status| {
                    assert_eq!(got, ticket);
                    result = Some(status);
                });
                result.expect("one was reported")
            }
        }
    }

    /// Begin a request that ends later: [`wait`](Self::wait) for it.
    #[track_caller]
    pub fn begin(&mut self, disk: &impl Disk, request: &Request, spans: &[Span], ticket: Ticket) {
        // SAFETY: the spans name memory of ours, which outlives the engine that has the request.
        let submitted = unsafe { disk.submit(request, spans, ticket, &mut self.engine) };
        assert_eq!(submitted, Submitted::Pending);
    }

    /// Poll until `count` requests were reported.
    pub fn wait(&mut self, count: usize, mut report: impl FnMut(Ticket, Status)) {
        let mut seen = 0;
        self.engine.flush();
        while seen < count {
            seen += self.engine.poll(usize::MAX, &mut report);
            std::thread::yield_now();
        }
        assert_eq!(seen, count);
    }

    pub fn write(&mut self, disk: &impl Disk, sector: u64, bytes: &[u8]) -> Status {
        self.memory.write(0, bytes).expect("fits");
        let span = self.span(0, bytes.len() as u64);
        self.finish(disk, &request(Operation::Write, sector, bytes.len() as u64 / SECTOR_BYTES), &[span])
    }

    pub fn read(&mut self, disk: &impl Disk, sector: u64, length_bytes: usize) -> Result<Vec<u8>, Status> {
        let span = self.span(0, length_bytes as u64);
        let mut bytes = vec![0xee; length_bytes];
        self.memory.write(0, &bytes).expect("fits");
        match self.finish(disk, &request(Operation::Read, sector, length_bytes as u64 / SECTOR_BYTES), &[span]) {
            Status::Ok => self.memory.read(0, &mut bytes).map(|()| bytes).map_err(|_| Status::BadMemory),
            status => Err(status),
        }
    }

    pub fn do_range(&mut self, disk: &impl Disk, operation: Operation, sector: u64, length_sectors: u64) -> Status {
        self.finish(disk, &request(operation, sector, length_sectors), &[])
    }
}

/// A file disk as it is there.
pub fn options(path: &Path) -> FileOptions {
    FileOptions { path: path.into(), ..Default::default() }
}

pub fn create(path: &Path, size_bytes: u64) -> FileDisk {
    FileDisk::open(&FileOptions { size_bytes: Some(size_bytes), ..options(path) }).expect("a new file disk")
}

/// A new disk, its file, and the folder of that.
pub fn disk_in_folder(size_bytes: u64) -> (Scratch, PathBuf, FileDisk) {
    let scratch = Scratch::new();
    let path = scratch.path("disk");
    let disk = create(&path, size_bytes);
    (scratch, path, disk)
}

/// A file of a disk that nothing serves.
pub fn file_in_folder(size_bytes: u64) -> (Scratch, PathBuf) {
    let (scratch, path, _) = disk_in_folder(size_bytes);
    (scratch, path)
}

pub fn refusal(options: &FileOptions) -> String {
    FileDisk::open(options).map(|_| ()).expect_err("refused")
}
