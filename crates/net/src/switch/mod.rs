//! A learning switch without I/O: a header and the time go in, the ports that get the frame come out.
//!
//! Its ports are configured. Each has an address of its own, which never moves; others are learned from ports that may send with any.

mod groups;
mod ip;
mod limit;
mod loops;
mod own;
mod ports;
mod table;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::time::Duration;

use self::groups::Groups;
use self::limit::Bucket;
use self::loops::{DETECTION_TYPE, Loops};
use self::own::Own;
use self::table::Table;
use crate::frame::{Header, Mac, Tagging};
use crate::wire::{MAX_SMALL_BYTES, Status};

/// Number of a port in its network, in the order of the configuration.
pub type PortNumber = u16;

/// The VLANs of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vlans {
    /// Frames without a tag, in this VLAN; 0 is the network's own.
    Access(u16),
    /// Frames with a tag of one of `tagged`; those without one are in `native`, if there is one.
    Trunk { tagged: Vec<u16>, native: Option<u16> },
}

/// What is configured of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    pub mac: Mac,
    pub vlans: Vlans,
    /// It may send with addresses that are no other port's, and gets frames to addresses that are not known.
    pub any_source: bool,
    /// No frames from and to other isolated ports.
    pub isolated: bool,
    /// It gets a copy of every frame of the network.
    pub mirror: bool,
    /// It gets the frames of all groups, whichever it names.
    pub allmulti: bool,
    /// The IP addresses that it may send with; none: any.
    pub ips: Vec<IpAddr>,
    /// No frames from or to it: an administrator took it down.
    pub down: bool,
    /// Most frames per second to groups and to addresses that are not known.
    pub flood_limit: u32,
}

impl Rules {
    /// Of a port without keys of its own.
    pub const FLOOD_LIMIT: u32 = 10_000;

    pub fn new(mac: Mac) -> Self {
        let vlans = Vlans::Access(0);
        let (ips, flood_limit) = (Vec::new(), Self::FLOOD_LIMIT);
        Self { mac, vlans, any_source: false, isolated: false, mirror: false, allmulti: false, ips, down: false, flood_limit }
    }

    fn is_member(&self, vlan: u16) -> bool {
        match &self.vlans {
            Vlans::Access(own) => *own == vlan,
            Vlans::Trunk { tagged, native } => *native == Some(vlan) || tagged.binary_search(&vlan).is_ok(),
        }
    }

    /// The VLAN of a frame that comes from it.
    fn vlan_of(&self, header: &Header) -> Option<u16> {
        // Once the outer tag is removed, a receiver would take the next one for the VLAN.
        if header.has_tag_behind() && (header.tag.is_some() || self.vlans != Vlans::Access(0)) {
            return None;
        }
        match (&self.vlans, header.tag) {
            (Vlans::Access(own), None) => Some(*own),
            (Vlans::Access(_), Some(_)) => None,
            // A tag of VLAN 0 says the priority alone.
            (Vlans::Trunk { native, .. }, None | Some(0)) => *native,
            (Vlans::Trunk { tagged, .. }, Some(vlan)) => Some(vlan).filter(|vlan| tagged.binary_search(vlan).is_ok()),
        }
    }

    /// How a frame of this VLAN, which came with this tag, leaves.
    fn tagging(&self, vlan: u16, tag: Option<u16>) -> Tagging {
        let without = if tag.is_some() { Tagging::Remove } else { Tagging::AsItIs };
        match &self.vlans {
            Vlans::Access(_) => without,
            Vlans::Trunk { native, .. } if *native == Some(vlan) => without,
            Vlans::Trunk { .. } if tag == Some(vlan) => Tagging::AsItIs,
            Vlans::Trunk { .. } => Tagging::Put(vlan),
        }
    }
}

/// Limits of what is learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learning {
    /// Addresses in all, and of one port.
    pub max_macs: usize,
    pub max_macs_per_port: usize,
    /// One that has not sent for so long is forgotten.
    pub ageing: Duration,
}

impl Default for Learning {
    fn default() -> Self {
        Self { max_macs: 8192, max_macs_per_port: 1024, ageing: Duration::from_secs(300) }
    }
}

/// A port that gets a frame, and what happens to its tag.
pub type Delivery = (PortNumber, Tagging);

#[derive(Debug)]
struct Port {
    rules: Rules,
    /// Of its address.
    key: u64,
    /// Is the address that it is configured with its own, and no other port's?
    owns_address: bool,
    /// Is a client attached? Never to a port that was removed.
    attached: bool,
    /// May it send? An administrator, or a loop, takes it down.
    open: bool,
    /// Both: it gets frames.
    up: bool,
    flood: Bucket,
    groups: Groups,
    loops: Loops,
}

impl Port {
    fn new(mut rules: Rules) -> Self {
        if let Vlans::Trunk { tagged, .. } = &mut rules.vlans {
            // They are searched by halves, for each port of a broadcast.
            tagged.sort_unstable();
        }
        let (key, flood, open) = (rules.mac.key(), Bucket::new(rules.flood_limit), !rules.down);
        Self {
            rules,
            key,
            owns_address: false,
            attached: false,
            open,
            up: false,
            flood,
            groups: Groups::default(),
            loops: Loops::default(),
        }
    }

    /// Does it get frames to this group?
    fn gets(&self, group: Mac) -> bool {
        self.rules.allmulti || group == Mac::BROADCAST || self.groups.has(group)
    }

    fn settle(&mut self) {
        self.open = !self.rules.down && self.loops.blocked_until_ns.is_none();
        self.up = self.open && self.attached;
    }
}

#[derive(Debug)]
pub struct Switch {
    ports: Vec<Port>,
    /// Those with a client, in their order: a flood looks at no others.
    attached: Vec<PortNumber>,
    /// The ports' own addresses.
    own: Own,
    mirrors: Vec<PortNumber>,
    table: Table,
    /// When the next blocked port is to be open again, if there is one, and one that has just been blocked.
    unblock_ns: Option<u64>,
    newly_blocked: Option<PortNumber>,
    /// Where a detection frame is to leave.
    detects_at: Option<Delivery>,
    changes: u64,
}

/// A frame that is to leave through a port, to find out whether it is part of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetectionFrame {
    pub to: Delivery,
    pub frame: [u8; MAX_SMALL_BYTES],
}

/// What is the matter with a port, beside whether a client is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Up,
    /// An administrator took it down.
    Down,
    /// It is part of a loop; for a time it neither sends nor gets frames.
    Blocked,
}

impl Link {
    pub const fn text(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Blocked => "blocked",
        }
    }
}

impl Switch {
    /// With these ports, which are all down. Of two with the same address, frames to it go to the first: who configures them checks that.
    pub fn new(rules: Vec<Rules>, learning: Learning) -> Self {
        let table = Table::new(learning, 0);
        let mut switch = Self {
            ports: Vec::with_capacity(rules.len()),
            attached: Vec::with_capacity(rules.len()),
            own: Own::default(),
            mirrors: Vec::new(),
            table,
            unblock_ns: None,
            newly_blocked: None,
            detects_at: None,
            changes: 0,
        };
        (0..).zip(rules).for_each(|(number, rules)| switch.put(number, rules));
        switch
    }

    pub fn rules(&self, port: PortNumber) -> Option<&Rules> {
        self.ports.get(usize::from(port)).map(|port| &port.rules)
    }

    /// How often something changed that decides where frames between configured addresses go.
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// It gets frames from now on, or none; what was learned from one that goes down is forgotten.
    pub fn set_up(&mut self, port: PortNumber, up: bool) {
        self.changes += 1;
        let Some(entry) = self.ports.get_mut(usize::from(port)) else { return };
        entry.attached = up;
        entry.settle();
        if !up {
            entry.groups.clear();
            self.table.forget(port);
        }
        match (up, self.attached.binary_search(&port)) {
            (true, Err(at)) => self.attached.insert(at, port),
            (false, Ok(at)) => _ = self.attached.remove(at),
            _ => {}
        }
    }

    /// An administrator takes it down, or up again.
    pub fn set_down(&mut self, port: PortNumber, down: bool) {
        self.changes += 1;
        if let Some(entry) = self.ports.get_mut(usize::from(port)) {
            entry.rules.down = down;
            entry.settle();
            if down {
                self.table.forget(port);
            }
        }
    }

    /// An administrator gives it another address, which no other port has.
    pub fn set_mac(&mut self, port: PortNumber, mac: Mac) {
        self.changes += 1;
        self.own.remove(port);
        if let Some(entry) = self.ports.get_mut(usize::from(port)) {
            (entry.rules.mac, entry.key) = (mac, mac.key());
            entry.owns_address = self.own.give(mac, port) == port;
        }
    }

    pub fn link(&self, port: PortNumber) -> Link {
        match self.ports.get(usize::from(port)) {
            Some(port) if port.rules.down => Link::Down,
            Some(port) if port.loops.blocked_until_ns.is_some() => Link::Blocked,
            _ => Link::Up,
        }
    }

    /// The groups of which a port gets the frames; `None`: of all.
    pub fn groups(&self, port: PortNumber) -> Option<&[Mac]> {
        self.ports.get(usize::from(port))?.groups.named()
    }

    /// From now on a port gets frames to this group, or no more. With the first group that it names it gets no others.
    ///
    /// # Errors
    /// It names as many as it may, or the address is of no group.
    pub fn join(&mut self, port: PortNumber, group: Mac, joins: bool) -> Result<(), Status> {
        let port = self.ports.get_mut(usize::from(port)).ok_or(Status::Invalid)?;
        if !group.is_group() || group == Mac::BROADCAST {
            return Err(Status::Invalid);
        }
        if joins {
            return port.groups.add(group);
        }
        port.groups.remove(group);
        Ok(())
    }

    /// A port gets frames to all groups, as if it had never named one, or to none.
    pub fn join_all(&mut self, port: PortNumber, joins: bool) {
        if let Some(port) = self.ports.get_mut(usize::from(port)) {
            port.groups.set_all(joins);
        }
    }

    /// Has the port IP addresses with which alone it may send?
    pub fn looks_at_ips(&self, port: PortNumber) -> bool {
        self.ports.get(usize::from(port)).is_some_and(|port| !port.rules.ips.is_empty())
    }

    /// May it send a packet that begins like this? More than the first 128 bytes of it are not needed.
    pub fn may_send(&self, port: PortNumber, header: &Header, packet: &[u8]) -> bool {
        let rules = self.rules(port);
        rules.is_some_and(|Rules { ips, mac, .. }| ips.is_empty() || ip::may_send(ips, *mac, header, packet))
    }

    /// Addresses that are known beside the ports' own.
    pub fn learned(&self) -> usize {
        self.table.len()
    }

    /// How often an address came from another port than before, and how often one was not learned because of a limit.
    pub const fn moved_and_not_learned(&self) -> (u64, u64) {
        (self.table.moved, self.table.not_learned)
    }

    /// Who gets a frame from `from` at `now_ns`: appended to `to`, which may stay as it is. The sender is never among them.
    ///
    /// # Errors
    /// The sender may not send it.
    pub fn forward(&mut self, from: PortNumber, header: &Header, now_ns: u64, to: &mut Vec<Delivery>) -> Result<(), Status> {
        self.forward_between(from, (header.source.key(), header.destination.key()), header, || now_ns, to).map(|_| ())
    }

    /// As [`forward`](Self::forward), with the keys of source and destination: a load of an address that was just stored in two parts would wait until these
    /// have left this CPU. The clock is read if the time matters. `true`: all with these addresses and this type, without a tag, go there until something
    /// [changes](Self::changes).
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub(crate) fn forward_between(
        &mut self,
        from: PortNumber,
        (source, destination): (u64, u64),
        header: &Header,
        now_ns: impl Fn() -> u64,
        to: &mut Vec<Delivery>,
    ) -> Result<bool, Status> {
        if let Some(unblock_ns) = self.unblock_ns {
            let now_ns = now_ns();
            if unblock_ns <= now_ns {
                self.unblock(now_ns);
            }
        }
        let Some(Port { rules, key, open, .. }) = self.ports.get(usize::from(from)) else { return Err(Status::Invalid) };
        if !open {
            return Err(Status::Down);
        }
        let vlan = rules.vlan_of(header).ok_or(Status::WrongVlan)?;
        if header.ether_type == DETECTION_TYPE && rules.any_source {
            let now_ns = now_ns();
            if self.is_detection_frame(header, now_ns) {
                self.block(from, now_ns);
                return Err(Status::Down);
            }
        }
        let is_own = source == *key;
        self.check_source(from, source, is_own)?;
        if !is_own {
            let now_ns = now_ns();
            let is_back = self.table.learn((vlan, header.source), from, now_ns);
            if is_back {
                self.suspect(from, vlan, now_ns);
            }
        }
        let is_group = destination & 1 != 0;
        let configured = if is_group { None } else { self.own.get(destination) };
        let learned = || if is_group { None } else { self.table.find((vlan, header.destination), now_ns()) };
        let known = configured.or_else(learned);
        let first = to.len();
        match known {
            Some(port) => self.deliver(from, port, vlan, header, to),
            None => self.flood(from, vlan, header, now_ns(), to)?,
        }
        self.mirror(from, first, to);
        // A port that is blocked would be open again by the time alone.
        Ok(is_own && configured.is_some() && self.unblock_ns.is_none())
    }

    /// The port that was blocked by the frame before.
    pub fn take_blocked(&mut self) -> Option<PortNumber> {
        self.newly_blocked.take()
    }

    /// An address came back to a port.
    #[cold]
    fn suspect(&mut self, number: PortNumber, vlan: u16, now_ns: u64) {
        let Port { rules, loops, .. } = &mut self.ports[usize::from(number)];
        if loops.is_suspicious(now_ns) {
            self.detects_at = Some((number, rules.tagging(vlan, None)));
        }
    }

    /// What is to be sent because a frame before looked as if there was a loop.
    pub fn take_detection_frame(&mut self) -> Option<DetectionFrame> {
        let to = self.detects_at.take()?;
        Some(DetectionFrame { to, frame: loops::detection_frame(self.rules(to.0)?.mac) })
    }

    /// Did it leave through one of the ports just now? No client can send such a frame to another's port: its own is blocked.
    #[cold]
    fn is_detection_frame(&self, header: &Header, now_ns: u64) -> bool {
        let detecting = self.own.get(header.source.key()).and_then(|port| self.ports.get(usize::from(port)));
        header.destination == Mac::BROADCAST && detecting.is_some_and(|port| port.loops.detects(now_ns))
    }

    fn block(&mut self, number: PortNumber, now_ns: u64) {
        self.changes += 1;
        let port = &mut self.ports[usize::from(number)];
        let until_ns = port.loops.block(now_ns);
        port.settle();
        self.unblock_ns = self.unblock_ns.into_iter().chain([until_ns]).min();
        self.newly_blocked = Some(number);
        self.table.forget(number);
    }

    fn unblock(&mut self, now_ns: u64) {
        self.changes += 1;
        for port in &mut self.ports {
            if port.loops.blocked_until_ns.take_if(|until_ns| *until_ns <= now_ns).is_some() {
                port.settle();
            }
        }
        self.unblock_ns = self.ports.iter().filter_map(|port| port.loops.blocked_until_ns).min();
    }

    /// By its key. `is_own`: the address that the port is configured with.
    fn check_source(&self, from: PortNumber, source: u64, is_own: bool) -> Result<(), Status> {
        let Port { rules, owns_address, .. } = &self.ports[usize::from(from)];
        // Mostly that, which needs no search.
        if *owns_address && is_own {
            return Ok(());
        }
        let may_send = match self.own.get(source) {
            Some(owner) => owner == from,
            None => rules.any_source && source & 1 == 0,
        };
        if may_send { Ok(()) } else { Err(Status::WrongSource) }
    }

    fn deliver(&self, from: PortNumber, number: PortNumber, vlan: u16, header: &Header, to: &mut Vec<Delivery>) {
        let (sender, Some(port)) = (&self.ports[usize::from(from)], self.ports.get(usize::from(number))) else { return };
        let is_apart = sender.rules.isolated && port.rules.isolated;
        if port.up && number != from && !is_apart && port.rules.is_member(vlan) {
            to.push((number, port.rules.tagging(vlan, header.tag)));
        }
    }

    /// To groups all get it; to an address that is not known, those that may have others than their own.
    fn flood(&mut self, from: PortNumber, vlan: u16, header: &Header, now_ns: u64, to: &mut Vec<Delivery>) -> Result<(), Status> {
        if !self.ports[usize::from(from)].flood.take(now_ns) {
            return Err(Status::Limited);
        }
        let to_group = header.destination.is_group();
        for number in &self.attached {
            let port = &self.ports[usize::from(*number)];
            let gets_it = if to_group { port.gets(header.destination) } else { port.rules.any_source };
            if gets_it {
                self.deliver(from, *number, vlan, header, to);
            }
        }
        Ok(())
    }

    /// Copies for mirror ports that do not get it in any case; those are from `first` on.
    fn mirror(&self, from: PortNumber, first: usize, to: &mut Vec<Delivery>) {
        for number in &self.mirrors {
            let gets_it = to[first..].iter().any(|(other, _)| other == number);
            if self.ports[usize::from(*number)].up && *number != from && !gets_it {
                to.push((*number, Tagging::AsItIs));
            }
        }
    }
}
