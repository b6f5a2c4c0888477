//! Connections to the admin socket. One thread accepts, and writes what goes wrong at disks into the log; it never waits for a
//! request. Each connection has a thread, which holds the lock of the state only while it answers a request, never while it
//! waits for its client.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fipsee_ring::doorbell::EventDoorbell;
use fipsee_ring::mailbox::Mailbox;
use fipsee_serve::unix::listener::Listener;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::Admin;
use super::methods::Call;
use super::rpc::{self, Message, RpcError};
use crate::descriptors;
use crate::fault_log::FaultLog;
use crate::service_thread::ServiceThread;
use crate::takeover::give::Asked;
use crate::transport::LogQuota;
use crate::transport::unix::HandOver;

/// Connections at a time. Further ones are refused.
const MAX_CONNECTIONS: usize = 64;
/// The longest request.
const MAX_REQUEST_BYTES: usize = 16 << 10;
/// Descriptors that a client may have sent before requests use them.
const MAX_FILES: usize = 4;
/// How long a client may take to send a request, or to take an answer.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long nothing is accepted after there was no descriptor, or no memory, for a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Is a takeover under way? Then connections wait to be accepted by whichever daemon serves afterwards.
pub(crate) struct HandingOver {
    is_under_way: AtomicBool,
    /// Wakes the accepting thread.
    changed: EventDoorbell,
}

impl HandingOver {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { is_under_way: AtomicBool::new(false), changed: EventDoorbell::new()? })
    }

    pub(crate) fn set(&self, is_under_way: bool) {
        self.is_under_way.store(is_under_way, Ordering::Release);
        self.changed.ring();
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.is_under_way.load(Ordering::Acquire)
    }
}

struct Server {
    admin: Mutex<Admin>,
    handing_over: Arc<HandingOver>,
    connections: Mutex<HashMap<u64, Arc<UnixStream>>>,
    /// A signal asked for a reload that has not begun.
    reload_wanted: AtomicBool,
}

impl Admin {
    /// Answer, on threads of their own, from [`ServiceThread::begin`] on. `hang_up` becomes readable at SIGHUP, which requests a
    /// reload.
    pub(crate) fn spawn(self, faults: FaultLog, hang_up: Option<UnixStream>) -> std::io::Result<ServiceThread> {
        let stop = Arc::new(EventDoorbell::new()?);
        let (listener, orders) = (Arc::clone(&self.listeners.1), Arc::clone(&self.clients));
        let (handing_over, reload_wanted) = (Arc::clone(&self.handing_over), AtomicBool::new(false));
        let server = Server { admin: Mutex::new(self), handing_over, connections: Mutex::default(), reload_wanted };
        let (running, ended) = channel();
        let acceptor = Acceptor {
            server: Arc::new(server),
            listener,
            stop: Arc::clone(&stop),
            faults,
            hang_up,
            running,
            next: 0,
            quota: LogQuota::default(),
        };
        ServiceThread::spawn("fip-admin", stop, move || acceptor.run(&ended, &orders))
    }
}

struct Acceptor {
    server: Arc<Server>,
    listener: Arc<Listener>,
    stop: Arc<EventDoorbell>,
    faults: FaultLog,
    hang_up: Option<UnixStream>,
    /// Every thread has a clone.
    running: Sender<()>,
    /// Number of the next connection.
    next: u64,
    quota: LogQuota,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Stop,
    Faults,
    Takeover,
    HangUp,
    Listener,
}

impl Acceptor {
    fn run(mut self, ended: &Receiver<()>, orders: &Mailbox<HandOver>) {
        let mut pause_until: Option<Instant> = None;
        loop {
            let next_line = self.faults.write();
            pause_until = pause_until.filter(|until| *until > Instant::now());
            let left = pause_until.map(|until| until.saturating_duration_since(Instant::now()));
            let ready = self.wait(pause_until.is_none(), next_line.into_iter().chain(left).min());
            if ready.contains(&Source::Stop) {
                break;
            }
            if ready.contains(&Source::Takeover) {
                // It does not block.
                let _ = rustix::io::read(&self.server.handing_over.changed, &mut [0; 8]);
            }
            if ready.contains(&Source::HangUp) {
                self.hang_up();
            }
            if ready.contains(&Source::Listener) && !self.server.handing_over.is_under_way() && !self.accept() {
                pause_until = Some(Instant::now() + PAUSE);
            }
        }
        let Self { server, running, mut faults, .. } = self;
        drop(running);
        server.end(ended, orders);
        faults.finish();
    }

    /// What is ready, until `timeout`.
    fn wait(&self, accepts: bool, timeout: Option<Duration>) -> Vec<Source> {
        let mut fds = vec![
            (Source::Stop, self.stop.as_fd()),
            (Source::Faults, self.faults.doorbell.as_fd()),
            (Source::Takeover, self.server.handing_over.changed.as_fd()),
        ];
        fds.extend(self.hang_up.iter().map(|hang_up| (Source::HangUp, hang_up.as_fd())));
        if accepts && !self.server.handing_over.is_under_way() {
            fds.push((Source::Listener, self.listener.socket().as_fd()));
        }
        let mut polled: Vec<_> = fds.iter().map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let _ = rustix::event::poll(&mut polled, timeout.as_ref());
        let ready = fds.iter().zip(&polled).filter(|(_, polled)| !polled.revents().is_empty());
        ready.map(|((source, _), _)| *source).collect()
    }

    /// Signals that came together ask for one reload. It waits for its turn on a thread of its own.
    fn hang_up(&self) {
        let mut bytes = [0; 64];
        while self.hang_up.as_ref().is_some_and(|mut hang_up| hang_up.read(&mut bytes).is_ok_and(|length| length > 0)) {}
        if self.server.reload_wanted.swap(true, Ordering::AcqRel) {
            return;
        }
        let (server, running) = (Arc::clone(&self.server), self.running.clone());
        let reload = move || {
            let mut admin = server.lock();
            server.reload_wanted.store(false, Ordering::Release);
            // Logged; a signal has no reply.
            let _ = admin.reload();
            drop(admin);
            drop(server);
            drop(running);
        };
        if let Err(error) = std::thread::Builder::new().name("fip-reload".to_owned()).spawn(reload) {
            self.server.reload_wanted.store(false, Ordering::Release);
            tracing::error!(%error, "not reloaded: there is no thread for it");
        }
    }

    /// `false`: nothing is left for another connection.
    fn accept(&mut self) -> bool {
        let socket = match rustix::net::accept_with(self.listener.socket(), SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return true,
            Err(error) => {
                if self.quota.allows() {
                    tracing::error!(%error, "cannot accept a connection to the admin socket; raise LimitNOFILE=");
                }
                return false;
            }
        };
        let stream = Arc::new(UnixStream::from(socket));
        let number = self.next;
        self.next += 1;
        {
            let mut connections = self.server.connections();
            if connections.len() >= MAX_CONNECTIONS {
                let text = format!("{MAX_CONNECTIONS} connections to the admin socket are open; close one, or try again");
                let _ = stream.set_nonblocking(true);
                let _ = (&*stream).write_all(format!("{}\n", rpc::failure(&serde_json::Value::Null, text.into())).as_bytes());
                return true;
            }
            connections.insert(number, Arc::clone(&stream));
        }
        let (server, running) = (Arc::clone(&self.server), self.running.clone());
        let serve = move || {
            let _ = server.serve(&stream);
            server.connections().remove(&number);
            drop(stream);
            // The end of the daemon waits for the last one, and for what they hold to be released.
            drop(server);
            drop(running);
        };
        if let Err(error) = std::thread::Builder::new().name("fip-admin".to_owned()).spawn(serve) {
            self.server.connections().remove(&number);
            if self.quota.allows() {
                tracing::error!(%error, "there is no thread for a connection to the admin socket; raise TasksMax=");
            }
            return false;
        }
        true
    }
}

impl Server {
    fn lock(&self) -> MutexGuard<'_, Admin> {
        self.admin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<u64, Arc<UnixStream>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// End every connection, and wait for its thread.
    fn end(&self, ended: &Receiver<()>, orders: &Mailbox<HandOver>) {
        self.connections().values().for_each(|stream| drop(stream.shutdown(std::net::Shutdown::Both)));
        // A takeover that is under way waits for the main thread, which takes no orders any more.
        while ended.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
            orders
                .take()
                .into_iter()
                .for_each(|order| order.refuse("the daemon has been stopped; start the new one without --takeover"));
        }
    }

    fn serve(&self, stream: &UnixStream) -> std::io::Result<()> {
        stream.set_write_timeout(Some(IDLE_TIMEOUT))?;
        let mut lines = Lines { stream, received: Vec::new(), files: Vec::new() };
        loop {
            let answer = match lines.next()? {
                Next::Line(line) => match self.answer(stream, &line, &mut lines.files) {
                    Answer::Line(answer) => answer,
                    Answer::None => continue,
                    Answer::Close => return Ok(()),
                },
                Next::TooLong => {
                    let answer = rpc::failure(&serde_json::Value::Null, RpcError::too_long(MAX_REQUEST_BYTES));
                    return write_line(stream, &answer);
                }
                Next::End => return Ok(()),
            };
            write_line(stream, &answer)?;
            // Those that a refused request left are not for the next one.
            if lines.received.is_empty() {
                lines.files.clear();
            }
        }
    }

    fn answer(&self, stream: &UnixStream, line: &[u8], files: &mut Vec<OwnedFd>) -> Answer {
        let (id, method, params) = match rpc::parse(line) {
            Ok(Message::Call { id, method, params }) => (id, method, params),
            Ok(Message::Notification) => return Answer::None,
            Err(answer) => return Answer::Line(answer),
        };
        let is_busy = || RpcError::from("another daemon is taking over; repeat the request in a moment".to_owned());
        let answered = match Call::parse(&method, params) {
            Ok(_) if self.handing_over.is_under_way() => Err(is_busy()),
            Ok(Call::Takeover(takeover)) => match self.lock().answer_takeover(&Asked { stream, id: &id }, &takeover) {
                Ok(()) => return Answer::Close,
                Err(error) => Err(error),
            },
            Ok(call) => self.lock().answer(call, files),
            Err(error) => Err(error),
        };
        Answer::Line(match answered {
            Ok(result) => rpc::success(&id, &result),
            Err(error) => rpc::failure(&id, error),
        })
    }
}

enum Answer {
    Line(String),
    None,
    /// A takeover was tried over this connection.
    Close,
}

fn write_line(mut stream: &UnixStream, line: &str) -> std::io::Result<()> {
    stream.write_all(format!("{line}\n").as_bytes())
}

enum Next {
    Line(Vec<u8>),
    TooLong,
    /// The client has hung up, or was silent for too long.
    End,
}

/// The lines that a client sends, and the descriptors that come with them.
struct Lines<'a> {
    stream: &'a UnixStream,
    received: Vec<u8>,
    files: Vec<OwnedFd>,
}

impl Lines<'_> {
    fn next(&mut self) -> std::io::Result<Next> {
        let deadline = Instant::now() + IDLE_TIMEOUT;
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                if end >= MAX_REQUEST_BYTES {
                    return Ok(Next::TooLong);
                }
                return Ok(Next::Line(self.received.drain(..=end).collect()));
            }
            if self.received.len() >= MAX_REQUEST_BYTES {
                return Ok(Next::TooLong);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.files.len() > MAX_FILES {
                return Ok(Next::End);
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut bytes = [0; 4096];
            match descriptors::receive(self.stream, &mut bytes, &mut self.files) {
                // The last line may have no end.
                Ok(0) if self.received.is_empty() => return Ok(Next::End),
                Ok(0) => return Ok(Next::Line(std::mem::take(&mut self.received))),
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(error) if std::io::Error::from(error).kind() == ErrorKind::WouldBlock => return Ok(Next::End),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
