//! A guest in the test's own memory: regions over memory files, a driver of one virtqueue, and disks to serve it from.

pub(crate) mod disks;
pub(crate) mod driver;
pub(crate) mod ram;

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use fipsee_block::disk::{Disk, Engine};
use fipsee_block::stats::QueueCounters;
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::ring::{Cursor, Reader, Writer};
use fipsee_ring::tuning::{Choices, Tuning};
use fipsee_serve::{Engine as _, Turn};
use fipsee_virtio::blk::server::{Device, UpgradeToken, VirtqueueServer, VirtqueueSetup};
use fipsee_virtio::blk::upgrade::controller::UpgradeController;
use fipsee_virtio::blk::upgrade::rings;
use fipsee_virtio::blk::upgrade::wire::{Entry, UpgradeRequest};
use fipsee_virtio::core::DeviceQueueSetup;
use rustix::event::EventfdFlags;

pub(crate) use fipsee_testkit::Random;
pub(crate) use fipsee_testkit::virtqueue::{Memory, Part};

pub(crate) use self::disks::{HeldDisk, file_disk, memory_disk};
use self::driver::DATA;
pub(crate) use self::driver::{Driver, readable, writable};
pub(crate) use self::ram::Ram;

pub(crate) const IN: u32 = 0;
pub(crate) const OUT: u32 = 1;
pub(crate) const FLUSH: u32 = 4;
pub(crate) const GET_ID: u32 = 8;
pub(crate) const DISCARD: u32 = 11;
pub(crate) const WRITE_ZEROES: u32 = 13;

pub(crate) const OK: u8 = 0;
pub(crate) const IOERR: u8 = 1;
pub(crate) const UNSUPP: u8 = 2;

pub(crate) const F_EVENT_IDX: u64 = 1 << 29;
pub(crate) const F_INDIRECT: u64 = 1 << 28;
pub(crate) const F_CONFIG_WCE: u64 = 1 << 11;
pub(crate) const F_FLUSH: u64 = 1 << 9;

pub(crate) fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("eventfd")
}

/// How often an eventfd was written since the last read.
pub(crate) fn rings(fd: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(fd, &mut count) {
        Ok(_) => u64::from_ne_bytes(count),
        Err(rustix::io::Errno::AGAIN) => 0,
        Err(error) => panic!("reading an eventfd: {error}"),
    }
}

/// A device that records upgrade requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordedRequests(Arc<Mutex<Vec<(UpgradeToken, UpgradeRequest)>>>);

impl Device for RecordedRequests {
    fn asked(&mut self, token: UpgradeToken, upgrade_request: UpgradeRequest) {
        self.0.lock().expect("one thread").push((token, upgrade_request));
    }

    fn broke(&mut self, _: &str) {}
}

impl RecordedRequests {
    pub(crate) fn take(&self) -> Vec<(UpgradeToken, UpgradeRequest)> {
        std::mem::take(&mut self.0.lock().expect("one thread"))
    }
}

/// A device's queue with its guest.
pub(crate) struct Fixture<D: Disk> {
    pub(crate) driver: Driver,
    pub(crate) server: VirtqueueServer,
    pub(crate) disk: D,
    pub(crate) engine: Engine,
    pub(crate) call: OwnedFd,
    pub(crate) error: OwnedFd,
    pub(crate) counters: Arc<QueueCounters>,
    pub(crate) writeback: Arc<AtomicBool>,
    pub(crate) upgrade_requests: RecordedRequests,
}

/// Parameters that differ between tests.
pub(crate) struct Options {
    pub(crate) size: u16,
    pub(crate) features: u64,
    pub(crate) read_only: bool,
    /// Where the indices begin.
    pub(crate) start: u16,
    /// Is there a device that handles upgrade requests?
    pub(crate) takes_upgrade_requests: bool,
}

impl Default for Options {
    fn default() -> Self {
        let features = F_EVENT_IDX | F_INDIRECT | F_FLUSH | F_CONFIG_WCE;
        Self { size: 16, features, read_only: false, start: 0, takes_upgrade_requests: false }
    }
}

impl<D: Disk> Fixture<D> {
    pub(crate) fn new(disk: D, options: &Options) -> Self {
        Self::with(disk, options, Ram::new(), |_| {})
    }

    pub(crate) fn with(disk: D, options: &Options, ram: Ram, change: impl FnOnce(&mut VirtqueueSetup)) -> Self {
        let driver = Driver::new(ram, options.size, options.features & F_EVENT_IDX != 0, options.start);
        Self::serve(disk, options, driver, change).expect("a good queue")
    }

    pub(crate) fn serve(
        disk: D,
        options: &Options,
        driver: Driver,
        change: impl FnOnce(&mut VirtqueueSetup),
    ) -> Result<Self, String> {
        let (call, error) = (eventfd(), eventfd());
        let (counters, writeback) = (Arc::new(QueueCounters::default()), Arc::new(AtomicBool::new(true)));
        let mut setup = VirtqueueSetup {
            queue: DeviceQueueSetup {
                memory: driver.ram.memory(),
                size: options.size,
                rings: driver.addresses(),
                next_available: options.start,
                features: options.features,
                kick: eventfd(),
                call: Some(call.try_clone().expect("a descriptor")),
                error: Some(error.try_clone().expect("a descriptor")),
                inflight: None,
                log: None,
                used_log_address: None,
            },
            info: disk.info(),
            read_only: options.read_only,
            writeback: Arc::clone(&writeback),
            serial: "fipsee-test".to_owned(),
            counters: Arc::clone(&counters),
        };
        change(&mut setup);
        let upgrade_requests = RecordedRequests::default();
        let device = options.takes_upgrade_requests.then(|| Box::new(upgrade_requests.clone()) as Box<dyn Device>);
        let server = VirtqueueServer::new(7, setup, device)?;
        let engine = Engine::new(16).expect("engine");
        Ok(Self { driver, server, disk, engine, call, error, counters, writeback, upgrade_requests })
    }

    /// One visit of the server.
    pub(crate) fn visit(&mut self) -> u32 {
        self.server.visit(&self.disk, &mut self.engine, Turn::whole(false)).requests
    }

    /// Execute everything that was made available.
    pub(crate) fn run(&mut self) {
        while self.visit() > 0 || self.engine.in_flight() > 0 || self.server.in_flight() > 0 && self.server.has_work() {
            let server = &mut self.server;
            self.engine.flush();
            self.engine.poll(usize::MAX, &mut |ticket, status| server.finish(ticket, status));
            server.flush();
        }
    }

    /// Offer a chain and execute it; returns its status and used length.
    pub(crate) fn round(&mut self, head: u16) -> (u8, u32) {
        self.driver.offer(head);
        self.run();
        let (used, length) =
            self.driver.take_used().unwrap_or_else(|| panic!("not used; fault: {:?}", self.server.queue.fault()));
        assert_eq!(used, head);
        (self.driver.status(head), length)
    }

    /// Make a request available.
    pub(crate) fn offer(&mut self, kind: u32, sector: u64, data: &[Part]) -> u16 {
        let head = self.driver.stage_request(kind, sector, data);
        self.driver.publish();
        head
    }

    /// Make a request available, and have the server take it.
    pub(crate) fn begin(&mut self, kind: u32, sector: u64, data: &[Part]) -> u16 {
        let head = self.offer(kind, sector, data);
        self.visit();
        head
    }

    /// An ordinary request: header, data, status.
    pub(crate) fn request(&mut self, kind: u32, sector: u64, data: &[Part]) -> (u8, u32) {
        let head = self.driver.request(kind, sector, data);
        self.round(head)
    }

    pub(crate) fn fault(&self) -> &str {
        self.server.queue.fault().unwrap_or("")
    }
}

impl Fixture<HeldDisk> {
    /// Have the disk execute the request that it holds after `older` others.
    pub(crate) fn release(&mut self, older: usize) {
        let (ticket, status) = self.disk.release(older, &mut self.engine).expect("one is held");
        self.server.finish(ticket, status);
    }
}

/// Attach a ring; the guest's ends of it.
pub(crate) fn attach_ring<D: Disk>(fixture: &mut Fixture<D>) -> (Writer<MappedRing>, Reader<MappedRing>) {
    const RINGS: u64 = DATA + (1 << 20);
    let entry = Entry {
        request_address: RINGS,
        completion_address: RINGS + 4096,
        cold_address: RINGS + 8192,
        request_slots: 4,
        completion_slots: 8,
        request_start: 0,
        completion_start: 0,
        depth: 4,
        virtqueue: 0,
    };
    let memory = fixture.driver.ram.memory();
    let grants = UpgradeController::default().resume(1, vec![entry], &memory, Choices::default());
    grants.expect("in memory").into_iter().for_each(|grant| fixture.server.attach(grant));
    let (requests, completions) = rings::open(&memory, &entry).expect("in memory");
    let tuning = Tuning::default();
    (Writer::new(requests, Cursor::at_start(0), &tuning), Reader::new(completions, Cursor::at_start(0), &tuning))
}
