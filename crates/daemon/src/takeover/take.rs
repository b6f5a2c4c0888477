//! The new daemon's part: request the takeover, and take what is handed over while the old one still serves.

use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fipsee_block::wire::BlockInfo;
use fipsee_net::server::tap::{self, Tap};
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_serve::takeover::{Answer, PREPARE_TIMEOUT, Taking, TakingStep};
use fipsee_serve::unix::listener::Listener;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

use super::MAX_WAIT;
use super::line::Line;
use super::wire::{AnswerPacket, DiskRecord, Greeting, HandoverPacket, ListenerOf, VERSION};
use crate::admin::admin_path;
use crate::config::{Config, DiskConfig, NetworkConfig, sockets_of_ports};
use crate::descriptors;
use crate::export::{Export, Opened};
use crate::metrics::{self, MetricsListener};
use crate::overlay::Overlay;
use crate::run::Origin;
use crate::transport::tap::open_all;

#[derive(Debug)]
pub(crate) enum Failure {
    /// One of the two refused or failed; the old one continues.
    Refused(String),
    /// The old one ended before it had handed over everything: no daemon serves now.
    OldDied,
}

impl Failure {
    /// The old daemon sent a packet out of order.
    pub(crate) fn out_of_order() -> Self {
        Self::Refused("the running daemon sent something out of order; this is a bug".to_owned())
    }
}

pub(crate) struct Conversation {
    pub(crate) line: Line,
    taking: Taking,
    step: TakingStep,
}

impl Conversation {
    /// The next packet in order, after the ones before have been taken. `None`: this daemon serves, and the other never again.
    pub(crate) fn next(&mut self) -> Result<Option<(HandoverPacket, Vec<OwnedFd>)>, Failure> {
        loop {
            let mut packet = None;
            let step = match std::mem::replace(&mut self.step, TakingStep::Restart) {
                TakingStep::Receive(timeout) => {
                    let received = self.line.receive::<HandoverPacket>(Instant::now() + timeout);
                    let kind = received.as_ref().map(|(packet, _)| packet.kind()).map_err(Clone::clone);
                    packet = received.ok();
                    self.taking.received(kind)
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

    /// Likewise, where a packet must follow.
    pub(crate) fn packet(&mut self) -> Result<(HandoverPacket, Vec<OwnedFd>), Failure> {
        self.next()?.ok_or_else(Failure::out_of_order)
    }

    /// The takeover fails: notify the old daemon if the reason is ours.
    pub(crate) fn refuse(&mut self, failure: &Failure) {
        let Failure::Refused(reason) = failure else { return };
        let _ = self.taking.done(Err(reason.clone()));
        let _ = self.line.send(&AnswerPacket(Answer::Refused { reason: reason.clone() }), &[], Instant::now());
    }
}

pub(crate) struct Old {
    pub(crate) conversation: Conversation,
    pub(crate) greeting: Greeting,
}

/// The answer of the running daemon.
#[derive(Deserialize)]
struct First {
    error: Option<FirstError>,
    result: Option<FirstResult>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum FirstError {
    JsonRpc {
        message: String,
    },
    /// Of a daemon before JSON-RPC.
    Older(IgnoredAny),
}

#[derive(Deserialize)]
struct FirstResult {
    takeover: u32,
}

impl Old {
    /// Ask the daemon that listens at `socket`, and take its listening sockets and disks.
    pub(crate) fn find(config: &Config, socket: &Path, wait_ms: u64) -> Result<(Origin, Self), Failure> {
        let line = ask(&admin_path(socket), wait_ms)?;
        let (taking, step) = Taking::begin(Duration::from_millis(wait_ms).min(MAX_WAIT));
        let mut conversation = Conversation { line, taking, step };
        let (HandoverPacket::Greeting(greeting), _) = conversation.packet()? else { return Err(Failure::out_of_order()) };
        let mut old = Self { conversation, greeting };
        let origin = old.take_what_is_shared(config, socket).inspect_err(|failure| old.conversation.refuse(failure))?;
        Ok((origin, old))
    }

    fn take_what_is_shared(&mut self, config: &Config, socket: &Path) -> Result<Origin, Failure> {
        let (connected, limit) = (self.greeting.clients, config.clients.max_clients);
        if connected > limit {
            return Err(Failure::Refused(format!("{connected} clients are connected and max_clients is {limit} here; raise it")));
        }
        let (mut clients, mut admin, mut machines, mut metrics) = (None, None, Vec::new(), Vec::new());
        let (mut records, mut devices) = (Vec::new(), Vec::new());
        let mut overlay = Overlay::default();
        loop {
            match self.conversation.packet()? {
                (HandoverPacket::Prepare {}, _) => break,
                (HandoverPacket::Listener { of, path }, descriptors) => {
                    let mut descriptors = descriptors.into_iter();
                    let fd = descriptors.next().ok_or_else(|| Failure::Refused("a listening socket is missing".to_owned()))?;
                    let listener = Listener::handed_over(path, fd, descriptors.next());
                    match of {
                        ListenerOf::Clients => clients = Some(listener),
                        ListenerOf::Admin => admin = Some(listener),
                        ListenerOf::Metrics { is_passed } => metrics.push(MetricsListener { listener, is_passed }),
                        ListenerOf::Machines(disk) => machines.push((disk, listener)),
                    }
                }
                (HandoverPacket::Overlay(change), _) => overlay.extend(change),
                (HandoverPacket::Disk(disk), descriptors) => records.push((disk, descriptors)),
                (HandoverPacket::Device { port }, queues) => {
                    devices.push((port, tap::passed(queues).map_err(Failure::Refused)?));
                }
                (HandoverPacket::GoneDevice { port, device }, _) => devices.push((port, Tap::gone(device))),
                _ => return Err(Failure::out_of_order()),
            }
        }
        let (Some(clients), Some(_)) = (clients, &admin) else { return Err(Failure::out_of_order()) };
        let overlay = overlay.rebased(&config.disks, &config.networks).map_err(Failure::Refused)?;
        let disks = overlay.over(&config.disks);
        let take = |(record, descriptors): (DiskRecord, _)| take_disk(&disks, &overlay, &record, descriptors);
        let given = records.into_iter().map(take).collect::<Result<Vec<_>, _>>().map_err(Failure::Refused)?;
        let networks = overlay.ports.over(&config.networks);
        check_sockets(&disks, &networks, socket, (&clients, &machines)).map_err(Failure::Refused)?;
        let (mut exports, mut opened) = (Vec::new(), Opened::default());
        for disk in &disks {
            let found = given.iter().find(|export| export.name() == disk.spec.name).cloned();
            let export = found.map_or_else(|| Export::open(disk).inspect(|new| opened.0.push(Arc::clone(new))), Ok);
            exports.push(export.map_err(Failure::Refused)?);
        }
        let metrics = metrics::listen(&config.metrics, metrics).map_err(Failure::Refused)?;
        let taps = open_all(&networks, devices).map_err(Failure::Refused)?;
        Ok(Origin { clients, admin, machines, metrics, taps, exports, opened, overlay })
    }
}

fn check_sockets(
    disks: &[DiskConfig],
    networks: &[NetworkConfig],
    socket: &Path,
    (clients, machines): (&Listener, &[(String, Listener)]),
) -> Result<(), String> {
    if clients.path() != socket {
        let there = clients.path().display();
        return Err(format!("the running daemon listens at {there}, not at {}; leave --listen as it is", socket.display()));
    }
    let is_there = |name: &str, path: &Path| machines.iter().any(|(of, listener)| of == name && listener.path() == path);
    if let Some((name, path)) = sockets_of_ports(networks).find(|(name, path)| !is_there(name, path)) {
        return Err(format!(
            "the running daemon does not serve port '{name}' at {}; have it do so first (fipsee reload, or net attach)",
            path.display()
        ));
    }
    for disk in disks {
        let name = &disk.spec.name;
        if let Some(path) = disk.vhost_user.iter().find(|path| !is_there(name, path)) {
            return Err(format!(
                "the running daemon does not serve disk '{name}' at {}; have it do so first (fipsee reload, or attach)",
                path.display()
            ));
        }
    }
    Ok(())
}

/// Ask at the admin socket; the line comes with the answer.
fn ask(path: &Path, wait_ms: u64) -> Result<Line, Failure> {
    let at = path.display();
    let no_daemon = |error: std::io::Error| {
        Failure::Refused(match error.kind() {
            ErrorKind::PermissionDenied => {
                format!(
                    "this user may not open {at}: only root and the daemon's own user may take over; start this one as its user"
                )
            }
            _ => format!("no daemon to take over from at {at}: {error}; start without --takeover"),
        })
    };
    let mut stream = UnixStream::connect(path).map_err(no_daemon)?;
    let broken = |error: std::io::Error| Failure::Refused(format!("the running daemon does not answer at {at}: {error}"));
    stream.set_read_timeout(Some(PREPARE_TIMEOUT)).map_err(broken)?;
    let params = json!({ "version": VERSION, "wait_ms": wait_ms });
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "takeover", "params": params });
    stream.write_all(format!("{request}\n").as_bytes()).map_err(broken)?;
    let (mut answer, mut lines) = (Vec::new(), Vec::new());
    while !answer.ends_with(b"\n") && answer.len() < 4096 {
        let mut bytes = [0; 512];
        match descriptors::receive(&stream, &mut bytes, &mut lines).map_err(|error| broken(error.into()))? {
            0 => return Err(Failure::OldDied),
            count => answer.extend_from_slice(&bytes[..count]),
        }
    }
    match (serde_json::from_slice::<First>(&answer), lines.pop()) {
        (Ok(First { error: Some(FirstError::JsonRpc { message }), .. }), _) => {
            Err(Failure::Refused(format!("the running daemon refuses: {message}")))
        }
        (Ok(First { error: Some(FirstError::Older(_)), .. }), _) => Err(Failure::Refused(
            "the running daemon is of an older version, whose admin socket has another protocol; stop it and start this one without --takeover"
                .to_owned(),
        )),
        (Ok(First { result: Some(FirstResult { takeover: VERSION }), .. }), Some(line)) => Ok(Line(Seqpacket::from_fd(line))),
        (Ok(First { result: Some(FirstResult { takeover }), .. }), _) if takeover != VERSION => Err(Failure::Refused(format!(
            "the running daemon hands over by version {takeover} and this one takes over by version {VERSION}; stop it and start this one without --takeover"
        ))),
        _ => Err(Failure::Refused(
            "the running daemon's answer is not understood; stop it and start this one without --takeover".to_owned(),
        )),
    }
}

fn take_disk(
    disks: &[DiskConfig],
    overlay: &Overlay,
    given: &DiskRecord,
    mut descriptors: Vec<OwnedFd>,
) -> Result<Arc<Export>, String> {
    let name = &given.name;
    let disk = disks.iter().find(|disk| disk.spec.name == *name).ok_or_else(|| {
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
    let info = info.ok_or_else(|| format!("disk '{name}': its description by the running daemon is impossible"))?;
    let file = descriptors.pop();
    let taken = if overlay.was_passed(name) { disk.spec.take_over_passed(&info, file) } else { disk.spec.take_over(&info, file) };
    Ok(Arc::new(Export::new(disk, taken?)))
}
