//! The clients of a service: greeting, attaching, memory, leaving. A state machine without I/O: packets, hang-ups, timers and
//! workers' acknowledgements go in, [`Action`]s come out. [`crate::unix`] carries them out over sockets, the simulator over
//! nothing.

mod channel;
mod limits;
mod memory;
mod moves;
mod service;
mod state;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fipsee_ring::control::{Control, FEATURE_LIST, Refusal, RefusalCode, Wanted};
use fipsee_ring::handshake::{Grant, HANDSHAKE_TIMEOUT, refuse};

pub use self::channel::{AdoptedChannel, Channel, Positions};
pub use self::limits::ClientLimits;
use self::moves::Order;
use self::service::Reporter;
pub use self::service::{
    Ack, Adopted, Attachment, Client, Credentials, Denial, Done, Event, Granted, Host, MAX_PART_FILES, Part, Service, TakesMemory,
};
pub use self::state::{Held, Registered, Session, State};
use crate::{Command, Engine, Which};

/// How soon a client that waits for others to be gone is looked at again: not every end of a request is reported.
const PENDING_ATTACH_TICK: Duration = Duration::from_millis(5);
/// How soon silent clients are checked again. Coarse: one costs nothing but its place.
const SILENT_TICK: Duration = Duration::from_millis(250);

pub enum Action<E: Engine> {
    /// Send a packet; what was granted comes with its descriptors. What a client does not take is reported by
    /// [`Sessions::not_taken`].
    Send {
        client: u64,
        message: Control,
        grant: Option<Box<Grant>>,
    },
    Close {
        client: u64,
    },
    Command {
        worker: usize,
        command: Command<E>,
    },
}

pub struct Sessions<E: Engine, H: Host<E>> {
    pub host: H,
    report: Arc<dyn Fn(u64, Done) + Send + Sync>,
    sessions: HashMap<u64, Session<E>>,
    /// Clients with closed connections and requests still in flight, with their users.
    leaving: HashMap<u64, (u32, Held<E>)>,
    /// The client with a queue on its way between workers.
    moving: Option<u64>,
    actions: Vec<Action<E>>,
    /// Departures of clients when the last pending ATTACH was looked at.
    departures_seen: u64,
}

impl<E: Engine, H: Host<E>> Sessions<E, H> {
    /// No client yet. Workers acknowledge through `report`, from their threads; what it is called with goes to
    /// [`acknowledged`](Self::acknowledged).
    pub fn new(host: H, report: Arc<dyn Fn(u64, Done) + Send + Sync>) -> Self {
        let (sessions, leaving) = (HashMap::new(), HashMap::new());
        Self { host, report, sessions, leaving, moving: None, actions: Vec::new(), departures_seen: 0 }
    }

    pub fn take_actions(&mut self) -> Vec<Action<E>> {
        std::mem::take(&mut self.actions)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &Session<E>)> {
        self.sessions.iter().map(|(id, session)| (*id, session))
    }

    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Is no client connected, and nothing of others in flight?
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.leaving.is_empty()
    }

    /// Is no client's answer or departure pending, and no queue on its way? Only then may another process continue with the
    /// clients.
    pub fn is_settled(&self) -> bool {
        self.leaving.is_empty() && !self.is_moving() && !self.has_pending_attach()
    }

    pub fn adopt(&mut self, id: u64, session: Session<E>) {
        self.sessions.insert(id, session);
    }

    /// A client connects: its number, or why it is not admitted.
    pub fn connected(&mut self, credentials: Credentials, now: Instant) -> Result<u64, Refusal> {
        let uid = credentials.uid;
        self.check_place(uid)?;
        self.check_descriptors(uid, 1)?;
        let id = self.host.next_client();
        let (limits, share) = (self.host.limits(), self.host.share(&credentials));
        self.sessions.insert(id, Session::new(credentials, limits, 0, share, State::Silent { since: now }));
        Ok(id)
    }

    pub fn packet(&mut self, id: u64, bytes: &[u8], files: Vec<OwnedFd>, now: Instant) {
        if let Err(refusal) = self.take_packet(id, bytes, files, now) {
            self.refuse(id, refusal);
        }
    }

    fn take_packet(&mut self, id: u64, bytes: &[u8], files: Vec<OwnedFd>, now: Instant) -> Result<(), Refusal> {
        let message = Control::decode(bytes).map_err(|error| refuse(RefusalCode::Malformed, error.to_string()))?;
        if !files.is_empty() && !matches!(message, Control::Register { .. }) {
            return Err(refuse(RefusalCode::Malformed, "only REGISTER carries a descriptor"));
        }
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        if session.pending_attach.is_some() {
            let text = "a message came before ATTACH was answered; wait for the answer";
            return Err(refuse(RefusalCode::Malformed, text));
        }
        if matches!(session.state, State::Detaching(_)) {
            // It crossed with a drain, and DETACHED answers it: refused, what the client published would be lost.
            return Ok(());
        }
        match message {
            Control::Hello { version_min, version_max, features } => {
                let features = features & self.host.features();
                let reply = session.greet((version_min, version_max), features, now)?;
                self.send(id, reply);
                Ok(())
            }
            Control::List { service, after } => self.list(id, service, &after),
            Control::Attach(wanted) => self.attach(id, wanted),
            Control::Register { region, access, length_bytes } => self.register(id, (region, access, length_bytes), files),
            Control::Unregister { region } => self.unregister(id, region),
            Control::Detach => self.detach(id),
            _ => Err(refuse(RefusalCode::Malformed, "that message goes from the daemon to the client")),
        }
    }

    /// It costs the client its time to attach, which goes on.
    fn list(&mut self, id: u64, service: u16, after: &str) -> Result<(), Refusal> {
        let Some(Session { credentials, limits, features, share, state, .. }) = self.sessions.get(&id) else { return Ok(()) };
        if !matches!(state, State::Greeted { .. }) || features & FEATURE_LIST == 0 {
            return Err(refuse(RefusalCode::Malformed, "LIST comes between HELLO, which offers it as a feature, and ATTACH"));
        }
        let client = Client { id, credentials, limits: *limits, features: *features, share };
        let page = self.host.list(&client, service, after)?;
        self.send(id, Control::Listed(page));
        Ok(())
    }

    fn attach(&mut self, id: u64, wanted: Wanted) -> Result<(), Refusal> {
        let Some(session) = self.sessions.get(&id) else { return Ok(()) };
        if !matches!(session.state, State::Greeted { .. }) {
            return Err(refuse(RefusalCode::Malformed, "ATTACH follows HELLO, once"));
        }
        let ClientLimits { max_queues, max_pool_bytes, .. } = session.limits;
        let uid = session.credentials.uid;
        self.check_memory(uid, wanted.pool_bytes.min(max_pool_bytes))?;
        self.check_descriptors(uid, 1 + 4 * u64::from(wanted.queue_count.min(max_queues)))?;
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        let Session { credentials, limits, features, share, .. } = session;
        let client = Client { id, credentials, limits: *limits, features: *features, share };
        let Granted { attachment, assignments, reply, grant, commands } = match self.host.attach(&client, &wanted) {
            Ok(granted) => granted,
            Err(Denial::Refused(refusal)) => return Err(refusal),
            Err(Denial::Concealed { refusal, reason }) => {
                self.refuse_because(id, refusal, &reason);
                return Ok(());
            }
            Err(Denial::Later(refusal)) => {
                session.pending_attach = Some((wanted, refusal));
                return Ok(());
            }
        };
        self.host.event(Event::Attached { client: &client, name: &wanted.name, queues: assignments.len() });
        session.state = State::Attached(Held::new(attachment, assignments));
        self.actions.extend(commands.into_iter().map(|(worker, command)| Action::Command { worker, command }));
        self.actions.push(Action::Send { client: id, message: reply, grant: Some(Box::new(grant)) });
        Ok(())
    }

    /// Have the client's workers finish what it published, as if it had asked for that.
    pub fn detach(&mut self, id: u64) -> Result<(), Refusal> {
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        match std::mem::replace(&mut session.state, State::Done) {
            State::Attached(held) => session.state = State::Detaching(held),
            other => {
                session.state = other;
                return Err(refuse(RefusalCode::Malformed, "DETACH follows ATTACH, once"));
            }
        }
        self.command_workers(id, Done::Finished, Box::new(move |_, ack| Some(remove_client(id, true, ack))));
        Ok(())
    }

    fn held(&mut self, id: u64) -> Option<&mut Held<E>> {
        match self.sessions.get_mut(&id).map(|session| &mut session.state) {
            Some(State::Attached(held) | State::Detaching(held)) => Some(held),
            _ => self.leaving.get_mut(&id).map(|(_, held)| held),
        }
    }

    /// Send a command to every worker of a client; `done` is acknowledged when the last has carried it out. While a queue of it
    /// is on its way, none of them would find that.
    fn command_workers(&mut self, id: u64, done: Done, order: Order<E>) {
        let report = Arc::clone(&self.report);
        let Some(held) = self.held(id) else { return };
        if let Some(moving) = &mut held.moving {
            return moving.held_back.push((done, order));
        }
        let ack: Ack = Arc::new(Reporter { report, client: id, done });
        let to = |worker| Some(Action::Command { worker, command: order(&*held.attachment, Arc::clone(&ack))? });
        let actions: Vec<_> = held.workers().into_iter().filter_map(to).collect();
        self.actions.extend(actions);
    }

    pub fn acknowledged(&mut self, id: u64, done: Done) {
        match done {
            Done::Registered(region) => self.send(id, Control::Registered { region }),
            Done::Unregistered(region) => self.unregistered(id, region),
            Done::Finished => self.finished(id),
            Done::Lifted => self.lifted(id),
            Done::Moved => self.moved(id, true),
            Done::NotMoved => self.not_moved(id),
            Done::Gone => {
                if let Some((_, held)) = self.leaving.remove(&id) {
                    self.release(id, &held);
                }
            }
        }
    }

    fn finished(&mut self, id: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let State::Detaching(held) = std::mem::replace(&mut session.state, State::Done) else { return };
        // Before the answer: once the client is notified, other clients may do what it kept them from.
        self.release(id, &held);
        self.send(id, Control::Detached);
        self.close(id);
    }

    fn release(&mut self, id: u64, held: &Held<E>) {
        held.attachment.release(id);
        self.host.event(Event::Gone { client: id, name: held.attachment.name() });
    }

    /// A client closed its connection, or died.
    pub fn hung_up(&mut self, id: u64) {
        let Some(session) = self.close(id) else { return };
        if let State::Attached(held) | State::Detaching(held) = session.state {
            held.attachment.leave(id);
            self.leaving.insert(id, (session.credentials.uid, held));
            self.command_workers(id, Done::Gone, Box::new(move |_, ack| Some(remove_client(id, false, ack))));
        }
    }

    pub fn unreadable(&mut self, id: u64, error: &std::io::Error) {
        self.refuse_and_close(id, refuse(RefusalCode::Malformed, error.to_string()));
    }

    /// A client did not take a packet. It loses its connection; we do not wait for it.
    pub fn not_taken(&mut self, id: u64, error: &std::io::Error) {
        self.refuse_and_close(id, refuse(RefusalCode::Malformed, format!("the client does not take its answers: {error}")));
    }

    fn close(&mut self, id: u64) -> Option<Session<E>> {
        let session = self.sessions.remove(&id)?;
        self.actions.push(Action::Close { client: id });
        Some(session)
    }

    fn send(&mut self, client: u64, message: Control) {
        if self.sessions.contains_key(&client) {
            self.actions.push(Action::Send { client, message, grant: None });
        }
    }

    /// Memory that was refused leaves the attachment as it was; any other refusal ends the connection.
    fn refuse(&mut self, id: u64, refusal: Refusal) {
        let survives = matches!(refusal.code, RefusalCode::BadMemory | RefusalCode::Limit);
        match self.sessions.get(&id) {
            Some(Session { state: State::Attached(_), .. }) if survives => self.send(id, Control::Refused(refusal)),
            _ => self.refuse_and_close(id, refusal),
        }
    }

    /// Send a client the reason why it is not served, and release it.
    pub fn refuse_and_close(&mut self, id: u64, refusal: Refusal) {
        let reason = refusal.text.clone();
        self.refuse_because(id, refusal, &reason);
    }

    /// Likewise, and the program gets another reason.
    fn refuse_because(&mut self, id: u64, refusal: Refusal, reason: &str) {
        let Some(session) = self.sessions.get(&id) else { return };
        self.host.event(Event::Refused { client: id, credentials: &session.credentials, reason });
        self.send(id, Control::Refused(refusal));
        self.hung_up(id);
    }

    /// Let attached clients finish what they published, and all others go.
    pub fn drain(&mut self) {
        for id in self.ids(|_| true) {
            match self.sessions.get(&id).map(|session| &session.state) {
                Some(State::Attached(_)) => drop(self.detach(id)),
                Some(State::Detaching(_)) => {}
                _ => {
                    let text = "the daemon is shutting down; try again when it is back";
                    self.refuse_and_close(id, refuse(RefusalCode::ShuttingDown, text));
                }
            }
        }
    }

    /// Time has passed, or a client elsewhere has left: answer those that waited for that, and refuse those that have not
    /// attached in time, whether they sent nothing or waited for an answer.
    pub fn tick(&mut self, now: Instant) {
        let departures = self.host.departures();
        if std::mem::replace(&mut self.departures_seen, departures) != departures {
            for id in self.ids(|session| session.pending_attach.is_some()) {
                let Some((wanted, _)) = self.sessions.get_mut(&id).and_then(|session| session.pending_attach.take()) else {
                    continue;
                };
                if let Err(refusal) = self.attach(id, wanted) {
                    self.refuse(id, refusal);
                }
            }
        }
        let late = |since: Instant| now.saturating_duration_since(since) > HANDSHAKE_TIMEOUT;
        for id in self.ids(|session| session.waits_since().is_some_and(late)) {
            let pending_attach = self.sessions.get_mut(&id).and_then(|session| session.pending_attach.take());
            let silent = || {
                let text =
                    format!("nothing was said within {} s; greet and attach right after connecting", HANDSHAKE_TIMEOUT.as_secs());
                refuse(RefusalCode::Malformed, text)
            };
            self.refuse_and_close(id, pending_attach.map_or_else(silent, |(_, refusal)| refusal));
        }
    }

    /// After how long [`tick`](Self::tick) is to be called, whatever happens.
    pub fn next_tick(&self) -> Option<Duration> {
        if self.has_pending_attach() {
            return Some(PENDING_ATTACH_TICK);
        }
        self.sessions.values().any(|session| session.waits_since().is_some()).then_some(SILENT_TICK)
    }

    fn has_pending_attach(&self) -> bool {
        self.sessions.values().any(|session| session.pending_attach.is_some())
    }

    /// The clients for which this is true, in the order in which they connected.
    fn ids(&self, is_meant: impl Fn(&Session<E>) -> bool) -> Vec<u64> {
        let meant = self.sessions.iter().filter(|(_, session)| is_meant(session));
        let mut ids: Vec<u64> = meant.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }
}

/// Let go of a client's queues once nothing is in flight; `finish`: first serve what was published.
fn remove_client<E: Engine>(client: u64, finish: bool, ack: Ack) -> Command<E> {
    let removed = move |queue, share| {
        let _until_dropped = &ack;
        drop((queue, share));
    };
    Command::Remove { which: Which::Client(client), finish, removed: Box::new(removed) }
}
