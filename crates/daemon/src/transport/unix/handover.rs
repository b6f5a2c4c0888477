//! The old daemon's half of a takeover (docs/decisions/0015-takeover.md): queues are quiesced, clients are handed over.

use std::os::fd::AsFd;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use fipsee_serve::session::{ClientLimits, Part, Registered, Session, State};
use fipsee_serve::takeover::{Giving, GivingStep, LineError};
use fipsee_serve::{IfAbandoned, Quiesced};

use super::UnixSocket;
use crate::notify;
use crate::takeover::line::Line;
use crate::takeover::monotonic_ns;
use crate::takeover::wire::{AttachedRecord, ClientRecord, HandoverPacket, Stage};
use crate::totals::Totals;
use crate::transport::vhost_user;
use crate::worker::{DiskEngine, why_not_quiesced};

/// Hand the clients over to the daemon at the other end of the line.
pub(crate) struct HandOver {
    pub(crate) line: Line,
    /// The takeover's protocol, at the clients' turn.
    pub(crate) giving: Giving,
    pub(crate) pid: i32,
    /// How long requests in flight are waited for.
    pub(crate) timeout: Duration,
    /// The end of that wait.
    pub(crate) latest: Instant,
    /// The virtual machines. Messages of their hypervisors are not handled while this exists.
    pub(crate) machines: vhost_user::Held,
    /// Receives the reason if it fails.
    pub(crate) reply: Sender<String>,
}

impl HandOver {
    /// Refuse the takeover: the other daemon and the receiver of `reply` get the reason.
    pub(crate) fn refuse(mut self, reason: &str) {
        let step = self.giving.done(Err(reason.to_owned()));
        self.line.carry_out(&mut self.giving, step, Instant::now());
        let _ = self.reply.send(reason.to_owned());
    }
}

impl UnixSocket {
    /// `true`: the other daemon serves now, and nothing here may be touched.
    pub(super) fn hand_over(&mut self, mut order: HandOver) -> bool {
        let (began, quiesced_at_ns) = (Instant::now(), monotonic_ns());
        let (mut quiesced, mut deadline) = (None, began);
        let mut step = order.giving.done(Ok(()));
        loop {
            step = match order.line.carry_out(&mut order.giving, step, deadline) {
                GivingStep::Quiesce => {
                    let outcome = self.quiesce(&order);
                    order.giving.done(outcome.map(|workers| quiesced = Some((workers, began.elapsed()))))
                }
                GivingStep::Give(timeout) => {
                    deadline = Instant::now() + timeout;
                    let workers = quiesced.as_ref().ok_or_else(|| "no worker is quiesced; this is a bug".to_owned());
                    let given = workers.and_then(|(workers, _)| self.give_all(&order, workers, quiesced_at_ns, deadline));
                    order.giving.done(given)
                }
                GivingStep::Leave => {
                    let (drained_us, paused_us) =
                        (quiesced.as_ref().map_or(0, |(_, drained)| drained.as_micros()), began.elapsed().as_micros());
                    notify::handed_over(order.pid);
                    let (clients, machines, pid) = (self.clients.sessions.len(), order.machines.len(), order.pid);
                    tracing::info!(pid, clients, machines, drained_us, paused_us, "handed over to another daemon");
                    // The workers must not resume: they stay quiesced until this process ends.
                    self.given = quiesced.map(|(workers, _)| (workers, order.machines));
                    return true;
                }
                GivingStep::Resume(reason) => {
                    drop(quiesced);
                    let _ = order.reply.send(reason);
                    return false;
                }
                step => order.giving.done(Err(format!("{step:?} came out of order; this is a bug"))),
            }
        }
    }

    fn quiesce(&mut self, order: &HandOver) -> Result<Quiesced, String> {
        let left = order.latest.saturating_duration_since(Instant::now());
        let quiesced = Quiesced::begin(&self.clients.sessions.host.workers, Vec::new(), left, IfAbandoned::Resume);
        let quiesced = quiesced.map_err(|error| why_not_quiesced(error, order.timeout))?;
        // A client that waited for its requests in flight is answered now: the other daemon does not know of it.
        self.clients.take_reports();
        for other in self.orders.take() {
            other.refuse("another takeover is under way");
        }
        Ok(quiesced)
    }

    fn give_all(&self, order: &HandOver, quiesced: &Quiesced, quiesced_at_ns: u64, deadline: Instant) -> Result<(), String> {
        let line = &order.line;
        if !self.clients.sessions.is_settled() {
            return Err("requests of clients that are gone are still in flight; try again".to_owned());
        }
        // In order of arrival, so that they are distributed to workers as before.
        let mut sessions: Vec<(u64, &Session<DiskEngine>)> = self.clients.sessions.iter().collect();
        sessions.sort_unstable_by_key(|(client, _)| *client);
        for (client, session) in sessions {
            self.give(line, client, session, quiesced, deadline).map_err(|error| error.describe("clients were handed over"))?;
        }
        order.machines.give(line, quiesced, deadline).map_err(|error| error.describe("virtual machines were handed over"))?;
        let live = &self.clients.sessions.host.live;
        for export in &live.now().exports {
            let totals = export.totals_of_gone();
            if totals != Totals::default() {
                let totals = serde_json::to_string(&totals).map_err(|error| format!("totals cannot be encoded: {error}"))?;
                let packet = HandoverPacket::Totals { disk: export.name().to_owned(), totals };
                line.send(&packet, &[], deadline).map_err(|error| error.describe("totals were handed over"))?;
            }
        }
        let end = HandoverPacket::End { quiesced_at_ns, next_client: live.clients_before() };
        line.send(&end, &[], deadline).map_err(|error| error.describe("clients were handed over"))
    }

    fn give(
        &self,
        line: &Line,
        client: u64,
        session: &Session<DiskEngine>,
        quiesced: &Quiesced,
        deadline: Instant,
    ) -> Result<(), LineError> {
        let wrong = |what: String| LineError::Wrong(format!("client {client}: {what}"));
        let held = session.held();
        let parts = held.map(|held| held.attachment.save(client, quiesced)).transpose().map_err(|text| match session.state {
            // Some of its workers have already released their queues.
            State::Detaching(_) => wrong("it is about to leave; try again".to_owned()),
            _ => wrong(text),
        });
        let parts = parts?.unwrap_or_default();
        let stage = match (held, &session.state) {
            (Some(held), state) => Stage::Attached(AttachedRecord {
                service: held.attachment.service(),
                detaching: matches!(state, State::Detaching(_)),
                memories: held.memory.len(),
                parts: parts.len(),
            }),
            (None, State::Greeted { .. }) => Stage::Greeted,
            _ => Stage::Silent,
        };
        let ClientLimits { max_queues, max_depth, max_pool_bytes, max_memory_bytes } = session.limits;
        let features = session.features;
        let given = ClientRecord { client, features, max_queues, max_depth, max_pool_bytes, max_memory_bytes, stage };
        let socket = self.clients.socket(client).ok_or_else(|| wrong("its connection is gone".to_owned()))?;
        line.send(&HandoverPacket::Client(given), &[socket.as_fd()], deadline)?;
        for (id, Registered { region, access, .. }) in held.iter().flat_map(|held| &held.memory) {
            let memory = HandoverPacket::Memory { client, id: *id, access: *access, length_bytes: region.length_bytes() };
            line.send(&memory, &[region.as_fd()], deadline)?;
        }
        for Part { state, files } in parts {
            line.send(&HandoverPacket::Part { client, state }, &files, deadline)?;
        }
        Ok(())
    }
}
