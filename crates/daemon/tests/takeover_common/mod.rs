//! Shared by the tests of takeovers: a second daemon beside the first, and a client that verifies under load.
#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod between;

use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use fipsee_block::client::{AttachOptions, Buffer, Disk, Queue};
use fipsee_block::wire::{SECTOR_BYTES, Status};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};
use serde_json::Value;

use crate::common::{Daemon, TIMEOUT, bytes_of, eventually, stamp};

/// Bytes of one request.
const BLOCK_BYTES: usize = 4096;

/// A client that keeps its queue full, and reads back everything that it wrote.
pub(crate) struct Load {
    disk: String,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: JoinHandle<u64>,
}

/// One outstanding request: it writes to a block of its own and reads it back, in turns.
struct Lane {
    buffer: Buffer,
    sector: u64,
    version: u64,
    is_reading: bool,
}

impl Lane {
    fn submit(&mut self, queue: &mut Queue, token: u64) {
        let segment = self.buffer.segment(0, BLOCK_BYTES as u64);
        if self.is_reading {
            self.buffer.fill(0, &[0xee; BLOCK_BYTES]);
            queue.read(self.sector, segment, token).expect("room");
        } else {
            self.version += 1;
            self.buffer.fill(0, &stamp(BLOCK_BYTES, token, self.version));
            queue.write(self.sector, segment, token.is_multiple_of(8), token).expect("room");
        }
    }

    fn check(&mut self, token: u64) {
        if self.is_reading {
            // A lost write, or one repeated after the next, would leave an older version.
            assert!(bytes_of(&self.buffer) == stamp(BLOCK_BYTES, token, self.version), "block {token} is not as it was written");
        }
        self.is_reading = !self.is_reading;
    }
}

impl Load {
    /// Attach, and keep `depth` requests outstanding.
    pub(crate) fn start(daemon: &Daemon, disk: &str, depth: u32) -> Self {
        let options = AttachOptions { depth, ..Daemon::options(disk) };
        let (stop, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (socket, stopped, count) = (daemon.socket(), Arc::clone(&stop), Arc::clone(&done));
        let thread = std::thread::spawn(move || run(&socket, &options, depth, &stopped, &count));
        Self { disk: disk.to_owned(), stop, done, thread }
    }

    /// Wait until some hundred more requests are finished.
    #[track_caller]
    pub(crate) fn await_progress(&self) {
        let before = self.done.load(Ordering::Relaxed);
        eventually(&format!("the load on '{}' makes progress", self.disk), || {
            assert!(!self.thread.is_finished(), "the load ended early; see above");
            self.done.load(Ordering::Relaxed) >= before + 500
        });
    }

    /// Let the outstanding requests finish; the number of requests done, all without an error.
    pub(crate) fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("no request failed, and everything written was read")
    }
}

fn run(socket: &Path, options: &AttachOptions, depth: u32, stop: &AtomicBool, done: &AtomicU64) -> u64 {
    let (disk, mut queues) = Disk::attach(socket, options).expect("attached");
    let queue = &mut queues[0];
    let mut lanes: Vec<Lane> = (0..u64::from(depth))
        .map(|place| {
            let buffer = disk.allocate(BLOCK_BYTES as u64).expect("a pool");
            Lane { buffer, sector: place * BLOCK_BYTES as u64 / SECTOR_BYTES, version: 0, is_reading: false }
        })
        .collect();
    let mut outstanding = vec![true; lanes.len()];
    for (token, lane) in (0..).zip(&mut lanes) {
        lane.submit(queue, token);
    }
    queue.submit();
    while outstanding.contains(&true) {
        let mut finished = Vec::new();
        queue.wait(&mut |completion| finished.push(completion)).expect("the daemon is there");
        for completion in finished {
            assert_eq!(completion.status, Status::Ok);
            let lane = usize::try_from(completion.token).expect("small");
            assert!(std::mem::take(&mut outstanding[lane]), "completed twice");
            lanes[lane].check(completion.token);
            done.fetch_add(1, Ordering::Relaxed);
            if !stop.load(Ordering::Relaxed) {
                lanes[lane].submit(queue, completion.token);
                outstanding[lane] = true;
            }
        }
        queue.submit();
    }
    done.load(Ordering::Relaxed)
}

/// The pauses that new daemons logged, in microseconds.
pub(crate) fn pauses_us(log: &str) -> Vec<u64> {
    let lines = log.lines().filter(|line| line.contains("took over from another daemon"));
    let of_line = |line: &str| line.split("paused_us=").nth(1)?.split_whitespace().next()?.parse().ok();
    lines.filter_map(of_line).collect()
}

/// The peer of the old daemon in place of a new daemon: a test that may send anything.
pub(crate) struct FakeNew {
    line: OwnedFd,
    _stream: UnixStream,
}

impl FakeNew {
    /// Ask for a takeover as a new daemon does.
    pub(crate) fn connect(daemon: &Daemon) -> Self {
        let stream = UnixStream::connect(fipsee_daemon::admin::admin_path(&daemon.socket())).expect("an admin socket");
        (&stream).write_all(b"{\"request\":\"takeover\",\"version\":6,\"wait_ms\":1000}\n").expect("it reads");
        let (answer, line) = receive_with_descriptors(stream.as_fd(), RecvFlags::empty()).expect("it answers");
        let line = line.into_iter().next().unwrap_or_else(|| panic!("no line: {}", String::from_utf8_lossy(&answer)));
        Self { line, _stream: stream }
    }

    /// The next packet; `None`: the end.
    pub(crate) fn receive(&self) -> Option<(Value, Vec<OwnedFd>)> {
        let mut fds = [PollFd::new(&self.line, PollFlags::IN)];
        let timeout = Timespec::try_from(TIMEOUT).expect("small");
        assert!(rustix::event::poll(&mut fds, Some(&timeout)).expect("poll") > 0, "nothing within {TIMEOUT:?}");
        let (bytes, descriptors) = receive_with_descriptors(self.line.as_fd(), RecvFlags::empty())?;
        Some((serde_json::from_slice(&bytes).expect("JSON"), descriptors))
    }

    pub(crate) fn try_send(&self, bytes: &[u8]) -> bool {
        rustix::net::send(&self.line, bytes, SendFlags::NOSIGNAL).is_ok()
    }

    pub(crate) fn send(&self, bytes: &[u8]) {
        assert!(self.try_send(bytes), "the old daemon has hung up");
    }

    /// The old daemon's last packet before it hangs up.
    pub(crate) fn last_word(&self) -> Option<String> {
        let mut last = None;
        while let Some((packet, _)) = self.receive() {
            last = packet["packet"].as_str().map(str::to_owned);
        }
        last
    }
}

/// One message with its descriptors; `None` at the end.
pub(crate) fn receive_with_descriptors(socket: BorrowedFd<'_>, flags: RecvFlags) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; 64 << 10];
    let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags).ok()?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let descriptors = rights.flatten().collect();
    bytes.truncate(received.bytes);
    (received.bytes > 0).then_some((bytes, descriptors))
}
