//! The front of a service: finds clients, hands them channels, notices when they leave. One thread, never on the path
//! of a call.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fipsee_ring::channel::RegionLayout;
use fipsee_ring::control::{Control, RefusalCode};
use fipsee_ring::handshake::{self, Grant, HANDSHAKE_TIMEOUT, Limits, Refusal, Wanted, refuse};
use fipsee_ring::listener::Listener;
use fipsee_ring::mailbox::Mailbox;
use fipsee_ring::seqpacket::{Packet, Seqpacket};
use fipsee_serve::{Add, Command, Queue, QueueName, Which, WorkerHandle};
use rustix::event::{Timespec, epoll};
use rustix::net::SocketFlags;

use super::queue::{Channel, Turns};
use crate::server::{Allow, Credentials};
use crate::wire::{PROFILE, SERVICE_CALLS, ServiceInfo};

/// How long a stop waits for calls in progress before it gives up on them.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the front looks at the clock while a client is silent or it waits for descriptors.
const TICK: Duration = Duration::from_millis(250);

const TOKEN_LISTENER: u64 = u64::MAX;
const TOKEN_MAILBOX: u64 = u64::MAX - 1;

/// What the front is told.
pub(super) enum Event {
    /// A worker wants clients.
    Joined { worker: u64, handle: WorkerHandle<Turns> },
    /// A worker is gone, with all its channels.
    Left { worker: u64 },
    /// A worker has let go of a client.
    Released { client: u64 },
    /// A worker ends a client's channel.
    Refused { client: u64, text: String },
    /// Let clients finish what they published, then end.
    Stop,
    /// End at once.
    Abort,
}

/// What a front serves, and to whom.
pub(super) struct Serving {
    pub(super) name: String,
    pub(super) info: ServiceInfo,
    pub(super) max_clients: usize,
    pub(super) max_depth: u32,
    pub(super) allow: Option<Allow>,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Silent {
        since: Instant,
    },
    Greeted {
        since: Instant,
    },
    Attached,
    /// Asked to detach, or is asked to: the worker is finishing.
    Detaching,
}

struct Session {
    socket: Seqpacket,
    credentials: Credentials,
    state: State,
}

struct Worker {
    id: u64,
    handle: WorkerHandle<Turns>,
    clients: usize,
}

pub(super) struct Front {
    serving: Serving,
    listener: Listener,
    is_accepting: bool,
    epoll: OwnedFd,
    mailbox: Arc<Mailbox<Event>>,
    workers: Vec<Worker>,
    sessions: HashMap<u64, Session>,
    /// The worker that serves a client, until it has let go of it.
    served_by: HashMap<u64, u64>,
    next_client: u64,
    stopping: Option<Instant>,
}

impl Front {
    pub(super) fn new(serving: Serving, listener: Listener, mailbox: Arc<Mailbox<Event>>) -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &*mailbox, epoll::EventData::new_u64(TOKEN_MAILBOX), edge)?;
        Ok(Self {
            serving,
            listener,
            is_accepting: false,
            epoll,
            mailbox,
            workers: Vec::new(),
            sessions: HashMap::new(),
            served_by: HashMap::new(),
            next_client: 1,
            stopping: None,
        })
    }

    /// Serve until told to end.
    pub(super) fn run(mut self) {
        loop {
            for token in self.wait() {
                match token {
                    TOKEN_LISTENER => self.accept(),
                    TOKEN_MAILBOX => {}
                    client => self.hear(client),
                }
            }
            for event in self.mailbox.take() {
                match event {
                    Event::Joined { worker, handle } => self.workers.push(Worker { id: worker, handle, clients: 0 }),
                    Event::Left { worker } => self.lose_worker(worker),
                    Event::Released { client } => self.release(client),
                    Event::Refused { client, text } => self.close_with(client, &refuse(RefusalCode::Malformed, text)),
                    Event::Stop => self.begin_stop(),
                    Event::Abort => return self.abort(),
                }
            }
            self.drop_silent();
            let is_late = self.stopping.is_some_and(|since| since.elapsed() > DRAIN_TIMEOUT);
            if is_late || (self.stopping.is_some() && self.sessions.is_empty() && self.served_by.is_empty()) {
                break;
            }
            // Without a worker nobody would answer: clients wait to be accepted.
            self.accept_clients(self.stopping.is_none() && !self.workers.is_empty());
        }
        self.stop_workers();
    }

    /// Hang up on everybody.
    fn abort(&self) {
        for client in self.served_by.keys() {
            self.tell_worker(*client, false);
        }
        self.stop_workers();
    }

    fn stop_workers(&self) {
        for worker in &self.workers {
            worker.handle.mailbox.send(Command::Stop);
        }
    }

    fn wait(&self) -> Vec<u64> {
        let is_pending = |session: &Session| matches!(session.state, State::Silent { .. } | State::Greeted { .. });
        let ticks =
            self.stopping.is_some() || (!self.is_accepting && !self.workers.is_empty()) || self.sessions.values().any(is_pending);
        let timeout = ticks.then_some(TICK).and_then(|tick| Timespec::try_from(tick).ok());
        let mut events = Vec::<epoll::Event>::with_capacity(64);
        // An error other than an interruption cannot happen to a valid descriptor and valid arguments.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref());
        events.iter().map(|event| event.data.u64()).collect()
    }

    fn accept_clients(&mut self, wanted: bool) {
        if wanted == self.is_accepting {
            return;
        }
        let data = epoll::EventData::new_u64(TOKEN_LISTENER);
        let changed = match wanted {
            true => epoll::add(&self.epoll, self.listener.socket(), data, epoll::EventFlags::IN),
            false => epoll::delete(&self.epoll, self.listener.socket()),
        };
        if changed.is_ok() {
            self.is_accepting = wanted;
        }
    }

    fn accept(&mut self) {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(self.listener.socket(), flags) {
                Ok(socket) => self.admit(socket),
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
                Err(rustix::io::Errno::AGAIN) => return,
                // No descriptor is free: the client waits, and we look again at the next tick.
                Err(_) => return self.accept_clients(false),
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        let Ok(peer) = rustix::net::sockopt::socket_peercred(&socket) else { return };
        let credentials = Credentials { pid: peer.pid.as_raw_nonzero().get(), uid: peer.uid.as_raw(), gid: peer.gid.as_raw() };
        let socket = Seqpacket::from_fd(socket);
        let max_clients = self.serving.max_clients;
        let waiting = self.sessions.values().filter(|session| !matches!(session.state, State::Attached | State::Detaching));
        if self.served_by.len() + waiting.count() >= max_clients {
            let text = format!("the server has its limit of {max_clients} clients; raise max_clients, or try again later");
            refuse(RefusalCode::Limit, text).send(&socket);
            return;
        }
        let client = self.next_client;
        self.next_client += 1;
        let on = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        if epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(client), on).is_ok() {
            self.sessions.insert(client, Session { socket, credentials, state: State::Silent { since: Instant::now() } });
        }
    }

    /// Take a message that a client sent, or notice that it is gone. What is left is reported again: the socket is watched
    /// level-triggered.
    fn hear(&mut self, client: u64) {
        let Some(session) = self.sessions.get(&client) else { return };
        match session.socket.try_receive() {
            Ok(None) if session.socket.is_hung_up() => self.close(client),
            Ok(None) => {}
            Ok(Some(packet)) => {
                if let Err(refusal) = self.obey(client, &packet) {
                    self.refuse(client, &refusal);
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => self.close(client),
            Err(error) => self.close_with(client, &refuse(RefusalCode::Malformed, error.to_string())),
        }
    }

    fn obey(&mut self, client: u64, packet: &Packet) -> Result<(), Refusal> {
        let message = Control::decode(&packet.bytes).map_err(|error| refuse(RefusalCode::Malformed, error.to_string()))?;
        let Some(session) = self.sessions.get_mut(&client) else { return Ok(()) };
        match (message, session.state) {
            (Control::Register { .. }, State::Attached) => {
                Err(refuse(RefusalCode::BadMemory, "a service of calls takes no memory; send data as payload of calls"))
            }
            _ if !packet.descriptors.is_empty() => Err(refuse(RefusalCode::Malformed, "only REGISTER carries a descriptor")),
            (Control::Hello { version_min, version_max, .. }, State::Silent { .. }) => {
                let max_pool_bytes = self.serving.info.pool_bytes(self.serving.max_depth);
                let limits = Limits { max_queues: 1, max_depth: self.serving.max_depth, max_pool_bytes };
                let welcome = handshake::welcome(version_min, version_max, &limits, 0)?;
                session.state = State::Greeted { since: Instant::now() };
                session.tell(&welcome, &[])
            }
            (Control::Attach { service, queue_count, depth, flags, pool_bytes, ref name }, State::Greeted { .. }) => {
                self.attach(client, &Wanted { service, queue_count, depth, flags, pool_bytes, name })
            }
            (Control::Detach, State::Attached) => {
                self.detach(client);
                Ok(())
            }
            _ => Err(refuse(RefusalCode::Malformed, "that message comes out of order, or goes from the server to the client")),
        }
    }

    fn attach(&mut self, client: u64, wanted: &Wanted<'_>) -> Result<(), Refusal> {
        let Serving { name, info, max_depth, allow, .. } = &self.serving;
        let Some(session) = self.sessions.get_mut(&client) else { return Ok(()) };
        if wanted.service != SERVICE_CALLS || wanted.flags != 0 || wanted.queue_count == 0 || wanted.depth == 0 {
            let text = "ATTACH asks for an unknown service or flag, or for no queue or depth 0; this server takes calls";
            return Err(refuse(RefusalCode::Malformed, text));
        }
        if wanted.name != name {
            let text = format!(
                "this server serves '{name}', not '{}'; connect to another socket, or build for the same version",
                wanted.name
            );
            return Err(refuse(RefusalCode::UnknownExport, text));
        }
        if !is_allowed(allow.as_ref(), &session.credentials) {
            let text = format!("user {} may not call '{name}'; its server decides who may", session.credentials.uid);
            return Err(refuse(RefusalCode::NotAllowed, text));
        }
        let Some(worker) = self.workers.iter_mut().min_by_key(|worker| worker.clients) else {
            return Err(refuse(RefusalCode::ShuttingDown, "nobody answers calls here any more; try again later"));
        };
        let depth = wanted.depth.min(*max_depth);
        let seed = u32::try_from(client & 0xffff_ffff).unwrap_or(0);
        let mut grant = Grant::new(RegionLayout::plan(&PROFILE, 1, depth, info.pool_bytes(depth), seed), |_| {})?;
        let Some(queue) = grant.queues.pop() else { return Ok(()) };
        session.state = State::Attached;
        // Told first: a client that does not take its answer gets no worker.
        session.tell(&grant.attached(info.to_bytes()), &grant.descriptors())?;
        worker.clients += 1;
        self.served_by.insert(client, worker.id);
        let served = Channel::new((client, session.credentials), queue, grant.region, grant.layout.pool_offset_bytes, depth);
        worker.handle.mailbox.send(add(served, Arc::clone(&self.mailbox)));
        Ok(())
    }

    /// Have the client's worker finish what was published.
    fn detach(&mut self, client: u64) {
        if let Some(session) = self.sessions.get_mut(&client) {
            session.state = State::Detaching;
        }
        self.tell_worker(client, true);
    }

    fn tell_worker(&self, client: u64, finish: bool) {
        let Some(worker) = self.served_by.get(&client) else { return };
        if let Some(worker) = self.workers.iter().find(|known| known.id == *worker) {
            let front = Arc::clone(&self.mailbox);
            // Its memory and doorbells first: they count as free from then on.
            let removed = move |queue| {
                drop::<Box<dyn Queue<Turns>>>(queue);
                front.send(Event::Released { client });
            };
            worker.handle.mailbox.send(Command::Remove { which: Which::Client(client), finish, removed: Box::new(removed) });
        }
    }

    /// A worker holds nothing of the client any more.
    fn release(&mut self, client: u64) {
        let Some(worker) = self.served_by.remove(&client) else { return };
        if let Some(worker) = self.workers.iter_mut().find(|known| known.id == worker) {
            worker.clients -= 1;
        }
        if let Some(session) = self.sessions.get(&client)
            && session.state == State::Detaching
        {
            let _ = session.tell(&Control::Detached, &[]);
            self.close(client);
        }
    }

    fn lose_worker(&mut self, id: u64) {
        self.workers.retain(|worker| worker.id != id);
        let orphans: Vec<u64> = self.served_by.iter().filter(|(_, worker)| **worker == id).map(|(client, _)| *client).collect();
        let refusal = refuse(RefusalCode::ShuttingDown, "the thread that answered this client's calls is gone; connect again");
        for client in orphans {
            self.served_by.remove(&client);
            self.close_with(client, &refusal);
        }
    }

    /// Memory that is refused leaves the attachment as it was; any other refusal ends it.
    fn refuse(&mut self, client: u64, refusal: &Refusal) {
        let Some(session) = self.sessions.get(&client) else { return };
        if refusal.code != RefusalCode::BadMemory || !refusal.clone().send(&session.socket) {
            self.close_with(client, refusal);
        }
    }

    fn close_with(&mut self, client: u64, refusal: &Refusal) {
        if let Some(session) = self.sessions.get(&client) {
            refusal.clone().send(&session.socket);
        }
        self.close(client);
    }

    fn close(&mut self, client: u64) {
        if let Some(session) = self.sessions.remove(&client) {
            let _ = epoll::delete(&self.epoll, &session.socket);
            self.tell_worker(client, false);
        }
    }

    fn drop_silent(&mut self) {
        let is_late = |session: &Session| match session.state {
            State::Silent { since } | State::Greeted { since } => since.elapsed() > HANDSHAKE_TIMEOUT,
            _ => false,
        };
        let late: Vec<u64> = self.sessions.iter().filter(|(_, session)| is_late(session)).map(|(client, _)| *client).collect();
        for client in late {
            let text =
                format!("nothing was said within {} s; greet and attach right after connecting", HANDSHAKE_TIMEOUT.as_secs());
            self.close_with(client, &refuse(RefusalCode::Malformed, text));
        }
    }

    /// Take nobody new, and let everyone attached finish what they published.
    fn begin_stop(&mut self) {
        self.stopping = Some(Instant::now());
        for client in self.sessions.keys().copied().collect::<Vec<_>>() {
            match self.sessions.get(&client).map(|session| session.state) {
                Some(State::Attached) => self.detach(client),
                Some(State::Detaching) | None => {}
                _ => self
                    .close_with(client, &refuse(RefusalCode::ShuttingDown, "the server is stopping; try again when it is back")),
            }
        }
    }
}

impl Session {
    /// A client that does not read its answers loses its connection, never our time.
    fn tell(&self, message: &Control, descriptors: &[std::os::fd::BorrowedFd<'_>]) -> Result<(), Refusal> {
        let sent = self.socket.send(&message.encode(), descriptors);
        sent.map_err(|error| refuse(RefusalCode::Malformed, format!("the client does not take its answers: {error}")))
    }
}

/// Has a worker serve a client.
fn add(channel: Channel, front: Arc<Mailbox<Event>>) -> Command<Turns> {
    let client = channel.client;
    let make = Box::new(move |id| Ok(channel.into_queue(id)));
    let added = Box::new(move |added: Result<(), _>| {
        if added.is_err() {
            let text = "the server cannot watch the channel's doorbell; raise its limit of watches (fs.epoll.max_user_watches)";
            front.send_all([Event::Refused { client, text: text.to_owned() }, Event::Released { client }]);
        }
    });
    Command::Add(Add { name: QueueName { client, index: 0 }, make, added })
}

/// Unless told otherwise: the server's own user, and root.
fn is_allowed(allow: Option<&Allow>, credentials: &Credentials) -> bool {
    match allow {
        Some(allow) => allow(credentials),
        None => credentials.uid == 0 || credentials.uid == rustix::process::geteuid().as_raw(),
    }
}
