//! A port as what serves it sees it: the service for clients, a virtual machine's device, a device of the host.

use std::any::Any;
use std::cell::LazyCell;
use std::fmt;
use std::sync::{Arc, MutexGuard};

use fipsee_ring::memory::Span;
use fipsee_serve::limit::Limiter;
use fipsee_serve::session::Credentials;
use fipsee_serve::{Assignment, Engine, WorkerHandle};

use super::endpoint::{Endpoint, Receive};
use super::network::{Attached, Data, Holder, Network, Outcome, Port, Reservation};
use super::queue::now_ns;
use crate::frame::Mac;
use crate::switch::{Link, PortNumber, Vlans};
use crate::wire::{OFFLOADS, Offload, PortInfo, Status};

/// A port of a network.
#[derive(Clone)]
pub struct ServedPort {
    pub(super) network: Arc<Network>,
    pub(super) number: PortNumber,
    port: Arc<Port>,
}

/// A port cannot be had: another one has it, or it has been removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    name: String,
    by: Option<Holder>,
    /// It is kept for this.
    kept_for: Option<Reservation>,
    /// It has hung up, and will be gone soon.
    pub is_leaving: bool,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        if let Some(Reservation::Machine(_)) = &self.kept_for {
            return write!(f, "port '{name}' is for the virtual machine at its vhost-user socket; attach to another port");
        }
        match &self.by {
            Some(Holder::Device(device)) => {
                write!(f, "port '{name}' is the device '{device}' of the host; attach to another port")
            }
            Some(_) => write!(f, "port '{name}' is in use; one client at a time may attach to it"),
            None => write!(f, "port '{name}' has been removed; `fipsee net ls` lists those that are there"),
        }
    }
}

impl ServedPort {
    pub(super) const fn new(network: Arc<Network>, number: PortNumber, port: Arc<Port>) -> Self {
        Self { network, number, port }
    }

    pub(super) fn port(&self) -> &Port {
        &self.port
    }

    pub(super) fn port_handle(&self) -> Arc<Port> {
        Arc::clone(&self.port)
    }

    /// Of the frames that it sends: the queues of whatever has it are subject to it.
    pub fn limiter(&self) -> &Arc<Limiter> {
        &self.port().limiter
    }

    /// Network and port, as in ATTACH.
    pub fn name(&self) -> String {
        format!("{}/{}", self.network.name, self.port().setup.name)
    }

    fn vlan(&self) -> u16 {
        match self.port().setup.rules.vlans {
            Vlans::Access(vlan) => vlan,
            Vlans::Trunk { .. } => 0,
        }
    }

    /// What ATTACHED says of it, without offloads.
    pub fn info(&self, pairs: u16) -> PortInfo {
        PortInfo::new(self.port().mac(), self.network.mtu, self.vlan(), pairs)
    }

    /// What a client was sent of it and relies on: another process must have the same. No VLAN is not written.
    pub(super) fn described(&self) -> String {
        let described = format!("{} {} {}", self.name(), self.port().mac(), self.network.mtu);
        match self.vlan() {
            0 => described,
            vlan => format!("{described} {vlan}"),
        }
    }

    /// Nothing else has it, and `holder` has it from now on.
    ///
    /// # Errors
    /// Another one has it, or it has been removed.
    pub fn claim(&self, holder: Holder) -> Result<(), Held> {
        let Attached { ports, holders, .. } = &mut *self.network.attached();
        let number = usize::from(self.number);
        let held = |by, is_leaving| Held { name: self.name(), by, kept_for: None, is_leaving };
        if !ports[number].as_ref().is_some_and(|port| Arc::ptr_eq(port, &self.port)) {
            return Err(held(None, false));
        }
        if let Some(reservation) = self.port.setup.reserved.as_ref().filter(|reservation| !reservation.is_for(&holder)) {
            return Err(Held { kept_for: Some(reservation.clone()), ..held(None, false) });
        }
        match &mut holders[number] {
            free @ None => {
                *free = Some((holder, false));
                Ok(())
            }
            Some((by, is_leaving)) => Err(held(Some(by.clone()), *is_leaving)),
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.network.attached().holders[usize::from(self.number)].is_some()
    }

    /// Its holder has hung up.
    pub fn leave(&self) {
        if let Some((_, is_leaving)) = &mut self.network.attached().holders[usize::from(self.number)] {
            *is_leaving = true;
        }
    }

    /// Its holder is gone.
    pub fn release(&self) {
        let Attached { holders, worker, .. } = &mut *self.network.attached();
        holders[usize::from(self.number)] = None;
        if holders.iter().all(Option::is_none) {
            *worker = None;
        }
    }

    /// The worker of all ports of the network, for so many queues: where the others are, or the one with the fewest queues.
    pub fn assign<E: Engine>(&self, workers: &[WorkerHandle<E>], queues: usize) -> Vec<Assignment> {
        let mut attached = self.network.attached();
        let others = attached.holders.iter().flatten().count() > 1;
        let chosen = attached.worker.filter(|worker| others && *worker < workers.len());
        let first = chosen.map_or_else(|| Assignment::choose(workers), |worker| Assignment::to(worker, &workers[worker]));
        let worker = first.worker;
        attached.worker = Some(worker);
        std::iter::once(first).chain((1..queues).map(|_| Assignment::to(worker, &workers[worker]))).collect()
    }

    /// Frames for this pair of the port go to `receiver` from now on. With the first one the port is up.
    pub fn add(&self, pair: usize, receiver: Box<dyn Receive>) {
        let mut data = self.network.data();
        data.add(self.number, pair, Endpoint::Other(receiver));
        data.report_state(&self.network, self.number);
    }

    /// An administrator takes it down, whatever has it, or up again. Its sides are notified.
    pub fn set_down(&self, down: bool) {
        let mut data = self.network.data();
        data.switch.set_down(self.number, down);
        data.report_state(&self.network, self.number);
    }

    /// An administrator gives it another address, with which alone it may send from now on. Its client is notified.
    ///
    /// # Errors
    /// In words: no port can have it, another port of the network has it, or this one is a device or a virtual machine's, which would not be notified.
    pub fn set_mac(&self, mac: Mac) -> Result<(), String> {
        let (name, attached) = (self.name(), self.network.attached());
        if mac.is_group() || mac == Mac::default() {
            return Err(format!(
                "{mac} is the address of no port; give one whose first byte is even, for example 02:00:00:00:00:01"
            ));
        }
        let others = attached.ports.iter().flatten().filter(|other| !Arc::ptr_eq(other, &self.port));
        if let Some(other) = others.into_iter().find(|other| other.mac() == mac) {
            return Err(format!(
                "port '{}/{}' has the MAC address {mac}; choose another one",
                self.network.name, other.setup.name
            ));
        }
        let holder = attached.holders[usize::from(self.number)].as_ref().map(|(holder, _)| holder);
        if self.port.setup.reserved.is_some() || matches!(holder, Some(Holder::Device(_) | Holder::Machine)) {
            return Err(format!(
                "port '{name}' is a device's or a virtual machine's, which keeps its address; change mac in the configuration and restart"
            ));
        }
        let mut data = self.network.data();
        self.port.set_mac(mac);
        data.switch.set_mac(self.number, mac);
        data.report_state(&self.network, self.number);
        Ok(())
    }

    pub fn mac(&self) -> Mac {
        self.port.mac()
    }

    pub fn link(&self) -> Link {
        self.network.data().switch.link(self.number)
    }

    /// It gets frames to these groups and broadcasts; `None`: to all groups.
    ///
    /// # Errors
    /// There are more than [`MAX_GROUPS`](crate::wire::MAX_GROUPS), or one is none.
    pub fn set_groups(&self, groups: Option<&[Mac]>) -> Result<(), Status> {
        let mut data = self.network.data();
        data.switch.join_all(self.number, groups.is_none());
        groups.into_iter().flatten().try_for_each(|group| data.switch.join(self.number, *group, true))
    }

    /// No frame goes to this pair of the port any more. With the last one it is down. Returns the receiver that [`add`](Self::add) was given.
    pub fn remove(&self, pair: usize) -> Option<Box<dyn Receive>> {
        match self.network.data().remove(self.number, pair) {
            Some(Endpoint::Other(receiver)) => Some(receiver),
            _ => None,
        }
    }

    /// Frames go to so many of its pairs, until it is down.
    /// As [`Sending::use_pairs`], outside of a visit.
    pub fn use_pairs(&self, pairs: usize) {
        self.network.data().use_pairs(self.number, pairs);
    }

    /// Change the receiver of this pair between two frames, if it is of this kind.
    pub fn change<R: Receive, T>(&self, pair: usize, change: impl FnOnce(&mut R) -> T) -> Option<T> {
        let mut data = self.network.data();
        let Endpoint::Other(receiver) = data.endpoint_mut(self.number, pair)? else { return None };
        let receiver: &mut dyn Any = &mut **receiver;
        receiver.downcast_mut().map(change)
    }

    /// May a process with these credentials use it?
    pub fn allows(&self, credentials: &Credentials) -> bool {
        (self.port().setup.allow)(credentials)
    }

    /// For a visit that has frames of this port. It never waits. `None`: another thread has the network at this moment; the next visit tries again.
    pub fn try_sending(&self) -> Option<Sending<'_>> {
        Some(Sending { port: self, data: self.network.try_data()?, now_ns: LazyCell::new(now_ns) })
    }
}

/// A visit that has the network of a port. When it ends the receivers are notified.
pub struct Sending<'a> {
    port: &'a ServedPort,
    data: MutexGuard<'a, Data>,
    now_ns: LazyCell<u64>,
}

impl Sending<'_> {
    /// Send a frame: `first`, which was copied and holds 14 to 64 bytes, all of the Ethernet header with a tag among them, and then `rest`.
    /// What `offload` leaves to be done is checked against the frame, and done for receivers that do not take it.
    ///
    /// # Safety
    /// `rest` is mapped for loads during the call.
    pub unsafe fn send(&mut self, first: &[u8], rest: &[Span], offload: Offload) -> Outcome {
        let Self { port: ServedPort { network, number, port }, data, now_ns } = self;
        let rest_bytes = rest.iter().map(|span| span.length_bytes() as u64).sum::<u64>();
        let rest_bytes = u32::try_from(rest_bytes).unwrap_or(u32::MAX);
        let find = |spans: &mut Vec<Span>| {
            spans.extend_from_slice(rest);
            Ok(())
        };
        let sent = data.send(network, (*number, OFFLOADS), (first, offload), (rest_bytes, find), || **now_ns);
        port.counted(sent, data.deliveries())
    }

    /// Frames go to so many pairs of the port, until it has none any more.
    pub fn use_pairs(&mut self, pairs: usize) {
        self.data.use_pairs(self.port.number, pairs);
    }

    /// A frame cannot be sent, for this reason: it is counted.
    pub fn refuse(&mut self, why: Status) -> Outcome {
        self.port.port.counted(Err(why), 0)
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.data.flush();
    }
}
