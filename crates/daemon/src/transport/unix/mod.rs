//! Programs on this host, over a Unix socket. One thread, never on the data path.

mod adoption;
mod handover;
mod host;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fipsee_ring::mailbox::Mailbox;
use fipsee_serve::session::ClientLimits;
use fipsee_serve::unix::listener::Listener;
use fipsee_serve::unix::{FIRST_TOKEN, UnixTransport};
use fipsee_serve::{Command, Quiesced};
use rustix::event::epoll::EventFlags;

pub(crate) use self::handover::HandOver;
use self::host::DaemonHost;
use crate::live::Live;
use crate::notify::{self, Watchdog};
use crate::scaling::Scaling;
use crate::services::Registry;
use crate::transport::vhost_user::{Held, VhostUserSockets};
use crate::worker::{DiskEngine, WorkerHandle};

/// How long a drain waits for requests in flight before it gives up on them.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a drain checks for that. It ends with the last client, not with a tick.
const DRAIN_TICK: Duration = Duration::from_millis(250);

const TOKEN_ORDERS: u64 = FIRST_TOKEN;
const TOKEN_STOP: u64 = FIRST_TOKEN + 1;
const TOKEN_WOKEN: u64 = FIRST_TOKEN + 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Every client got its answers.
    Drained,
    /// Not every client did, within the time limit.
    TimedOut,
    /// Another daemon serves the clients now.
    HandedOver,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientSettings {
    pub(crate) max_clients: usize,
    /// Limit of one user, other than root and the daemon's own; `None`: three quarters.
    pub(crate) max_clients_per_user: Option<usize>,
    /// Memory of all clients of such a user; `None`: see [`memory_per_user`](Self::memory_per_user).
    pub(crate) max_memory_bytes_per_user: Option<u64>,
    pub(crate) limits: ClientLimits,
}

impl ClientSettings {
    /// What a user may have where there is `memory_bytes` of memory: three quarters of it, unless that is configured, and at least
    /// what one client may have.
    fn memory_per_user(&self, memory_bytes: Option<u64>) -> u64 {
        let ClientLimits { max_pool_bytes, max_memory_bytes, .. } = self.limits;
        let of_machine = memory_bytes.map_or(u64::MAX, |bytes| bytes - bytes / 4);
        let of_client = max_memory_bytes.saturating_add(max_pool_bytes);
        self.max_memory_bytes_per_user.unwrap_or_else(|| of_machine.max(of_client))
    }
}

pub(crate) struct UnixSocket {
    listener: Arc<Listener>,
    clients: UnixTransport<DiskEngine, DaemonHost>,
    pub(crate) orders: Arc<Mailbox<HandOver>>,
    /// Commands that wait for a queue in transit between workers.
    waiting: Vec<HandOver>,
    watchdog: Watchdog,
    /// Keeps workers quiesced and socket threads paused once another daemon serves.
    given: Option<(Quiesced, Held)>,
}

impl UnixSocket {
    /// Serve `registry` through `workers` to clients of `listener`; `stop` becomes readable when it is to drain and return.
    pub(crate) fn new(
        listener: Arc<Listener>,
        stop: &impl AsFd,
        workers: Vec<WorkerHandle>,
        live: Arc<Live>,
        registry: Registry,
        scaling: Arc<Scaling>,
        machines: Arc<VhostUserSockets>,
    ) -> std::io::Result<Self> {
        let woken = scaling.wake_up.doorbell.clone();
        let clients = UnixTransport::new(DaemonHost::new(workers, live, registry, scaling, machines))?;
        let orders = Arc::new(Mailbox::new()?);
        clients.listen(listener.socket())?;
        clients.watch(&*orders, TOKEN_ORDERS, EventFlags::ET)?;
        // A worker has woken up while no sample was due.
        clients.watch(&woken, TOKEN_WOKEN, EventFlags::ET)?;
        // Once: the signal is not read, and must not keep the drain from sleeping.
        clients.watch(stop, TOKEN_STOP, EventFlags::ONESHOT)?;
        let (waiting, watchdog) = (Vec::new(), Watchdog::from_environment());
        Ok(Self { listener, clients, orders, waiting, watchdog, given: None })
    }

    /// Serve until stopped, then let every client finish; or until another daemon has taken over.
    pub(crate) fn run(&mut self) -> Ended {
        let mut stopping: Option<Instant> = None;
        loop {
            if stopping.is_some_and(|since| self.clients.sessions.is_empty() || since.elapsed() > DRAIN_TIMEOUT) {
                return if self.clients.sessions.is_empty() { Ended::Drained } else { Ended::TimedOut };
            }
            let waiting = self.waiting.first().map(|order| order.latest.saturating_duration_since(Instant::now()));
            let scaling = self.clients.sessions.host.scaling.next_tick();
            let longest = [stopping.map(|_| DRAIN_TICK), self.watchdog.longest_sleep(), waiting, scaling];
            let longest = longest.into_iter().flatten().min();
            let (tokens, accepted) = self.clients.turn(self.listener.socket(), longest);
            if let Err(error) = accepted {
                self.clients.sessions.host.cannot_accept(&error);
            }
            if tokens.contains(&TOKEN_WOKEN) {
                self.clients.sessions.host.scaling.wake();
            }
            if tokens.contains(&TOKEN_STOP) {
                stopping = Some(Instant::now());
                self.begin_drain();
            }
            if self.take_orders(stopping.is_some()) {
                return Ended::HandedOver;
            }
            self.watchdog.beat();
        }
    }

    /// `true`: another daemon serves now.
    fn take_orders(&mut self, stopping: bool) -> bool {
        self.waiting.extend(self.orders.take());
        if stopping {
            let text = "the daemon is shutting down; start the new one without --takeover";
            self.waiting.drain(..).for_each(|order| order.refuse(text));
            return false;
        }
        let Some(order) = self.waiting.first() else {
            let is_moving = self.clients.sessions.is_moving();
            self.clients.sessions.host.scale(is_moving);
            self.clients.sessions.balance();
            self.clients.carry_out();
            return false;
        };
        if self.clients.sessions.is_moving() && Instant::now() < order.latest {
            return false;
        }
        // After the first success nothing here may be touched.
        std::mem::take(&mut self.waiting).into_iter().any(|order| self.hand_over(order))
    }

    /// Accept no new clients, and let attached ones finish what they published.
    fn begin_drain(&mut self) {
        self.clients.stop_listening(self.listener.socket());
        let clients = self.clients.sessions.len();
        tracing::info!(clients, "draining");
        notify::stopping(&format!("letting {clients} clients finish"));
        self.clients.sessions.drain();
        self.clients.carry_out();
        // Otherwise what waits for a limit would be given up.
        let workers = &self.clients.sessions.host.workers;
        workers.iter().for_each(|worker| worker.mailbox.send(Command::LiftLimits));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_may_have_three_quarters_of_the_memory_and_never_less_than_a_client() {
        let limits = ClientLimits { max_pool_bytes: 4, max_memory_bytes: 60, ..ClientLimits::default() };
        let mut settings = ClientSettings { max_clients: 1, max_clients_per_user: None, max_memory_bytes_per_user: None, limits };
        for (memory, expected) in [(None, u64::MAX), (Some(1000), 750), (Some(40), 64), (Some(0), 64)] {
            assert_eq!(settings.memory_per_user(memory), expected);
        }
        settings.max_memory_bytes_per_user = Some(7);
        assert_eq!(settings.memory_per_user(Some(1000)), 7);
    }
}
