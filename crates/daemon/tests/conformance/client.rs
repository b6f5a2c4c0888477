//! A client that writes its messages and rings byte by byte, without the client library.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use fipsee_testkit::Daemon;
use fipsee_testkit::bytes::*;

/// One queue.
pub(crate) struct Queue {
    pub(crate) requests: Cursor,
    pub(crate) completions: Cursor,
    /// Cold words of the request ring; those of the completion ring follow.
    pub(crate) cold: u64,
    pub(crate) depth: u32,
    pub(crate) daemon_doorbell: OwnedFd,
    pub(crate) doorbell: OwnedFd,
    /// Entries of messages of completions that no caller has taken yet.
    entries: VecDeque<(u16, u16)>,
}

pub(crate) struct Client {
    pub(crate) control: Socket,
    pub(crate) attached: Vec<u8>,
    pub(crate) file: OwnedFd,
    pub(crate) memory: Mapped,
    pub(crate) pool: u64,
    pub(crate) pool_bytes: u64,
    pub(crate) queues: Vec<Queue>,
}

/// A connection that has received WELCOME.
#[track_caller]
pub(crate) fn greeted(daemon: &Daemon) -> Socket {
    let control = Socket::connect(&daemon.socket());
    assert_eq!(control.ask(&hello(1, 1, 0), &[]).kind(), WELCOME);
    control
}

impl Client {
    #[track_caller]
    pub(crate) fn attach(daemon: &Daemon, wanted: &Wanted<'_>) -> Self {
        Self::attach_on(greeted(daemon), wanted)
    }

    #[track_caller]
    pub(crate) fn attach_on(control: Socket, wanted: &Wanted<'_>) -> Self {
        let answer = control.ask(&attach(wanted), &[]);
        assert_eq!((answer.kind(), answer.bytes.len()), (ATTACHED, 88), "{:02x?}", answer.bytes);
        let count = usize::from(u16_at(&answer.bytes, 12));
        assert_eq!(answer.files.len(), 1 + 2 * count, "the region and two doorbells for each queue");
        let mut files = answer.files.into_iter();
        let file = files.next().expect("counted");
        let memory = Mapped::new(&file, u64_at(&answer.bytes, 16));
        let header = memory.read(0, 64);
        let queue = |index: u64| {
            let entry = memory.read(64 + 64 * index, 64);
            let cursor = |ring: usize, word: usize| Cursor {
                ring: u64_at(&entry, ring),
                slots: u32_at(&entry, word),
                index: u32_at(&entry, word + 8),
                stamp: 1,
            };
            Queue {
                requests: cursor(0, 24),
                completions: cursor(8, 28),
                cold: u64_at(&entry, 16),
                depth: u32_at(&entry, 40),
                daemon_doorbell: files.next().expect("counted"),
                doorbell: files.next().expect("counted"),
                entries: VecDeque::new(),
            }
        };
        let queues = (0..u64::from(u16_at(&answer.bytes, 12))).map(queue).collect();
        let (pool, pool_bytes) = (u64_at(&header, 32), u64_at(&header, 40));
        Self { control, attached: answer.bytes, file, memory, pool, pool_bytes, queues }
    }

    /// Block info as ATTACHED gave it.
    pub(crate) fn info(&self) -> &[u8] {
        &self.attached[24..]
    }

    pub(crate) fn publish_on(&mut self, queue: usize, message: &[u8; 60]) {
        let queue = &mut self.queues[queue];
        queue.requests.publish(&self.memory, message);
        if must_ring(&self.memory, queue.cold) {
            // A full counter means that the doorbell has been rung already.
            let rung = rustix::io::write(&queue.daemon_doorbell, &1_u64.to_ne_bytes());
            assert!(matches!(rung, Ok(8) | Err(rustix::io::Errno::AGAIN)), "{rung:?}");
        }
    }

    pub(crate) fn publish(&mut self, message: &[u8; 60]) {
        self.publish_on(0, message);
    }

    pub(crate) fn try_message_on(&mut self, queue: usize) -> Option<[u8; 60]> {
        self.queues[queue].completions.take(&self.memory)
    }

    /// The next message of the completion ring.
    #[track_caller]
    pub(crate) fn message_on(&mut self, queue: usize) -> [u8; 60] {
        until("a message of the completion ring", || self.try_message_on(queue))
    }

    /// The next completion: tag and status. An event where none is expected is a failure.
    #[track_caller]
    pub(crate) fn completion_on(&mut self, queue: usize) -> (u16, u16) {
        while self.queues[queue].entries.is_empty() {
            let message = self.message_on(queue);
            self.queues[queue].entries.extend(entries(&message));
        }
        self.queues[queue].entries.pop_front().expect("just looked")
    }

    #[track_caller]
    pub(crate) fn completion(&mut self) -> (u16, u16) {
        self.completion_on(0)
    }

    /// Publish a request and take its answer: the status.
    #[track_caller]
    pub(crate) fn ask_on(&mut self, queue: usize, message: &[u8; 60]) -> u16 {
        self.publish_on(queue, message);
        let (tag, status) = self.completion_on(queue);
        assert_eq!(tag, u16_at(message, 4), "the tag");
        status
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, message: &[u8; 60]) -> u16 {
        self.ask_on(0, message)
    }

    pub(crate) fn fill(&self, offset: u64, bytes: &[u8]) {
        self.memory.write(self.pool + offset, bytes);
    }

    pub(crate) fn pool(&self, offset: u64, length: usize) -> Vec<u8> {
        self.memory.read(self.pool + offset, length)
    }

    /// Register memory; the answer.
    #[track_caller]
    pub(crate) fn register(&self, id: u16, access: u16, length: u64, file: &impl AsFd) -> Packet {
        self.control.ask(&register(id, access, length), &[file.as_fd()])
    }

    /// Wait until the *asleep* word of the request ring of `queue` is set: the daemon's worker sleeps or is about to.
    pub(crate) fn await_sleeping_daemon(&self, queue: usize) {
        let word = self.queues[queue].cold + 4;
        until("the daemon sleeps", || (self.memory.word(word).load(Ordering::SeqCst) != 0).then_some(()));
    }

    /// Set the *asleep* word of the completion ring of `queue` to `value`, and fence (2.4, steps 3 and 4).
    pub(crate) fn arm(&self, queue: usize, value: u32) {
        let word = self.queues[queue].cold + 128 + 4;
        self.memory.word(word).store(value, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// The entries of a message of completions, whose form is checked (5.5).
#[track_caller]
pub(crate) fn entries(message: &[u8; 60]) -> Vec<(u16, u16)> {
    let count = usize::from(message[0]);
    assert!((1..=14).contains(&count) && message[1..4] == [0; 3], "no completions: {message:02x?}");
    assert!(message[4 + 4 * count..].iter().all(|byte| *byte == 0), "entries beyond the count: {message:02x?}");
    (0..count).map(|index| (u16_at(message, 4 + 4 * index), u16_at(message, 6 + 4 * index))).collect()
}
