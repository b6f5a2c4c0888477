//! The second side: a process or a thread that answers one measurement after another.

use std::os::fd::AsFd;
use std::process::{Child, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use fipsee_ring::seqpacket::{Packet, Seqpacket};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::drive::{PeerError, Sample};
use super::meeting::{Meeting, RunLength};
use super::plan::Spec;
use crate::error::Error;
use crate::process;

/// How long the second side may take to report the end of a measurement, after the stop message.
const VERDICT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it waits for the next measurement before it checks again.
const INVITATION_TIMEOUT: Duration = Duration::from_secs(60);

/// The command line that `ping` gives to its second process, whose standard input is a socket to the first.
#[derive(Debug, clap::Args)]
pub(crate) struct PeerArguments {
    #[arg(long)]
    parent: i32,
    #[arg(long)]
    cpu: Option<usize>,
}

pub(crate) fn run_peer(arguments: &PeerArguments) -> Result<(), Error> {
    process::die_with_parent(arguments.parent, Signal::KILL)?;
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(|error| Error::io("take over the socket", &error))?;
    if let Some(cpu) = arguments.cpu {
        process::bind_to_cpu(cpu)?;
    }
    serve(&Seqpacket::from_fd(socket));
    Ok(())
}

/// Answer measurements until the first side is gone. Errors are sent to it, and it reports them to the user.
fn serve(first_side: &Seqpacket) {
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
    Meeting::accept(&spec, packet.descriptors)?.answer(&spec, first_side)
}

enum Other {
    Process(Child),
    Thread(JoinHandle<()>),
}

/// The first side's handle of the second.
pub(super) struct Partner {
    /// Closed on drop, which ends the second side.
    socket: Option<Seqpacket>,
    other: Option<Other>,
}

impl Partner {
    /// Start the second side on the second of `cpus`, and stay on the first.
    pub(super) fn start(threads: bool, cpus: Option<[usize; 2]>) -> Result<Self, Error> {
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(|error| Error::io("make a pair of sockets", &error.into()))?;
        let cpu = cpus.map(|[_, second]| second);
        let other = if threads { start_thread(Seqpacket::from_fd(theirs), cpu)? } else { start_process(theirs.into(), cpu)? };
        let partner = Self { socket: Some(Seqpacket::from_fd(ours)), other: Some(other) };
        if let Some([own, _]) = cpus {
            process::bind_to_cpu(own)?;
        }
        Ok(partner)
    }

    /// Measure once.
    pub(super) fn measure(&mut self, spec: &Spec, duty: RunLength) -> Result<Sample, Error> {
        let Some(socket) = &self.socket else { return Err("the second side has ended; report this".into()) };
        let asked = Meeting::invite(spec, socket).and_then(|meeting| meeting.ask(spec, duty, socket));
        let sample = match asked {
            Ok(sample) => sample,
            Err(PeerError::Wrong(text)) => return Err(text.into()),
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
    fn exit_error(&mut self) -> Error {
        let last_words = self.socket.as_ref().and_then(|socket| socket.try_receive().ok().flatten());
        if let Some(verdict) = last_words.and_then(|packet| serde_json::from_slice::<Value>(&packet.bytes).ok()) {
            return error_of(&verdict);
        }
        let how = match &mut self.other {
            Some(Other::Process(child)) => child.wait().map_or_else(|error| error.to_string(), |status| status.to_string()),
            _ => "its thread ended".to_owned(),
        };
        format!("the answering side is gone ({how}); what it was measuring is lost, repeat the command").into()
    }
}

fn error_of(verdict: &Value) -> Error {
    verdict["error"].as_str().unwrap_or("the answering side sent no verdict; report this").into()
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

fn start_thread(socket: Seqpacket, cpu: Option<usize>) -> Result<Other, Error> {
    let run = move || {
        // A CPU refused now was allowed when it was chosen: the measurement then fails without an answer.
        if cpu.map_or(Ok(()), process::bind_to_cpu).is_ok() {
            serve(&socket);
        }
    };
    let thread = std::thread::Builder::new().name("fip-ping".to_owned()).spawn(run);
    Ok(Other::Thread(thread.map_err(|error| Error::io("start a thread", &error))?))
}

fn start_process(stdin: Stdio, cpu: Option<usize>) -> Result<Other, Error> {
    let mut command = process::again("ping-peer");
    if let Some(cpu) = cpu {
        command.arg("--cpu").arg(cpu.to_string());
    }
    // The command is dropped on return and closes its copy of the socket: from there on a hang-up means that the child is gone.
    let child = command.stdin(stdin).spawn().map_err(|error| Error::io("start the answering process", &error))?;
    Ok(Other::Process(child))
}
