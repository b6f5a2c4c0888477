//! Packets of any bytes and any number of descriptors, in any order and of several clients, through the sessions of a service, with
//! workers that do their part at any time: greeting, attaching, memory, moves of queues, leaving.

mod program;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fipsee_ring::control::{Control, MAX_MESSAGE_BYTES, VERSION, Wanted};
use fipsee_ring::region::Region;
use fipsee_ring::wait::{Backoff, WaitMode};
use fipsee_serve::session::{Action, Credentials, Done, Host, Sessions};
use fipsee_serve::{Assignment, Worker, WorkerHandle, WorkerPlacement};

use self::program::{FEATURES, MAX_CLIENTS, Program, SERVICE};
use crate::channel::copy;
use crate::take;

/// Steps of an input.
const MAX_STEPS: usize = 400;
/// Rounds in which workers let go of everything.
const ROUNDS: usize = 20;
const MEMORY_BYTES: u64 = 4096;

// What a step is.
const CONNECT: u8 = 0;
const PACKET: u8 = 1;
const MESSAGE: u8 = 2;
const HANG_UP: u8 = 3;
const WORK: u8 = 4;
const REPORT: u8 = 5;
const TIME: u8 = 6;
const STEPS: u8 = 8;

/// The kind of a message that is a LIST.
const LIST: u8 = 30;

/// Workers, which serve nothing between two inputs.
struct Fixture {
    workers: Vec<Worker<()>>,
    handles: Vec<WorkerHandle<()>>,
    memory: Region,
}

thread_local! {
    static FIXTURE: RefCell<Fixture> = RefCell::new(Fixture::new());
}

/// Steps one after the other: two bytes, and what belongs to them.
pub(crate) fn one(bytes: &[u8]) {
    FIXTURE.with_borrow_mut(|fixture| Play::new(fixture).play(bytes));
}

impl Fixture {
    fn new() -> Self {
        let backoff = || Backoff::new(WaitMode::Sleep, Duration::ZERO);
        let workers = (0..2).map(|_| Worker::new(WorkerPlacement::default(), backoff(), ()).expect("descriptors"));
        let (workers, handles) = workers.unzip();
        Self { workers, handles, memory: Region::create("fuzz-memory", MEMORY_BYTES).expect("memory") }
    }
}

struct Play<'a> {
    fixture: &'a mut Fixture,
    sessions: Sessions<(), Program>,
    reports: Arc<Mutex<Vec<(u64, Done)>>>,
    /// All clients that were let in.
    clients: Vec<u64>,
    /// Those that are connected.
    open: BTreeSet<u64>,
    now: Instant,
}

impl<'a> Play<'a> {
    fn new(fixture: &'a mut Fixture) -> Self {
        let reports = Arc::<Mutex<Vec<_>>>::default();
        let to = Arc::clone(&reports);
        let report = Arc::new(move |client, done| to.lock().expect("one thread").push((client, done)));
        let sessions = Sessions::new(Program::new(fixture.handles.clone()), report);
        Self { fixture, sessions, reports, clients: Vec::new(), open: BTreeSet::new(), now: Instant::now() }
    }

    fn play(mut self, mut bytes: &[u8]) {
        for _ in 0..MAX_STEPS {
            if bytes.is_empty() {
                break;
            }
            let [step, choice] = take(&mut bytes);
            self.step(step, choice, &mut bytes);
            self.carry_out();
            assert_eq!(self.sessions.len(), self.open.len(), "clients whose connections are open");
        }
        self.end();
    }

    fn step(&mut self, step: u8, choice: u8, bytes: &mut &[u8]) {
        match step % STEPS {
            CONNECT => self.connect(choice),
            WORK => _ = self.fixture.workers[usize::from(choice & 1)].pass(),
            REPORT => self.report(),
            TIME => self.pass_time(Duration::from_millis(u64::from(choice) * 50)),
            other => {
                let place = usize::from(choice & 15) % self.clients.len().max(1);
                let Some(client) = self.clients.get(place).copied() else { return };
                match other {
                    PACKET => self.packet(client, choice >> 6, bytes),
                    MESSAGE => self.message(client, step >> 3, bytes),
                    HANG_UP => self.sessions.hung_up(client),
                    _ => self.other(client, step >> 3, choice >> 4),
                }
            }
        }
    }

    fn connect(&mut self, choice: u8) {
        let credentials = Credentials { uid: u32::from(choice & 1), ..Credentials::default() };
        if let Ok(client) = self.sessions.connected(credentials, self.now) {
            assert!(self.open.insert(client), "client {client} is there already");
            self.clients.push(client);
        }
        assert!(self.open.len() <= MAX_CLIENTS, "{} clients are let in", self.open.len());
    }

    fn files(&self, count: u8) -> Vec<OwnedFd> {
        (0..count).map(|_| copy(&self.fixture.memory)).collect()
    }

    /// Of any bytes.
    fn packet(&mut self, client: u64, files: u8, bytes: &mut &[u8]) {
        let [length] = take(bytes);
        let (packet, rest) = bytes.split_at(usize::from(length).min(bytes.len()).min(MAX_MESSAGE_BYTES));
        *bytes = rest;
        self.sessions.packet(client, packet, self.files(files), self.now);
    }

    /// One that can be read, with the descriptor that belongs to it.
    fn message(&mut self, client: u64, kind: u8, bytes: &mut &[u8]) {
        let [number, other] = take(bytes);
        let region = u16::from(number);
        let message = match (kind, kind % 5) {
            (LIST, _) => {
                Control::List { service: SERVICE - u16::from(other & 1), after: "echo"[..usize::from(number % 5)].to_owned() }
            }
            (_, 0) => Control::Hello { version_min: VERSION, version_max: VERSION + u16::from(number), features: other.into() },
            (_, 1) => Control::Attach(Wanted {
                service: SERVICE,
                queue_count: u16::from(number % 4),
                depth: u32::from(other % 16),
                flags: u32::from(other >> 7),
                pool_bytes: u64::from(number) << 6,
                name: "echo".to_owned(),
            }),
            (_, 2) => Control::Register { region, access: u16::from(other & 7), length_bytes: u64::from(other >> 3) * 1024 },
            (_, 3) => Control::Unregister { region },
            _ => Control::Detach,
        };
        let files = self.files(u8::from(matches!(message, Control::Register { .. })));
        self.sessions.packet(client, &message.encode(), files, self.now);
    }

    fn other(&mut self, client: u64, what: u8, choice: u8) {
        let error = || std::io::Error::from_raw_os_error(11);
        match what % 5 {
            0 => self.sessions.balance(),
            1 => {
                let to = usize::from(choice & 1);
                self.sessions.move_queue(client, u16::from(choice >> 1), Assignment::to(to, &self.fixture.handles[to]));
            }
            2 => self.sessions.unreadable(client, &error()),
            3 => self.sessions.not_taken(client, &error()),
            _ => self.sessions.drain(),
        }
    }

    /// What the workers have acknowledged.
    fn report(&mut self) {
        let reports = std::mem::take(&mut *self.reports.lock().expect("one thread"));
        reports.into_iter().for_each(|(client, done)| self.sessions.acknowledged(client, done));
    }

    fn pass_time(&mut self, time: Duration) {
        self.now += time;
        self.sessions.tick(self.now);
    }

    fn carry_out(&mut self) {
        for action in self.sessions.take_actions() {
            match action {
                Action::Send { client, message, grant } => {
                    assert!(self.open.contains(&client), "client {client} is gone and is sent {message:?}");
                    assert_eq!(Control::decode(&message.encode()).as_ref(), Ok(&message), "what is sent can be read");
                    let granted = grant.map_or(0, |grant| (grant.descriptors().len() - 1) / 2);
                    let announced = if let Control::Attached { queue_count, .. } = message { queue_count } else { 0 };
                    assert_eq!(usize::from(announced), granted, "queues in {message:?}");
                }
                Action::Close { client } => assert!(self.open.remove(&client), "client {client} is closed twice"),
                Action::Command { worker, command } => self.sessions.host.command(worker, command),
            }
        }
    }

    /// All hang up: nothing of them is left when the workers have done their part.
    fn end(mut self) {
        for client in std::mem::take(&mut self.clients) {
            self.sessions.hung_up(client);
        }
        for _ in 0..ROUNDS {
            self.carry_out();
            self.fixture.workers.iter_mut().for_each(|worker| _ = worker.pass());
            self.report();
        }
        assert!(self.sessions.is_empty() && self.sessions.is_settled() && self.open.is_empty(), "clients are left");
        let host = &self.sessions.host;
        assert_eq!(host.attached.load(Ordering::Relaxed), 0, "attachments are left");
        assert_eq!(host.regions_left(), 0, "memory is mapped after the end");
        for WorkerHandle { counters, .. } in &self.fixture.handles {
            let [queues, assigned] = [&counters.queues, &counters.assigned].map(|count| count.load(Ordering::Relaxed));
            assert_eq!((queues, assigned), (0, 0), "a worker serves queues, or has places, of no caller");
        }
    }
}

/// A step with a message, and one that follows.
fn say(client: u8, kind: u8, numbers: [u8; 2]) -> Vec<u8> {
    vec![MESSAGE | kind << 3, client, numbers[0], numbers[1]]
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let round = [WORK, 0, WORK, 1, REPORT, 0];
    let attach = |client: u8, queues: u8| {
        let features = u8::try_from(FEATURES & 0xff).unwrap_or(0);
        [vec![CONNECT, client], say(client, 0, [0, features]), say(client, 1, [queues, 8]), round.to_vec()].concat()
    };
    let register = [say(0, 2, [1, 3 | 4 << 3]), round.to_vec()].concat();
    let raw = Control::Hello { version_min: VERSION, version_max: VERSION, features: 0 }.encode();
    let packet = |files: u8, bytes: &[u8]| [&[PACKET, files << 6, u8::try_from(bytes.len()).unwrap_or(0)], bytes].concat();
    let moved = vec![7 | 1 << 3, 1 << 4];
    vec![
        [vec![CONNECT, 0], packet(0, &raw), packet(1, &raw), packet(2, &Control::Detach.encode())].concat(),
        [attach(0, 2), say(0, 4, [0, 0]), round.to_vec(), round.to_vec()].concat(),
        [attach(0, 1), register.clone(), say(0, 3, [1, 0]), round.to_vec(), vec![HANG_UP, 0]].concat(),
        [attach(0, 1), register.clone(), say(0, 3, [1, 0]), vec![HANG_UP, 0], round.to_vec()].concat(),
        [attach(0, 1), moved.clone(), register, vec![HANG_UP, 0], round.to_vec()].concat(),
        [attach(0, 2), moved, round.to_vec(), attach(1, 3), vec![7, 0], round.to_vec(), vec![7 | 4 << 3, 0]].concat(),
        [attach(0, 1), vec![CONNECT, 1], say(1, 0, [0, 0]), say(1, 1, [1, 0x88]), vec![HANG_UP, 0], round.to_vec()].concat(),
        [vec![CONNECT, 0, CONNECT, 1, CONNECT, 1, TIME, 255], say(0, 0, [0, 0]), vec![TIME, 255]].concat(),
        [attach(0, 1), vec![7 | 2 << 3, 0], attach(1, 1), vec![7 | 3 << 3, 1], round.to_vec()].concat(),
        [vec![CONNECT, 0], say(0, 0, [0, 8]), say(0, LIST, [0, 0]), say(0, LIST, [4, 0]), say(0, LIST, [0, 1])].concat(),
        [attach(0, 1), say(0, LIST, [0, 0]), vec![CONNECT, 1], say(1, 0, [0, 0]), say(1, LIST, [0, 0])].concat(),
        [attach(0, 3), packet(3, &Control::Register { region: 2, access: 1, length_bytes: 4096 }.encode())].concat(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After the first steps of the seed that registers memory and takes it back.
    #[test]
    fn seeds_attach_and_register() {
        let mut fixture = Fixture::new();
        let mut play = Play::new(&mut fixture);
        let mut bytes = &seeds()[2][..];
        let mut most = (0, 0);
        while !bytes.is_empty() {
            let [step, choice] = take(&mut bytes);
            play.step(step, choice, &mut bytes);
            play.carry_out();
            let host = &play.sessions.host;
            most = (most.0.max(host.attached.load(Ordering::Relaxed)), most.1.max(host.regions_left()));
        }
        // The channel's memory and that of the client.
        assert_eq!(most, (1, 2));
        play.end();
    }
}
