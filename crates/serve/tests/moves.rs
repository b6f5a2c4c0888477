//! A queue with asynchronous work is moved between workers, and the completions of what it begins there are its own.

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fipsee_ring::Message;
use fipsee_ring::channel::{ClientQueue, FEATURES, Profile, RegionLayout, ServerQueue};
use fipsee_ring::control::{Control, SERVICE_INFO_BYTES, VERSION, Wanted};
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::handshake::Grant;
use fipsee_ring::wait::{Backoff, WaitMode};
use fipsee_serve::session::{Action, Attachment, Client, ClientLimits, Credentials, Denial, Done, Granted, Host, Sessions};
use fipsee_serve::{
    Assignment, Command, Engine, NotAdded, Queue, QueueName, Share, Taken, Turn, Worker, WorkerHandle, WorkerPlacement,
};

const PROFILE: Profile = Profile { features: FEATURES, event_credits: 0, flags: &[] };
const DEPTH: u32 = 4;
/// Rounds in which anything here is done.
const ROUNDS: usize = 20;

/// Work that ends one pass after it began, by the number of its queue.
#[derive(Default)]
struct Later(Vec<u32>);

impl Engine for Later {
    type Ticket = u32;
    type Status = ();

    fn queue_of(ticket: u32) -> u32 {
        ticket
    }

    fn in_flight(&self) -> usize {
        self.0.len()
    }

    fn poll(&mut self, limit: usize, finished: &mut impl FnMut(u32, ())) -> usize {
        let count = self.0.len().min(limit);
        self.0.drain(..count).for_each(|ticket| finished(ticket, ()));
        count
    }
}

/// Answers each message when the work for it has ended.
struct LaterQueue {
    end: ServerQueue,
    id: u32,
    begun: VecDeque<Message>,
}

impl Queue<Later> for LaterQueue {
    fn end(&self) -> Option<&ServerQueue> {
        Some(&self.end)
    }

    fn end_mut(&mut self) -> Option<&mut ServerQueue> {
        Some(&mut self.end)
    }

    fn visit(&mut self, engine: &mut Later, _turn: Turn) -> Taken {
        let (mut message, mut taken) = (Message::ZERO, 0);
        while self.in_flight() < DEPTH && self.end.requests.receive(&mut message) {
            self.begun.push_back(message);
            engine.0.push(self.id);
            taken += 1;
        }
        Taken::new(taken, 0)
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.begun.len()).expect("few")
    }

    fn depth(&self) -> u32 {
        DEPTH
    }

    fn finish(&mut self, _ticket: u32, (): ()) {
        let message = self.begun.pop_front().expect("this queue began the work that has ended");
        self.end.completions.publish(&message);
    }

    fn doorbell_rang(&mut self) {
        panic!("no client rings: no worker sleeps");
    }

    fn moved(&mut self, id: u32) {
        self.id = id;
    }

    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        None
    }
}

struct Nothing;

impl Attachment<Later> for Nothing {
    fn name(&self) -> &str {
        "later"
    }

    fn service(&self) -> u16 {
        1
    }
}

/// Gives all queues of a client to the worker of the number that it asks for as its service.
struct Program {
    workers: Vec<WorkerHandle<Later>>,
    clients: u64,
    /// Workers that queues are to leave, for the first.
    left: Vec<usize>,
    /// How often none could.
    stayed: usize,
}

impl Host<Later> for Program {
    fn next_client(&mut self) -> u64 {
        self.clients += 1;
        self.clients
    }

    fn limits(&self) -> ClientLimits {
        ClientLimits { max_queues: 4, max_depth: DEPTH, max_pool_bytes: 0, max_memory_bytes: 0 }
    }

    fn max_clients(&self) -> (usize, Option<usize>) {
        (4, None)
    }

    fn features(&self) -> u64 {
        FEATURES
    }

    fn attach(&mut self, client: &Client<'_>, wanted: &Wanted) -> Result<Granted<Later>, Denial> {
        let mut grant = Grant::new(RegionLayout::plan(&PROFILE, wanted.queue_count, DEPTH, 0, 1), |_| {})?;
        let (worker, id) = (usize::from(wanted.service), client.id);
        let ends = std::mem::take(&mut grant.queues);
        let assignments = ends.iter().map(|_| Assignment::to(worker, &self.workers[worker])).collect();
        let add = |(end, index): (ServerQueue, u16)| {
            let make = move |number| Ok(LaterQueue { end, id: number, begun: VecDeque::new() });
            let added = |added: Result<(), _>| assert!(added.is_ok(), "it is served");
            (worker, Command::add(QueueName { client: id, index }, client.share.clone(), make, added))
        };
        let commands = ends.into_iter().zip(0..).map(add).collect();
        let reply = grant.attached([0; SERVICE_INFO_BYTES]);
        Ok(Granted { attachment: Box::new(Nothing), assignments, reply, grant, commands })
    }

    fn command(&mut self, worker: usize, command: Command<Later>) {
        self.workers[worker].mailbox.send(command);
    }

    fn uneven(&self, nth: usize) -> Option<(usize, Assignment)> {
        match self.left.get(nth) {
            Some(from) => Some((*from, Assignment::to(0, &self.workers[0]))),
            None => Assignment::uneven(&self.workers).filter(|_| nth == self.left.len()),
        }
    }

    fn stays_uneven(&mut self) {
        self.stayed += 1;
    }
}

struct Fixture {
    sessions: Sessions<Later, Program>,
    reports: Arc<Mutex<Vec<(u64, Done)>>>,
    workers: Vec<Worker<Later>>,
}

impl Fixture {
    fn new() -> Self {
        Self::with_workers(2)
    }

    fn with_workers(count: usize) -> Self {
        let backoff = || Backoff::new(WaitMode::Sleep, Duration::ZERO);
        let worker = || Worker::new(WorkerPlacement::default(), backoff(), Later::default()).expect("descriptors");
        let (workers, handles): (Vec<_>, Vec<_>) = (0..count).map(|_| worker()).unzip();
        let reports = Arc::<Mutex<Vec<_>>>::default();
        let to = Arc::clone(&reports);
        let report = Arc::new(move |client, done| to.lock().expect("one thread").push((client, done)));
        Self {
            sessions: Sessions::new(Program { workers: handles, clients: 0, left: Vec::new(), stayed: 0 }, report),
            reports,
            workers,
        }
    }

    /// Attach a client with queues at a worker; its ends of them.
    fn attach(&mut self, worker: u16, queue_count: u16) -> Vec<ClientQueue> {
        let id = self.sessions.connected(Credentials::default(), Instant::now()).expect("there is room");
        let wanted = Wanted { service: worker, queue_count, depth: DEPTH, flags: 0, pool_bytes: 0, name: "later".to_owned() };
        let hello = Control::Hello { version_min: VERSION, version_max: VERSION, features: FEATURES };
        for message in [hello, Control::Attach(wanted)] {
            self.sessions.packet(id, &message.encode(), Vec::new(), Instant::now());
        }
        self.carry_out().pop().expect("it is attached")
    }

    /// Carry out what the sessions decided; the channels that they granted.
    fn carry_out(&mut self) -> Vec<Vec<ClientQueue>> {
        let mut granted = Vec::new();
        for action in self.sessions.take_actions() {
            match action {
                Action::Send { grant: Some(grant), .. } => granted.push(open(&grant)),
                Action::Send { message, grant: None, .. } => assert!(matches!(message, Control::Welcome { .. }), "{message:?}"),
                Action::Close { client } => panic!("client {client} loses its connection"),
                Action::Command { worker, command } => self.sessions.host.command(worker, command),
            }
        }
        granted
    }

    fn run(&mut self) {
        for _ in 0..ROUNDS {
            self.workers.iter_mut().for_each(|worker| _ = worker.pass());
            for (client, done) in std::mem::take(&mut *self.reports.lock().expect("one thread")) {
                self.sessions.acknowledged(client, done);
            }
            self.carry_out();
        }
    }

    /// Send a message and have it answered.
    fn answers(&mut self, queue: &mut ClientQueue, value: u64) -> bool {
        send(queue, value);
        self.run();
        received(queue) == Some(value)
    }
}

fn open(grant: &Grant) -> Vec<ClientQueue> {
    let files = grant.descriptors();
    let mut files = files.iter().skip(1).map(|file| file.try_clone_to_owned().expect("a descriptor"));
    let queue = |geometry| {
        let doorbell = EventDoorbell::from_fd(files.next().expect("one of each queue"));
        let our_end = SocketDoorbell::from_fd(files.next().expect("one of each queue"));
        ClientQueue::open(&grant.region, geometry, doorbell, our_end, &geometry.tuning()).expect("it fits")
    };
    grant.layout.queues.iter().map(queue).collect()
}

fn send(queue: &mut ClientQueue, value: u64) {
    let mut message = Message::ZERO;
    message.set_word(0, value);
    queue.requests.publish(&message).expect("a free slot");
}

fn received(queue: &mut ClientQueue) -> Option<u64> {
    let mut message = Message::ZERO;
    queue.completions.receive(&mut message).then(|| {
        queue.requests.answered();
        message.word(0)
    })
}

#[test]
fn work_that_a_queue_begins_after_it_was_moved_is_reported_to_it() {
    let mut fixture = Fixture::new();
    // Number 0 at worker 1, as the first queue of the second client has at worker 0.
    let mut first = fixture.attach(1, 1);
    let mut second = fixture.attach(0, 3);
    for (value, queue) in (1..).zip(first.iter_mut().chain(&mut second)) {
        assert!(fixture.answers(queue, value), "message {value}");
    }
    // In flight when the move is decided.
    send(&mut second[0], 10);
    fixture.sessions.balance();
    assert!(fixture.sessions.is_moving(), "one worker serves two queues more than the other");
    fixture.run();
    assert_eq!(received(&mut second[0]), Some(10));
    assert!(!fixture.sessions.is_moving());
    assert_eq!(queues(&fixture), [2, 2]);
    for (value, queue) in (20..).zip(second.iter_mut().chain(&mut first)) {
        assert!(fixture.answers(queue, value), "message {value}");
    }
}

fn queues(fixture: &Fixture) -> Vec<u64> {
    let served = |handle: &WorkerHandle<Later>| handle.counters.queues.load(std::sync::atomic::Ordering::Relaxed);
    fixture.sessions.host.workers.iter().map(served).collect()
}

#[test]
fn what_cannot_move_keeps_no_other_queue_where_it_is() {
    let mut fixture = Fixture::with_workers(3);
    let _queues = [fixture.attach(2, 1), fixture.attach(2, 1)];
    fixture.run();
    // Its last requests may take long.
    fixture.sessions.detach(1).expect("it is attached");
    // Those of the second worker, if there are any, are of no session.
    fixture.sessions.host.left = vec![1, 2];
    fixture.sessions.balance();
    assert!(fixture.sessions.is_moving(), "the second client's queue may leave the third worker");
}

#[test]
fn the_host_is_told_that_no_queue_may_move() {
    let mut fixture = Fixture::new();
    fixture.sessions.balance();
    assert_eq!(fixture.sessions.host.stayed, 0, "nothing is uneven");
    fixture.sessions.host.left = vec![1];
    fixture.sessions.balance();
    assert_eq!((fixture.sessions.is_moving(), fixture.sessions.host.stayed), (false, 1));
}

/// A queue whose doorbell is no descriptor that can be watched.
struct Unwatchable(std::fs::File);

impl Queue<Later> for Unwatchable {
    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }

    fn visit(&mut self, _engine: &mut Later, _turn: Turn) -> Taken {
        Taken::NOTHING
    }

    fn in_flight(&self) -> u32 {
        0
    }

    fn depth(&self) -> u32 {
        DEPTH
    }

    fn finish(&mut self, _ticket: u32, (): ()) {}

    fn moved(&mut self, _id: u32) {}

    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        None
    }
}

#[test]
fn a_queue_that_cannot_be_watched_is_given_back() {
    let mut fixture = Fixture::new();
    let file = std::fs::File::open("Cargo.toml").expect("a regular file");
    let (reply, added) = std::sync::mpsc::channel();
    let command = Command::add(
        QueueName { client: 1, index: 0 },
        Share::own("its"),
        |_| Ok(Unwatchable(file)),
        move |added| _ = reply.send(added),
    );
    fixture.sessions.host.command(0, command);
    fixture.workers[0].pass();
    let Ok(Err(NotAdded::Doorbell(_, queue, _))) = added.recv() else { panic!("it cannot be watched") };
    assert!((queue as Box<dyn Any>).is::<Unwatchable>());
    assert_eq!(queues(&fixture), [0, 0]);
}
