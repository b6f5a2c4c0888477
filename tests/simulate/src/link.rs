//! Connections between clients and sessions: packets, descriptors, hang-ups, without sockets.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use fipsee_ring::channel::{ClientQueue, Profile, RegionLayout};
use fipsee_ring::control::{Control, SERVICE_INFO_BYTES, VERSION, Wanted};
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::handshake::AttachedChannel;
use fipsee_ring::pace::FirstLook;
use fipsee_ring::region::{Access, Region};
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_serve::session::{Action, Credentials, Done, Host, Session, Sessions, State};
use fipsee_serve::{Command, Engine};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::context::{Context, lock};
use crate::rng::Rng;
use crate::variant::Variant;

/// From a client.
pub(crate) enum Up {
    /// It connects, as this user.
    Connect(u32),
    /// A packet, with its descriptors.
    Packet(Vec<u8>, Vec<OwnedFd>),
    /// Likewise; something is wrong with it.
    Damaged(Vec<u8>, Vec<OwnedFd>),
    /// It is gone.
    Gone,
}

/// To a client.
pub(crate) enum Down {
    /// A packet, with its descriptors.
    Packet(Control, Vec<OwnedFd>),
    /// The daemon is gone, or wants no more of it.
    Closed,
}

/// For the trace: the numbers of descriptors are not the same when a lifetime is played again.
impl fmt::Debug for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packet(Control::Attached { queue_count, .. }, files) => {
                write!(f, "Attached with {queue_count} queues, {} descriptors", files.len())
            }
            Self::Packet(message, _) => write!(f, "{message:?}"),
            Self::Closed => f.write_str("the end of its connection"),
        }
    }
}

/// A connection.
#[derive(Default)]
pub(crate) struct Link {
    /// The daemon's number for it, once it has taken it.
    pub(crate) session: Option<u64>,
    /// As what it was attached last, whether or not that is over.
    pub(crate) attached_as: Option<u64>,
    /// The number of the disk's size at that time.
    pub(crate) attached_size: usize,
    /// What the daemon has not taken.
    pub(crate) up: VecDeque<Up>,
    /// What the client has not taken.
    pub(crate) down: VecDeque<Down>,
}

impl Link {
    /// A packet to the daemon.
    pub(crate) fn send(&mut self, message: &Control) {
        self.up.push_back(Up::Packet(message.encode(), Vec::new()));
    }

    /// Connect as this user, and greet.
    pub(crate) fn greet(&mut self, uid: u32, features: u64) {
        self.up.push_back(Up::Connect(uid));
        self.send(&Control::Hello { version_min: VERSION, version_max: VERSION, features });
    }

    /// The daemon's process has ended.
    pub(crate) fn is_cut(&mut self) {
        if self.session.take().is_some() || !self.up.is_empty() {
            self.up.clear();
            self.down.push_back(Down::Closed);
        }
    }
}

/// What is wrong with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// It ends after so many bytes, modulo its length.
    Short(usize),
    /// So many bytes more than it has come with it.
    Long(usize),
    /// It has one descriptor too many.
    FileTooMany,
    /// It lacks the descriptor that it must have.
    NoFile,
    /// This byte, modulo its length, is another.
    Byte(usize),
}

/// A packet that no correct client sends: one of the messages, and what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged {
    message: usize,
    damage: Damage,
}

impl Damaged {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let damage = match rng.below(5) {
            0 => Damage::Short(rng.below(512)),
            1 => Damage::Long(1 + rng.below(64)),
            2 => Damage::FileTooMany,
            3 => Damage::NoFile,
            _ => Damage::Byte(rng.below(12)),
        };
        Self { message: rng.below(7), damage }
    }

    /// On its way.
    pub(crate) fn send(self, link: &mut Link) {
        let register = Control::Register { region: 9, access: 3, length_bytes: 4096 };
        let message = match (self.message, self.damage) {
            (_, Damage::NoFile) | (2, _) => register,
            (0, _) => Control::Hello { version_min: VERSION, version_max: VERSION, features: 0 },
            (1, _) => {
                let name = "disk".to_owned();
                Control::Attach(Wanted { service: 1, queue_count: 1, depth: 4, flags: 0, pool_bytes: 0, name })
            }
            (3, _) => Control::Unregister { region: 1 },
            (4, _) => Control::Detach,
            (5, _) => Control::Detached,
            _ => Control::List { service: 1, after: String::new() },
        };
        let is_register = matches!(message, Control::Register { .. });
        let mut bytes = message.encode();
        let mut files = usize::from(is_register);
        match self.damage {
            Damage::Short(length) => bytes.truncate(1 + length % (bytes.len() - 1)),
            Damage::Long(more) => bytes.resize(bytes.len() + more, u8::try_from(more % 3).unwrap_or(0)),
            Damage::FileTooMany => files += 1,
            Damage::NoFile => files = 0,
            // Magic, kind, length: what the header says of it is not what it is. The version is HELLO's to negotiate.
            Damage::Byte(place) => bytes[if place == 6 || place == 7 { 8 } else { place }] ^= 0x55,
        }
        let file = || Region::create("memory", 4096).expect("memory").as_fd().try_clone_to_owned().expect("a descriptor");
        link.up.push_back(Up::Damaged(bytes, std::iter::repeat_with(file).take(files).collect()));
    }
}

/// Sessions, and how their actions reach clients and workers.
pub(crate) struct Transport<E: Engine, H: Host<E>> {
    pub(crate) sessions: Sessions<E, H>,
    reports: Arc<Mutex<Vec<(u64, Done)>>>,
    context: Arc<Context>,
    reports_taken: u32,
}

impl<E: Engine, H: Host<E>> Transport<E, H> {
    pub(crate) fn new(context: &Arc<Context>, host: H) -> Self {
        let reports = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&reports);
        let sessions = Sessions::new(host, Arc::new(move |client, done| lock(&to).push((client, done))));
        Self { sessions, reports, context: Arc::clone(context), reports_taken: 0 }
    }

    /// Take the next event of a connection.
    pub(crate) fn take(&mut self, links: &mut [Link], link: usize, now: Instant) {
        let Some(up) = links[link].up.pop_front() else { return };
        match (up, links[link].session) {
            (Up::Connect(uid), _) => self.connect(&mut links[link], link, uid, now),
            (Up::Packet(bytes, files), Some(id)) => {
                self.context.say(|| format!("daemon: takes {:?} of client {id}", Control::decode(&bytes)));
                self.sessions.packet(id, &bytes, files, now);
            }
            (Up::Damaged(bytes, files), Some(id)) => return self.take_damaged(links, link, id, (&bytes, files), now),
            (Up::Gone, Some(id)) => {
                self.context.say(|| format!("daemon: client {id} hung up"));
                self.sessions.hung_up(id);
                links[link].session = None;
            }
            (_, None) => {}
        }
        self.tick(links, now);
    }

    fn connect(&mut self, link: &mut Link, number: usize, uid: u32, now: Instant) {
        let credentials = Credentials { uid, ..Credentials::default() };
        let (places, of_user) = self.places(uid);
        let (most, most_of_user) = self.sessions.host.max_clients();
        let is_full = places >= most || uid != 0 && most_of_user.is_some_and(|most| of_user >= most);
        let admitted = self.sessions.connected(credentials, now);
        if admitted.is_ok() == is_full {
            let what = if is_full { "gets" } else { "does not get" };
            self.context.violated(|| format!("user {uid} {what} a place; {places} are taken, {of_user} by it"));
        }
        match admitted {
            Ok(id) => {
                self.context.say(|| format!("daemon: connection {number} is client {id}"));
                link.session = Some(id);
            }
            Err(refusal) => {
                self.context.say(|| format!("daemon: connection {number} is not let in: {}", refusal.text));
                link.down.push_back(Down::Packet(Control::Refused(refusal), Vec::new()));
                link.down.push_back(Down::Closed);
            }
        }
    }

    /// Places that are taken, in all and by a user: by clients that are connected, or have unfinished requests.
    fn places(&self, uid: u32) -> (usize, usize) {
        let holders = self.context.holders();
        let is_connected = |id: u64| self.sessions.iter().any(|(connected, _)| connected == id);
        let leaving = holders.iter().filter(|holder| !is_connected(holder.client)).map(|holder| holder.uid);
        let users = self.sessions.iter().map(|(_, session)| session.credentials.uid).chain(leaving);
        users.fold((0, 0), |(all, of_user), other| (all + 1, of_user + usize::from(other == uid)))
    }

    /// Such a packet must be refused, whatever the client is about to do.
    fn take_damaged(&mut self, links: &mut [Link], link: usize, id: u64, packet: (&[u8], Vec<OwnedFd>), now: Instant) {
        let session = self.sessions.iter().find(|(client, _)| *client == id);
        let is_ignored = session.is_none_or(|(_, session)| matches!(session.state, State::Detaching(_)));
        let sent = links[link].down.len();
        self.context.say(|| format!("daemon: takes a damaged packet of client {id}: {:?}", Control::decode(packet.0)));
        self.sessions.packet(id, packet.0, packet.1, now);
        self.carry_out(links);
        let is_refusal = |down: &Down| matches!(down, Down::Packet(Control::Refused(_), _));
        if !is_ignored && !links[link].down.iter().skip(sent).any(is_refusal) {
            self.context.violated(|| format!("a damaged packet of client {id} is not refused"));
        }
    }

    /// Is a packet that comes on this connection now looked at? Not when it is closed, nor when the client is to detach.
    pub(crate) fn looks_at(&self, link: &Link) -> bool {
        let is_detaching = |(_, session): (u64, &Session<E>)| matches!(session.state, State::Detaching(_));
        let session = self.sessions.iter().find(|(client, _)| link.session == Some(*client));
        let is_closed = link.up.iter().any(|up| matches!(up, Up::Gone));
        let is_coming = link.up.iter().any(|up| matches!(up, Up::Connect(_)));
        !is_closed && session.map_or(is_coming, |session| !is_detaching(session))
    }

    /// Has anything been acknowledged that was not taken?
    pub(crate) fn has_reports(&self) -> bool {
        !lock(&self.reports).is_empty()
    }

    /// Take what the workers acknowledged.
    pub(crate) fn take_reports(&mut self, links: &mut [Link]) {
        let reports = std::mem::take(&mut *lock(&self.reports));
        H::catch_up(&mut self.sessions);
        for (client, done) in reports {
            self.reports_taken += 1;
            if self.context.is_broken(Variant::AcknowledgementLost) && (client + u64::from(self.reports_taken)).is_multiple_of(4)
            {
                continue;
            }
            self.context.say(|| format!("daemon: its workers report {done:?} for client {client}"));
            self.sessions.acknowledged(client, done);
        }
        self.carry_out(links);
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, links: &mut [Link], now: Instant) {
        self.sessions.tick(now);
        self.sessions.balance();
        self.carry_out(links);
    }

    /// Do what the sessions decided.
    pub(crate) fn carry_out(&mut self, links: &mut [Link]) {
        loop {
            let actions = self.sessions.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    Action::Send { client, message, grant } => {
                        let Some(link) = links.iter_mut().find(|link| link.session == Some(client)) else { continue };
                        let files = grant.as_deref().map(|grant| grant.descriptors()).unwrap_or_default();
                        let files = files.iter().map(|file| file.try_clone_to_owned().expect("a descriptor")).collect();
                        if grant.is_some() {
                            link.attached_as = Some(client);
                            link.attached_size = self.context.oracle().newest_size();
                        }
                        link.down.push_back(Down::Packet(message, files));
                    }
                    Action::Close { client } => {
                        let Some(link) = links.iter_mut().find(|link| link.session == Some(client)) else { continue };
                        link.session = None;
                        link.down.push_back(Down::Closed);
                    }
                    Action::Command { worker, command: Command::Remove { which, finish: true, removed } }
                        if self.context.is_broken(Variant::DetachedEarly) =>
                    {
                        self.sessions.host.command(worker, Command::Remove { which, finish: false, removed });
                    }
                    Action::Command { worker, command } => self.sessions.host.command(worker, command),
                }
            }
        }
    }
}

/// Whether a worker or a client is to be scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awake {
    /// It looks.
    Yes,
    /// It found nothing: next it arms its doorbells.
    Drowsy,
    /// Until something rings.
    No,
}

/// Has the daemon rung a client's doorbell, or closed its end?
pub(crate) fn is_rung(queue: &impl AsFd) -> bool {
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut [PollFd::new(queue, PollFlags::IN)], Some(&none)).is_ok_and(|ready| ready > 0)
}

/// The client's end of what ATTACHED brings. Nothing in it depends on time.
pub(crate) fn open(
    profile: &Profile,
    region_bytes: u64,
    service_info: [u8; SERVICE_INFO_BYTES],
    files: Vec<OwnedFd>,
) -> AttachedChannel {
    let mut files = files.into_iter();
    let file = files.next().expect("the channel's memory");
    let control = Seqpacket::from_fd(file.try_clone().expect("a descriptor"));
    let region = Arc::new(Region::from_peer(file, region_bytes, Access::ReadWrite).expect("memory"));
    let layout = RegionLayout::read_from(profile, &region).expect("a layout");
    let mut queues = Vec::new();
    for geometry in &layout.queues {
        let (Some(daemon_doorbell), Some(our_doorbell)) = (files.next(), files.next()) else { break };
        let mut tuning = geometry.tuning();
        tuning.first_look = FirstLook::AtOnce;
        let doorbells = (EventDoorbell::from_fd(daemon_doorbell), SocketDoorbell::from_fd(our_doorbell));
        queues.push(ClientQueue::open(&region, geometry, doorbells.0, doorbells.1, &tuning).expect("it fits"));
    }
    AttachedChannel { control, region, layout, service_info, queues }
}
