//! What a hypervisor sends: the parser of its messages, and the state machine of its device, a disk or a port, with the queues that it serves.

mod neighbour;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use fipsee_block::disk::{Disk, Engine, MemoryDisk, MemoryOptions};
use fipsee_daemon::transport::vhost_user::device::{Acknowledgement, Action, Device, DiskDescription, NotServed};
use fipsee_daemon::transport::vhost_user::message::{HEADER_BYTES, Header, Message};
use fipsee_ring::region::Region;
use fipsee_ring::tuning::Choices;
use fipsee_serve::{Queue, Turn};
use fipsee_virtio::blk::server::VirtqueueServer;
use fipsee_virtio::core::ServedVirtqueue;
use fipsee_virtio::net::server::PortQueue;
use rustix::event::EventfdFlags;

use self::neighbour::Neighbour;
use crate::channel::copy;
use crate::take;

/// Of a disk.
const QUEUES: u16 = 2;
/// Of a port.
const PAIRS: u16 = 2;
const MEMORY_BYTES: u64 = 64 << 10;
const MAX_BODY_BYTES: usize = 4096;
/// Messages of an input: as many as a hypervisor that starts and stops all queues sends.
const MAX_MESSAGES: usize = 64;
/// Acknowledgements that a message may wait for, far more than it has queues to stop, move and serve.
const MAX_ACKNOWLEDGEMENTS: usize = 100;

struct Fixture {
    memory: Region,
    event: OwnedFd,
    stream: OwnedFd,
    disk: MemoryDisk,
    engine: Engine,
}

thread_local! {
    static FIXTURE: RefCell<Fixture> = RefCell::new(Fixture::new());
}

/// Messages one after the other: a byte for descriptors and the order of acknowledgements, the header, the body.
pub(crate) fn one(bytes: &[u8]) {
    play(bytes, None);
}

/// The same of a device that is a port.
pub(crate) fn one_port(bytes: &[u8]) {
    play(bytes, Some(Neighbour::new()));
}

fn play(bytes: &[u8], neighbour: Option<Neighbour>) {
    FIXTURE.with_borrow_mut(|fixture| {
        let zeroes = vec![0; usize::try_from(MEMORY_BYTES).expect("small")];
        fixture.memory.write(0, &zeroes).expect("all of it");
        if neighbour.is_some() {
            Neighbour::fill(&fixture.memory);
        }
        Conversation::new(fixture, neighbour).play(bytes);
    });
}

impl Fixture {
    fn new() -> Self {
        Self {
            memory: Region::create("fuzz-guest", MEMORY_BYTES).expect("memory"),
            event: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor"),
            stream: UnixStream::pair().expect("descriptors").0.into(),
            disk: MemoryDisk::new(&MemoryOptions { size_bytes: 64 << 10, ..Default::default() }).expect("memory"),
            engine: Engine::new(8).expect("an engine"),
        }
    }
}

/// A queue that is served.
enum Served {
    Disk(Box<VirtqueueServer>),
    Port(Box<PortQueue>),
}

impl Served {
    fn virtqueue(&mut self) -> &mut dyn ServedVirtqueue {
        match self {
            Self::Disk(queue) => &mut **queue,
            Self::Port(queue) => &mut **queue,
        }
    }

    fn disk(&mut self) -> &mut VirtqueueServer {
        let Self::Disk(queue) = self else { panic!("a queue of a port is used as one of a disk") };
        queue
    }

    fn stop(self) -> u16 {
        match self {
            Self::Disk(queue) => queue.stop(),
            Self::Port(queue) => queue.stop(),
        }
    }
}

struct Conversation<'a> {
    fixture: &'a mut Fixture,
    device: Device,
    /// Of a device that is a port.
    neighbour: Option<Neighbour>,
    queues: Vec<Option<Served>>,
    /// What is done and not acknowledged.
    done: VecDeque<Acknowledgement>,
    /// The file that came with the last answer.
    given: Option<OwnedFd>,
    /// The request under way, and how often it was answered.
    answers: (u32, u32),
}

impl<'a> Conversation<'a> {
    fn new(fixture: &'a mut Fixture, neighbour: Option<Neighbour>) -> Self {
        let (device, count) = match &neighbour {
            None => {
                let disk = DiskDescription { name: "disk".to_owned(), info: fixture.disk.info(), read_only: false };
                (Device::new(disk, QUEUES), QUEUES)
            }
            Some(neighbour) => (Device::of_port(neighbour.described(PAIRS)), 2 * PAIRS + 1),
        };
        let queues = (0..count).map(|_| None).collect();
        Self { fixture, device, neighbour, queues, done: VecDeque::new(), given: None, answers: (0, 0) }
    }

    fn play(mut self, mut bytes: &[u8]) {
        for _ in 0..MAX_MESSAGES {
            if bytes.is_empty() || self.message(&mut bytes).is_err() {
                break;
            }
            self.visit();
        }
        self.device.hung_up(bytes.len() % 2 == 1);
        while !self.settle(true) {}
        assert!(self.queues.iter().all(Option::is_none), "a queue is served after the hypervisor has gone");
        self.neighbour.iter().for_each(Neighbour::check_gone);
    }

    /// The next message, until it has taken effect.
    fn message(&mut self, bytes: &mut &[u8]) -> Result<(), ()> {
        let [choice] = take(bytes);
        let raw = take::<HEADER_BYTES>(bytes);
        let [code, flags, length_bytes] =
            [0, 4, 8].map(|at| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]));
        let (header, length) = Header::parse(raw);
        let Some(length) = length else { return Err(()) };
        assert!(length <= MAX_BODY_BYTES && u32::try_from(length) == Ok(length_bytes), "a body of {length} bytes");
        assert!(flags & 3 == 1 && !header.to_string().starts_with("request "), "{header} with flags {flags:#x}");
        let (body, rest) = bytes.split_at(length.min(bytes.len()));
        *bytes = rest;
        let mut body = body.to_vec();
        body.resize(length, 0);
        let descriptors = (0..choice & 3).map(|index| self.descriptor((choice >> 2) + index)).collect();
        self.answers = (code, 0);
        let taken = self.device.message(Message { header, body, descriptors });
        if let Err(problem) = &taken {
            assert!(problem.starts_with(&header.to_string()), "{header} is not named by {problem:?}");
        }
        if choice & 128 != 0 {
            // A queue goes to another worker, if it is served when the message has taken effect; there may be no such queue.
            self.device.transfer(u16::from(choice & 3), usize::from(choice & 1));
        }
        let has_settled = self.settle(choice & 64 == 0);
        assert!(self.answers.1 <= 1, "{header} is answered {} times", self.answers.1);
        if taken.is_ok() && has_settled { Ok(()) } else { Err(()) }
    }

    fn descriptor(&self, kind: u8) -> OwnedFd {
        match (kind & 3, &self.given) {
            (1, _) => copy(&self.fixture.event),
            (2, _) => copy(&self.fixture.stream),
            (3, Some(file)) => copy(file),
            _ => copy(&self.fixture.memory),
        }
    }

    /// Acknowledge everything, the oldest or the newest first; `false`: the message was refused.
    fn settle(&mut self, oldest_first: bool) -> bool {
        self.carry_out();
        for _ in 0..MAX_ACKNOWLEDGEMENTS {
            let next = if oldest_first { self.done.pop_front() } else { self.done.pop_back() };
            let Some(done) = next else {
                assert!(self.device.is_settled(), "everything is acknowledged, and something is waited for");
                return true;
            };
            if self.device.acknowledged(done).is_err() {
                return false;
            }
            self.carry_out();
        }
        panic!("more than {MAX_ACKNOWLEDGEMENTS} things are done for a message");
    }

    fn carry_out(&mut self) {
        for action in self.device.take_actions() {
            let done = match action {
                Action::Reply(bytes, file) => {
                    self.answers.1 += 1;
                    let length = u32::try_from(bytes.len() - HEADER_BYTES).expect("short");
                    assert_eq!(bytes[..HEADER_BYTES], [self.answers.0, 5, length].map(u32::to_le_bytes).concat());
                    self.given = file.or(self.given.take());
                    continue;
                }
                Action::Announce(_) | Action::EndClaim | Action::Warn(..) => continue,
                Action::Claim => Acknowledgement::Done(Ok(())),
                Action::Serve(number, _, setup) => {
                    let made = VirtqueueServer::new(number.into(), *setup, None);
                    self.serve(number, made.map(|queue| Served::Disk(Box::new(queue))))
                }
                Action::ServePort(number, role, setup) => {
                    let neighbour = self.neighbour.as_ref().expect("the device is a port");
                    let made = PortQueue::new(neighbour.machine(), role, PAIRS, *setup, Box::new(|_| {}));
                    self.serve(number, made.map(|queue| Served::Port(Box::new(queue))))
                }
                Action::Stop(number) => {
                    let queue = self.queues[usize::from(number)].take();
                    let queue = queue.unwrap_or_else(|| panic!("queue {number} is stopped, and not served"));
                    Acknowledgement::Stopped(number, Some(queue.stop()))
                }
                Action::Move(number, memory, rings) => {
                    Acknowledgement::Moved(number, self.served(number).virtqueue().set_memory(memory, rings))
                }
                Action::Transfer(number, worker) => self.transfer(number, worker),
                Action::Change(number, change) => Acknowledgement::Done(change(self.served(number).virtqueue())),
                Action::SendRarp(number, mac) => {
                    if let Some(Served::Port(queue)) = &self.queues[usize::from(number)] {
                        queue.announce(mac);
                    }
                    Acknowledgement::Done(Ok(()))
                }
                // Dropping the sender says that nothing is in flight on the ring.
                Action::Ring(number, how) => {
                    how(self.served(number).disk(), std::sync::mpsc::channel().0);
                    Acknowledgement::Done(Ok(()))
                }
            };
            self.done.push_back(done);
        }
    }

    fn serve(&mut self, number: u16, made: Result<Served, String>) -> Acknowledgement {
        let queue = &mut self.queues[usize::from(number)];
        assert!(queue.is_none(), "queue {number} is served twice");
        Acknowledgement::Served(number, made.map(|made| *queue = Some(made)).map(|()| Choices::default()))
    }

    fn transfer(&mut self, number: u16, worker: usize) -> Acknowledgement {
        if worker % 4 == 3 {
            let queue = self.queues[usize::from(number)].take().expect("it is served");
            let next_available = Some(queue.stop());
            let not_served = NotServed { problem: "no worker can have it".to_owned(), next_available };
            return Acknowledgement::Transferred(number, Err(not_served));
        }
        let (id, info) = (u32::try_from(worker).expect("small"), self.fixture.disk.info());
        match self.served(number) {
            Served::Disk(queue) => queue.moved(id, &info),
            Served::Port(queue) => Queue::<()>::moved(&mut **queue, id),
        }
        Acknowledgement::Transferred(number, Ok(Choices::default()))
    }

    fn served(&mut self, number: u16) -> &mut Served {
        self.queues[usize::from(number)].as_mut().unwrap_or_else(|| panic!("queue {number} is not served"))
    }

    /// What a worker does between two messages.
    fn visit(&mut self) {
        self.neighbour.iter().for_each(Neighbour::send);
        let Fixture { disk, engine, .. } = &mut *self.fixture;
        for queue in self.queues.iter_mut().flatten() {
            match queue {
                Served::Disk(queue) => {
                    queue.visit(disk, engine, Turn::whole(false));
                    queue.flush();
                    assert_eq!(queue.in_flight(), 0, "a memory disk answers at once");
                }
                Served::Port(queue) => {
                    Queue::<()>::visit(&mut **queue, &mut (), Turn::whole(false));
                    Queue::<()>::flush(&mut **queue);
                }
            }
        }
        self.neighbour.iter().for_each(Neighbour::check);
    }
}

/// A message that wants an answer.
fn message(choice: u8, code: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("short");
    [&[choice], [code, 1 | 8, length].map(u32::to_le_bytes).as_flattened(), body].concat()
}

fn numbers<const N: usize>(numbers: [u64; N]) -> Vec<u8> {
    numbers.map(u64::to_le_bytes).concat()
}

fn state(index: u32, value: u32) -> Vec<u8> {
    [index, value].map(u32::to_le_bytes).concat()
}

const USER: u64 = 0x5000_0000_0000;

/// A hypervisor that negotiates these features.
fn negotiate(protocol_features: u64, features: u64) -> Vec<Vec<u8>> {
    vec![
        message(0, 1, &[]),
        message(0, 15, &[]),
        message(0, 16, &numbers([protocol_features])),
        message(0, 3, &[]),
        message(0, 2, &numbers([features])),
    ]
}

/// A hypervisor that starts a queue whose rings are there.
fn start_queue(index: u32, rings: u64) -> Vec<Vec<u8>> {
    let event = 1 | 1 << 2;
    vec![
        message(0, 8, &state(index, 8)),
        message(0, 10, &state(index, 0)),
        message(0, 9, &[state(index, 0), numbers([rings, rings + 1024, rings + 512, 0])].concat()),
        message(event, 13, &numbers([index.into()])),
        message(event, 14, &numbers([index.into()])),
        message(event, 12, &numbers([index.into()])),
        message(0, 18, &state(index, 1)),
    ]
}

/// A hypervisor that starts a queue with an inflight area, up to the last message.
fn start() -> Vec<Vec<u8>> {
    let (memory, given_file) = (1, 1 | 3 << 2);
    let area = [vec![0; 16], [1_u16, 8, 0, 0].map(u16::to_le_bytes).concat()].concat();
    let mut given = area.clone();
    given[0..8].copy_from_slice(&192_u64.to_le_bytes());
    let between =
        vec![message(0, 31, &area), message(given_file, 32, &given), message(memory, 5, &numbers([1, 0, MEMORY_BYTES, USER, 0]))];
    let protocol_features = 1 | 1 << 1 | 1 << 3 | 1 << 5 | 1 << 9 | 1 << 12 | 1 << 13 | 1 << 15;
    [negotiate(protocol_features, 1 << 32 | 1 << 30 | 1 << 9), between, start_queue(0, USER)].concat()
}

/// A hypervisor that starts the queues of a port: a pair, and that for commands.
fn start_port() -> Vec<Vec<u8>> {
    let memory = vec![message(1, 5, &numbers([1, 0, MEMORY_BYTES, USER, 0]))];
    let protocol_features = 1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 9 | 1 << 13 | 1 << 15;
    let queues: Vec<Vec<u8>> =
        [0, 1, 4].iter().zip(neighbour::RINGS).map(|(index, rings)| start_queue(*index, USER + rings).concat()).collect();
    [negotiate(protocol_features, 1 << 32 | 1 << 30 | 1 << 22 | 1 << 17 | 1 << 15), memory, queues].concat()
}

/// Messages of a port's device that follow its start.
pub(crate) fn port_seeds() -> Vec<Vec<u8>> {
    let memory = 1;
    let rarp = |last: u8| message(0, 19, &[2, 0, 0, 0, 0, last, 0, 0]);
    let config = |offset: u32, length: u32| [offset, length, 0].map(u32::to_le_bytes).concat();
    let after = [
        vec![rarp(0), rarp(1), message(0, 20, &numbers([1500]))],
        vec![message(64, 11, &state(0, 0)), message(0, 11, &state(1, 0))],
        vec![message(0, 24, &[config(0, 12), vec![0; 12]].concat()), message(0, 17, &[])],
        vec![message(memory, 6, &numbers([4096, 0])), message(0, 2, &numbers([1 << 32 | 1 << 30 | 1 << 26 | 1 << 17]))],
        vec![message(128, 18, &state(0, 0)), message(129, 18, &state(0, 1)), message(0, 3, &[])],
        vec![message(memory, 5, &numbers([1, 0, 512, USER, 0])), message(memory, 5, &numbers([1, 0, MEMORY_BYTES, USER, 0]))],
        vec![message(0, 34, &[]), message(0, 36, &[])],
        vec![message(0, 1, &[])],
        [start_queue(2, USER + 12288), start_queue(3, USER + 16384)].concat(),
        // Interrupts go to a socket that has no reader.
        vec![message(1 | 2 << 2, 13, &numbers([0]))],
    ];
    after.into_iter().map(|more| start_port().into_iter().chain(more).flatten().collect()).collect()
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let (memory, stream) = (1, 1 | 2 << 2);
    let single = |address: u64| numbers([0, address, 4096, 0x6000_0000_0000, 0]);
    let config = |offset: u32, length: u32| [offset, length, 0].map(u32::to_le_bytes).concat();
    let after = [
        vec![message(64, 11, &state(0, 0))],
        vec![message(memory, 37, &single(MEMORY_BYTES)), message(0, 38, &single(MEMORY_BYTES))],
        vec![message(stream, 21, &[]), message(0, 24, &[config(0, 8), vec![0; 8]].concat())],
        vec![message(memory, 6, &numbers([4096, 0])), message(0, 2, &numbers([1 << 32 | 1 << 30 | 1 << 26 | 1 << 9]))],
        vec![message(0, 25, &[config(32, 1), vec![1]].concat())],
        vec![message(0, 34, &[]), message(0, 36, &[]), message(0, 17, &[])],
        vec![message(0, 18, &state(0, 0)), message(0, 18, &state(0, 1)), message(0, 3, &[])],
        vec![message(memory, 5, &numbers([1, 0, 512, USER, 0]))],
        vec![message(2, 5, &numbers([2, 0, 4096, 0, 0, 4096, 4096, 4096, 4096]))],
    ];
    after.into_iter().map(|more| start().into_iter().chain(more).flatten().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which queues are served then, and how many frames of a machine have come.
    fn started(messages: &[Vec<u8>], neighbour: Option<Neighbour>) -> (Vec<bool>, usize) {
        let mut fixture = Fixture::new();
        if neighbour.is_some() {
            Neighbour::fill(&fixture.memory);
        }
        let mut conversation = Conversation::new(&mut fixture, neighbour);
        let messages = messages.concat();
        let mut rest = &messages[..];
        while !rest.is_empty() {
            assert_eq!(conversation.message(&mut rest), Ok(()), "{rest:x?} is left");
            conversation.visit();
        }
        let served = conversation.queues.iter().map(Option::is_some).collect();
        let came = conversation.neighbour.as_ref().map_or(0, Neighbour::came);
        conversation.play(&[]);
        (served, came)
    }

    #[test]
    fn seeds_serve_queues_to_the_end() {
        assert_eq!(started(&start(), None), (vec![true, false], 0));
        assert_eq!(started(&start_port(), Some(Neighbour::new())), (vec![true, true, false, false, true], 1));
    }
}
