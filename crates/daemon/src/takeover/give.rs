//! The old daemon's part: the peers that may ask, and what is handed over while it still serves. The clients follow in
//! `transport::unix::handover`.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use fipsee_serve::takeover::{Giving, GivingStep};
use fipsee_serve::unix::credentials_of;
use fipsee_serve::unix::listener::Listener;
use serde_json::{Value, json};

use super::MAX_WAIT;
use super::line::Line;
use super::wire::{DiskRecord, Greeting, HandoverPacket, ListenerOf, VERSION};
use crate::admin::Admin;
use crate::descriptors;
use crate::export::{AttachedClient, Kind};
use crate::metrics::MetricsListener;
use crate::transport::unix::HandOver;
use crate::transport::vhost_user::Held;

/// The request of a new daemon at the admin socket.
pub(crate) struct Asked<'a> {
    pub(crate) stream: &'a UnixStream,
    pub(crate) id: &'a Value,
}

impl Admin {
    /// Hand everything over to the peer that asked. Returns when that failed: this daemon continues. An error: it was not even
    /// started.
    pub(crate) fn hand_over(&self, asked: &Asked<'_>, version: u32, wait: Duration) -> Result<(), String> {
        let pid = self.may_ask(asked.stream, version)?;
        let (line, theirs) = Line::pair().map_err(|error| format!("no descriptor is left: {error}; raise LimitNOFILE="))?;
        let answer = json!({ "jsonrpc": "2.0", "id": asked.id, "result": { "takeover": VERSION } });
        self.handing_over.set(true);
        let sent = descriptors::send(asked.stream, format!("{answer}\n").as_bytes(), &[theirs.as_fd()]);
        drop(theirs);
        let reason = match sent {
            Ok(()) => {
                tracing::info!(pid, "another daemon asks to take over");
                self.give(line, pid, wait.min(MAX_WAIT))
            }
            Err(error) => format!("it does not take its answer: {error}"),
        };
        self.handing_over.set(false);
        tracing::warn!(pid, reason, "not handed over; this daemon continues");
        Ok(())
    }

    /// The process that asks.
    fn may_ask(&self, stream: &UnixStream, version: u32) -> Result<i32, String> {
        let peer = credentials_of(stream).map_err(|error| error.to_string())?;
        let own = rustix::process::geteuid().as_raw();
        if ![0, own].contains(&peer.uid) {
            return Err(format!("only root and user {own} may take over, not user {}", peer.uid));
        }
        if version != VERSION {
            return Err(format!("it hands over by version {VERSION}, and {version} is asked for; stop it and start the other"));
        }
        for export in &self.live.now().exports {
            export.disk.hand_over().map_err(|text| format!("disk '{}': {text}", export.name()))?;
        }
        Ok(peer.pid)
    }

    fn give(&self, line: Line, pid: i32, timeout: Duration) -> String {
        let (mut giving, mut step) = Giving::begin();
        let mut deadline = Instant::now();
        loop {
            step = match line.carry_out(&mut giving, step, deadline) {
                GivingStep::Share(timeout) => {
                    deadline = Instant::now() + timeout;
                    giving.done(self.give_what_is_shared(&line, deadline))
                }
                // From here on no hypervisor's messages are handled. Connections that the main thread drops resume.
                GivingStep::Hold => match self.vms.hold(timeout) {
                    Ok(machines) => return self.give_clients(line, giving, pid, timeout, machines),
                    Err(reason) => giving.done(Err(reason)),
                },
                GivingStep::Resume(reason) => return reason,
                step => giving.done(Err(format!("{step:?} came out of order; this is a bug"))),
            }
        }
    }

    fn give_clients(&self, line: Line, giving: Giving, pid: i32, timeout: Duration, machines: Held) -> String {
        let (reply, answer) = channel();
        let latest = Instant::now() + timeout;
        self.clients.send(HandOver { line, giving, pid, timeout, latest, machines, reply });
        answer.recv().unwrap_or_else(|_| {
            // Done, and this process is about to end. Nothing may be touched.
            loop {
                std::thread::park();
            }
        })
    }

    fn give_what_is_shared(&self, line: &Line, deadline: Instant) -> Result<(), String> {
        let send = |packet: &HandoverPacket, descriptors: &[BorrowedFd<'_>]| {
            line.send(packet, descriptors, deadline).map_err(|error| error.describe("sockets and disks were handed over"))
        };
        let served = self.live.now();
        let is_local = |client: &&AttachedClient| client.kind == Kind::Ring;
        let clients = served.exports.iter().map(|export| export.attached().iter().filter(is_local).count()).sum();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let greeting = Greeting { pid: std::process::id(), version, clients };
        send(&HandoverPacket::Greeting(greeting), &[])?;
        let mut overlay = self.overlay.clone();
        self.forget_departed(&mut overlay);
        overlay.pieces().into_iter().try_for_each(|piece| send(&HandoverPacket::Overlay(piece), &[]))?;
        let give = |of, listener: &Listener| {
            send(&HandoverPacket::Listener { of, path: listener.path().to_owned() }, &listener.descriptors())
        };
        give(ListenerOf::Clients, &self.listeners.0)?;
        give(ListenerOf::Admin, &self.listeners.1)?;
        for MetricsListener { listener, is_passed } in &*self.metrics {
            give(ListenerOf::Metrics { is_passed: *is_passed }, listener)?;
        }
        for (disk, listener) in self.vms.listeners() {
            give(ListenerOf::Machines(disk), &listener)?;
        }
        let disks = self.disks();
        for export in &served.exports {
            let configured = disks.iter().find(|disk| disk.spec.name == export.name());
            let given = DiskRecord {
                name: export.name().to_owned(),
                kind: export.disk.kind().to_owned(),
                configured_bytes: configured.and_then(|disk| disk.spec.kind.name_and_size().1),
                info: export.info(false).to_bytes().to_vec(),
            };
            let file = export.disk.hand_over().map_err(|text| format!("disk '{}': {text}", export.name()))?;
            send(&HandoverPacket::Disk(given), file.as_slice())?;
        }
        self.taps.each(|port, device, files| match files {
            [] => send(&HandoverPacket::GoneDevice { port, device: device.to_owned() }, &[]),
            files => send(&HandoverPacket::Device { port }, files),
        })?;
        send(&HandoverPacket::Prepare {}, &[])
    }
}
