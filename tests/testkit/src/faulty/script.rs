//! A daemon of bytes with one disk and one queue, that sends what a test wants.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::SealFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::Scratch;
use crate::bytes::*;

pub const REGION_BYTES: u64 = 12_288;
const REQUESTS: u64 = 512;
const COMPLETIONS: u64 = 4096;
const POOL: u64 = 8192;
pub const COLD: u64 = 256;

/// What the daemon says; a test changes the bytes that it wants wrong.
pub struct Script {
    pub welcome: Vec<u8>,
    pub attached: Vec<u8>,
    /// Header and table.
    pub region: Vec<u8>,
    pub seals: SealFlags,
    pub file_bytes: u64,
    /// Descriptors of ATTACHED: so many fewer, or more.
    pub fewer: usize,
    pub more: usize,
    /// Descriptors of the other answers.
    pub stray: usize,
}

impl Script {
    /// A correct daemon with a disk of 1 MiB and a queue of this depth, at most 8; `capabilities` as in 5.8.
    pub fn new(depth: u32, capabilities: u32) -> Self {
        let mut welcome = control(WELCOME, 40);
        for (offset, value) in [(12, 1 | 4 << 16), (16, 256), (32, 1 << 20)] {
            welcome = with(welcome, offset, &u32::to_le_bytes(value));
        }
        let mut info = vec![0; 64];
        for (offset, value) in [(8, 2048), (16, 512), (20, 4096), (24, 1 << 20), (28, 2048), (32, 256), (36, capabilities)] {
            info = with(info, offset, &u32::to_le_bytes(value));
        }
        let attached = with(with(control(ATTACHED, 88), 12, &[1]), 16, &REGION_BYTES.to_le_bytes());
        let attached = with(attached, 24, &info);
        let mut region = with(vec![0; 128], 0, b"FIPSEE01");
        for (offset, value) in [(16, REGION_BYTES), (32, POOL), (40, 4096), (64, REQUESTS), (72, COMPLETIONS), (80, COLD)] {
            region = with(region, offset, &value.to_le_bytes());
        }
        for (offset, value) in [(8, 1), (12, 1), (88, 8), (92, 16), (96, 7), (100, 15), (104, depth)] {
            region = with(region, offset, &u32::to_le_bytes(value));
        }
        let seals = SealFlags::SHRINK;
        Self { welcome, attached, region, seals, file_bytes: REGION_BYTES, fewer: 0, more: 0, stray: 0 }
    }
}

/// The daemon's side of an attachment.
pub struct MockAttachment {
    pub control: Socket,
    pub memory: Mapped,
    pub requests: Cursor,
    pub completions: Cursor,
    /// The daemon's doorbell, and its end of the client's.
    pub daemon_doorbell: OwnedFd,
    pub doorbell: OwnedFd,
}

impl MockAttachment {
    /// The next message of the request ring.
    #[track_caller]
    pub fn take(&mut self) -> [u8; 60] {
        until("a request", || self.requests.take(&self.memory))
    }

    pub fn publish(&mut self, message: &[u8; 60]) {
        self.completions.publish(&self.memory, message);
        if must_ring(&self.memory, COLD + 128) {
            let _ = rustix::net::send(&self.doorbell, &[1], rustix::net::SendFlags::NOSIGNAL);
        }
    }

    pub fn answer(&mut self, tag: u16, status: u16) {
        self.publish(&completion(&[(tag, status)]));
    }

    /// Until the client sleeps on the completion ring.
    pub fn await_sleeping_client(&self) {
        until("the client sleeps", || (self.memory.word(COLD + 128 + 4).load(Ordering::SeqCst) != 0).then_some(()));
    }
}

pub fn completion(entries: &[(u16, u16)]) -> [u8; 60] {
    let mut bytes = [0; 60];
    bytes[0] = entries.len().to_le_bytes()[0];
    for (index, (tag, status)) in entries.iter().enumerate() {
        bytes[4 + 4 * index..6 + 4 * index].copy_from_slice(&tag.to_le_bytes());
        bytes[6 + 4 * index..8 + 4 * index].copy_from_slice(&status.to_le_bytes());
    }
    bytes
}

pub fn event(kind: u8, value: u64) -> [u8; 60] {
    let mut bytes = [0; 60];
    (bytes[0], bytes[1]) = (1, kind);
    bytes[8..16].copy_from_slice(&value.to_le_bytes());
    bytes
}

/// Listen in a folder of its own, and play `daemon` to one client.
pub fn play<T: Send + 'static>(daemon: impl FnOnce(Socket) -> T + Send + 'static) -> (Scratch, JoinHandle<T>) {
    let dir = Scratch::new();
    let listener = listen(&dir.path("s"));
    (dir, std::thread::spawn(move || daemon(Socket::accept(&listener))))
}

fn strays(count: usize) -> Vec<OwnedFd> {
    (0..count).map(|_| eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd")).collect()
}

fn borrowed(files: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    files.iter().map(AsFd::as_fd).collect()
}

/// HELLO to ATTACHED; `None`: the client has closed the connection.
pub fn handshake(control: Socket, script: &Script) -> Option<MockAttachment> {
    control.receive()?;
    let stray = strays(script.stray);
    control.send(&script.welcome, &borrowed(&stray));
    control.receive()?;
    let file = memory_file(script.file_bytes, SealFlags::empty());
    let memory = Mapped::new(&file, script.file_bytes);
    memory.write(0, &script.region);
    rustix::fs::fcntl_add_seals(&file, script.seals).expect("seals");
    let daemon_doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (doorbell, their_doorbell) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
    let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().expect("a copy");
    let mut files = vec![copy(file.as_fd()), copy(daemon_doorbell.as_fd()), their_doorbell];
    files.truncate(3 - script.fewer);
    files.extend(strays(script.more));
    control.send(&script.attached, &borrowed(&files));
    let cursor = |ring, slots: usize, start: usize| Cursor {
        ring,
        slots: u32_at(&script.region, slots),
        index: u32_at(&script.region, start),
        stamp: 1,
    };
    let (requests, completions) = (cursor(REQUESTS, 88, 96), cursor(COMPLETIONS, 92, 100));
    Some(MockAttachment { control, memory, requests, completions, daemon_doorbell, doorbell })
}
