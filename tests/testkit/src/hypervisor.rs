//! A hypervisor and its guest's driver, written from the specifications of vhost-user and virtio and without the crate that the
//! daemon uses. The guest's memory is a memory file that is read and written as a file: slow, and without unsafe code.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::fs::{MemfdFlags, memfd_create};

pub use crate::guest::device::{FLUSH, IN, IO_ERROR as IOERR, OK, OUT};
use crate::guest::frontend::{self, NEED_REPLY};
pub use crate::guest::frontend::{LOG_ALL, PROTOCOL_FEATURES};
use crate::guest::virtqueue::{doorbell, is_rung};
use crate::virtqueue::{Memory, NEXT, Rings, WRITE};
use crate::{TIMEOUT, stamp};

// Requests of the hypervisor.
pub const GET_FEATURES: u32 = 1;
pub const SET_FEATURES: u32 = 2;
pub const SET_OWNER: u32 = 3;
pub const SET_MEM_TABLE: u32 = 5;
pub const SET_LOG_BASE: u32 = 6;
pub const SET_VRING_NUM: u32 = 8;
pub const SET_VRING_ADDR: u32 = 9;
pub const SET_VRING_BASE: u32 = 10;
pub const GET_VRING_BASE: u32 = 11;
pub const SET_VRING_KICK: u32 = 12;
pub const SET_VRING_CALL: u32 = 13;
pub const SET_VRING_ERR: u32 = 14;
pub const GET_PROTOCOL_FEATURES: u32 = 15;
pub const SET_PROTOCOL_FEATURES: u32 = 16;
pub const GET_QUEUE_NUM: u32 = 17;
pub const SET_VRING_ENABLE: u32 = 18;
pub const SET_BACKEND_REQ_FD: u32 = 21;
pub const GET_CONFIG: u32 = 24;
pub const SET_CONFIG: u32 = 25;
pub const GET_INFLIGHT_FD: u32 = 31;
pub const SET_INFLIGHT_FD: u32 = 32;
pub const RESET_DEVICE: u32 = 34;
pub const GET_MAX_MEM_SLOTS: u32 = 36;
pub const ADD_MEM_REG: u32 = 37;
pub const REM_MEM_REG: u32 = 38;

/// A virtio-blk request.
pub const GET_ID: u32 = 8;
/// The status byte before the device writes it.
const UNANSWERED: u8 = 0xaa;

pub const BLOCK_BYTES: usize = 4096;

/// A message from the daemon.
pub struct Reply {
    pub body: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

impl Reply {
    pub fn u64(&self) -> u64 {
        u64::from_le_bytes(self.body[..8].try_into().expect("8 bytes"))
    }
}

/// The hypervisor's end of the connection.
pub struct Hypervisor {
    pub stream: UnixStream,
}

pub fn u32s(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub fn u64s(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

impl Hypervisor {
    pub fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("a vhost-user socket");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a bound");
        Self { stream }
    }

    /// Send bytes as they are.
    pub fn send_raw(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        frontend::send(&self.stream, bytes, descriptors)
    }

    pub fn message(code: u32, flags: u32, body: &[u8]) -> Vec<u8> {
        frontend::message(code, flags, body)
    }

    /// Send a request that has a reply of its own.
    pub fn ask(&self, code: u32, body: &[u8]) -> Reply {
        self.send_raw(&Self::message(code, 0, body), &[]).expect("it reads");
        self.receive(code).unwrap_or_else(|| panic!("no answer to {code}"))
    }

    /// Send a message that is confirmed on demand, and wait for that; `None`: the daemon hung up, `Some(0)`: success.
    pub fn try_tell(&self, code: u32, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> Option<u64> {
        self.send_raw(&Self::message(code, NEED_REPLY, body), descriptors).ok()?;
        self.receive(code).map(|reply| reply.u64())
    }

    #[track_caller]
    pub fn send(&self, code: u32, body: &[u8], descriptors: &[BorrowedFd<'_>]) {
        assert_eq!(self.try_tell(code, body, descriptors), Some(0), "request {code}");
    }

    /// Send a message that is not confirmed.
    pub fn say(&self, code: u32, body: &[u8]) {
        self.send_raw(&Self::message(code, 0, body), &[]).expect("it reads");
    }

    /// The answer to `code`; `None`: the daemon hung up.
    pub fn receive(&self, code: u32) -> Option<Reply> {
        match frontend::receive(&self.stream, code) {
            Ok((body, descriptors)) => Some(Reply { body, descriptors }),
            Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => None,
            Err(error) => panic!("no answer in time: {error}"),
        }
    }

    /// The daemon has closed the connection.
    #[track_caller]
    pub fn assert_hung_up(&self) {
        let read = (&self.stream).read(&mut [0]);
        assert!(
            matches!(&read, Ok(0)) || read.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset),
            "{read:?}"
        );
    }

    /// Agree on features, protocol features and memory, as every hypervisor does first.
    pub fn negotiate(&self, ram: &Ram) {
        self.say(SET_OWNER, &[]);
        let features = self.ask(GET_FEATURES, &[]).u64();
        assert_ne!(features & PROTOCOL_FEATURES, 0);
        let protocol = self.ask(GET_PROTOCOL_FEATURES, &[]).u64();
        self.say(SET_PROTOCOL_FEATURES, &u64s(&[protocol]));
        self.send(SET_FEATURES, &u64s(&[wanted(features)]), &[]);
        self.send(SET_MEM_TABLE, &ram.table(), &[ram.file.as_fd()]);
    }
}

/// The driver's features: neither event index nor indirect descriptors.
pub const fn wanted(offered: u64) -> u64 {
    offered & !(1 << 28) & !(1 << 29) & !LOG_ALL
}

/// The guest's memory.
pub struct Ram {
    pub file: File,
    pub guest: u64,
    pub user: u64,
    pub length: u64,
}

impl Ram {
    pub fn new(length: u64) -> Self {
        Self::at(0x10_0000, length)
    }

    pub fn at(guest: u64, length: u64) -> Self {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memory file"));
        file.set_len(length).expect("memory");
        Self { file, guest, user: 0x7f00_0000_0000 + guest, length }
    }

    pub fn region(&self) -> Vec<u8> {
        u64s(&[self.guest, self.length, self.user, 0])
    }

    pub fn table(&self) -> Vec<u8> {
        [u32s(&[1, 0]), self.region()].concat()
    }

    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, offset).expect("within memory");
        bytes
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, offset).expect("within memory");
    }
}

/// A driver's queue in the first memory of the guest: 64 KiB of rings and headers, then so many blocks of data. Each slot has three
/// descriptors.
pub struct Queue {
    pub index: u32,
    place: u64,
    pub rings: Rings,
    pub kick: OwnedFd,
    pub call: OwnedFd,
    pub error: OwnedFd,
}

const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const HEADERS: u64 = 0x4000;
const STATUSES: u64 = 0x8000;
const DATA: u64 = 0x1_0000;
/// Bytes of memory that a queue of 64 descriptors needs, of which three make a request.
pub const QUEUE_BYTES: u64 = DATA + 21 * BLOCK_BYTES as u64;
/// Requests that fit.
pub const SLOTS: u16 = 21;

impl Memory for Ram {
    fn write(&self, address: u64, bytes: &[u8]) {
        Self::write(self, address, bytes);
    }

    fn read(&self, address: u64, length_bytes: usize) -> Vec<u8> {
        Self::read(self, address, length_bytes)
    }
}

impl Queue {
    pub fn new(index: u32) -> Self {
        let place = u64::from(index) * QUEUE_BYTES;
        let rings = Rings::new([place, place + AVAILABLE, place + USED], 64, false, 0);
        Self { index, place, rings, kick: doorbell(), call: doorbell(), error: doorbell() }
    }

    /// SET_VRING_ADDR.
    pub fn addresses(&self, ram: &Ram, flags: u32, log: u64) -> Vec<u8> {
        let Rings { descriptors, available, used, .. } = self.rings;
        [u32s(&[self.index, flags]), u64s(&[ram.user + descriptors, ram.user + used, ram.user + available, log])].concat()
    }

    /// Guest address of the used ring.
    pub fn used_address(&self, ram: &Ram) -> u64 {
        ram.guest + self.rings.used
    }

    /// Send the daemon all of the queue's set-up, so that it is served.
    pub fn start(&self, hypervisor: &Hypervisor, ram: &Ram) {
        hypervisor.send(SET_VRING_NUM, &u32s(&[self.index, self.rings.size.into()]), &[]);
        hypervisor.send(SET_VRING_BASE, &u32s(&[self.index, self.rings.next_available.into()]), &[]);
        hypervisor.send(SET_VRING_ADDR, &self.addresses(ram, 0, 0), &[]);
        hypervisor.send(SET_VRING_ERR, &u64s(&[self.index.into()]), &[self.error.as_fd()]);
        hypervisor.send(SET_VRING_CALL, &u64s(&[self.index.into()]), &[self.call.as_fd()]);
        hypervisor.send(SET_VRING_KICK, &u64s(&[self.index.into()]), &[self.kick.as_fd()]);
        hypervisor.send(SET_VRING_ENABLE, &u32s(&[self.index, 1]), &[]);
    }

    pub fn data_offset(&self, slot: u16) -> u64 {
        self.place + DATA + u64::from(slot) * BLOCK_BYTES as u64
    }

    /// A descriptor.
    pub fn describe(&self, ram: &Ram, index: u16, address: u64, length: u32, flags: u16, next: u16) {
        self.rings.put_descriptor(ram, self.rings.descriptors, index, (address, length), flags, next);
    }

    /// Make a request for a block of data available in `slot`; its data is at `address` if that is given.
    pub fn put_at(&mut self, ram: &Ram, slot: u16, kind: u32, sector: u64, address: Option<u64>) {
        let (header, status) = (self.place + HEADERS + u64::from(slot) * 16, self.place + STATUSES + u64::from(slot));
        ram.write(header, &[u32s(&[kind, 0]), u64s(&[sector])].concat());
        ram.write(status, &[UNANSWERED]);
        let data = address.unwrap_or_else(|| ram.guest + self.data_offset(slot));
        let head = slot * 3;
        let length = u32::try_from(BLOCK_BYTES).expect("small");
        let (length, next) = match kind {
            FLUSH => (0, head + 2),
            GET_ID => (20, head + 1),
            _ => (length, head + 1),
        };
        self.describe(ram, head, ram.guest + header, 16, NEXT, next);
        self.describe(ram, head + 1, data, length, if kind == OUT { NEXT } else { NEXT | WRITE }, head + 2);
        self.describe(ram, head + 2, ram.guest + status, 1, WRITE, 0);
        self.offer(ram, head);
    }

    pub fn put(&mut self, ram: &Ram, slot: u16, kind: u32, sector: u64) {
        self.put_at(ram, slot, kind, sector, None);
    }

    /// Make a chain available.
    pub fn offer(&mut self, ram: &Ram, head: u16) {
        self.rings.make_available(ram, head);
        self.rings.publish(ram);
    }

    pub fn kick(&self) {
        rustix::io::write(&self.kick, &1_u64.to_ne_bytes()).expect("an eventfd");
    }

    /// Kick as a driver does: only if the device asked for it.
    pub fn kick_if_asked(&mut self, ram: &Ram) {
        if self.rings.must_kick(ram) {
            self.kick();
        }
    }

    /// The slots and statuses of the requests completed since the last call.
    pub fn reap(&mut self, ram: &Ram) -> Vec<(u16, u8)> {
        let taken = std::iter::from_fn(|| self.rings.poll(ram)).map(|(head, _)| head / 3);
        taken.map(|slot| (slot, ram.read(self.place + STATUSES + u64::from(slot), 1)[0])).collect()
    }

    /// Wait until `count` more requests are completed.
    #[track_caller]
    pub fn wait(&mut self, ram: &Ram, count: usize) -> Vec<(u16, u8)> {
        let mut answered = self.reap(ram);
        while answered.len() < count {
            answered.extend(self.wait_for_some(ram));
        }
        assert_eq!(answered.len(), count);
        answered
    }

    /// Wait until a request is completed.
    #[track_caller]
    pub fn wait_for_some(&mut self, ram: &Ram) -> Vec<(u16, u8)> {
        loop {
            let answered = self.reap(ram);
            if !answered.is_empty() {
                return answered;
            }
            assert!(rings(&self.call), "nothing was answered");
        }
    }

    /// Carry out one request and return its status.
    #[track_caller]
    pub fn run(&mut self, ram: &Ram, kind: u32, sector: u64) -> u8 {
        self.put(ram, 0, kind, sector);
        self.kick();
        self.wait(ram, 1)[0].1
    }

    /// Write a block of its number and the version.
    #[track_caller]
    pub fn write_block(&mut self, ram: &Ram, block: u64, version: u64) {
        ram.write(self.data_offset(0), &stamp(BLOCK_BYTES, block, version));
        assert_eq!(self.run(ram, OUT, block * 8), OK);
    }

    /// A block holds what was written.
    #[track_caller]
    pub fn check_block(&mut self, ram: &Ram, block: u64, version: u64) {
        ram.write(self.data_offset(0), &[0x5a; BLOCK_BYTES]);
        assert_eq!(self.run(ram, IN, block * 8), OK);
        assert_eq!(ram.read(self.data_offset(0), BLOCK_BYTES), stamp(BLOCK_BYTES, block, version), "block {block}");
    }

    /// Stop the queue; the daemon's position.
    pub fn stop(&self, hypervisor: &Hypervisor) -> u16 {
        let reply = hypervisor.ask(GET_VRING_BASE, &u32s(&[self.index, 0]));
        u16::from_le_bytes(reply.body[4..6].try_into().expect("2 bytes"))
    }
}

/// Wait for the doorbell, at most for the tests' timeout.
pub fn rings(doorbell: &OwnedFd) -> bool {
    let rang = is_rung(doorbell);
    let _ = rustix::io::read(doorbell, &mut [0_u8; 8][..]);
    rang
}

/// A hypervisor with one running queue.
pub struct Vm {
    pub hypervisor: Hypervisor,
    pub ram: Ram,
    pub queue: Queue,
}

impl Vm {
    pub fn boot(socket: &Path) -> Self {
        let (hypervisor, ram, queue) = (Hypervisor::connect(socket), Ram::new(1 << 20), Queue::new(0));
        hypervisor.negotiate(&ram);
        queue.start(&hypervisor, &ram);
        Self { hypervisor, ram, queue }
    }

    #[track_caller]
    pub fn write_block(&mut self, block: u64, version: u64) {
        self.queue.write_block(&self.ram, block, version);
    }

    #[track_caller]
    pub fn check_block(&mut self, block: u64, version: u64) {
        self.queue.check_block(&self.ram, block, version);
    }

    /// The device works.
    #[track_caller]
    pub fn check(&mut self) {
        self.write_block(3, 1);
        self.check_block(3, 1);
        assert_eq!(self.queue.run(&self.ram, FLUSH, 0), OK);
    }
}

/// Bytes of the configuration space.
pub fn config(hypervisor: &Hypervisor, offset: u32, length: u32) -> Vec<u8> {
    let body = [u32s(&[offset, length, 0]), vec![0; usize::try_from(length).expect("short")]].concat();
    let reply = hypervisor.ask(GET_CONFIG, &body);
    assert_eq!(reply.body[..12], u32s(&[offset, length, 0]));
    reply.body[12..].to_vec()
}

/// Send the first bytes of a message and never the rest.
pub fn half_a_message(hypervisor: &Hypervisor) {
    (&hypervisor.stream).write_all(&u32s(&[GET_FEATURES, 1])).expect("it reads");
}
