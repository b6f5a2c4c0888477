//! The old daemon's half of a takeover (docs/decisions/0015-takeover.md): queues stand still, clients are handed over.

use std::any::Any;
use std::os::fd::AsFd;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use fipsee_serve::session::{ClientLimits, Held, Registered, Session, State};
use fipsee_serve::{IfAbandoned, QueueName, Quiesced};

use super::UnixSocket;
use crate::notify;
use crate::services::block::{BlockAttachment, Channel};
use crate::takeover::line::{Line, LineError};
use crate::takeover::wire::{self, Answer, AttachedGiven, ClientGiven, Given, QueueGiven, Stage, StandingGiven};
use crate::takeover::{TAKE_TIMEOUT, monotonic_ns};
use crate::transport::vhost_user;
use crate::worker::{DiskEngine, why_not_quiesced};

/// Hand the clients over to the daemon at the other end of the line.
pub struct HandOver {
    pub(crate) line: Line,
    /// Its process.
    pub(crate) pid: i32,
    /// How long requests in flight are waited for.
    pub(crate) timeout: Duration,
    /// Their hypervisors are not heard while this is there.
    pub(crate) machines: vhost_user::Held,
    /// Who asked hears why it did not happen.
    pub(crate) reply: Sender<String>,
}

impl HandOver {
    /// It does not happen.
    pub(super) fn refuse(self, reason: &str) {
        let _ = self.line.send(&Given::Refused { reason: reason.to_owned() }, &[], Instant::now());
        let _ = self.reply.send(reason.to_owned());
    }
}

impl UnixSocket {
    /// `true`: the other daemon serves now, and nothing here may be touched any more.
    pub(super) fn hand_over(&mut self, order: HandOver) -> bool {
        let began = Instant::now();
        let stood_still_ns = monotonic_ns();
        let still = match Quiesced::begin(&self.clients.sessions.host.workers, Vec::new(), order.timeout, IfAbandoned::Resume) {
            Ok(still) => still,
            Err(error) => {
                let reason = why_not_quiesced(error, order.timeout);
                order.refuse(&reason);
                return false;
            }
        };
        // Who waited for requests in flight has what it waited for, and is told now: the other daemon knows nothing of it.
        self.clients.take_reports();
        for other in self.orders.take() {
            other.refuse("another takeover is under way");
        }
        let drained = began.elapsed();
        let deadline = Instant::now() + TAKE_TIMEOUT;
        let given = self.give_all(&order, &still, stood_still_ns, deadline);
        let taken = given.and_then(|()| await_taken(&order.line, deadline));
        match taken.or_else(|reason| order.line.withdraw(&reason).map_err(|()| reason)) {
            Ok(()) => {
                let (drained_us, paused_us) = (drained.as_micros(), began.elapsed().as_micros());
                notify::handed_over(order.pid);
                let (clients, machines, pid) = (self.clients.sessions.len(), order.machines.len(), order.pid);
                tracing::info!(pid, clients, machines, drained_us, paused_us, "handed over to another daemon");
                // The workers must not go on: they stand still until this process is gone.
                self.given = Some((still, order.machines));
                true
            }
            Err(reason) => {
                still.resume();
                let _ = order.reply.send(reason);
                false
            }
        }
    }

    fn give_all(&self, order: &HandOver, still: &Quiesced, stood_still_ns: u64, deadline: Instant) -> Result<(), String> {
        let line = &order.line;
        if !self.clients.sessions.is_settled() {
            return Err("requests of clients that are gone are still in flight; try again".to_owned());
        }
        // In the order in which they came, so that they are dealt to workers as they were.
        let mut sessions: Vec<(u64, &Session<DiskEngine>)> = self.clients.sessions.iter().collect();
        sessions.sort_unstable_by_key(|(client, _)| *client);
        for (client, session) in sessions {
            self.give(line, client, session, still, deadline).map_err(|error| error.describe("clients were handed over"))?;
        }
        order.machines.give(line, still, deadline).map_err(|error| error.describe("virtual machines were handed over"))?;
        let end = Given::End { stood_still_ns, next_client: self.clients.sessions.host.live.clients_before() };
        line.send(&end, &[], deadline).map_err(|error| error.describe("clients were handed over"))
    }

    fn give(
        &self,
        line: &Line,
        client: u64,
        session: &Session<DiskEngine>,
        still: &Quiesced,
        deadline: Instant,
    ) -> Result<(), LineError> {
        let wrong = |what: &str| LineError::Wrong(format!("client {client} {what}"));
        let held = session.held().map(|held| Ok((held, block(held).ok_or_else(|| wrong("uses no disk"))?)));
        let held = held.transpose()?;
        let stage = match (held, &session.state) {
            (Some((held, block)), state) => Stage::Attached(describe(client, held, block, matches!(state, State::Detaching(_)))),
            (None, State::Greeted { .. }) => Stage::Greeted,
            _ => Stage::Silent,
        };
        let ClientLimits { max_queues, max_depth, max_pool_bytes, max_memory_bytes } = session.limits;
        let features = session.features;
        let given = ClientGiven { client, features, max_queues, max_depth, max_pool_bytes, max_memory_bytes, stage };
        let socket = self.clients.socket(client).ok_or_else(|| wrong("has no connection"))?;
        let channel = held.map(|(_, block)| block.channel.region.as_fd());
        let descriptors: Vec<_> = std::iter::once(socket.as_fd()).chain(channel).collect();
        line.send(&Given::Client(given), &descriptors, deadline)?;
        let Some((held, block)) = held else { return Ok(()) };
        for (id, Registered { region, access, .. }) in &held.memory {
            let memory = Given::Memory { client, id: *id, access: *access, length_bytes: region.length_bytes() };
            line.send(&memory, &[region.as_fd()], deadline)?;
        }
        let Channel { layout, bells, .. } = &block.channel;
        for ((geometry, (our_bell, client_bell)), index) in layout.queues.iter().zip(bells).zip(0_u16..) {
            // One that could not be served from the start, as the log says.
            let standing = still.state(QueueName { client, index });
            let standing = standing.ok_or_else(|| LineError::Wrong(format!("queue {index} of client {client} is not served")))?;
            let (counters, latency) =
                block.export.counters(client, index).map(|counters| wire::count(&counters)).unwrap_or_default();
            let standing = StandingGiven::from(standing);
            let queue = Given::Queue(QueueGiven { client, index, geometry: *geometry, standing, counters, latency });
            line.send(&queue, &[our_bell.as_fd(), client_bell.as_fd()], deadline)?;
        }
        Ok(())
    }
}

/// What the block service holds for a client.
fn block(held: &Held<DiskEngine>) -> Option<&BlockAttachment> {
    (&*held.attachment as &dyn Any).downcast_ref()
}

fn describe(client: u64, held: &Held<DiskEngine>, block: &BlockAttachment, detaching: bool) -> AttachedGiven {
    let Channel { layout, read_only, .. } = &block.channel;
    let (exclusive, role) = block.export.terms_of(client);
    AttachedGiven {
        disk: block.export.name().to_owned(),
        read_only: *read_only,
        exclusive,
        role,
        detaching,
        layout_features: layout.features,
        pool_offset_bytes: layout.pool_offset_bytes,
        pool_bytes: layout.pool_bytes,
        region_bytes: layout.region_bytes,
        memories: held.memory.len(),
        queues: layout.queues.len(),
    }
}

fn await_taken(line: &Line, deadline: Instant) -> Result<(), String> {
    match line.receive(deadline).map_err(|error| error.describe("it took over"))? {
        (Answer::Taken {}, _) => Ok(()),
        (Answer::Refused { reason }, _) => Err(reason),
        (Answer::Prepared {}, _) => Err("the other daemon answered out of order".to_owned()),
    }
}
