//! Connections of scrapers: one thread for all. None is waited for: a silent one keeps its place until another needs it, or for ten
//! seconds.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fipsee_ring::doorbell::EventDoorbell;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags};

use super::families::Sources;
use super::http::{self, Asked};
use super::{MetricsListener, text};
use crate::admin::HandingOver;
use crate::service_thread::ServiceThread;

/// Connections at a time.
const MAX_CONNECTIONS: usize = 32;
/// From the connection to the end of the answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long nothing is accepted during a takeover, or when there was no descriptor or memory for a connection.
const PAUSE: Duration = Duration::from_millis(50);

/// Serve at these sockets, from [`ServiceThread::begin`] on. No thread is needed for none.
pub(crate) fn spawn(
    listeners: Arc<[MetricsListener]>,
    sources: Sources,
    handing_over: Arc<HandingOver>,
) -> std::io::Result<Option<ServiceThread>> {
    if listeners.is_empty() {
        return Ok(None);
    }
    let stop = Arc::new(EventDoorbell::new()?);
    let (connections, pause_until) = (Vec::new(), None);
    let server = Server { listeners, sources, handing_over, stop: Arc::clone(&stop), connections, pause_until };
    ServiceThread::spawn("fip-metrics", stop, move || server.run()).map(Some)
}

struct Server {
    listeners: Arc<[MetricsListener]>,
    sources: Sources,
    handing_over: Arc<HandingOver>,
    stop: Arc<EventDoorbell>,
    /// The oldest first.
    connections: Vec<Connection>,
    pause_until: Option<Instant>,
}

struct Connection {
    socket: OwnedFd,
    deadline: Instant,
    state: State,
}

enum State {
    Receiving(Vec<u8>),
    Sending { bytes: Vec<u8>, sent: usize },
}

impl Server {
    fn run(mut self) {
        loop {
            self.pause_until = self.pause_until.filter(|until| *until > Instant::now());
            let (is_stopped, ready) = self.wait();
            if is_stopped {
                return;
            }
            let now = Instant::now();
            let (listeners, connections) = ready.split_at(self.listeners.len());
            let mut is_ready = connections.iter();
            let sources = &self.sources;
            self.connections.retain_mut(|connection| {
                let is_ready = is_ready.next().is_some_and(|is_ready| *is_ready);
                connection.deadline > now && (!is_ready || connection.advance(sources))
            });
            for (index, _) in listeners.iter().enumerate().filter(|(_, is_ready)| **is_ready) {
                self.accept(index);
            }
        }
    }

    /// Is it to stop? Then, for each listener and each connection: is it ready?
    fn wait(&self) -> (bool, Vec<bool>) {
        let mut fds = vec![PollFd::new(&self.stop, PollFlags::IN)];
        let accepts = if self.pause_until.is_none() { PollFlags::IN } else { PollFlags::empty() };
        fds.extend(self.listeners.iter().map(|at| PollFd::from_borrowed_fd(at.listener.socket().as_fd(), accepts)));
        fds.extend(self.connections.iter().map(|connection| {
            let what = if matches!(connection.state, State::Receiving(_)) { PollFlags::IN } else { PollFlags::OUT };
            PollFd::new(&connection.socket, what)
        }));
        let until = self.connections.iter().map(|connection| connection.deadline).chain(self.pause_until).min();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        (ready[0], ready[1..].to_vec())
    }

    fn accept(&mut self, index: usize) {
        // The next daemon accepts it.
        if self.handing_over.is_under_way() {
            self.pause_until = Some(Instant::now() + PAUSE);
            return;
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(self.listeners[index].listener.socket(), flags) {
            Ok(socket) => {
                if self.connections.len() >= MAX_CONNECTIONS {
                    let silent = self.connections.iter().position(|other| matches!(other.state, State::Receiving(_)));
                    self.connections.remove(silent.unwrap_or(0));
                }
                let (deadline, state) = (Instant::now() + TIMEOUT, State::Receiving(Vec::new()));
                self.connections.push(Connection { socket, deadline, state });
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            Err(error) => {
                tracing::debug!(%error, "cannot accept a scraper");
                self.pause_until = Some(Instant::now() + PAUSE);
            }
        }
    }
}

impl Connection {
    /// Does it go on?
    fn advance(&mut self, sources: &Sources) -> bool {
        if let State::Receiving(received) = &mut self.state {
            let mut bytes = [0; 4096];
            let room = http::MAX_REQUEST_BYTES.saturating_sub(received.len()).clamp(1, bytes.len());
            match rustix::net::recv(&self.socket, &mut bytes[..room], RecvFlags::empty()) {
                Ok((0, _)) => return false,
                Ok((count, _)) => received.extend_from_slice(&bytes[..count]),
                Err(Errno::AGAIN | Errno::INTR) => return true,
                Err(_) => return false,
            }
            let Some(bytes) = reply(received, sources) else { return true };
            self.state = State::Sending { bytes, sent: 0 };
        }
        let State::Sending { bytes, sent } = &mut self.state else { return true };
        match rustix::net::send(&self.socket, &bytes[*sent..], SendFlags::NOSIGNAL) {
            Ok(count) => {
                *sent += count;
                *sent < bytes.len()
            }
            Err(Errno::AGAIN | Errno::INTR) => true,
            Err(_) => false,
        }
    }
}

/// `None`: there is more to come.
fn reply(request: &[u8], sources: &Sources) -> Option<Vec<u8>> {
    match http::parse(request) {
        Asked::Incomplete => None,
        Asked::Refused(refusal) => Some(http::refusal(refusal)),
        Asked::Metrics { format, only_head } => Some(match text::render(sources.families(), format) {
            Ok(text) => http::answer(format, &text, only_head),
            Err(_) => http::refusal(http::NO_TEXT),
        }),
    }
}
