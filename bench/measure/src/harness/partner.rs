//! The second side: a process or a thread that answers one measurement after another.

use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use fipsee_ring::seqpacket::{Packet, Seqpacket};
use fipsee_topology::pin;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde_json::{Value, json};

use super::drive::{PeerError, RunLength, Sample};
use super::endpoints::Endpoints;
use super::plan::Spec;

/// How long the second side may take to report the end of a measurement, after the stop message.
const VERDICT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it waits for the next measurement before it checks again.
const INVITATION_TIMEOUT: Duration = Duration::from_secs(60);

/// Answer measurements until the first side is gone. Errors are sent to it, and it reports them to the user.
pub fn serve(first_side: &Seqpacket) {
    loop {
        match first_side.receive(INVITATION_TIMEOUT) {
            Ok(packet) => {
                let verdict = match answer(packet, first_side) {
                    Ok(()) => json!({ "sound": true }),
                    Err(PeerError::Gone) => return,
                    Err(PeerError::Wrong(text)) => json!({ "error": text }),
                };
                let sent = first_side.send(verdict.to_string().as_bytes(), &[]);
                if sent.is_err() || verdict.get("error").is_some() {
                    return;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {}
            Err(_) => return,
        }
    }
}

fn answer(packet: Packet, first_side: &Seqpacket) -> Result<(), PeerError> {
    let spec = serde_json::from_slice::<Spec>(&packet.bytes).map_err(|error| PeerError::Wrong(error.to_string()))?;
    Endpoints::receive(&spec, packet.descriptors)?.run_answerer(&spec, first_side)
}

#[derive(Debug)]
enum Other {
    Process(Child),
    Thread(JoinHandle<()>),
}

/// The first side's handle of the second.
#[derive(Debug)]
pub struct Partner {
    /// Closed on drop, which ends the second side.
    socket: Option<Seqpacket>,
    other: Option<Other>,
}

impl Partner {
    /// A thread, on the second of `cpus`; this one goes on on the first.
    pub fn start_thread(cpus: Option<[usize; 2]>) -> Result<Self, String> {
        let (ours, theirs) = Self::sockets()?;
        let run = move || {
            // A CPU refused now was allowed when it was chosen: the measurement then fails without an answer.
            if cpus.map_or(Ok(()), |[_, second]| pin::bind(second)).is_ok() {
                serve(&Seqpacket::from_fd(theirs));
            }
        };
        let thread = std::thread::Builder::new().name("fip-ping".to_owned()).spawn(run);
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}; raise the limit (ulimit -a shows them)"))?;
        Self { socket: Some(Seqpacket::from_fd(ours)), other: Some(Other::Thread(thread)) }.on(cpus)
    }

    /// A process whose standard input is the socket that [`serve`] wants; `command` starts it. This one goes on on the first of
    /// `cpus`.
    pub fn start_process(mut command: Command, cpus: Option<[usize; 2]>) -> Result<Self, String> {
        let (ours, theirs) = Self::sockets()?;
        let child = command.stdin(Stdio::from(theirs)).spawn();
        // Closes its copy of the socket: from there on a hang-up means that the child is gone.
        drop(command);
        let child = child.map_err(|error| format!("cannot start the answering process: {error}; remove the cause and repeat"))?;
        Self { socket: Some(Seqpacket::from_fd(ours)), other: Some(Other::Process(child)) }.on(cpus)
    }

    /// The side that serves the other end of `socket`.
    pub const fn at(socket: OwnedFd) -> Self {
        Self { socket: Some(Seqpacket::from_fd(socket)), other: None }
    }

    pub fn sockets() -> Result<(OwnedFd, OwnedFd), String> {
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        pair.map_err(|error| format!("cannot make a pair of sockets: {error}; raise the limit of open files"))
    }

    fn on(self, cpus: Option<[usize; 2]>) -> Result<Self, String> {
        let bound = cpus.map_or(Ok(()), |[own, _]| pin::bind(own));
        bound.map_err(|error| format!("cannot run on CPUs {cpus:?}: {error}; name others"))?;
        Ok(self)
    }

    pub fn measure(&mut self, spec: &Spec, length: RunLength) -> Result<Sample, String> {
        let Some(socket) = &self.socket else { return Err("the second side has ended; report this".to_owned()) };
        let asked = Endpoints::offer(spec, socket).and_then(|endpoints| endpoints.run_caller(spec, length, socket));
        let sample = match asked {
            Ok(sample) => sample,
            Err(PeerError::Wrong(text)) => return Err(text),
            Err(PeerError::Gone) => return Err(self.exit_error()),
        };
        let Ok(packet) = socket.receive(VERDICT_TIMEOUT) else { return Err(self.exit_error()) };
        let verdict = serde_json::from_slice::<Value>(&packet.bytes).unwrap_or_default();
        if verdict["sound"] != true {
            return Err(error_of(&verdict));
        }
        Ok(sample)
    }

    /// The error of a second side that is gone.
    fn exit_error(&mut self) -> String {
        let last_words = self.socket.as_ref().and_then(|socket| socket.try_receive().ok().flatten());
        if let Some(verdict) = last_words.and_then(|packet| serde_json::from_slice::<Value>(&packet.bytes).ok()) {
            return error_of(&verdict);
        }
        let how = match &mut self.other {
            Some(Other::Process(child)) => child.wait().map_or_else(|error| error.to_string(), |status| status.to_string()),
            Some(Other::Thread(_)) => "its thread ended".to_owned(),
            None => "it ended".to_owned(),
        };
        format!("the answering side is gone ({how}); what it was measuring is lost, repeat the command")
    }
}

fn error_of(verdict: &Value) -> String {
    verdict["error"].as_str().unwrap_or("the answering side sent no verdict; report this").to_owned()
}

impl Drop for Partner {
    fn drop(&mut self) {
        drop(self.socket.take());
        match self.other.take() {
            Some(Other::Process(mut child)) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            Some(Other::Thread(thread)) => {
                let _ = thread.join();
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Design;
    use super::*;

    #[test]
    fn the_answering_side_waits_in_its_own_way() {
        let base = Spec { one_cpu: true, ..Spec::default() };
        let mut partner = Partner::start_thread(None).expect("a thread");
        let length = RunLength::of_time(Duration::ZERO, Duration::from_millis(1));
        for design in [Design::Channel, Design::Classic] {
            let spec = |wait: &str| Spec { design, answerer_wait: Some(wait.to_owned()), ..base.clone() };
            assert!(partner.measure(&spec("yield"), length).is_ok(), "{design:?}");
        }
        let unknown = Spec { answerer_wait: Some("doze".to_owned()), ..base };
        assert!(unknown.options().is_ok(), "the calling side does not wait so");
        let error = partner.measure(&unknown, length).expect_err("the answering side does");
        assert!(error.contains("unknown wait mode 'doze'"), "{error}");
    }
}
