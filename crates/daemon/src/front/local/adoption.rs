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
use fipsee_serve::{Assignment, IfAbandoned, QueueName, Quiesced};
use rustix::event::epoll;

use super::LocalFront;
use crate::export::{Attached, Kind};
use crate::front::session::{Attachment, Channel, ClientLimits, Registered, Session, State};
use crate::front::vhost_user::{AdoptedMachines, Machines, Socket};
use crate::takeover::TAKE_TIMEOUT;
use crate::takeover::line::Line;
use crate::takeover::take::{Failure, expect, receive};
use crate::takeover::wire::{self, AttachedGiven, ClientGiven, Given, QueueGiven, Stage};
use crate::worker::{Command, block_queue, why_not_quiesced};

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
    ends: Vec<(ServerQueue, Arc<QueueCounters>, Option<Standing>)>,
}

impl LocalFront {
    /// Take in all clients that the other daemon sends.
    pub(crate) fn adopt(&mut self, line: &Line, timeout: Duration, sockets: &[Socket]) -> Result<Adopted, Failure> {
        let mut commands: Vec<Vec<Command>> = self.workers.iter().map(|_| Vec::new()).collect();
        let (mut detaching, mut standings) = (Vec::new(), Vec::new());
        let mut machines = Machines::new(&self.workers, &self.live, sockets);
        let stood_still_ns = loop {
            // Its timeouts, with hypervisors and then with requests in flight, end before ours with it.
            match receive(line, Instant::now() + 2 * (timeout + TAKE_TIMEOUT), "handing over clients")? {
                (Given::End { stood_still_ns, next_client }, _) => {
                    self.live.number_clients_from(next_client);
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
        let limit = self.live.now().settings.max_clients;
        if self.sessions.len() > limit {
            let text = format!("{} clients are connected and max_clients is {limit} here; raise it", self.sessions.len());
            return Err(Failure::Refused(text));
        }
        let still = Quiesced::begin(&self.workers, commands, Duration::ZERO, IfAbandoned::Release);
        let still = still.map_err(|error| Failure::Refused(why_not_quiesced(error, Duration::ZERO)))?;
        // Does every queue stand at its worker where it stood in the other daemon?
        if standings.iter().any(|(queue, standing)| still.state(*queue) != Some(standing)) {
            return Err(Failure::Refused("a queue does not stand where the other daemon left it; see the log".to_owned()));
        }
        let machines = machines.standing(&still)?;
        Ok(Adopted { still, machines, stood_still_ns, clients: self.sessions.len(), detaching })
    }

    /// Serve them, once the workers go on.
    pub(crate) fn begin_adopted(&mut self, adopted: Adopted, sockets: &[Socket]) {
        let Adopted { still, machines, detaching, .. } = adopted;
        machines.begin(sockets);
        still.resume();
        for client in detaching {
            // An attached client's cannot be refused.
            let _ = self.detach(client);
        }
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
        let peer = rustix::net::sockopt::socket_peercred(&socket).map_err(|error| wrong(&format!("its socket: {error}")))?;
        let credentials = (peer.pid.as_raw_nonzero().get(), peer.uid.as_raw(), peer.gid.as_raw());
        if self.sessions.contains_key(&client) || features & !FEATURES != 0 {
            return Err(wrong("its number or its features are impossible"));
        }
        let state = match stage {
            Stage::Silent => State::Silent { since: Instant::now() },
            Stage::Greeted => State::Greeted { since: Instant::now() },
            Stage::Attached(attached) => {
                let file = descriptors.next().ok_or_else(|| wrong("its channel is missing"))?;
                let who = (client, credentials.0, credentials.1);
                State::Attached(self.adopt_attachment(line, who, &attached, file, commands, standings)?)
            }
        };
        let socket = Seqpacket::from_fd(socket);
        let on = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(client), on)
            .map_err(|error| wrong(&format!("its socket cannot be watched: {error}")))?;
        let limits = ClientLimits { max_queues, max_depth, max_pool_bytes, max_memory_bytes };
        self.descriptors += 1;
        if let State::Attached(held) = &state {
            self.descriptors += held.descriptors;
        }
        self.live.number_clients_from(client.saturating_add(1));
        self.sessions.insert(client, Session { id: client, socket, credentials, limits, state, features, parked: None });
        Ok(())
    }

    fn adopt_attachment(
        &self,
        line: &Line,
        (client, pid, uid): (u64, i32, u32),
        given: &AttachedGiven,
        file: OwnedFd,
        commands: &mut [Vec<Command>],
        standings: &mut Vec<(QueueName, Standing)>,
    ) -> Result<Attachment, Failure> {
        let wrong = |what: &str| Failure::Refused(format!("client {client}: {what}"));
        let export = self.live.now().exports.iter().find(|export| export.name() == given.disk).cloned();
        let export = export.ok_or_else(|| wrong("its disk is not there"))?;
        let region = Region::from_peer(file, given.region_bytes, Access::ReadWrite).map_err(|error| wrong(&error.to_string()))?;
        let region = Arc::new(region);
        let memory = (0..given.memories).map(|_| adopt_memory(line, client)).collect::<Result<Vec<_>, _>>()?;
        let Queues { layout, ends } = adopt_queues(line, client, given, &region)?;
        for ((_, _, standing), index) in ends.iter().zip(0_u16..) {
            standings.extend(standing.map(|standing| (QueueName { client, index }, standing)));
        }
        let assignments: Vec<Assignment> = layout.queues.iter().map(|_| Assignment::choose(&self.workers)).collect();
        let worker_cpus = assignments.iter().map(|assignment| self.workers[assignment.worker()].place.cpu).collect();
        let queues = ends.iter().map(|(_, counters, _)| Arc::clone(counters)).collect();
        let bells = ends.iter().map(|(queue, _, _)| (queue.our_bell.clone(), queue.client_bell.clone())).collect();
        let channel = Channel { region, layout, bells, read_only: given.read_only };
        let mut held = Attachment::new(&export, channel, assignments);
        for (worker, command) in held.commands(client, ends) {
            commands[worker].push(command);
        }
        let mut workers: Vec<usize> = held.assignments.iter().map(Assignment::worker).collect();
        workers.sort_unstable();
        workers.dedup();
        for (id, registered) in memory {
            for worker in &workers {
                // The client has its answer already.
                let ack = Arc::new(());
                commands[*worker].push(block_queue::add_region(client, id, &registered.region, registered.access, ack));
            }
            held.descriptors += 1;
            if held.memory.insert(id, registered).is_some() {
                return Err(wrong("one id stands for two memories"));
            }
        }
        let (exclusive, role) = (given.exclusive, given.role);
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
    let mapping = if access & ACCESS_WRITE != 0 { Access::ReadWrite } else { Access::Read };
    let region = Region::from_peer(file, length_bytes, mapping).map_err(|error| wrong(&error.to_string()))?;
    Ok((id, Registered { region: Arc::new(region), access, is_going: false }))
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
