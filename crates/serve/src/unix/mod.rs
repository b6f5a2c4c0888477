//! Sessions over a Unix socket: accepts, receives, sends, and looks at the clock for the state machine of [`crate::session`]. One
//! thread, never on the data path.

pub mod listener;
mod peer;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fipsee_ring::control::Control;
use fipsee_ring::handshake::Grant;
use fipsee_ring::mailbox::Mailbox;
use fipsee_ring::seqpacket::Seqpacket;
use rustix::event::{Timespec, epoll};
use rustix::net::SocketFlags;

use crate::Engine;
use crate::session::{Action, Credentials, Done, Host, Session, Sessions};

/// Messages taken from one client before the others are looked at again; a correct one has one unanswered at most.
const MESSAGES_PER_TURN: usize = 16;
/// No client has so high a number: descriptors of the owner are watched under tokens from here on.
pub const FIRST_TOKEN: u64 = u64::MAX - 16;

const TOKEN_LISTENER: u64 = u64::MAX;
const TOKEN_MAILBOX: u64 = u64::MAX - 1;

pub struct UnixTransport<E: Engine, H: Host<E>> {
    pub sessions: Sessions<E, H>,
    sockets: HashMap<u64, Seqpacket>,
    epoll: OwnedFd,
    mailbox: Arc<Mailbox<(u64, Done)>>,
}

impl<E: Engine, H: Host<E>> UnixTransport<E, H> {
    pub fn new(host: H) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mailbox = Arc::new(Mailbox::new()?);
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &*mailbox, epoll::EventData::new_u64(TOKEN_MAILBOX), edge)?;
        let reports = Arc::clone(&mailbox);
        let sessions = Sessions::new(host, Arc::new(move |client, done| reports.send((client, done))));
        Ok(Self { sessions, sockets: HashMap::new(), epoll, mailbox })
    }

    /// Report a descriptor of the owner under `token`, at least [`FIRST_TOKEN`], when it becomes readable.
    pub fn watch(&self, fd: impl AsFd, token: u64, flags: epoll::EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN | flags)?)
    }

    pub fn listen(&self, listener: impl AsFd) -> io::Result<()> {
        self.watch(listener, TOKEN_LISTENER, epoll::EventFlags::empty())
    }

    pub fn stop_listening(&self, listener: impl AsFd) {
        let _ = epoll::delete(&self.epoll, listener);
    }

    /// Sleep until something happens, at most `longest`, and do what clients and workers ask for. Returns the owner's tokens that
    /// became readable; an error is one of accepting.
    pub fn turn(&mut self, listener: impl AsFd, longest: Option<Duration>) -> (Vec<u64>, io::Result<()>) {
        let (mut tokens, mut accepted) = (Vec::new(), Ok(()));
        for token in self.wait(longest) {
            match token {
                TOKEN_LISTENER => accepted = self.accept(&listener),
                TOKEN_MAILBOX => {}
                FIRST_TOKEN.. => tokens.push(token),
                client => self.receive(client),
            }
        }
        self.take_reports();
        self.sessions.tick(Instant::now());
        self.carry_out();
        (tokens, accepted)
    }

    pub fn take_reports(&mut self) {
        let reports = self.mailbox.take();
        H::catch_up(&mut self.sessions);
        for (client, done) in reports {
            self.sessions.acknowledged(client, done);
        }
        self.carry_out();
    }

    fn wait(&self, longest: Option<Duration>) -> Vec<u64> {
        let sleep = [longest, self.sessions.next_tick()].into_iter().flatten().min();
        let timeout = sleep.and_then(|sleep| Timespec::try_from(sleep).ok());
        let mut events = Vec::<epoll::Event>::with_capacity(128);
        // An error other than an interruption cannot happen to a valid descriptor and valid arguments.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref());
        events.iter().map(|event| event.data.u64()).collect()
    }

    fn accept(&mut self, listener: &impl AsFd) -> io::Result<()> {
        loop {
            match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.admit(socket),
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        let Ok(credentials) = credentials_of(&socket) else { return };
        let socket = Seqpacket::from_fd(socket);
        match self.sessions.connected(credentials, Instant::now()) {
            Err(refusal) => drop(socket.send(&Control::Refused(refusal).encode(), &[])),
            Ok(client) => {
                if self.add(client, socket).is_err() {
                    self.sessions.hung_up(client);
                }
            }
        }
    }

    fn add(&mut self, client: u64, socket: Seqpacket) -> io::Result<()> {
        self.watch(&socket, client, epoll::EventFlags::RDHUP)?;
        self.sockets.insert(client, socket);
        Ok(())
    }

    pub fn adopt(&mut self, client: u64, socket: Seqpacket, session: Session<E>) -> io::Result<()> {
        self.add(client, socket)?;
        self.sessions.adopt(client, session);
        Ok(())
    }

    pub fn socket(&self, client: u64) -> Option<&Seqpacket> {
        self.sockets.get(&client)
    }

    /// Take the messages that a client sent, and notice when it is gone. What is left is reported again: the socket is
    /// watched level-triggered.
    fn receive(&mut self, client: u64) {
        for _ in 0..MESSAGES_PER_TURN {
            let Some(socket) = self.sockets.get(&client) else { return };
            match socket.try_receive() {
                Ok(None) => {
                    if socket.is_hung_up() {
                        self.sessions.hung_up(client);
                        self.carry_out();
                    }
                    return;
                }
                Ok(Some(packet)) => self.sessions.packet(client, &packet.bytes, packet.descriptors, Instant::now()),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => self.sessions.hung_up(client),
                Err(error) => self.sessions.unreadable(client, &error),
            }
            self.carry_out();
        }
    }

    pub fn carry_out(&mut self) {
        loop {
            let actions = self.sessions.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    Action::Send { client, message, grant } => {
                        let descriptors = grant.as_deref().map(Grant::descriptors).unwrap_or_default();
                        let sent = self.sockets.get(&client).map(|socket| socket.send(&message.encode(), &descriptors));
                        if let Some(Err(error)) = sent {
                            self.sessions.not_taken(client, &error);
                        }
                    }
                    Action::Close { client } => {
                        if let Some(socket) = self.sockets.remove(&client) {
                            // Another process may have a copy, which would keep it watched.
                            let _ = epoll::delete(&self.epoll, &socket);
                        }
                    }
                    Action::Command { worker, command } => self.sessions.host.command(worker, command),
                }
            }
        }
    }
}

/// The peer of a Unix socket, when it connected. Its `pid` is 0 if it is in a PID namespace that this process does not see.
pub fn credentials_of(socket: &impl AsFd) -> io::Result<Credentials> {
    let libc::ucred { pid, uid, gid } = peer::process(socket)?;
    Ok(Credentials { pid, uid, gid, more_gids: peer::groups(socket) })
}
