//! Shared by the disk tests: client memory, a random source, and requests that are waited for.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use fipsee_block::disk::{Disk, Engine, Submitted, Ticket};
use fipsee_block::request::Request;
use fipsee_block::wire::{Operation, SECTOR_BYTES, Status};
use fipsee_ring::memory::Span;
use fipsee_ring::region::Region;
use fipsee_serve::Engine as _;

/// splitmix64: the same sequence for the same seed, everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let value = self.next().to_le_bytes();
            chunk.copy_from_slice(&value[..chunk.len()]);
        }
    }
}

/// A directory that is removed with its content.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(parent: &Path) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("fipsee-disk-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = parent.join(name);
        std::fs::create_dir_all(&path).expect("a directory for the test's files");
        Self(path)
    }

    pub(crate) fn temporary() -> Self {
        Self::new(&std::env::temp_dir())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A request without flags.
pub(crate) fn request(operation: Operation, sector: u64, length_sectors: u64) -> Request {
    Request { operation, tag: 0, fua: false, unmap: false, sector, length_sectors, aux: 0 }
}

/// A worker with client memory, for one request at a time.
pub(crate) struct Worker {
    pub(crate) engine: Engine,
    pub(crate) memory: Region,
}

impl Worker {
    pub(crate) fn new() -> Self {
        Self { engine: Engine::new(16).expect("engine"), memory: Region::create("disk-test", 20 << 20).expect("memory") }
    }

    /// The span of `length_bytes` at `offset_bytes` of the client's memory.
    pub(crate) fn span(&self, offset_bytes: u64, length_bytes: u64) -> Span {
        let base: NonNull<u8> = self.memory.pointer("test", offset_bytes, length_bytes).expect("within the memory");
        // SAFETY: checked just now, and the tests keep the memory until their requests are done.
        unsafe { Span::new(base, usize::try_from(length_bytes).expect("small")) }
    }

    pub(crate) fn finish(&mut self, disk: &impl Disk, request: &Request, spans: &[Span]) -> Status {
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

    /// Poll until `count` requests were reported.
    pub(crate) fn wait(&mut self, count: usize, mut report: impl FnMut(Ticket, Status)) {
        let mut seen = 0;
        self.engine.flush();
        while seen < count {
            seen += self.engine.poll(usize::MAX, &mut report);
            std::thread::yield_now();
        }
        assert_eq!(seen, count);
    }

    pub(crate) fn write(&mut self, disk: &impl Disk, sector: u64, bytes: &[u8]) -> Status {
        self.memory.write(0, bytes).expect("fits");
        let span = self.span(0, bytes.len() as u64);
        self.finish(disk, &request(Operation::Write, sector, bytes.len() as u64 / SECTOR_BYTES), &[span])
    }

    pub(crate) fn read(&mut self, disk: &impl Disk, sector: u64, length_bytes: usize) -> Result<Vec<u8>, Status> {
        let span = self.span(0, length_bytes as u64);
        let mut bytes = vec![0xee; length_bytes];
        self.memory.write(0, &bytes).expect("fits");
        match self.finish(disk, &request(Operation::Read, sector, length_bytes as u64 / SECTOR_BYTES), &[span]) {
            Status::Ok => self.memory.read(0, &mut bytes).map(|()| bytes).map_err(|_| Status::BadMemory),
            status => Err(status),
        }
    }

    pub(crate) fn do_range(&mut self, disk: &impl Disk, operation: Operation, sector: u64, length_sectors: u64) -> Status {
        self.finish(disk, &request(operation, sector, length_sectors), &[])
    }
}

pub(crate) fn expect_parts(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "'{part}' is not in: {text}");
    }
}

/// Report to `cargo xtask test`, past libtest's capture, that a check could not run here: "name: reason".
pub(crate) fn skip(text: &str) {
    let line = text.trim().replace('\n', "; ");
    std::io::Write::write_all(&mut std::io::stderr(), format!("fipsee-skip: {line}\n").as_bytes())
        .expect("standard error is open");
}
