//! The new daemon's half of a takeover: clients are checked as in a handshake, then go to the workers as new ones do.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fipsee_block::server::Standing;
use fipsee_block::stats::QueueCounters;
use fipsee_block::wire::{FEATURES, PROFILE};
use fipsee_ring::channel::{RegionLayout, ServerQueue};
use fipsee_ring::control::{ACCESS_READ, ACCESS_WRITE, MAX_QUEUES, MAX_REGIONS};
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::region::{Access, Region};
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_serve::session::{ClientLimits, Credentials, Held, Registered, Session, State};
use fipsee_serve::unix::credentials_of;
use fipsee_serve::{Assignment, IfAbandoned, QueueName, Quiesced};

use super::UnixSocket;
use crate::export::{Attached, Kind};
use crate::services::block::{BlockAttachment, Channel, QueueEnd};
use crate::takeover::TAKE_TIMEOUT;
use crate::takeover::line::Line;
use crate::takeover::take::{Failure, expect, receive};
use crate::takeover::wire::{self, AttachedGiven, ClientGiven, Given, QueueGiven, Stage};
use crate::transport::vhost_user::{AdoptedMachines, Machines, Socket};
use crate::worker::{Command, DiskEngine, block_queue, why_not_quiesced};

/// Clients that are ours as soon as the other daemon is told; their queues stand still.
pub(crate) struct Adopted {
    pub(crate) still: Quiesced,
    /// When they began to, on CLOCK_MONOTONIC.
    pub(crate) stood_still_ns: u64,
    pub(crate) clients: usize,
    pub(crate) machines: AdoptedMachines,
    /// Who asked the other daemon to let go of it.
    detaching: Vec<u64>,
}

/// What comes together for one client.
struct Queues {
    layout: RegionLayout,
    ends: Vec<QueueEnd>,
}

impl UnixSocket {
    /// Take in all clients that the other daemon sends.
    pub(crate) fn adopt(&mut self, line: &Line, timeout: Duration, sockets: &[Socket]) -> Result<Adopted, Failure> {
        let mut commands: Vec<Vec<Command>> = self.clients.sessions.host.workers.iter().map(|_| Vec::new()).collect();
        let (mut detaching, mut standings) = (Vec::new(), Vec::new());
        let host = &self.clients.sessions.host;
        let mut machines = Machines::new(&host.workers, &host.live, sockets);
        let stood_still_ns = loop {
            // Its timeouts, with hypervisors and then with requests in flight, end before ours with it.
            match receive(line, Instant::now() + 2 * (timeout + TAKE_TIMEOUT), "handing over clients")? {
                (Given::End { stood_still_ns, next_client }, _) => {
                    self.clients.sessions.host.live.number_clients_from(next_client);
                    break stood_still_ns;
                }
                (Given::Client(given), descriptors) => {
                    if let Stage::Attached(AttachedGiven { detaching: true, .. }) = given.stage {
                        detaching.push(given.client);
                    }
                    self.adopt_client(line, given, descriptors, &mut commands, &mut standings)?;
                }
                (Given::Machine(given), descriptors) => machines.adopt(line, given, descriptors, &mut commands)?,
                (other, _) => return Err(Failure::out_of_order(&other)),
            }
        };
        let (limit, clients) = (self.clients.sessions.host.live.now().settings.max_clients, self.clients.sessions.len());
        if clients > limit {
            let text = format!("{clients} clients are connected and max_clients is {limit} here; raise it");
            return Err(Failure::Refused(text));
        }
        let still = Quiesced::begin(&self.clients.sessions.host.workers, commands, Duration::ZERO, IfAbandoned::Release);
        let still = still.map_err(|error| Failure::Refused(why_not_quiesced(error, Duration::ZERO)))?;
        // Does every queue stand at its worker where it stood in the other daemon?
        if standings.iter().any(|(queue, standing)| still.state(*queue) != Some(standing)) {
            return Err(Failure::Refused("a queue does not stand where the other daemon left it; see the log".to_owned()));
        }
        let machines = machines.standing(&still)?;
        Ok(Adopted { still, machines, stood_still_ns, clients, detaching })
    }

    /// Serve them, once the workers go on.
    pub(crate) fn begin_adopted(&mut self, adopted: Adopted, sockets: &[Socket]) {
        let Adopted { still, machines, detaching, .. } = adopted;
        machines.begin(sockets);
        still.resume();
        for client in detaching {
            // An attached client's cannot be refused.
            let _ = self.clients.sessions.detach(client);
        }
        self.clients.carry_out();
    }

    fn adopt_client(
        &mut self,
        line: &Line,
        given: ClientGiven,
        descriptors: Vec<OwnedFd>,
        commands: &mut [Vec<Command>],
        standings: &mut Vec<(QueueName, Standing)>,
    ) -> Result<(), Failure> {
        let ClientGiven { client, features, max_queues, max_depth, max_pool_bytes, max_memory_bytes, stage } = given;
        let wrong = |what: &str| Failure::Refused(format!("client {client}: {what}"));
        let mut descriptors = descriptors.into_iter();
        let socket = descriptors.next().ok_or_else(|| wrong("its socket is missing"))?;
        let credentials = credentials_of(&socket).map_err(|error| wrong(&format!("its socket: {error}")))?;
        if self.clients.socket(client).is_some() || features & !FEATURES != 0 {
            return Err(wrong("its number or its features are impossible"));
        }
        let state = match stage {
            Stage::Silent => State::Silent { since: Instant::now() },
            Stage::Greeted => State::Greeted { since: Instant::now() },
            Stage::Attached(attached) => {
                let file = descriptors.next().ok_or_else(|| wrong("its channel is missing"))?;
                State::Attached(self.adopt_attachment(line, (client, &credentials), &attached, file, commands, standings)?)
            }
        };
        let limits = ClientLimits { max_queues, max_depth, max_pool_bytes, max_memory_bytes };
        let session = Session::new(credentials, limits, features, state);
        self.clients
            .adopt(client, Seqpacket::from_fd(socket), session)
            .map_err(|error| wrong(&format!("its socket cannot be watched: {error}")))?;
        self.clients.sessions.host.live.number_clients_from(client.saturating_add(1));
        Ok(())
    }

    fn adopt_attachment(
        &self,
        line: &Line,
        (client, credentials): (u64, &Credentials),
        given: &AttachedGiven,
        file: OwnedFd,
        commands: &mut [Vec<Command>],
        standings: &mut Vec<(QueueName, Standing)>,
    ) -> Result<Held<DiskEngine>, Failure> {
        let wrong = |what: &str| Failure::Refused(format!("client {client}: {what}"));
        let host = &self.clients.sessions.host;
        let export = host.live.now().exports.iter().find(|export| export.name() == given.disk).cloned();
        let export = export.ok_or_else(|| wrong("its disk is not there"))?;
        let region = Region::from_peer(file, given.region_bytes, Access::ReadWrite).map_err(|error| wrong(&error.to_string()))?;
        let region = Arc::new(region);
        let memory = (0..given.memories).map(|_| adopt_memory(line, client)).collect::<Result<Vec<_>, _>>()?;
        let Queues { layout, ends } = adopt_queues(line, client, given, &region)?;
        for ((_, _, standing), index) in ends.iter().zip(0_u16..) {
            standings.extend(standing.map(|standing| (QueueName { client, index }, standing)));
        }
        let assignments: Vec<Assignment> = layout.queues.iter().map(|_| Assignment::choose(&host.workers)).collect();
        let worker_cpus = assignments.iter().map(|assignment| host.workers[assignment.worker()].place.cpu).collect();
        let queues = ends.iter().map(|(_, counters, _)| Arc::clone(counters)).collect();
        let channel = Channel::new(region, layout, &ends, given.read_only);
        let attachment = BlockAttachment::new(Arc::clone(&export), channel, Arc::clone(&host.live));
        for (worker, command) in attachment.commands(client, &assignments, ends) {
            commands[worker].push(command);
        }
        let mut held = Held::new(Box::new(attachment), assignments);
        for (id, registered) in memory {
            for worker in held.workers() {
                // The client has its answer already.
                let ack = Arc::new(());
                commands[worker].push(block_queue::add_region(client, id, &registered.region, registered.access, ack));
            }
            if held.memory.insert(id, registered).is_some() {
                return Err(wrong("one id stands for two memories"));
            }
        }
        let (exclusive, role) = (given.exclusive, given.role);
        let &Credentials { pid, uid, .. } = credentials;
        let kind = Kind::Ring;
        export.keep(Attached { kind, client, pid, uid, queues, worker_cpus, exclusive, role, leaving: false });
        Ok(held)
    }
}

fn adopt_memory(line: &Line, client: u64) -> Result<(u16, Registered), Failure> {
    let (packet, mut descriptors) = expect(line, "handing over memory")?;
    let Given::Memory { client: whose, id, access, length_bytes } = packet else { return Err(Failure::out_of_order(&packet)) };
    let wrong = |what: &str| Failure::Refused(format!("client {client}: its memory {id}: {what}"));
    let is_possible = (1..MAX_REGIONS).contains(&id) && access != 0 && access & !(ACCESS_READ | ACCESS_WRITE) == 0;
    let (Some(file), true) = (descriptors.pop(), whose == client && is_possible) else {
        return Err(wrong("its id, access or file is impossible"));
    };
    Ok((id, Registered::map(file, length_bytes, access).map_err(|text| wrong(&text))?))
}

fn adopt_queues(line: &Line, client: u64, given: &AttachedGiven, region: &Arc<Region>) -> Result<Queues, Failure> {
    let wrong = |what: &str| Failure::Refused(format!("client {client}: {what}"));
    let is_possible = (1..=usize::from(MAX_QUEUES)).contains(&given.queues) && given.layout_features & !FEATURES == 0;
    if !is_possible {
        return Err(wrong("its channel has an impossible number of queues or unknown features"));
    }
    let mut layout = RegionLayout {
        features: given.layout_features,
        pool_offset_bytes: given.pool_offset_bytes,
        pool_bytes: given.pool_bytes,
        region_bytes: given.region_bytes,
        queues: Vec::new(),
    };
    let mut ends = Vec::new();
    for index in 0..given.queues {
        let (packet, mut descriptors) = expect(line, "handing over queues")?;
        let Given::Queue(QueueGiven { client: whose, index: number, geometry, standing, counters, latency }) = packet else {
            return Err(Failure::out_of_order(&packet));
        };
        let (Some(client_bell), Some(our_bell)) = (descriptors.pop(), descriptors.pop()) else {
            return Err(wrong("the doorbells of a queue are missing"));
        };
        let standing = standing.understand().filter(|_| whose == client && usize::from(number) == index);
        let standing = standing.ok_or_else(|| wrong("a queue stands where none can"))?;
        let bells = (EventDoorbell::from_fd(our_bell), SocketDoorbell::from_fd(client_bell));
        let positions = (standing.request, standing.completion);
        geometry.check(&PROFILE).map_err(|fault| wrong(&fault.to_string()))?;
        let queue = ServerQueue::open_at(region, &geometry, bells.0, bells.1, positions);
        let numbers = Arc::<QueueCounters>::default();
        wire::recount(&numbers, &counters, &latency);
        ends.push((queue.map_err(|fault| wrong(&fault.to_string()))?, numbers, Some(standing)));
        layout.queues.push(geometry);
    }
    Ok(Queues { layout, ends })
}
