//! The local front: programs on this host, over a Unix socket. One thread, never on the data path.

mod adoption;
mod handover;
mod parked;
mod share;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fipsee_ring::control::{Control, RefusalCode};
use fipsee_ring::handshake::{Refusal, Wanted, refuse};
use fipsee_ring::listener::Listener;
use fipsee_ring::mailbox::Mailbox;
use fipsee_ring::seqpacket::{Packet, Seqpacket};
use fipsee_serve::{Assignment, Quiesced};
use rustix::event::epoll;
use rustix::net::SocketFlags;

pub use self::handover::HandOver;
pub(super) use self::parked::Parked;
use super::quota::LogQuota;
use super::session::{Attachment, ClientLimits, Denial, Granted, Session, State};
use crate::front::vhost_user::Held;
use crate::live::Live;
use crate::notify::{self, Watchdog};
use crate::worker::{Ack, Command, WorkerHandle, block_queue};

/// Descriptors kept back for the daemon's own files and for telling clients that there are none left.
const RESERVED_DESCRIPTORS: u64 = 64;
/// Messages taken from one client before the others are looked at again; a correct one has one unanswered at most.
const MESSAGES_PER_TURN: usize = 16;
/// How long a drain waits for requests in flight before it gives up on them.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

const TOKEN_LISTENER: u64 = u64::MAX;
const TOKEN_MAILBOX: u64 = u64::MAX - 1;
const TOKEN_STOP: u64 = u64::MAX - 2;

/// What the workers have finished for a client.
#[derive(Clone, Copy, Debug)]
pub enum Done {
    /// They have this memory.
    Registered(u16),
    /// They have let go of this memory.
    Unregistered(u16),
    /// They have answered everything.
    Finished,
    /// They have let go of it all.
    Gone,
}

/// What the front is told.
pub enum Order {
    /// The workers did something for this client.
    Did(u64, Done),
    /// Another daemon is to go on with the clients.
    HandOver(HandOver),
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every client had what it asked for.
    Drained,
    /// Not every one, within the time for that.
    TimedOut,
    /// Another daemon serves the clients now.
    HandedOver,
}

/// Reports when the last worker concerned lets go of it.
struct Reporter {
    mailbox: Arc<Mailbox<Order>>,
    client: u64,
    done: Done,
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.mailbox.send(Order::Did(self.client, self.done));
    }
}

/// Settings of the front.
#[derive(Clone, Copy, Debug)]
pub struct FrontSettings {
    /// Clients connected at a time.
    pub max_clients: usize,
    /// Of one user who is neither root nor the daemon's own; `None`: three quarters.
    pub max_clients_per_user: Option<usize>,
    /// Per client.
    pub limits: ClientLimits,
}

/// The local front.
pub struct LocalFront {
    listener: Arc<Listener>,
    epoll: OwnedFd,
    mailbox: Arc<Mailbox<Order>>,
    workers: Vec<WorkerHandle>,
    live: Arc<Live>,
    watchdog: Watchdog,
    sessions: HashMap<u64, Session>,
    /// Clients whose sockets are closed and whose requests are still in flight, with their users.
    leaving: HashMap<u64, (u32, Attachment)>,
    descriptors: u64,
    quota: LogQuota,
    /// Departures of clients when the last parked one was looked at.
    departures_seen: u64,
    /// Keeps workers and hypervisors' threads still once another daemon serves.
    given: Option<(Quiesced, Held)>,
}

impl LocalFront {
    /// A front that serves what is `live` through `workers` to whoever connects to `listener`; `stop` becomes readable when
    /// it is to drain and return.
    ///
    /// # Errors
    /// No descriptor left.
    pub fn new(listener: Arc<Listener>, stop: &impl AsFd, workers: Vec<WorkerHandle>, live: Arc<Live>) -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mailbox = Arc::new(Mailbox::new()?);
        epoll::add(&epoll, listener.socket(), epoll::EventData::new_u64(TOKEN_LISTENER), epoll::EventFlags::IN)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &*mailbox, epoll::EventData::new_u64(TOKEN_MAILBOX), edge)?;
        // Once: nobody reads the signal, and it must not keep the drain from sleeping.
        let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        epoll::add(&epoll, stop, epoll::EventData::new_u64(TOKEN_STOP), once)?;
        Ok(Self {
            listener,
            epoll,
            mailbox,
            workers,
            live,
            watchdog: Watchdog::from_environment(),
            sessions: HashMap::new(),
            leaving: HashMap::new(),
            // What is open now stays open: disks, workers, logs.
            descriptors: std::fs::read_dir("/proc/self/fd").map_or(0, |open| open.count() as u64),
            quota: LogQuota::default(),
            departures_seen: 0,
            given: None,
        })
    }

    /// Where it takes orders.
    #[must_use]
    pub fn mailbox(&self) -> Arc<Mailbox<Order>> {
        Arc::clone(&self.mailbox)
    }

    /// Serve until told to stop, then let every client finish; or until another daemon has taken over.
    pub fn run(&mut self) -> Ended {
        let mut stopping: Option<Instant> = None;
        loop {
            if stopping
                .is_some_and(|since| (self.sessions.is_empty() && self.leaving.is_empty()) || since.elapsed() > DRAIN_TIMEOUT)
            {
                break;
            }
            for token in self.wait(stopping.is_some()) {
                match token {
                    TOKEN_LISTENER => self.accept(),
                    TOKEN_MAILBOX => {}
                    TOKEN_STOP => {
                        stopping = Some(Instant::now());
                        self.begin_drain();
                    }
                    id => self.hear(id),
                }
            }
            if self.obey_orders(stopping.is_some()) {
                return Ended::HandedOver;
            }
            self.retry_parked();
            self.drop_silent();
            self.watchdog.beat();
        }
        if self.leaving.is_empty() && self.sessions.is_empty() { Ended::Drained } else { Ended::TimedOut }
    }

    /// `true`: another daemon serves now.
    fn obey_orders(&mut self, stopping: bool) -> bool {
        let mut hand_over = None;
        for order in self.mailbox.take() {
            match order {
                Order::Did(id, done) => self.workers_did(id, done),
                Order::HandOver(order) if stopping => {
                    order.refuse("the daemon is shutting down; start the new one without --takeover");
                }
                // Last: what workers have confirmed is passed on by this daemon or by none. One asks at a time.
                Order::HandOver(order) => hand_over = Some(order),
            }
        }
        hand_over.is_some_and(|order| self.hand_over(order))
    }

    fn wait(&self, stopping: bool) -> Vec<u64> {
        let pending = |session: &Session| matches!(session.state, State::Silent { .. } | State::Greeted { .. });
        // Coarse: a silent client costs nothing but its place, and a drain ends with the last client, not with a tick.
        let tick = (stopping || self.sessions.values().any(pending)).then_some(Duration::from_millis(250));
        // Nobody tells this thread when a hypervisor's last request is finished.
        let tick = if self.has_parked() { Some(Duration::from_millis(5)) } else { tick };
        let sleep = [tick, self.watchdog.longest_sleep()].into_iter().flatten().min();
        let timeout = sleep.and_then(|tick| rustix::event::Timespec::try_from(tick).ok());
        let mut events = Vec::<epoll::Event>::with_capacity(128);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => tracing::error!(%error, "epoll failed"),
        }
        events.iter().map(|event| event.data.u64()).collect()
    }

    fn accept(&mut self) {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match rustix::net::accept_with(self.listener.socket(), flags) {
                Ok(socket) => socket,
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => continue,
                Err(rustix::io::Errno::AGAIN) => return,
                Err(error) => {
                    if self.quota.allows() {
                        tracing::error!(%error, "cannot accept a client; raise LimitNOFILE= or detach clients");
                    }
                    return;
                }
            };
            self.admit(socket);
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        let credentials = rustix::net::sockopt::socket_peercred(&socket);
        let socket = Seqpacket::from_fd(socket);
        let Ok(credentials) = credentials else { return };
        let limits = self.live.now().settings.limits;
        let uid = credentials.uid.as_raw();
        if let Some(text) = self.lacks_place(uid).or_else(|| self.lacks_descriptors(uid, 1)) {
            refuse(RefusalCode::Limit, text).send(&socket);
            return;
        }
        let id = self.live.next_client();
        let on = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        if epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(id), on).is_err() {
            return;
        }
        let credentials = (credentials.pid.as_raw_nonzero().get(), uid, credentials.gid.as_raw());
        self.descriptors += 1;
        let state = State::Silent { since: Instant::now() };
        self.sessions.insert(id, Session { id, socket, credentials, limits, state, features: 0, parked: None });
    }

    /// Take the messages that a client sent, and notice when it is gone. What is left is reported again: the socket is
    /// watched level-triggered.
    fn hear(&mut self, id: u64) {
        for _ in 0..MESSAGES_PER_TURN {
            let Some(session) = self.sessions.get(&id) else { return };
            match session.socket.try_receive() {
                Ok(None) => {
                    if session.socket.is_hung_up() {
                        self.lost(id);
                    }
                    return;
                }
                Ok(Some(packet)) => {
                    if let Err(refusal) = self.obey(id, packet) {
                        self.refuse(id, refusal);
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return self.lost(id),
                Err(error) => {
                    self.refuse_and_close(id, refuse(RefusalCode::Malformed, error.to_string()));
                    return;
                }
            }
        }
    }

    fn obey(&mut self, id: u64, packet: Packet) -> Result<(), Refusal> {
        let message = Control::decode(&packet.bytes).map_err(|error| refuse(RefusalCode::Malformed, error.to_string()))?;
        if !packet.descriptors.is_empty() && !matches!(message, Control::Register { .. }) {
            return Err(refuse(RefusalCode::Malformed, "only REGISTER carries a descriptor"));
        }
        self.check_not_parked(id)?;
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        match message {
            Control::Hello { version_min, version_max, features } => {
                let reply = session.greet(version_min, version_max, features)?;
                send(session, &reply, &[])
            }
            Control::Attach { .. } => self.attach(id, &message),
            Control::Register { region, access, length_bytes } => {
                let uid = session.credentials.1;
                if let Some(text) = self.lacks_descriptors(uid, 1) {
                    return Err(refuse(RefusalCode::Limit, text));
                }
                self.register(id, region, access, length_bytes, packet.descriptors)
            }
            Control::Unregister { region } => self.unregister(id, region),
            Control::Detach => self.detach(id),
            _ => Err(refuse(RefusalCode::Malformed, "that message goes from the daemon to the client")),
        }
    }

    fn attach_as(&mut self, id: u64, wanted: &Wanted<'_>) -> Result<(), Refusal> {
        let Some(Session { limits, credentials, .. }) = self.sessions.get(&id) else { return Ok(()) };
        let (max_queues, uid) = (limits.max_queues, credentials.1);
        if let Some(text) = self.lacks_descriptors(uid, 1 + 4 * u64::from(wanted.queue_count.min(max_queues))) {
            return Err(refuse(RefusalCode::Limit, text));
        }
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        let granted = match session.attach(wanted, &self.live.now().exports, &self.workers) {
            Ok(granted) => granted,
            Err(Denial::Refused(refusal)) => return Err(refusal),
            Err(Denial::Later(refusal)) => {
                session.parked = Some(Parked::new(wanted, refusal));
                return Ok(());
            }
        };
        let Granted { attachment, reply, grant, commands } = granted;
        self.descriptors += attachment.descriptors;
        let (pid, uid, _) = session.credentials;
        if self.quota.allows() {
            tracing::info!(client = id, pid, uid, disk = wanted.name, queues = attachment.assignments.len(), "attached");
        }
        session.state = State::Attached(attachment);
        for (worker, command) in commands {
            self.workers[worker].mailbox.send(command);
        }
        send(session, &reply, &grant.descriptors())
    }

    fn register(&mut self, id: u64, region: u16, access: u16, length_bytes: u64, files: Vec<OwnedFd>) -> Result<(), Refusal> {
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        let memory = session.register((region, access, length_bytes), files)?;
        self.descriptors += 1;
        self.tell_workers(id, Done::Registered(region), |ack| block_queue::add_region(id, region, &memory, access, ack));
        Ok(())
    }

    fn unregister(&mut self, id: u64, region: u16) -> Result<(), Refusal> {
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        session.unregister(region)?;
        self.tell_workers(id, Done::Unregistered(region), |ack| block_queue::remove_region(id, region, ack));
        Ok(())
    }

    fn detach(&mut self, id: u64) -> Result<(), Refusal> {
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        if !matches!(session.state, State::Attached(_)) {
            return Err(refuse(RefusalCode::Malformed, "DETACH follows ATTACH, once"));
        }
        if let State::Attached(attachment) = std::mem::replace(&mut session.state, State::Done) {
            session.state = State::Detaching(attachment);
        }
        self.tell_workers(id, Done::Finished, |ack| block_queue::remove_client(id, true, ack));
        Ok(())
    }

    /// Send a command to every worker of a client; the front hears `done` when the last has obeyed.
    fn tell_workers(&self, id: u64, done: Done, command: impl Fn(Ack) -> Command) {
        let ack: Ack = Arc::new(Reporter { mailbox: Arc::clone(&self.mailbox), client: id, done });
        let held = match self.sessions.get(&id).map(|session| &session.state) {
            Some(State::Attached(held) | State::Detaching(held)) => Some(held),
            _ => self.leaving.get(&id).map(|(_, held)| held),
        };
        let mut workers: Vec<usize> =
            held.map(|held| held.assignments.iter().map(Assignment::worker).collect()).unwrap_or_default();
        workers.sort_unstable();
        workers.dedup();
        for worker in workers {
            self.workers[worker].mailbox.send(command(Arc::clone(&ack)));
        }
    }

    fn workers_did(&mut self, id: u64, done: Done) {
        if let Done::Gone = done {
            if let Some((_, attachment)) = self.leaving.remove(&id) {
                self.release(id, &attachment);
            }
            return;
        }
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let reply = match done {
            Done::Registered(region) => Control::Registered { region },
            Done::Unregistered(region) => {
                if let State::Attached(attachment) = &mut session.state {
                    attachment.memory.remove(&region);
                    attachment.descriptors = attachment.descriptors.saturating_sub(1);
                    self.descriptors = self.descriptors.saturating_sub(1);
                }
                Control::Unregistered { region }
            }
            Done::Finished | Done::Gone => Control::Detached,
        };
        if let Done::Finished = done
            && let State::Detaching(attachment) = std::mem::replace(&mut session.state, State::Done)
        {
            // Before the answer: what the client kept others from, whoever hears that it is gone may do.
            self.release(id, &attachment);
            if let Some(session) = self.close(id) {
                let _ = send(&session, &reply, &[]);
            }
        } else if let Err(refusal) = send(session, &reply, &[]) {
            self.refuse_and_close(id, refusal);
        }
    }

    fn release(&mut self, id: u64, attachment: &Attachment) {
        attachment.export.leave(id);
        self.live.departed();
        self.descriptors = self.descriptors.saturating_sub(attachment.descriptors);
        if self.quota.allows() {
            tracing::info!(client = id, disk = attachment.export.name(), "gone; everything of it is released");
        }
    }

    /// The client closed its socket or died.
    fn lost(&mut self, id: u64) {
        let Some(session) = self.close(id) else { return };
        if let State::Attached(attachment) | State::Detaching(attachment) = session.state {
            attachment.export.is_leaving(id);
            self.leaving.insert(id, (session.credentials.1, attachment));
            self.tell_workers(id, Done::Gone, |ack| block_queue::remove_client(id, false, ack));
        }
    }

    fn close(&mut self, id: u64) -> Option<Session> {
        let session = self.sessions.remove(&id)?;
        let _ = epoll::delete(&self.epoll, &session.socket);
        self.descriptors = self.descriptors.saturating_sub(1);
        Some(session)
    }

    /// Memory that was refused leaves the attachment as it was; any other refusal ends the connection.
    fn refuse(&mut self, id: u64, refusal: Refusal) {
        let survives = matches!(refusal.code, RefusalCode::BadMemory | RefusalCode::Limit);
        match self.sessions.get(&id) {
            Some(Session { state: State::Attached(_), socket, .. }) if survives => {
                if !refusal.send(socket) {
                    self.refuse_and_close(id, refuse(RefusalCode::Malformed, "the client does not take its answers"));
                }
            }
            _ => self.refuse_and_close(id, refusal),
        }
    }

    fn refuse_and_close(&mut self, id: u64, refusal: Refusal) {
        let Some(session) = self.sessions.get(&id) else { return };
        let (pid, uid, _) = session.credentials;
        if self.quota.allows() {
            tracing::warn!(client = id, pid, uid, reason = refusal.text, "refused");
        }
        refusal.send(&session.socket);
        self.lost(id);
    }

    /// Take nobody new, and let everyone attached finish what they published.
    fn begin_drain(&mut self) {
        let _ = epoll::delete(&self.epoll, self.listener.socket());
        let ids: Vec<u64> = self.sessions.keys().copied().collect();
        tracing::info!(clients = ids.len(), "draining");
        notify::stopping(&format!("letting {} clients finish", ids.len()));
        for id in ids {
            match self.sessions.get(&id).map(|session| &session.state) {
                Some(State::Attached(_)) => {
                    let _ = self.detach(id);
                }
                Some(State::Detaching(_)) => {}
                _ => self.refuse_and_close(
                    id,
                    refuse(RefusalCode::ShuttingDown, "the daemon is shutting down; try again when it is back"),
                ),
            }
        }
    }
}

fn send(session: &Session, message: &Control, descriptors: &[std::os::fd::BorrowedFd<'_>]) -> Result<(), Refusal> {
    // A client that does not read its answers loses its connection, never our time.
    session
        .socket
        .send(&message.encode(), descriptors)
        .map_err(|error| refuse(RefusalCode::Malformed, format!("the client does not take its answers: {error}")))
}
