//! The admin socket: one JSON request per line, one JSON answer per line (docs/admin.md).

mod change;
mod view;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use fipsee_ring::doorbell::EventDoorbell;
use fipsee_ring::mailbox::Mailbox;
use fipsee_serve::unix::listener::Listener;
use rustix::event::{PollFd, PollFlags};
use rustix::net::SocketFlags;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::config::Config;
use crate::confine::Confinement;
use crate::fault_log::FaultLog;
use crate::live::Live;
use crate::log::LogLevel;
use crate::services::Registry;
use crate::transport::unix::HandOver;
use crate::transport::vhost_user::VhostUserSockets;
use crate::worker::WorkerHandle;

const MAX_REQUEST_BYTES: u64 = 4096;
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The admin socket that belongs to the client socket `path`.
pub fn admin_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".admin");
    name.into()
}

#[derive(Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    List,
    Info {
        disk: String,
    },
    Stat,
    Resize(Resize),
    /// Serve a disk to virtual machines at one more socket.
    Attach {
        disk: String,
        vhost_user: PathBuf,
    },
    Detach {
        vhost_user: PathBuf,
    },
    Reload,
    Takeover {
        version: u32,
        wait_ms: u64,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Resize {
    disk: String,
    size_bytes: u64,
    /// Accept a smaller size, and with it the loss of the data beyond.
    #[serde(default)]
    shrink: bool,
    /// Even while it is in use.
    #[serde(default)]
    force: bool,
}

pub(crate) struct Admin {
    pub(crate) live: Arc<Live>,
    pub(crate) vms: Arc<VhostUserSockets>,
    pub(crate) workers: Vec<WorkerHandle>,
    pub(crate) registry: Registry,
    pub(crate) started: Instant,
    /// The configuration of the start or the last reload.
    pub(crate) running: Config,
    pub(crate) log: LogLevel,
    pub(crate) confinement: Confinement,
    pub(crate) listeners: (Arc<Listener>, Arc<Listener>),
    /// Requests to the main thread to hand over.
    pub(crate) clients: Arc<Mailbox<HandOver>>,
    pub(crate) faults: FaultLog,
    /// Becomes readable at SIGHUP, which also requests a reload.
    pub(crate) hang_up: Option<UnixStream>,
}

pub(crate) struct AdminHandle {
    begin: Sender<()>,
    stop: Arc<EventDoorbell>,
    thread: std::thread::JoinHandle<()>,
}

impl AdminHandle {
    pub(crate) fn begin(&self) {
        let _ = self.begin.send(());
    }

    pub(crate) fn stop(self) {
        let Self { begin, stop, thread } = self;
        drop(begin);
        stop.ring();
        let _ = thread.join();
    }
}

impl Admin {
    /// Answer, one connection at a time, on a thread of its own, from [`AdminHandle::begin`] on.
    pub(crate) fn spawn(mut self) -> std::io::Result<AdminHandle> {
        let stop = Arc::new(EventDoorbell::new()?);
        let stopped = Arc::clone(&stop);
        let (begin, begun) = channel();
        let run = move || {
            if begun.recv().is_ok() {
                self.run(&stopped);
            }
        };
        let thread = std::thread::Builder::new().name("fip-admin".to_owned()).spawn(run)?;
        Ok(AdminHandle { begin, stop, thread })
    }

    fn run(&mut self, stop: &EventDoorbell) {
        let listener = Arc::clone(&self.listeners.1);
        while self.wait(listener.socket(), stop, None) {
            if let Ok(socket) = rustix::net::accept_with(listener.socket(), SocketFlags::CLOEXEC) {
                let _ = self.serve(&UnixStream::from(socket), stop);
            }
        }
        self.faults.finish();
    }

    /// Reload when a signal requests it, and log disk errors, until `fd` is readable; `false` at the end of the daemon or at the
    /// timeout.
    fn wait(&mut self, fd: &impl AsFd, stop: &EventDoorbell, timeout: Option<Duration>) -> bool {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let doorbell = self.faults.doorbell.clone();
        loop {
            let next_line = self.faults.write();
            let mut fds: Vec<_> =
                [stop.as_fd(), fd.as_fd(), doorbell.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).into();
            fds.extend(self.hang_up.iter().map(|hang_up| PollFd::new(hang_up, PollFlags::IN)));
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let timeout = left.into_iter().chain(next_line).min();
            let timeout = timeout.and_then(|timeout| rustix::event::Timespec::try_from(timeout).ok());
            let _ = rustix::event::poll(&mut fds, timeout.as_ref());
            // The daemon's end does not wait for open connections or further requests.
            let [ends, is_ready, hangs_up] = [0, 1, 3].map(|index| fds.get(index).is_some_and(|fd| !fd.revents().is_empty()));
            if ends {
                return false;
            }
            if hangs_up {
                // Signals that came together ask for one reload.
                let mut bytes = [0; 64];
                while self.hang_up.as_ref().is_some_and(|mut hang_up| hang_up.read(&mut bytes).is_ok_and(|length| length > 0)) {}
                // Logged; a signal has no reply.
                let _ = self.reload();
            } else if is_ready {
                return true;
            } else if left == Some(Duration::ZERO) {
                return false;
            }
        }
    }

    fn serve(&mut self, stream: &UnixStream, stop: &EventDoorbell) -> std::io::Result<()> {
        stream.set_read_timeout(Some(IDLE_TIMEOUT))?;
        stream.set_write_timeout(Some(IDLE_TIMEOUT))?;
        let mut reader = BufReader::new(stream);
        loop {
            let is_asked =
                if reader.buffer().is_empty() { self.wait(stream, stop, Some(IDLE_TIMEOUT)) } else { !is_readable(stop) };
            let mut line = String::new();
            if !is_asked || reader.by_ref().take(MAX_REQUEST_BYTES).read_line(&mut line)? == 0 {
                return Ok(());
            }
            let answer = match parse(&line).and_then(|request| self.answer(stream, request)) {
                Ok(Some(answer)) => answer,
                Ok(None) => return Ok(()),
                Err(text) => json!({ "error": text }),
            };
            let mut writer = stream;
            writer.write_all(format!("{answer}\n").as_bytes())?;
        }
    }

    /// `None`: a takeover, which took over the connection.
    fn answer(&mut self, stream: &UnixStream, request: Request) -> Result<Option<Value>, String> {
        Ok(Some(match request {
            Request::List => {
                json!({ "disks": self.live.now().exports.iter().map(|export| self.describe(export)).collect::<Vec<_>>() })
            }
            Request::Info { disk } => {
                let export = self.live.now().find(&disk)?.clone();
                let mut description = self.describe(&export);
                description["clients"] = export.attached().iter().map(view::describe_client).collect();
                description
            }
            Request::Stat => self.stat(),
            Request::Resize(resize) => self.resize(&resize)?,
            Request::Attach { disk, vhost_user } => self.attach(&disk, &vhost_user)?,
            Request::Detach { vhost_user } => self.detach(&vhost_user)?,
            Request::Reload => json!(self.reload()?),
            Request::Takeover { version, wait_ms } => {
                return self.hand_over(stream, version, Duration::from_millis(wait_ms)).map(|()| None);
            }
        }))
    }
}

fn parse(line: &str) -> Result<Request, String> {
    serde_json::from_str(line).map_err(|error| format!("cannot understand the request: {}", on_one_line(&error.to_string())))
}

/// The error quotes what was sent, which must not write lines or colours of its own into a log or onto a terminal.
fn on_one_line(text: &str) -> String {
    let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// Is `line` a request? For tests and the fuzzer: nothing is done.
pub fn check(line: &str) -> Result<(), String> {
    parse(line).map(drop)
}

fn is_readable(fd: &impl AsFd) -> bool {
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)).is_ok_and(|count| count > 0)
}
