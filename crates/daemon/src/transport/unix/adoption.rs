//! The new daemon's half of a takeover: clients are checked as in a handshake, then assigned to the workers as new ones are.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fipsee_ring::control::{ACCESS_READ, ACCESS_WRITE, MAX_REGIONS};
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_serve::session::{Client, ClientLimits, Held, Host as _, Part, Registered, Session, State};
use fipsee_serve::unix::credentials_of;
use fipsee_serve::{IfAbandoned, Quiesced};

use super::UnixSocket;
use crate::takeover::take::{Conversation, Failure};
use crate::takeover::wire::{AttachedRecord, ClientRecord, HandoverPacket, Stage};
use crate::transport::vhost_user::{Machines, Socket};
use crate::worker::{Command, DiskEngine, why_not_quiesced};

/// Whether the workers have a client's queues in the state in which the other daemon left them.
type Check = Box<dyn Fn(&Quiesced) -> bool>;

/// Clients that are ours as soon as the other daemon is notified; their queues are quiesced.
pub(crate) struct Adopted<'a> {
    pub(crate) still: Quiesced,
    /// When they were quiesced, on CLOCK_MONOTONIC.
    pub(crate) quiesced_at_ns: u64,
    pub(crate) clients: usize,
    pub(crate) machines: Machines<'a>,
    /// Clients with a pending DETACH at the other daemon.
    detaching: Vec<u64>,
}

impl UnixSocket {
    pub(crate) fn adopt<'a>(&mut self, line: &mut Conversation, sockets: &'a [Socket]) -> Result<Adopted<'a>, Failure> {
        let mut commands: Vec<Vec<Command>> = self.clients.sessions.host.workers.iter().map(|_| Vec::new()).collect();
        let (mut detaching, mut checks, mut machines) = (Vec::new(), Vec::new(), Machines::new(sockets));
        let quiesced_at_ns = loop {
            match line.packet()? {
                (HandoverPacket::End { quiesced_at_ns, next_client }, _) => {
                    self.clients.sessions.host.live.number_clients_from(next_client);
                    break quiesced_at_ns;
                }
                (HandoverPacket::Client(given), descriptors) => {
                    if let Stage::Attached(AttachedRecord { detaching: true, .. }) = given.stage {
                        detaching.push(given.client);
                    }
                    self.adopt_client(line, given, descriptors, &mut commands, &mut checks)?;
                }
                (HandoverPacket::Totals { disk, totals }, _) => {
                    let totals = serde_json::from_str(&totals);
                    let totals = totals.map_err(|error| Failure::Refused(format!("totals of disk '{disk}': {error}")))?;
                    let served = self.clients.sessions.host.live.now();
                    served.find(&disk).map_err(Failure::Refused)?.set_totals(totals);
                }
                (HandoverPacket::Machine(given), descriptors) => machines.adopt(line, given, descriptors, &mut commands)?,
                _ => return Err(Failure::out_of_order()),
            }
        };
        let (limit, clients) = (self.clients.sessions.host.live.now().settings.max_clients, self.clients.sessions.len());
        if clients > limit {
            let text = format!("{clients} clients are connected and max_clients is {limit} here; raise it");
            return Err(Failure::Refused(text));
        }
        let still = Quiesced::begin(&self.clients.sessions.host.workers, commands, Duration::ZERO, IfAbandoned::Release);
        let still = still.map_err(|error| Failure::Refused(why_not_quiesced(error, Duration::ZERO)))?;
        // Is every queue at its worker in the state that it had in the other daemon?
        if !checks.iter().all(|is_same| is_same(&still)) {
            return Err(Failure::Refused("a queue is not in the state that the other daemon left; see the log".to_owned()));
        }
        machines.check(&still)?;
        Ok(Adopted { still, machines, quiesced_at_ns, clients, detaching })
    }

    pub(crate) fn begin_adopted(&mut self, Adopted { still, machines, detaching, .. }: Adopted<'_>) {
        machines.begin();
        still.resume();
        for client in detaching {
            // An attached client's cannot be refused.
            let _ = self.clients.sessions.detach(client);
        }
        self.clients.carry_out();
    }

    fn adopt_client(
        &mut self,
        line: &mut Conversation,
        given: ClientRecord,
        descriptors: Vec<OwnedFd>,
        commands: &mut [Vec<Command>],
        checks: &mut Vec<Check>,
    ) -> Result<(), Failure> {
        let ClientRecord { client, features, max_queues, max_depth, max_pool_bytes, max_memory_bytes, stage } = given;
        let wrong = |what: &str| Failure::Refused(format!("client {client}: {what}"));
        let limits = ClientLimits { max_queues, max_depth, max_pool_bytes, max_memory_bytes };
        let socket = descriptors.into_iter().next().ok_or_else(|| wrong("its socket is missing"))?;
        let credentials = credentials_of(&socket).map_err(|error| wrong(&format!("its socket: {error}")))?;
        if self.clients.socket(client).is_some() || features & !self.clients.sessions.host.registry.features() != 0 {
            return Err(wrong("its number or its features are impossible"));
        }
        let share = self.clients.sessions.host.share(&credentials);
        let state = match stage {
            Stage::Silent => State::Silent { since: Instant::now() },
            Stage::Greeted => State::Greeted { since: Instant::now() },
            Stage::Attached(given) => {
                let client = Client { id: client, credentials: &credentials, limits, features, share: &share };
                let (held, is_same) = self.adopt_attachment(line, &client, &given, commands)?;
                checks.push(is_same);
                State::Attached(held)
            }
        };
        let session = Session::new(credentials, limits, features, share, state);
        self.clients
            .adopt(client, Seqpacket::from_fd(socket), session)
            .map_err(|error| wrong(&format!("its socket cannot be watched: {error}")))?;
        self.clients.sessions.host.live.number_clients_from(client.saturating_add(1));
        Ok(())
    }

    fn adopt_attachment(
        &self,
        line: &mut Conversation,
        client: &Client<'_>,
        given: &AttachedRecord,
        commands: &mut [Vec<Command>],
    ) -> Result<(Held<DiskEngine>, Check), Failure> {
        let id = client.id;
        let wrong = |what: String| Failure::Refused(format!("client {id}: {what}"));
        let memory = (0..given.memories).map(|_| adopt_memory(line, id)).collect::<Result<Vec<_>, _>>()?;
        let parts = (0..given.parts).map(|_| match line.packet()? {
            (HandoverPacket::Part { state, .. }, files) => Ok(Part { state, files }),
            _ => Err(Failure::out_of_order()),
        });
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let adopted = self.clients.sessions.host.registry.adopt(given.service, client, parts).map_err(wrong)?;
        for (worker, command) in adopted.commands {
            commands[worker].push(command);
        }
        let mut held = Held::new(adopted.attachment, adopted.assignments);
        for (region, registered) in memory {
            let service = held.attachment.memory().ok_or_else(|| wrong("its service takes no memory".to_owned()))?;
            for worker in held.workers() {
                // The client has its answer already.
                let ack = Arc::new(());
                commands[worker].push(service.add_region(id, region, &registered.region, registered.access, ack));
            }
            if held.memory.insert(region, registered).is_some() {
                return Err(wrong("one id is used for two memories".to_owned()));
            }
        }
        Ok((held, adopted.is_same))
    }
}

fn adopt_memory(line: &mut Conversation, client: u64) -> Result<(u16, Registered), Failure> {
    let (HandoverPacket::Memory { id, access, length_bytes, .. }, mut descriptors) = line.packet()? else {
        return Err(Failure::out_of_order());
    };
    let wrong = |what: &str| Failure::Refused(format!("client {client}: its memory {id}: {what}"));
    let is_possible = (1..MAX_REGIONS).contains(&id) && access != 0 && access & !(ACCESS_READ | ACCESS_WRITE) == 0;
    let (Some(file), true) = (descriptors.pop(), is_possible) else {
        return Err(wrong("its id, access or file is impossible"));
    };
    Ok((id, Registered::map(file, length_bytes, access).map_err(|error| wrong(&error.to_string()))?))
}
