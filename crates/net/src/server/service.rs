//! The service: what ATTACH grants, the state held for a client, its takeover, and the counters.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fipsee_ring::channel::{FEATURE_WORKER_CPU, MAX_DEPTH, RegionLayout, ServerQueue};
use fipsee_ring::control::{Listed, MAX_LISTED, MAX_QUEUES, Page, RefusalCode, Wanted};
use fipsee_ring::handshake::{Grant, refuse};
use fipsee_ring::memory::RegionTable;
use fipsee_serve::session::{Adopted, AdoptedChannel, Attachment, Channel, Client, Denial, Granted, Part, Positions, Service};
use fipsee_serve::{Assignment, Command, Engine, Metric, NotAdded, QueueName, Quiesced, Share, WorkerHandle, WorkerPlacement};

use super::endpoint::Endpoint;
use super::events::{Events, PortState};
use super::network::{Attached, Data, Holder, Network, Port, Reservation};
use super::port::ServedPort;
use super::queue::{QueueState, ReceiveQueue, Sender, TransmitQueue};
use super::receiver::Receiver;
use super::switches::Switches;
use crate::frame::Mac;
use crate::offload;
use crate::switch::{Link, PortNumber, Rules, Vlans};
use crate::wire::{
    ADDRESSES_BYTES, ATTACH_EVENTS, ATTACH_MTU_SHIFT, ATTACH_OFFLOADS, Addresses, ListedPort, MAX_PAIRS, PROFILE, PostedBuffer,
    QUEUES_PER_PAIR, SERVICE_NET, Status,
};

/// The service for clients.
pub struct Networks<E: Engine> {
    switches: Switches,
    workers: Vec<WorkerHandle<E>>,
    follow: Follow,
}

/// Called with a client that attaches and where its queues stay, and with `None` when nothing of it is left.
pub type Follow = Arc<dyn Fn(u64, Option<Assigned<'_>>) + Send + Sync>;

/// Where the queues of a client are as long as it is attached.
#[derive(Clone, Copy, Debug)]
pub struct Assigned<'a> {
    /// Network and port, as in ATTACH.
    pub port: &'a str,
    pub worker: usize,
    pub queues: usize,
    /// What the part of its queues depends on.
    pub share: &'a Share,
}

struct PortAttachment {
    name: String,
    port: ServedPort,
    channel: Channel,
    /// In force.
    offloads: u32,
    follow: Follow,
}

/// Between what describes a port and what its client has asked for, where both are sent to another process.
const ASKED: &str = " with ";

/// The daemon's end of a queue, and its state.
type QueueEnd = (ServerQueue, QueueState);

impl<E: Engine> Networks<E> {
    /// These networks, served by these workers: all ports of a network by one, where `follow` says that they are to stay.
    pub const fn new(switches: Switches, workers: Vec<WorkerHandle<E>>, follow: Follow) -> Self {
        Self { switches, workers, follow }
    }

    /// The port of this name that the client may use. Of others it does not learn that they exist.
    fn find(&self, client: &Client<'_>, name: &str) -> Result<ServedPort, Denial> {
        let uid = client.credentials.uid;
        let text = format!("no port '{name}' that user {uid} may use; `fipsee net ls` lists those");
        let unknown = refuse(RefusalCode::UnknownName, text);
        let Some(port) = self.switches.port(name) else { return Err(unknown.into()) };
        if (port.port().setup.allow)(client.credentials) {
            return Ok(port);
        }
        let reason = format!("port '{name}' does not allow user {uid}; see allow_users and allow_groups of it");
        Err(Denial::Concealed { refusal: unknown, reason })
    }

    fn lay_out(&self, client: &Client<'_>, wanted: &Wanted, port: &ServedPort) -> Result<Granted<E>, Denial> {
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
        let assignments = port.assign(&self.workers, layout.queues.len());
        layout.features = client.features;
        for (geometry, assignment) in layout.queues.iter_mut().zip(&assignments) {
            let WorkerPlacement { cpu, choices, .. } = assignment.place;
            geometry.choices = choices;
            let is_sent = client.features & FEATURE_WORKER_CPU != 0;
            geometry.worker_cpu_plus_1 = cpu.filter(|_| is_sent).and_then(|cpu| u32::try_from(cpu + 1).ok()).unwrap_or(0);
        }
        let mut grant = Grant::new(layout, |_| {})?;
        let offloads = offload::granted(wanted.flags & ATTACH_OFFLOADS);
        let held = self.hold(client, (port, offloads), Channel::of(&grant), &assignments);
        let info = port.info(pairs);
        let events = Events::new(wanted.flags & ATTACH_EVENTS != 0, PortState::attached(&info));
        let new = |end: ServerQueue| {
            let positions = (end.requests.cursor(), end.completions.cursor());
            (end, QueueState { positions, buffers: Vec::new(), events, addresses: None })
        };
        let ends = std::mem::take(&mut grant.queues).into_iter().map(new).collect();
        let commands = held.serve(client, &assignments, ends);
        let reply = grant.attached(info.with_offloads(offloads).to_bytes());
        Ok(Granted { attachment: Box::new(held), assignments, reply, grant, commands })
    }

    fn hold(
        &self,
        client: &Client<'_>,
        (port, offloads): (&ServedPort, u32),
        channel: Channel,
        assignments: &[Assignment],
    ) -> PortAttachment {
        let (name, port, follow) = (port.name(), port.clone(), Arc::clone(&self.follow));
        let (queues, share) = (assignments.len(), client.share);
        let assigned = assignments.first().map(|first| Assigned { port: &name, worker: first.worker, queues, share });
        follow(client.id, assigned);
        PortAttachment { name, port, channel, offloads, follow }
    }
}

/// # Errors
/// Another client has the port, or does not yet let go of it.
fn claim(port: &ServedPort, client: u64) -> Result<(), Denial> {
    port.claim(Holder::Client(client)).map_err(|held| {
        let refusal = refuse(RefusalCode::Busy, held.to_string());
        if held.is_leaving { Denial::Later(refusal) } else { refusal.into() }
    })
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
        let mut data = self.port.network.data();
        receivers.into_iter().for_each(|(pair, receiver)| data.add(self.port.number, pair, Endpoint::Rings(Box::new(receiver))));
        data.report_state(&self.port.network, self.port.number);
        commands
    }

    fn serve_one<E: Engine>(
        &self,
        client: &Client<'_>,
        (end, state): QueueEnd,
        depth: u32,
        index: u16,
        receivers: &mut Vec<(usize, Receiver)>,
    ) -> Command<E> {
        let Channel { region, layout, .. } = &self.channel;
        let memory = RegionTable::of_pool(region, layout.pool_offset_bytes, layout.pool_bytes);
        let memory = memory.map_err(|_| "it does not fit the region that was laid out for it".to_owned());
        let (port, offloads) = (self.port.clone(), self.offloads);
        let (id, name, share) = (client.id, QueueName { client: client.id, index }, client.share.with(port.limiter()));
        let added = move |added: Result<(), NotAdded<E>>| {
            if let Err(error) = added {
                tracing::error!(client = id, ?error, "a queue of a port is not served");
            }
        };
        let pair = usize::from(index / QUEUES_PER_PAIR);
        if index.is_multiple_of(QUEUES_PER_PAIR) {
            let of = (port.network, Sender { port: port.number, pair, offloads });
            let set_up = (depth, state.addresses);
            return Command::add(name, share, move |_| Ok(TransmitQueue::new(end, memory?, of, set_up)), added);
        }
        let queue = memory.and_then(|memory| {
            let mut receiver = Receiver::new(end, memory, (offloads, state.events));
            receiver.restore(&state).map_err(|_| "a buffer that was posted is not in its memory".to_owned())?;
            receivers.push((pair, receiver));
            Ok(ReceiveQueue::new(port, pair))
        });
        Command::add(name, share, move |_| queue, added)
    }
}

impl<E: Engine> Service<E> for Networks<E> {
    fn number(&self) -> u16 {
        SERVICE_NET
    }

    fn metrics(&self) -> Vec<(&'static str, Metric)> {
        vec![("networks", Metric::List(self.switches.networks().iter().map(|network| network_metrics(network)).collect()))]
    }

    fn list(&self, client: &Client<'_>, after: &str) -> Option<Page> {
        let mut entries = self.switches.after(after, MAX_LISTED + 1, |name, port| {
            let Port { setup, .. } = port.port();
            (setup.allow)(client.credentials).then(|| {
                let info = ListedPort::new(port.port().mac(), port.network.mtu_now(), port.is_held());
                Listed { name: name.to_owned(), service_info: info.to_bytes() }
            })
        });
        let more = entries.len() > MAX_LISTED;
        entries.truncate(MAX_LISTED);
        Some(Page { entries, more })
    }

    fn attach(&self, client: &Client<'_>, wanted: &Wanted) -> Result<Granted<E>, Denial> {
        if !wanted.queue_count.is_multiple_of(QUEUES_PER_PAIR) {
            let text = "ATTACH to a port has an odd number of queues; fix the client";
            return Err(refuse(RefusalCode::Malformed, text).into());
        }
        let port = self.find(client, &wanted.name)?;
        let (least_mtu, mtu) = (wanted.flags >> ATTACH_MTU_SHIFT, port.network.mtu_now());
        if least_mtu > mtu.into() {
            let text = format!("the network of port '{}' has an MTU of {mtu}, and the client needs {least_mtu}", wanted.name);
            return Err(refuse(RefusalCode::Limit, format!("{text}; raise mtu in the daemon's configuration")).into());
        }
        claim(&port, client.id)?;
        self.lay_out(client, wanted, &port).inspect_err(|_| port.release())
    }

    fn adopt(&self, client: &Client<'_>, parts: Vec<Part<OwnedFd>>) -> Result<Adopted<E>, String> {
        let AdoptedChannel { own, channel, queues } = Channel::adopt(&PROFILE, parts)?;
        let (own, asked) = own.split_once(ASKED).unwrap_or((own.as_str(), "0 all"));
        let (offloads, groups) = read_asked(asked).ok_or_else(|| format!("offloads and groups '{asked}' are not known here"))?;
        let name = own.split(' ').next().unwrap_or_default();
        let port = self.find(client, name).map_err(|_| format!("its port '{name}' is not there"))?;
        if own != port.described() {
            return Err(format!("its port '{name}' has another MAC address, MTU or VLAN here: {own}"));
        }
        let (mut ends, mut states): (Vec<QueueEnd>, Vec<QueueState>) = (Vec::new(), Vec::new());
        for (end, saved) in queues {
            let positions = (end.requests.cursor(), end.completions.cursor());
            let state = read_state(&saved, positions).ok_or("the buffers, events or addresses of a queue are not understood")?;
            states.push(state.clone());
            ends.push((end, state));
        }
        // Its rings are the other process's until it has given up: nothing may be published because the port is in another state here.
        let is_up = port.link() != Link::Down;
        if states.iter().skip(1).step_by(QUEUES_PER_PAIR.into()).any(|receive| receive.events.state().down == is_up) {
            let here = if is_up { "up" } else { "down" };
            return Err(format!("its port '{name}' is {here} here; set it there first (fipsee net set {name} --{here})"));
        }
        claim(&port, client.id).map_err(|_| format!("its port '{name}' is in use"))?;
        if port.set_groups(groups.as_deref()).is_err() {
            port.release();
            return Err(format!("the groups of port '{name}' are not known here"));
        }
        let assignments = port.assign(&self.workers, ends.len());
        let held = self.hold(client, (&port, offloads), channel, &assignments);
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
        let groups = self.port.network.data().switch.groups(self.port.number).map(<[Mac]>::to_vec);
        let own = format!("{}{ASKED}{}", self.port.described(), write_asked(self.offloads, groups.as_deref()));
        self.channel.save(&own, |index| {
            let state = quiesced.state::<QueueState>(QueueName { client, index });
            let state = state.ok_or_else(|| format!("its queue {index} is not served"))?;
            Ok((state.positions, write_state(state)))
        })
    }

    fn pool_bytes(&self) -> u64 {
        self.channel.layout.pool_bytes
    }

    fn leave(&self, _client: u64) {
        self.port.leave();
    }

    fn release(&self, client: u64) {
        self.port.release();
        (self.follow)(client, None);
    }
}

/// The offloads in force, and the groups that the client has named.
fn write_asked(offloads: u32, groups: Option<&[Mac]>) -> String {
    let groups = groups.map(|groups| groups.iter().map(Mac::to_string).collect::<Vec<_>>().join(","));
    format!("{offloads} {}", groups.as_deref().unwrap_or("all"))
}

fn read_asked(text: &str) -> Option<(u32, Option<Vec<Mac>>)> {
    let (offloads, groups) = text.split_once(' ')?;
    let offloads = offloads.parse().ok().filter(|offloads| offload::granted(*offloads) == *offloads)?;
    let groups = match groups {
        "all" => None,
        groups => Some(groups.split(',').filter(|group| !group.is_empty()).map(str::parse).collect::<Result<_, _>>().ok()?),
    };
    Some((offloads, groups))
}

/// Events, then addresses if there are any, as digits, then buffers: numbers, four for each.
fn write_state(QueueState { buffers, events, addresses, .. }: &QueueState) -> String {
    let addresses = addresses.map(|addresses| addresses.to_bytes().map(|byte| format!("{byte:02x}")).concat());
    let shown = buffers
        .iter()
        .map(|PostedBuffer { tag, memory, offset_bytes, length_bytes }| format!("{tag} {memory} {offset_bytes} {length_bytes}"));
    std::iter::once(events.write()).chain(addresses).chain(shown).collect::<Vec<_>>().join("\n")
}

fn read_state(text: &str, positions: Positions) -> Option<QueueState> {
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
    let mut lines = text.lines().peekable();
    let events = Events::read(lines.next()?)?;
    let addresses = match lines.next_if(|line| !line.contains(' ')) {
        Some(digits) => Some(read_addresses(digits)?),
        None => None,
    };
    Some(QueueState { positions, buffers: lines.map(buffer).collect::<Option<_>>()?, events, addresses })
}

fn read_addresses(digits: &str) -> Option<Addresses> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes = pairs.iter().map(byte).collect::<Option<Vec<u8>>>().filter(|bytes| bytes.len() == ADDRESSES_BYTES)?;
    if rest.is_empty() { Addresses::of(&bytes) } else { None }
}

fn network_metrics(network: &Network) -> Metric {
    let Attached { ports, holders, .. } = &*network.attached();
    let (learned, (moved, not_learned), states) = {
        let Data { switch, .. } = &*network.data();
        let state = |(port, _): (PortNumber, &Option<Arc<Port>>)| (switch.link(port), switch.groups(port).map(<[Mac]>::len));
        let states = (0..).zip(ports).map(state).collect::<Vec<_>>();
        (switch.learned(), switch.moved_and_not_learned(), states)
    };
    let mut listed = Vec::new();
    for ((port, held), state) in ports.iter().zip(holders).zip(states) {
        if let Some(port) = port {
            listed.push(port_metrics(port, held.as_ref().map(|held| &held.0), state));
        }
    }
    Metric::Named(vec![
        ("network", network.name.as_str().into()),
        ("mtu", u64::from(network.mtu_now()).into()),
        ("macs_learned", (learned as u64).into()),
        ("macs_moved", moved.into()),
        ("macs_not_learned", not_learned.into()),
        ("ports", Metric::List(listed)),
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
    let keys =
        [("any_source", rules.any_source), ("isolated", rules.isolated), ("mirror", rules.mirror), ("allmulti", rules.allmulti)];
    let set: Vec<&str> = keys.into_iter().filter(|(_, set)| *set).map(|(key, _)| key).collect();
    if set.is_empty() { "-".to_owned() } else { set.join(", ") }
}

fn ips(rules: &Rules) -> String {
    let ips: Vec<String> = rules.ips.iter().map(ToString::to_string).collect();
    if ips.is_empty() { "any".to_owned() } else { ips.join(", ") }
}

fn port_metrics(port: &Port, holder: Option<&Holder>, (link, groups): (Link, Option<usize>)) -> Metric {
    const NAMES: [(Status, &str); 11] = [
        (Status::Invalid, "invalid"),
        (Status::Unsupported, "unsupported"),
        (Status::BadMemory, "bad_memory"),
        (Status::TooShort, "too_short"),
        (Status::TooLong, "too_long"),
        (Status::WrongSource, "wrong_source"),
        (Status::WrongVlan, "wrong_vlan"),
        (Status::Limited, "limited"),
        (Status::BadOffload, "bad_offload"),
        (Status::WrongIp, "wrong_ip"),
        (Status::Down, "down"),
    ];
    let read = |counter: &AtomicU64| Metric::from(counter.load(Ordering::Relaxed));
    let counters = &port.counters;
    let refused = NAMES.map(|(status, name)| (name, read(&counters.refused[usize::from(status.to_wire())])));
    let mut all = vec![
        ("port", port.setup.name.as_str().into()),
        ("mac", port.mac().to_string().as_str().into()),
        ("vlans", Metric::Text(vlans(&port.setup.rules))),
        ("may", Metric::Text(may(&port.setup.rules))),
        ("ips", Metric::Text(ips(&port.setup.rules))),
        ("link", link.text().into()),
        ("blocked", read(&counters.blocked)),
        ("sent", read(&counters.sent)),
        ("sent_bytes", read(&counters.sent_bytes)),
        ("received", read(&counters.received)),
        ("received_bytes", read(&counters.received_bytes)),
        ("dropped", read(&counters.dropped)),
        ("throttled", port.limiter.throttled().into()),
        ("refused", Metric::Named(refused.into())),
    ];
    if let Some(groups) = groups {
        all.push(("groups", (groups as u64).into()));
    }
    if let Some(Reservation::Machine(path)) = &port.setup.reserved {
        all.push(("vhost_user", Metric::from(&**path)));
    }
    match holder {
        Some(Holder::Client(client)) => all.push(("client", (*client).into())),
        Some(Holder::Device(device)) => all.push(("device", (**device).into())),
        Some(Holder::Machine) => all.push(("holder", "virtual machine".into())),
        None => {}
    }
    Metric::Named(all)
}

#[cfg(test)]
mod tests {
    use fipsee_ring::ring::Cursor;

    use super::*;

    #[test]
    fn state_of_a_queue_is_read_as_it_was_written_and_nothing_else_is() {
        let buffer = |tag| PostedBuffer { tag, memory: 0, offset_bytes: 64 * u32::from(tag), length_bytes: 64 };
        let positions = (Cursor::at_start(7), Cursor::at_start(9));
        for addresses in [None, Addresses::of(&[2, 0, 0, 0, 0xab, 1, 2, 0, 0, 0, 0, 0xff])] {
            for buffers in [vec![], vec![buffer(3), buffer(1)]] {
                let state = QueueState { positions, buffers, events: Events::new(true, PortState::default()), addresses };
                assert_eq!(read_state(&write_state(&state), positions), Some(state));
            }
        }
        let events = Events::default().write();
        assert!(read_state(&events, positions).is_some());
        for wrong in
            ["02", "02000000000102000000000", "0200000000010200000000gg", "020000000001020000000002ff", "1 2 3", "1 2 3 4 5"]
        {
            assert_eq!(read_state(&format!("{events}\n{wrong}"), positions), None, "{wrong}");
        }
    }
}
