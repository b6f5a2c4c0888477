//! A driver's virtqueue through the whole server of it: descriptors, rings, headers, tables and upgrade requests of any bytes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use fipsee_block::disk::{Disk, Engine, MemoryDisk, MemoryOptions};
use fipsee_block::stats::QueueCounters;
use fipsee_ring::region::Region;
use fipsee_serve::Turn;
use fipsee_virtio::blk::server::{Device, UpgradeToken, VirtqueueServer, VirtqueueSetup};
use fipsee_virtio::blk::upgrade::wire::{REQUEST_TYPE, Reply, UpgradeRequest};
use fipsee_virtio::core::memory::{DirtyLog, GuestMemory, GuestRegion, RegionDescription};
use fipsee_virtio::core::{DeviceQueueSetup, RingAddresses};
use rustix::event::EventfdFlags;

use crate::channel::copy;
use crate::take;

/// Three regions without a gap, each of another file; behind them there is nothing.
const FIRST_BYTES: u64 = 16 << 10;
const SECOND_BYTES: u64 = 8 << 10;
const RINGS_BYTES: u64 = 4 << 10;
/// The queue's own memory: a page that nothing else is on.
const RINGS: u64 = FIRST_BYTES + SECOND_BYTES;
const SIZE: u16 = 16;
const DESCRIPTORS: u64 = RINGS;
const AVAILABLE: u64 = RINGS + 256;
const USED: u64 = RINGS + 512;
/// What the rest of an input fills: headers, tables, data, across the end of the first region.
const DATA: u64 = 1024;
const FEATURES: [u64; 4] = [0, 1 << 29, 1 << 28, 1 << 29 | 1 << 28];
/// Flush, cache mode, discard, write-zeroes.
const ALWAYS: u64 = 1 << 9 | 1 << 11 | 1 << 13 | 1 << 14;

struct Fixture {
    files: [Region; 3],
    /// A bit for each page that a request wrote to.
    written: Region,
    log: Arc<DirtyLog>,
    memory: Arc<GuestMemory>,
    disk: MemoryDisk,
    engine: Engine,
    doorbell: OwnedFd,
}

thread_local! {
    static FIXTURE: RefCell<Fixture> = RefCell::new(Fixture::new());
}

/// A byte chooses features, one the index of the available ring; 256 are the descriptors, 32 the ring, the rest is data.
pub(crate) fn one(bytes: &[u8]) {
    FIXTURE.with_borrow_mut(|fixture| fixture.one(bytes));
}

/// A device that keeps what it is asked.
#[derive(Clone, Debug, Default)]
struct Requests(Arc<Mutex<Vec<(UpgradeToken, UpgradeRequest)>>>);

impl Device for Requests {
    fn asked(&mut self, token: UpgradeToken, upgrade_request: UpgradeRequest) {
        self.0.lock().expect("one thread").push((token, upgrade_request));
    }

    fn broke(&mut self, _: &str) {}
}

impl Requests {
    /// Answer each upgrade request at once, or never.
    fn answer(&self, server: &mut VirtqueueServer) {
        for (token, upgrade_request) in self.0.lock().expect("one thread").drain(..) {
            if upgrade_request.attachment & 1 == 0 {
                let known = server.answer_upgrade_request(token, &Reply::of(0));
                assert!(known || server.queue.fault().is_some(), "it was asked just now: {upgrade_request:?}");
            }
        }
    }
}

impl Fixture {
    fn new() -> Self {
        let files = [FIRST_BYTES, SECOND_BYTES, RINGS_BYTES].map(|bytes| Region::create("fuzz-guest", bytes).expect("memory"));
        let map = |file: &Region, guest_address| {
            let length_bytes = file.length_bytes();
            let description =
                RegionDescription { guest_address, length_bytes, user_address: guest_address, file_offset_bytes: 0 };
            GuestRegion::map(description, file.as_fd().try_clone_to_owned().expect("a descriptor")).expect("good memory")
        };
        let regions = vec![map(&files[0], 0), map(&files[1], FIRST_BYTES), map(&files[2], RINGS)];
        let memory = GuestMemory::new(regions).expect("no overlap");
        let written = Region::create("fuzz-log", 4096).expect("memory");
        let log = DirtyLog::map(written.as_fd().try_clone_to_owned().expect("a descriptor"), 4096, 0).expect("a log");
        Self {
            files,
            written,
            log: Arc::new(log),
            memory: Arc::new(memory),
            disk: MemoryDisk::new(&MemoryOptions { size_bytes: 64 << 10, ..Default::default() }).expect("memory"),
            engine: Engine::new(8).expect("an engine"),
            doorbell: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor"),
        }
    }

    /// Data, across the end of the first region.
    fn write(&self, address: u64, bytes: &[u8]) {
        let split = usize::try_from(FIRST_BYTES - address).expect("in the first region").min(bytes.len());
        self.files[0].write(address, &bytes[..split]).expect("within");
        let rest = bytes.len().min(split + usize::try_from(SECOND_BYTES).expect("small"));
        self.files[1].write(0, &bytes[split..rest]).expect("within");
    }

    fn write_rings(&self, address: u64, bytes: &[u8]) {
        self.files[2].write(address - RINGS, bytes).expect("within");
    }

    /// Of the rings.
    fn word(&self, address: u64) -> u16 {
        let mut bytes = [0; 2];
        self.files[2].read(address - RINGS, &mut bytes).expect("within");
        u16::from_le_bytes(bytes)
    }

    /// Did a request write over its own queue? What that offers and answers then is the guest's own affair.
    fn has_written_rings(&self) -> bool {
        let mut bits = [0];
        self.written.read(0, &mut bits).expect("within");
        bits[0] >> (RINGS >> 12) & 1 != 0
    }

    fn one(&mut self, mut bytes: &[u8]) {
        let [choice, index] = take(&mut bytes);
        for file in self.files.iter().chain([&self.written]) {
            file.write(0, &vec![0; usize::try_from(file.length_bytes()).expect("small")]).expect("all of it");
        }
        self.write_rings(DESCRIPTORS, &take::<256>(&mut bytes));
        self.write_rings(AVAILABLE, &[0, 0, index, 0]);
        self.write_rings(AVAILABLE + 4, &take::<32>(&mut bytes));
        self.write(DATA, bytes);
        // What the queue may answer, before it is touched.
        let mut offered: HashMap<u16, u32> = HashMap::new();
        for place in 0..u64::from(index).min(u64::from(SIZE)) {
            *offered.entry(self.word(AVAILABLE + 4 + 2 * place)).or_default() += 1;
        }
        let upgrade_requests = Requests::default();
        let device = (choice & 16 != 0).then(|| Box::new(upgrade_requests.clone()) as Box<dyn Device>);
        let mut server = VirtqueueServer::new(0, self.setup(choice), device).expect("a good queue");
        while server.visit(&self.disk, &mut self.engine, Turn::whole(false)).requests > 0 {
            upgrade_requests.answer(&mut server);
            server.flush();
        }
        assert_eq!(server.in_flight(), 0, "a memory disk answers at once");
        if self.has_written_rings() {
            return;
        }
        let used = self.word(USED + 2);
        assert!(used <= u16::from(index).min(SIZE), "{used} chains used of {index}");
        for place in 0..u64::from(used) {
            let head = self.word(USED + 4 + 8 * place);
            let left = offered.get_mut(&head).filter(|count| **count > 0);
            *left.unwrap_or_else(|| panic!("chain {head} was not offered, or is used twice")) -= 1;
        }
        let is_over = server.queue.fault().is_some_and(|fault| !fault.is_empty());
        let answered = u32::from(used) + server.unanswered();
        assert!(is_over || answered == u32::from(index), "{answered} of {index} answered, and no fault");
    }

    fn setup(&self, choice: u8) -> VirtqueueSetup {
        VirtqueueSetup {
            queue: DeviceQueueSetup {
                memory: Arc::clone(&self.memory),
                size: SIZE,
                rings: RingAddresses { descriptor: DESCRIPTORS, available: AVAILABLE, used: USED },
                next_available: 0,
                features: ALWAYS | FEATURES[usize::from(choice & 3)],
                kick: copy(&self.doorbell),
                call: Some(copy(&self.doorbell)),
                error: Some(copy(&self.doorbell)),
                inflight: None,
                log: Some(Arc::clone(&self.log)),
                used_log_address: None,
            },
            info: self.disk.info(),
            read_only: choice & 4 != 0,
            writeback: Arc::new(AtomicBool::new(choice & 8 == 0)),
            serial: "fuzz".to_owned(),
            counters: Arc::new(QueueCounters::default()),
        }
    }
}

/// Descriptors, one chain from the first on, its header and what follows it.
fn chain(choice: u8, parts: &[(u64, u32, u16)], header: (u32, u64), data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![choice, 1];
    for (next, (address, length, flags)) in (1_u16..).zip(parts) {
        bytes.extend(address.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
    }
    bytes.resize(2 + 256 + 32, 0);
    bytes.extend(header.0.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(header.1.to_le_bytes());
    bytes.extend(data);
    bytes
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    const NEXT: u16 = 1;
    const WRITE: u16 = 2;
    const INDIRECT: u16 = 4;
    let (header, status) = ((DATA, 16, NEXT), (DATA + 4096, 1, WRITE));
    let table: Vec<u8> = chain(0, &[header, (DATA + 512, 512, NEXT | WRITE), status], (0, 0), &[])[2..50].to_vec();
    let upgrade_request = UpgradeRequest {
        operation: fipsee_virtio::blk::upgrade::wire::Operation::Query,
        attachment: 0,
        features: 0,
        queue: 0,
        entries: Vec::new(),
    };
    vec![
        chain(0, &[header, (DATA + 512, 1024, NEXT | WRITE), status], (0, 2), &[]),
        chain(1, &[header, (DATA + 512, 512, NEXT), (FIRST_BYTES - 256, 512, NEXT), status], (1, 4), &[7; 600]),
        chain(2, &[(DATA + 16, 48, INDIRECT)], (0, 1), &table),
        chain(0, &[header, (AVAILABLE, 512, NEXT | WRITE), status], (0, 2), &[]),
        chain(0, &[header, status], (4, 0), &[]),
        chain(0, &[header, (DATA + 512, 20, NEXT | WRITE), status], (8, 0), &[]),
        chain(0, &[header, (DATA + 16, 16, NEXT), status], (11, 0), &[0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0]),
        chain(
            16,
            &[header, (DATA + 16, 64, NEXT), (DATA + 256, 64, NEXT | WRITE), status],
            (REQUEST_TYPE, 0),
            &upgrade_request.to_bytes(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_client_that_overwrites_its_own_queue_is_not_checked() {
        let mut fixture = Fixture::new();
        let is_let_off = |seed: Vec<u8>| {
            fixture.one(&seed);
            fixture.has_written_rings()
        };
        assert_eq!(seeds().into_iter().map(is_let_off).filter(|let_off| *let_off).count(), 1);
    }
}
