//! A driver's virtqueue through the whole server of it: descriptors, rings, headers, tables and upgrade requests of any bytes.

use std::cell::RefCell;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use fipsee_block::disk::{Disk, Engine, MemoryDisk, MemoryOptions};
use fipsee_block::stats::QueueCounters;
use fipsee_serve::Turn;
use fipsee_virtio::blk::server::{Device, UpgradeToken, VirtqueueServer, VirtqueueSetup};
use fipsee_virtio::blk::upgrade::wire::{REQUEST_TYPE, Reply, UpgradeRequest};

use crate::guest::{DATA, FIRST_BYTES, Guest, INDIRECT, NEXT, SIZE, WRITE, descriptors, rings};
use crate::take;

const FEATURES: [u64; 4] = [0, 1 << 29, 1 << 28, 1 << 29 | 1 << 28];
/// Flush, cache mode, discard, write-zeroes.
const ALWAYS: u64 = 1 << 9 | 1 << 11 | 1 << 13 | 1 << 14;

struct Fixture {
    guest: Guest,
    disk: MemoryDisk,
    engine: Engine,
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
        Self {
            guest: Guest::new(),
            disk: MemoryDisk::new(&MemoryOptions { size_bytes: 64 << 10, ..Default::default() }).expect("memory"),
            engine: Engine::new(8).expect("an engine"),
        }
    }

    fn one(&mut self, mut bytes: &[u8]) {
        let [choice, index] = take(&mut bytes);
        self.guest.clear();
        self.guest.write_descriptors(&take(&mut bytes));
        self.guest.offer(0, index, &take(&mut bytes));
        self.guest.write(DATA, bytes);
        let upgrade_requests = Requests::default();
        let device = (choice & 16 != 0).then(|| Box::new(upgrade_requests.clone()) as Box<dyn Device>);
        let mut server = VirtqueueServer::new(0, self.setup(choice), device).expect("a good queue");
        while server.visit(&self.disk, &mut self.engine, Turn::whole(false)).requests > 0 {
            upgrade_requests.answer(&mut server);
            server.flush();
        }
        assert_eq!(server.in_flight(), 0, "a memory disk answers at once");
        if self.guest.has_written_rings() {
            return;
        }
        let used = self.guest.check_used(0);
        assert!(used <= u16::from(index).min(SIZE), "{used} chains used of {index}");
        let is_over = server.queue.fault().is_some_and(|fault| !fault.is_empty());
        let answered = u32::from(used) + server.unanswered();
        assert!(is_over || answered == u32::from(index), "{answered} of {index} answered, and no fault");
    }

    fn setup(&self, choice: u8) -> VirtqueueSetup {
        VirtqueueSetup {
            queue: self.guest.setup(0, ALWAYS | FEATURES[usize::from(choice & 3)]),
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
    let mut bytes = [vec![choice, 1], descriptors(parts)].concat();
    bytes.resize(2 + 256 + 32, 0);
    bytes.extend(header.0.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(header.1.to_le_bytes());
    bytes.extend(data);
    bytes
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
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
        chain(0, &[header, (rings(0).available, 512, NEXT | WRITE), status], (0, 2), &[]),
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
            fixture.guest.has_written_rings()
        };
        assert_eq!(seeds().into_iter().map(is_let_off).filter(|let_off| *let_off).count(), 1);
    }
}
