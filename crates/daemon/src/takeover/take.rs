//! The new daemon's part: ask, and take what is handed over while the old one still serves.

use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fipsee_block::wire::BlockInfo;
use fipsee_ring::listener::Listener;
use fipsee_serve::takeover::{Answer, PREPARE_TIMEOUT, Taking, TakingStep};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use serde::Deserialize;
use serde_json::json;

use super::MAX_WAIT;
use super::line::Line;
use super::wire::{AnswerPacket, DiskGiven, Given, Greeting, ListenerOf, VERSION};
use crate::admin::admin_path;
use crate::config::{Config, DiskConfig};
use crate::export::{Export, Opened};

/// Why there was no takeover.
#[derive(Debug)]
pub(crate) enum Failure {
    /// One of the two would not, or could not; the old one goes on.
    Refused(String),
    /// The old one ended before it had handed over everything: nobody serves now.
    OldDied,
}

impl Failure {
    /// The old daemon sent something else than was its turn.
    pub(crate) fn out_of_order() -> Self {
        Self::Refused("the running daemon sent something out of order; this is a bug".to_owned())
    }
}

/// The conversation with the old daemon.
pub(crate) struct Conversation {
    line: Line,
    taking: Taking,
    step: TakingStep,
}

impl Conversation {
    fn begin(line: Line, timeout: Duration) -> Self {
        let (taking, step) = Taking::begin(timeout);
        Self { line, taking, step }
    }

    /// The next packet, whose turn it is, after what came before has been taken. `None`: this daemon serves, and the other never again.
    pub(crate) fn next(&mut self) -> Result<Option<(Given, Vec<OwnedFd>)>, Failure> {
        loop {
            let mut packet = None;
            let step = match std::mem::replace(&mut self.step, TakingStep::Restart) {
                TakingStep::Receive(timeout) => {
                    let received = self.line.receive::<Given>(Instant::now() + timeout);
                    let turn = received.as_ref().map(|(given, _)| given.turn()).map_err(Clone::clone);
                    packet = received.ok();
                    self.taking.received(turn)
                }
                TakingStep::Take => self.taking.done(Ok(())),
                TakingStep::Send(answer, timeout) => {
                    self.taking.sent(self.line.send(&AnswerPacket(answer), &[], Instant::now() + timeout))
                }
                TakingStep::Serve => return Ok(None),
                TakingStep::Refuse(reason) => return Err(Failure::Refused(reason)),
                TakingStep::Restart => return Err(Failure::OldDied),
            };
            self.step = step;
            if self.step == TakingStep::Take {
                return Ok(packet);
            }
        }
    }

    /// The next packet, which must be one.
    pub(crate) fn packet(&mut self) -> Result<(Given, Vec<OwnedFd>), Failure> {
        self.next()?.ok_or_else(Failure::out_of_order)
    }

    /// It is not to be, for a reason of ours.
    pub(crate) fn refuse(&mut self, reason: &str) {
        let _ = self.taking.done(Err(reason.to_owned()));
        let _ = self.line.send(&AnswerPacket(Answer::Refused { reason: reason.to_owned() }), &[], Instant::now());
    }

    /// Wait until the old daemon has ended, at most until `deadline`.
    pub(crate) fn await_end(&self, deadline: Instant) {
        self.line.await_end(deadline);
    }
}

/// What has been handed over, of a daemon that still serves.
pub(crate) struct Old {
    pub(crate) conversation: Conversation,
    pub(crate) greeting: Greeting,
    /// Clients, then administration.
    pub(crate) sockets: Option<(Listener, Listener)>,
    pub(crate) machines: Vec<(String, Listener)>,
    pub(crate) exports: Vec<Arc<Export>>,
    /// Those of them that only this daemon's configuration has.
    pub(crate) opened: Opened,
}

/// The first answer, at the admin socket.
#[derive(Deserialize)]
struct First {
    error: Option<String>,
    takeover: Option<u32>,
}

impl Old {
    /// Ask the daemon that listens at `socket`, and take its listening sockets and disks.
    pub(crate) fn find(config: &Config, socket: &Path, wait_ms: u64) -> Result<Self, Failure> {
        let line = ask(&admin_path(socket), wait_ms)?;
        let mut conversation = Conversation::begin(line, Duration::from_millis(wait_ms).min(MAX_WAIT));
        let (Given::Greeting(greeting), _) = conversation.packet()? else { return Err(Failure::out_of_order()) };
        let opened = Opened::default();
        let mut old = Self { conversation, greeting, sockets: None, machines: Vec::new(), exports: Vec::new(), opened };
        old.take_what_is_shared(config, socket).inspect_err(|failure| {
            if let Failure::Refused(reason) = failure {
                old.conversation.refuse(reason);
            }
        })?;
        Ok(old)
    }

    fn take_what_is_shared(&mut self, config: &Config, socket: &Path) -> Result<(), Failure> {
        let (connected, limit) = (self.greeting.clients, config.clients.max_clients);
        if connected > limit {
            return Err(Failure::Refused(format!("{connected} clients are connected and max_clients is {limit} here; raise it")));
        }
        let (mut clients, mut admin) = (None, None);
        loop {
            match self.conversation.packet()? {
                (Given::Prepare {}, _) => break,
                (Given::Listener { of, path }, descriptors) => {
                    let mut descriptors = descriptors.into_iter();
                    let fd = descriptors.next().ok_or_else(|| Failure::Refused("a listening socket is missing".to_owned()))?;
                    let listener = Listener::handed_over(path, fd, descriptors.next());
                    match of {
                        ListenerOf::Clients => clients = Some(listener),
                        ListenerOf::Admin => admin = Some(listener),
                        ListenerOf::Machines(disk) => self.machines.push((disk, listener)),
                    }
                }
                (Given::Disk(given), descriptors) => {
                    self.exports.push(take_disk(config, &given, descriptors).map_err(Failure::Refused)?);
                }
                _ => return Err(Failure::out_of_order()),
            }
        }
        self.sockets = clients.zip(admin);
        self.check_sockets(config, socket).map_err(Failure::Refused)?;
        let given = std::mem::take(&mut self.exports);
        for disk in &config.disks {
            let found = given.iter().find(|export| export.name() == disk.spec.name).cloned();
            let export = found.map_or_else(|| Export::open(disk).inspect(|new| self.opened.add(Arc::clone(new))), Ok);
            self.exports.push(export.map_err(Failure::Refused)?);
        }
        Ok(())
    }

    fn check_sockets(&self, config: &Config, socket: &Path) -> Result<(), String> {
        let there = self.sockets.as_ref().map(|(clients, _)| clients.path());
        if there != Some(socket) {
            let there = there.map_or_else(|| "nowhere".into(), |path| path.display().to_string());
            return Err(format!("the running daemon listens at {there}, not at {}; leave --listen as it is", socket.display()));
        }
        for disk in &config.disks {
            for path in &disk.vhost_user {
                let name = &disk.spec.name;
                if !self.machines.iter().any(|(of, listener)| of == name && listener.path() == path) {
                    return Err(format!(
                        "the running daemon does not serve disk '{name}' at {}; have it do so first (fipsee reload, or attach)",
                        path.display()
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Ask at the admin socket; the answer brings the line.
fn ask(path: &Path, wait_ms: u64) -> Result<Line, Failure> {
    let refused = |text: String| Failure::Refused(text);
    let mut stream = UnixStream::connect(path).map_err(|error| {
        refused(format!("no daemon to take over from at {}: {error}; start without --takeover", path.display()))
    })?;
    let broken = |error: std::io::Error| refused(format!("the running daemon does not answer at {}: {error}", path.display()));
    stream.set_read_timeout(Some(PREPARE_TIMEOUT)).map_err(broken)?;
    let request = json!({ "request": "takeover", "version": VERSION, "wait_ms": wait_ms });
    stream.write_all(format!("{request}\n").as_bytes()).map_err(broken)?;
    let (mut answer, mut line) = (Vec::new(), None);
    while !answer.ends_with(b"\n") && answer.len() < 4096 {
        let mut bytes = [0_u8; 512];
        let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::net::recvmsg(&stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC);
        let received = match received {
            Err(rustix::io::Errno::INTR) => continue,
            received => received.map_err(|error| broken(error.into()))?,
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                line = rights.last().or(line);
            }
        }
        match received.bytes {
            0 => return Err(Failure::OldDied),
            count => answer.extend_from_slice(&bytes[..count]),
        }
    }
    match (serde_json::from_slice::<First>(&answer), line) {
        (Ok(First { error: Some(text), .. }), _) => Err(refused(format!("the running daemon refuses: {text}"))),
        (Ok(First { takeover: Some(VERSION), .. }), Some(line)) => Ok(Line::from_fd(line)),
        _ => Err(refused(
            "the running daemon's answer is not understood; stop it and start this one without --takeover".to_owned(),
        )),
    }
}

fn take_disk(config: &Config, given: &DiskGiven, mut descriptors: Vec<OwnedFd>) -> Result<Arc<Export>, String> {
    let name = &given.name;
    let disk: &DiskConfig = config.disks.iter().find(|disk| disk.spec.name == *name).ok_or_else(|| {
        format!("disk '{name}' is served by the running daemon and missing here; add it, or have that remove it (fipsee reload)")
    })?;
    let (kind, configured_bytes) = disk.spec.kind.name_and_size();
    if kind != given.kind {
        return Err(format!("disk '{name}' is of kind {} in the running daemon and {kind} here; leave it as it is", given.kind));
    }
    if kind != "file" && configured_bytes != given.configured_bytes {
        return Err(format!(
            "disk '{name}' is configured with {} bytes in the running daemon and {} here; leave its size as it is, and use fipsee resize",
            given.configured_bytes.unwrap_or(0),
            configured_bytes.unwrap_or(0)
        ));
    }
    let info = given.info.as_slice().try_into().ok().and_then(|bytes| BlockInfo::from_bytes(bytes).ok());
    let info = info.ok_or_else(|| format!("disk '{name}': what the running daemon says of it is impossible"))?;
    Export::take_over(disk, &info, descriptors.pop())
}
