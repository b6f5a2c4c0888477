//! The service: what ATTACH grants, the state held for a client, its takeover, and the counters.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fipsee_ring::channel::{FEATURE_WORKER_CPU, MAX_DEPTH, RegionLayout, ServerQueue};
use fipsee_ring::control::{Listed, MAX_LISTED, MAX_QUEUES, Page, RefusalCode, Wanted};
use fipsee_ring::handshake::{Grant, refuse};
use fipsee_ring::memory::RegionTable;
use fipsee_serve::session::{Adopted, AdoptedChannel, Attachment, Channel, Client, Denial, Granted, Part, Service};
use fipsee_serve::{Assignment, Command, Engine, Metric, NotAdded, QueueName, Quiesced, WorkerHandle, WorkerPlacement};

use super::network::{Network, NetworkSetup, Port};
use super::queue::{QueueState, ReceiveQueue, TransmitQueue};
use super::receiver::Receiver;
use crate::switch::{PortNumber, Rules, Vlans};
use crate::wire::{ListedPort, MAX_PAIRS, PROFILE, PortInfo, PostedBuffer, QUEUES_PER_PAIR, SERVICE_NET, Status};

/// The networks of a program.
pub struct Networks<E: Engine> {
    networks: Vec<Arc<Network>>,
    /// Network and port as in ATTACH, in their order, and which those are.
    names: Vec<(String, usize, PortNumber)>,
    workers: Vec<WorkerHandle<E>>,
    follow: Follow,
}

/// Called with a client that attaches and where its queues stay, and with `None` when nothing of it is left.
pub type Follow = Arc<dyn Fn(u64, Option<Assigned<'_>>) + Send + Sync>;

/// Where the queues of a client are as long as it is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assigned<'a> {
    /// Network and port, as in ATTACH.
    pub port: &'a str,
    pub worker: usize,
    pub queues: usize,
}

struct PortAttachment {
    /// Network and port, as in ATTACH.
    name: String,
    network: Arc<Network>,
    port: PortNumber,
    channel: Channel,
    follow: Follow,
}

/// The daemon's end of a queue, and its state, unless it is new.
type QueueEnd = (ServerQueue, Vec<PostedBuffer>);

/// Which port, and how many queues the client gets of it.
struct Place<'a> {
    network: &'a Arc<Network>,
    port: PortNumber,
}

impl<E: Engine> Networks<E> {
    /// These networks, served by these workers: all ports of a network by one, where `follow` says that they are to stay.
    pub fn new(networks: Vec<NetworkSetup>, workers: Vec<WorkerHandle<E>>, follow: Follow) -> Self {
        let networks: Vec<_> = networks.into_iter().map(|setup| Arc::new(Network::new(setup))).collect();
        let of_network = |(index, network): (usize, &Arc<Network>)| {
            let name = |(number, port): (PortNumber, &Port)| (format!("{}/{}", network.name, port.setup.name), index, number);
            (0..).zip(&network.ports).map(name).collect::<Vec<_>>()
        };
        let mut names: Vec<_> = networks.iter().enumerate().flat_map(of_network).collect();
        names.sort_unstable();
        Self { networks, names, workers, follow }
    }

    fn named(&self, name: &str) -> Option<Place<'_>> {
        let (network, port) = name.split_once('/')?;
        let network = self.networks.iter().find(|known| known.name == network)?;
        let port = network.ports.iter().position(|known| known.setup.name == port)?;
        Some(Place { network, port: PortNumber::try_from(port).ok()? })
    }

    /// The port of this name that the client may use. Of others it does not learn that they exist.
    fn find(&self, client: &Client<'_>, name: &str) -> Result<Place<'_>, Denial> {
        let uid = client.credentials.uid;
        let text = format!("no port '{name}' that user {uid} may use; `fipsee net ls` lists those");
        let unknown = refuse(RefusalCode::UnknownName, text);
        let Some(place) = self.named(name) else { return Err(unknown.into()) };
        if (place.port().setup.allow)(client.credentials) {
            return Ok(place);
        }
        let reason = format!("port '{name}' does not allow user {uid}; see allow_users and allow_groups of it");
        Err(Denial::Concealed { refusal: unknown, reason })
    }

    /// The worker of all ports of the network: where the others are, or the one with the fewest queues.
    fn assign(&self, network: &Network, queues: usize) -> Vec<Assignment> {
        let mut attached = network.attached();
        let others = attached.clients.iter().flatten().count() > 1;
        let chosen = attached.worker.filter(|worker| others && *worker < self.workers.len());
        let first =
            chosen.map_or_else(|| Assignment::choose(&self.workers), |worker| Assignment::to(worker, &self.workers[worker]));
        let worker = first.worker;
        attached.worker = Some(worker);
        std::iter::once(first).chain((1..queues).map(|_| Assignment::to(worker, &self.workers[worker]))).collect()
    }

    fn lay_out(&self, client: &Client<'_>, wanted: &Wanted, place: &Place<'_>) -> Result<Granted<E>, Denial> {
        let most_queues = client.limits.max_queues.min(MAX_QUEUES);
        let pairs = (wanted.queue_count.min(most_queues) / QUEUES_PER_PAIR).min(MAX_PAIRS);
        if pairs == 0 {
            let text = "a port needs two queues, and max_queues of the daemon allows one; raise it";
            return Err(refuse(RefusalCode::Limit, text).into());
        }
        let depth = wanted.depth.min(client.limits.max_depth).min(MAX_DEPTH);
        let seed = u32::try_from(client.id & 0xffff_ffff).unwrap_or(0);
        let pool_bytes = wanted.pool_bytes.min(client.limits.max_pool_bytes);
        let mut layout = RegionLayout::plan(&PROFILE, pairs * QUEUES_PER_PAIR, depth, pool_bytes, seed);
        let assignments = self.assign(place.network, layout.queues.len());
        layout.features = client.features;
        for (geometry, assignment) in layout.queues.iter_mut().zip(&assignments) {
            let WorkerPlacement { cpu, choices, .. } = assignment.place;
            geometry.choices = choices;
            let is_sent = client.features & FEATURE_WORKER_CPU != 0;
            geometry.worker_cpu_plus_1 = cpu.filter(|_| is_sent).and_then(|cpu| u32::try_from(cpu + 1).ok()).unwrap_or(0);
        }
        let mut grant = Grant::new(layout, |_| {})?;
        let held = self.hold(client, place, Channel::of(&grant), &assignments);
        let ends = std::mem::take(&mut grant.queues).into_iter().map(|end| (end, Vec::new())).collect();
        let commands = held.serve(client, &assignments, ends);
        let reply = grant.attached(place.info(pairs).to_bytes());
        Ok(Granted { attachment: Box::new(held), assignments, reply, grant, commands })
    }

    fn hold(&self, client: &Client<'_>, place: &Place<'_>, channel: Channel, assignments: &[Assignment]) -> PortAttachment {
        let name = format!("{}/{}", place.network.name, place.port().setup.name);
        let (network, follow) = (Arc::clone(place.network), Arc::clone(&self.follow));
        let assigned = assignments.first().map(|first| Assigned { port: &name, worker: first.worker, queues: assignments.len() });
        follow(client.id, assigned);
        PortAttachment { name, network, port: place.port, channel, follow }
    }
}

impl Place<'_> {
    fn port(&self) -> &Port {
        &self.network.ports[usize::from(self.port)]
    }

    fn vlan(&self) -> u16 {
        match self.port().setup.rules.vlans {
            Vlans::Access(vlan) => vlan,
            Vlans::Trunk { .. } => 0,
        }
    }

    fn info(&self, pairs: u16) -> PortInfo {
        PortInfo::new(self.port().setup.rules.mac, self.network.mtu, self.vlan(), pairs)
    }

    /// What a client was sent of it and relies on: another process must have the same. No VLAN is not written.
    fn described(&self) -> String {
        let Port { setup, .. } = self.port();
        let described = format!("{}/{} {} {}", self.network.name, setup.name, setup.rules.mac, self.network.mtu);
        match self.vlan() {
            0 => described,
            vlan => format!("{described} {vlan}"),
        }
    }

    /// No other client has it, and this client has it from now on.
    fn claim(&self, client: u64, name: &str) -> Result<(), Denial> {
        let place = &mut self.network.attached().clients[usize::from(self.port)];
        match place {
            None => *place = Some((client, false)),
            Some((_, is_leaving)) => {
                let text = format!("port '{name}' is in use; one client at a time may attach to it");
                let refusal = refuse(RefusalCode::Busy, text);
                return Err(if *is_leaving { Denial::Later(refusal) } else { refusal.into() });
            }
        }
        Ok(())
    }

    fn give_back(&self) {
        self.network.attached().clients[usize::from(self.port)] = None;
    }
}

impl PortAttachment {
    /// The commands with which workers serve the ends.
    fn serve<E: Engine>(&self, client: &Client<'_>, assignments: &[Assignment], ends: Vec<QueueEnd>) -> Vec<(usize, Command<E>)> {
        let (of_queue, mut receivers) =
            (ends.into_iter().zip(&self.channel.layout.queues).zip(assignments).zip(0_u16..), Vec::new());
        let command = of_queue.map(|(((queue, geometry), assignment), index)| {
            (assignment.worker, self.serve_one(client, queue, geometry.depth, index, &mut receivers))
        });
        let commands = command.collect();
        // Now, not when the worker comes to it: once ATTACHED is sent, frames may come.
        let mut data = self.network.data();
        receivers.into_iter().for_each(|(pair, receiver)| data.add(self.port, pair, receiver));
        commands
    }

    fn serve_one<E: Engine>(
        &self,
        client: &Client<'_>,
        (end, ready): QueueEnd,
        depth: u32,
        index: u16,
        receivers: &mut Vec<(usize, Receiver)>,
    ) -> Command<E> {
        let Channel { region, layout, .. } = &self.channel;
        let memory = RegionTable::of_pool(region, layout.pool_offset_bytes, layout.pool_bytes);
        let memory = memory.map_err(|_| "it does not fit the region that was laid out for it".to_owned());
        let (network, port) = (Arc::clone(&self.network), self.port);
        let (id, name, share) = (client.id, QueueName { client: client.id, index }, client.share.clone());
        let added = move |added: Result<(), NotAdded<E>>| {
            if let Err(error) = added {
                tracing::error!(client = id, ?error, "a queue of a port is not served");
            }
        };
        if index.is_multiple_of(QUEUES_PER_PAIR) {
            return Command::add(name, share, move |_| Ok(TransmitQueue::new(end, memory?, network, port, depth)), added);
        }
        let queue = memory.and_then(|memory| {
            let (pair, mut receiver) = (usize::from(index / QUEUES_PER_PAIR), Receiver::new(end, memory));
            receiver.restore(&ready).map_err(|_| "a buffer that was posted is not in its memory".to_owned())?;
            receivers.push((pair, receiver));
            Ok(ReceiveQueue::new(network, port, pair))
        });
        Command::add(name, share, move |_| queue, added)
    }
}

impl<E: Engine> Service<E> for Networks<E> {
    fn number(&self) -> u16 {
        SERVICE_NET
    }

    fn metrics(&self) -> Vec<(&'static str, Metric)> {
        vec![("networks", Metric::List(self.networks.iter().map(|network| network_metrics(network)).collect()))]
    }

    fn list(&self, client: &Client<'_>, after: &str) -> Option<Page> {
        let first = self.names.partition_point(|(name, ..)| name.as_str() <= after);
        let listed = self.names[first..].iter().filter_map(|(name, network, number)| {
            let (network, number) = (&self.networks[*network], usize::from(*number));
            let Port { setup, .. } = &network.ports[number];
            (setup.allow)(client.credentials).then(|| {
                let in_use = network.attached().clients[number].is_some();
                let info = ListedPort::new(setup.rules.mac, network.mtu, in_use);
                Listed { name: name.clone(), service_info: info.to_bytes() }
            })
        });
        let mut entries: Vec<Listed> = listed.take(MAX_LISTED + 1).collect();
        let more = entries.len() > MAX_LISTED;
        entries.truncate(MAX_LISTED);
        Some(Page { entries, more })
    }

    fn attach(&self, client: &Client<'_>, wanted: &Wanted) -> Result<Granted<E>, Denial> {
        if wanted.flags != 0 || !wanted.queue_count.is_multiple_of(QUEUES_PER_PAIR) {
            let text = "ATTACH to a port has flags, or an odd number of queues; upgrade the daemon or fix the client";
            return Err(refuse(RefusalCode::Malformed, text).into());
        }
        let place = self.find(client, &wanted.name)?;
        place.claim(client.id, &wanted.name)?;
        self.lay_out(client, wanted, &place).inspect_err(|_| place.give_back())
    }

    fn adopt(&self, client: &Client<'_>, parts: Vec<Part<OwnedFd>>) -> Result<Adopted<E>, String> {
        let AdoptedChannel { own, channel, queues } = Channel::adopt(&PROFILE, parts)?;
        let mut words = own.split(' ');
        let name = words.next().unwrap_or_default();
        let place = self.find(client, name).map_err(|_| format!("its port '{name}' is not there"))?;
        if own != place.described() {
            return Err(format!("its port '{name}' has another MAC address, MTU or VLAN here: {own}"));
        }
        place.claim(client.id, name).map_err(|_| format!("its port '{name}' is in use"))?;
        let (mut ends, mut states): (Vec<QueueEnd>, Vec<QueueState>) = (Vec::new(), Vec::new());
        for (end, ready) in queues {
            let ready = read_buffers(&ready).ok_or("the buffers of a queue are not understood")?;
            states.push(((end.requests.cursor(), end.completions.cursor()), ready.clone()));
            ends.push((end, ready));
        }
        let assignments = self.assign(place.network, ends.len());
        let held = self.hold(client, &place, channel, &assignments);
        let (id, commands) = (client.id, held.serve(client, &assignments, ends));
        let is_same = Box::new(move |quiesced: &Quiesced| quiesced.has_states(id, &states));
        Ok(Adopted { attachment: Box::new(held), assignments, commands, is_same })
    }
}

impl<E: Engine> Attachment<E> for PortAttachment {
    fn name(&self) -> &str {
        &self.name
    }

    fn service(&self) -> u16 {
        SERVICE_NET
    }

    fn save(&self, client: u64, quiesced: &Quiesced) -> Result<Vec<Part<BorrowedFd<'_>>>, String> {
        let own = Place { network: &self.network, port: self.port }.described();
        self.channel.save(&own, |index| {
            let state = quiesced.state::<QueueState>(QueueName { client, index });
            let (positions, ready) = state.ok_or_else(|| format!("its queue {index} is not served"))?;
            Ok((*positions, write_buffers(ready)))
        })
    }

    fn pool_bytes(&self) -> u64 {
        self.channel.layout.pool_bytes
    }

    fn leave(&self, _client: u64) {
        if let Some((_, is_leaving)) = &mut self.network.attached().clients[usize::from(self.port)] {
            *is_leaving = true;
        }
    }

    fn release(&self, client: u64) {
        self.network.attached().clients[usize::from(self.port)] = None;
        (self.follow)(client, None);
    }
}

/// Numbers, four for each.
fn write_buffers(buffers: &[PostedBuffer]) -> String {
    let shown = buffers
        .iter()
        .map(|PostedBuffer { tag, memory, offset_bytes, length_bytes }| format!("{tag} {memory} {offset_bytes} {length_bytes}"));
    shown.collect::<Vec<_>>().join("\n")
}

fn read_buffers(text: &str) -> Option<Vec<PostedBuffer>> {
    let buffer = |line: &str| {
        let mut numbers = line.split(' ');
        let buffer = PostedBuffer {
            tag: numbers.next()?.parse().ok()?,
            memory: numbers.next()?.parse().ok()?,
            offset_bytes: numbers.next()?.parse().ok()?,
            length_bytes: numbers.next()?.parse().ok()?,
        };
        numbers.next().is_none().then_some(buffer)
    };
    text.lines().map(buffer).collect()
}

fn network_metrics(network: &Network) -> Metric {
    let (learned, (moved, not_learned)) = {
        let data = network.data();
        (data.switch.learned(), data.switch.moved_and_not_learned())
    };
    let clients: Vec<Option<u64>> = network.attached().clients.iter().map(|held| held.map(|(client, _)| client)).collect();
    let ports = network.ports.iter().zip(clients).map(|(port, client)| port_metrics(port, client)).collect();
    Metric::Named(vec![
        ("network", network.name.as_str().into()),
        ("mtu", u64::from(network.mtu).into()),
        ("macs_learned", (learned as u64).into()),
        ("macs_moved", moved.into()),
        ("macs_not_learned", not_learned.into()),
        ("ports", Metric::List(ports)),
    ])
}

/// For people: the VLAN of a port, or `trunk 10,20` and the VLAN of frames without a tag.
fn vlans(rules: &Rules) -> String {
    let native = |native: &Option<u16>| native.map(|vlan| format!(", {vlan} untagged")).unwrap_or_default();
    match &rules.vlans {
        Vlans::Access(0) => "-".to_owned(),
        Vlans::Access(vlan) => vlan.to_string(),
        Vlans::Trunk { tagged, native: untagged } => {
            let tagged: Vec<String> = tagged.iter().map(u16::to_string).collect();
            format!("trunk {}{}", tagged.join(","), native(untagged))
        }
    }
}

/// What sets it apart from other ports, by the keys of the configuration.
fn may(rules: &Rules) -> String {
    let keys = [("any_source", rules.any_source), ("isolated", rules.isolated), ("mirror", rules.mirror)];
    let set: Vec<&str> = keys.into_iter().filter(|(_, set)| *set).map(|(key, _)| key).collect();
    if set.is_empty() { "-".to_owned() } else { set.join(", ") }
}

fn port_metrics(port: &Port, client: Option<u64>) -> Metric {
    const NAMES: [(Status, &str); 8] = [
        (Status::Invalid, "invalid"),
        (Status::Unsupported, "unsupported"),
        (Status::BadMemory, "bad_memory"),
        (Status::TooShort, "too_short"),
        (Status::TooLong, "too_long"),
        (Status::WrongSource, "wrong_source"),
        (Status::WrongVlan, "wrong_vlan"),
        (Status::Limited, "limited"),
    ];
    let read = |counter: &AtomicU64| Metric::from(counter.load(Ordering::Relaxed));
    let counters = &port.counters;
    let refused = NAMES.map(|(status, name)| (name, read(&counters.refused[usize::from(status.to_wire())])));
    let mut all = vec![
        ("port", port.setup.name.as_str().into()),
        ("mac", port.setup.rules.mac.to_string().as_str().into()),
        ("vlans", Metric::Text(vlans(&port.setup.rules))),
        ("may", Metric::Text(may(&port.setup.rules))),
        ("sent", read(&counters.sent)),
        ("sent_bytes", read(&counters.sent_bytes)),
        ("received", read(&counters.received)),
        ("received_bytes", read(&counters.received_bytes)),
        ("dropped", read(&counters.dropped)),
        ("refused", Metric::Named(refused.into())),
    ];
    all.extend(client.map(|client| ("client", client.into())));
    Metric::Named(all)
}
