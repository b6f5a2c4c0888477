//! The old daemon's part: who may ask, and what is handed over while it still serves. The clients follow in `transport::unix::handover`.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use fipsee_ring::listener::Listener;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde_json::json;

use super::line::Line;
use super::wire::{Answer, DiskGiven, Given, Greeting, ListenerOf, VERSION};
use super::{MAX_WAIT, PREPARE_TIMEOUT};
use crate::admin::Admin;
use crate::export::{Attached, Kind};
use crate::transport::unix::HandOver;

impl Admin {
    /// Hand everything over to whoever asks on `stream`. Returns when that did not come about: this daemon goes on.
    ///
    /// # Errors
    /// Why it is not even begun, in words.
    pub(crate) fn hand_over(&self, stream: &UnixStream, version: u32, wait: Duration) -> Result<(), String> {
        let pid = self.may_ask(stream, version)?;
        let (line, theirs) = Line::pair().map_err(|error| format!("no descriptor is left: {error}; raise LimitNOFILE="))?;
        let answer = format!("{}\n", json!({ "takeover": VERSION }));
        let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let rights = [theirs.as_fd()];
        if !ancillary.push(SendAncillaryMessage::ScmRights(&rights)) {
            return Err("a descriptor does not fit its message".to_owned());
        }
        let sent = rustix::net::sendmsg(stream, &[IoSlice::new(answer.as_bytes())], &mut ancillary, SendFlags::NOSIGNAL);
        drop(theirs);
        let outcome = sent.map_err(|error| format!("it does not take its answer: {error}")).and_then(|_| {
            tracing::info!(pid, "another daemon asks to take over");
            self.give(line, pid, wait.min(MAX_WAIT))
        });
        if let Err(reason) = outcome {
            tracing::warn!(pid, reason, "not handed over; everything goes on");
        }
        Ok(())
    }

    /// The process that asks.
    fn may_ask(&self, stream: &UnixStream, version: u32) -> Result<i32, String> {
        let peer = rustix::net::sockopt::socket_peercred(stream).map_err(|error| error.to_string())?;
        let own = rustix::process::geteuid();
        if !peer.uid.is_root() && peer.uid != own {
            return Err(format!("only root and user {} may take over, not user {}", own.as_raw(), peer.uid.as_raw()));
        }
        if version != VERSION {
            return Err(format!("it hands over by version {VERSION}, and {version} is asked for; stop it and start the other"));
        }
        for export in &self.live.now().exports {
            export.disk().hand_over().map_err(|text| format!("disk '{}': {text}", export.name()))?;
        }
        Ok(peer.pid.as_raw_nonzero().get())
    }

    fn give(&self, line: Line, pid: i32, timeout: Duration) -> Result<(), String> {
        if let Err(reason) = self.give_what_is_shared(&line) {
            let _ = line.withdraw(&reason);
            return Err(reason);
        }
        // From here on no hypervisor is heard. What the main thread drops of this, goes on.
        let machines = self.vms.hold(timeout).inspect_err(|reason| {
            let _ = line.withdraw(reason);
        })?;
        let (reply, answer) = channel();
        self.clients.send(HandOver { line, pid, timeout, machines, reply });
        match answer.recv() {
            Ok(reason) => Err(reason),
            // It is done, and this process about to end. Nothing may be touched.
            Err(_) => loop {
                std::thread::park();
            },
        }
    }

    fn give_what_is_shared(&self, line: &Line) -> Result<(), String> {
        let deadline = Instant::now() + PREPARE_TIMEOUT;
        let send = |packet: &Given, descriptors: &[BorrowedFd<'_>]| {
            line.send(packet, descriptors, deadline).map_err(|error| error.describe("sockets and disks were handed over"))
        };
        let served = self.live.now();
        let is_local = |client: &&Attached| client.kind == Kind::Ring;
        let clients = served.exports.iter().map(|export| export.attached().iter().filter(is_local).count()).sum();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let greeting = Greeting { pid: std::process::id(), version, clients };
        send(&Given::Greeting(greeting), &[])?;
        let give =
            |of, listener: &Listener| send(&Given::Listener { of, path: listener.path().to_owned() }, &listener.descriptors());
        give(ListenerOf::Clients, &self.listeners.0)?;
        give(ListenerOf::Admin, &self.listeners.1)?;
        for (disk, listener) in self.vms.listeners() {
            give(ListenerOf::Machines(disk), &listener)?;
        }
        for export in &served.exports {
            let configured = self.reloader.configured_disk(export.name());
            let given = DiskGiven {
                name: export.name().to_owned(),
                kind: export.disk().kind().to_owned(),
                configured_bytes: configured.and_then(|disk| disk.spec.kind.name_and_size().1),
                info: export.info(false).to_bytes().to_vec(),
            };
            let file = export.disk().hand_over().map_err(|text| format!("disk '{}': {text}", export.name()))?;
            send(&Given::Disk(given), file.as_slice())?;
        }
        send(&Given::Prepare {}, &[])?;
        match line.receive(deadline).map_err(|error| error.describe("it was prepared"))? {
            (Answer::Prepared {}, _) => Ok(()),
            (Answer::Refused { reason }, _) => Err(format!("the other daemon refuses: {reason}")),
            (Answer::Taken {}, _) => Err("the other daemon answered out of order".to_owned()),
        }
    }
}
