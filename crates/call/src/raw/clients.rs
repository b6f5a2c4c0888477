//! A service of calls for the runtime's sessions: which users may call, and which worker answers. One thread, never on the path
//! of a call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fipsee_ring::channel::{FEATURE_CHOICES, RegionLayout};
use fipsee_ring::control::{RefusalCode, Wanted};
use fipsee_ring::handshake::{Grant, refuse};
use fipsee_ring::mailbox::Mailbox;
use fipsee_ring::tuning::Choices;
use fipsee_serve::session::{Attachment, Client, ClientLimits, Credentials, Denial, Granted, Held, Host, Sessions};
use fipsee_serve::unix::listener::Listener;
use fipsee_serve::unix::{FIRST_TOKEN, UnixTransport};
use fipsee_serve::{Assignment, Command, Groups, QueueName, Share, Which, WorkerHandle};
use rustix::event::epoll::EventFlags;

use super::queue::{CallQueue, Turns};
use crate::server::Allow;
use crate::wire::{PROFILE, SERVICE_CALLS, ServiceInfo};

/// How long a stop waits for calls in progress before it gives up on them.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How often that thread looks at the clock while it stops or waits for descriptors.
const TICK: Duration = Duration::from_millis(250);

/// Messages to the thread that has the clients.
pub(super) enum Event {
    /// A worker wants clients.
    Joined { worker: usize, handle: WorkerHandle<Turns> },
    /// A worker ends, with all its channels.
    Left { worker: usize },
    /// A worker ends a client's channel.
    Refused { client: u64, text: String },
    /// Let clients finish what they published, then end.
    Stop,
    /// End at once.
    Abort,
}

/// What is served, to which clients, by which workers.
pub struct Serving {
    pub(super) name: Arc<str>,
    pub(super) info: ServiceInfo,
    pub(super) max_clients: usize,
    pub(super) max_depth: u32,
    pub(super) allow: Allow,
    /// Of both ends of the rings: used here, and advised to clients that ask.
    pub(super) choices: Choices,
    pub(super) workers: BTreeMap<usize, WorkerHandle<Turns>>,
    pub(super) clients: u64,
    pub(super) groups: Groups,
    pub(super) events: Arc<Mailbox<Event>>,
    /// Set once it is to end.
    #[doc(hidden)]
    pub ending: Option<Ending>,
}

/// A client has a channel to the service of this name.
struct CallAttachment(Arc<str>);

impl Attachment<Turns> for CallAttachment {
    fn name(&self) -> &str {
        &self.0
    }

    fn service(&self) -> u16 {
        SERVICE_CALLS
    }
}

impl Host<Turns> for Serving {
    fn next_client(&mut self) -> u64 {
        self.clients += 1;
        self.clients
    }

    fn limits(&self) -> ClientLimits {
        let max_pool_bytes = self.info.pool_bytes(self.max_depth);
        ClientLimits { max_queues: 1, max_depth: self.max_depth, max_pool_bytes, max_memory_bytes: 0 }
    }

    fn max_clients(&self) -> (usize, Option<usize>) {
        (self.max_clients, Some(self.max_clients))
    }

    fn share(&self, credentials: &Credentials) -> Share {
        self.groups.of_user(credentials.uid)
    }

    fn features(&self) -> u64 {
        FEATURE_CHOICES
    }

    fn attach(&mut self, client: &Client<'_>, wanted: &Wanted) -> Result<Granted<Turns>, Denial> {
        let Self { name, info, choices, .. } = self;
        if wanted.service != SERVICE_CALLS || wanted.flags != 0 || wanted.queue_count == 0 || wanted.depth == 0 {
            let text = "ATTACH asks for an unknown service or flag, or for no queue or depth 0; this server takes calls";
            return Err(refuse(RefusalCode::Malformed, text).into());
        }
        if *wanted.name != **name {
            let other = &wanted.name;
            let text =
                format!("this server serves '{name}', not '{other}'; connect to another socket, or build for the same version");
            return Err(refuse(RefusalCode::UnknownName, text).into());
        }
        if !(self.allow)(client.credentials) {
            let text = format!("user {} may not call '{name}'; its server decides which users may", client.credentials.uid);
            return Err(refuse(RefusalCode::NotAllowed, text).into());
        }
        let fewest = self.workers.iter().min_by_key(|(_, handle)| handle.counters.assigned.load(Ordering::Relaxed));
        let depth = wanted.depth.min(client.limits.max_depth);
        let seed = u32::try_from(client.id & 0xffff_ffff).unwrap_or(0);
        let mut layout = RegionLayout::plan(&PROFILE, 1, depth, info.pool_bytes(depth), seed);
        layout.features = client.features;
        layout.queues.iter_mut().for_each(|geometry| geometry.choices = *choices);
        let mut grant = Grant::new(layout, |_| {})?;
        let (Some((&worker, handle)), Some(queue)) = (fewest, grant.queues.pop()) else {
            return Err(refuse(RefusalCode::ShuttingDown, "no worker answers calls here any more; try again later").into());
        };
        let (peer, pool) = ((client.id, client.credentials.clone()), (Arc::clone(&grant.region), grant.layout.pool_offset_bytes));
        let (id, events) = (client.id, Arc::clone(&self.events));
        let added = move |added: Result<(), _>| {
            if added.is_err() {
                let text =
                    "the server cannot watch the channel's doorbell; raise its limit of watches (fs.epoll.max_user_watches)";
                events.send(Event::Refused { client: id, text: text.to_owned() });
            }
        };
        let make = move |id| Ok(CallQueue::new(id, peer, queue, pool, depth));
        let add = Command::add(QueueName { client: id, index: 0 }, client.share.clone(), make, added);
        Ok(Granted {
            attachment: Box::new(CallAttachment(Arc::clone(name))),
            assignments: vec![Assignment::to(worker, handle)],
            reply: grant.attached(info.to_bytes()),
            grant,
            commands: vec![(worker, add)],
        })
    }

    /// A client that is refused gets no message that all is done.
    fn catch_up(sessions: &mut Sessions<Turns, Self>) {
        for event in sessions.host.events.take() {
            match event {
                Event::Joined { worker, handle } => drop(sessions.host.workers.insert(worker, handle)),
                Event::Left { worker } => {
                    sessions.host.workers.remove(&worker);
                    let is_orphan = |held: &Held<Turns>| held.workers().contains(&worker);
                    let orphans = sessions.iter().filter(|(_, session)| session.held().is_some_and(is_orphan));
                    let mut orphans: Vec<u64> = orphans.map(|(client, _)| client).collect();
                    // In the order in which they came, so that the simulation can be repeated.
                    orphans.sort_unstable();
                    for client in orphans {
                        let text = "the thread that answered this client's calls is gone; connect again";
                        sessions.refuse_and_close(client, refuse(RefusalCode::ShuttingDown, text));
                    }
                }
                Event::Refused { client, text } => sessions.refuse_and_close(client, refuse(RefusalCode::Malformed, text)),
                Event::Stop => {
                    sessions.host.ending.get_or_insert(Ending::InOrder);
                    sessions.drain();
                }
                Event::Abort => sessions.host.ending = Some(Ending::AtOnce),
            }
        }
    }

    fn command(&mut self, worker: usize, command: Command<Turns>) {
        // One that is gone has released everything: dropped, the command counts as carried out.
        if let Some(handle) = self.workers.get(&worker) {
            handle.mailbox.send(command);
        }
    }
}

impl Serving {
    /// Have workers or the owner asked for something?
    pub fn has_events(&self) -> bool {
        self.events.has_messages()
    }

    /// Have the workers release their remaining clients, and end.
    pub fn stop_workers(&self) {
        for handle in self.workers.values() {
            let all = Command::Remove { which: Which::All, finish: false, removed: Box::new(|_, _| {}) };
            handle.mailbox.send_all([all, Command::Stop]);
        }
    }
}

/// How a server is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// When its clients have what they published.
    InOrder,
    /// Now.
    AtOnce,
}

pub(super) struct Clients {
    clients: UnixTransport<Turns, Serving>,
    listener: Listener,
    is_accepting: bool,
    stopping: Option<Instant>,
}

impl Clients {
    pub(super) fn new(serving: Serving, listener: Listener) -> std::io::Result<Self> {
        let clients = UnixTransport::new(serving)?;
        clients.watch(&*clients.sessions.host.events, FIRST_TOKEN, EventFlags::ET)?;
        Ok(Self { clients, listener, is_accepting: false, stopping: None })
    }

    /// Serve until the end is requested.
    pub(super) fn run(mut self) {
        while !self.is_over() {
            let is_waiting = self.stopping.is_some() || (!self.is_accepting && self.wants_clients());
            let (_, accepted) = self.clients.turn(self.listener.socket(), is_waiting.then_some(TICK));
            match self.clients.sessions.host.ending {
                Some(Ending::AtOnce) => break,
                Some(Ending::InOrder) => self.stopping = self.stopping.or_else(|| Some(Instant::now())),
                None => {}
            }
            // Without a worker there is no answer: clients wait to be accepted. So they do while no descriptor is free.
            self.accept_clients(accepted.is_ok() && self.wants_clients());
        }
        self.clients.sessions.host.stop_workers();
    }

    fn is_over(&self) -> bool {
        self.stopping.is_some_and(|since| self.clients.sessions.is_empty() || since.elapsed() > DRAIN_TIMEOUT)
    }

    fn wants_clients(&self) -> bool {
        self.stopping.is_none() && !self.clients.sessions.host.workers.is_empty()
    }

    fn accept_clients(&mut self, wanted: bool) {
        if wanted && !self.is_accepting {
            self.is_accepting = self.clients.listen(self.listener.socket()).is_ok();
        } else if !wanted && self.is_accepting {
            self.clients.stop_listening(self.listener.socket());
            self.is_accepting = false;
        }
    }
}
