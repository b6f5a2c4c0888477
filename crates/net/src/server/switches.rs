//! The networks of a program, and their ports by name.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use fipsee_ring::doorbell::EventDoorbell;

use super::network::{Attached, Holder, MAX_PORTS, Network, NetworkSetup, Port, PortSetup};
use super::port::ServedPort;
use crate::switch::{Link, PortNumber};
use crate::wire::MIN_MTU;

/// The networks of a program, for whatever serves ports of them. A clone has the same.
#[derive(Clone)]
pub struct Switches {
    networks: Arc<[Arc<Network>]>,
    /// Network and port as in ATTACH.
    ports: Arc<RwLock<BTreeMap<String, ServedPort>>>,
}

impl Switches {
    pub fn new(networks: Vec<NetworkSetup>) -> Self {
        let networks: Arc<[_]> = networks.into_iter().map(|setup| Arc::new(Network::new(setup))).collect();
        let served = |network: &Arc<Network>| {
            let ports = network.attached().ports.clone();
            let port =
                |(number, port): (PortNumber, Option<Arc<Port>>)| Some(ServedPort::new(Arc::clone(network), number, port?));
            (0..).zip(ports).filter_map(port).map(|port| (port.name(), port)).collect::<Vec<_>>()
        };
        let ports = networks.iter().flat_map(served).collect();
        Self { networks, ports: Arc::new(RwLock::new(ports)) }
    }

    fn ports(&self) -> RwLockReadGuard<'_, BTreeMap<String, ServedPort>> {
        self.ports.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn ports_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<String, ServedPort>> {
        self.ports.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ports that were blocked since this was called last because frames came back through them, by their names, and how often since the
    /// start. From now on `alarm` is rung when there are some.
    pub fn newly_blocked(&self, alarm: &EventDoorbell) -> Vec<(String, u64)> {
        let of_network = |network: &Arc<Network>| {
            let named = |(port, times): (Arc<Port>, u64)| (format!("{}/{}", network.name, port.setup.name), times);
            network.newly_blocked(alarm).into_iter().map(named).collect::<Vec<_>>()
        };
        self.networks.iter().flat_map(of_network).collect()
    }

    pub(super) fn networks(&self) -> &[Arc<Network>] {
        &self.networks
    }

    /// The port of this name, which is that of its network and its own, as in ATTACH.
    pub fn port(&self, name: &str) -> Option<ServedPort> {
        self.ports().get(name).cloned()
    }

    /// The first of the ports behind this name for which there is something, with that, in the order of their names.
    pub(super) fn after<T>(&self, name: &str, most: usize, what: impl Fn(&str, &ServedPort) -> Option<T>) -> Vec<T> {
        let ports = self.ports();
        let behind = ports.range::<str, _>((Bound::Excluded(name), Bound::Unbounded));
        behind.filter_map(|(name, port)| what(name, port)).take(most).collect()
    }

    /// An administrator gives a network another MTU, at most the one that is configured. Clients are notified; devices and virtual machines are not.
    ///
    /// # Errors
    /// In words: there is no such network, or the MTU is not possible.
    pub fn set_mtu(&self, network: &str, mtu: u16) -> Result<(), String> {
        let network = self.network(network)?;
        if !(MIN_MTU..=network.mtu).contains(&mtu) {
            return Err(format!(
                "an MTU of {mtu} for network '{}'; {MIN_MTU} to {} are possible: clients have buffers for the configured one",
                network.name, network.mtu
            ));
        }
        network.set_mtu(mtu);
        Ok(())
    }

    fn network(&self, name: &str) -> Result<&Arc<Network>, String> {
        let found = self.networks.iter().find(|found| found.name == name);
        found.ok_or_else(|| format!("no network '{name}' here; `fipsee net ls` lists the ports of those that are there"))
    }

    /// One more port of a network, which this holder has from the beginning.
    ///
    /// # Errors
    /// In words: there is no such network, or a port of that name or address.
    pub fn add(&self, network: &str, setup: PortSetup, holder: Option<Holder>) -> Result<ServedPort, String> {
        let network = self.network(network)?;
        let mut ports = self.ports_mut();
        let Attached { ports: numbered, holders, .. } = &mut *network.attached();
        if let Some(other) =
            numbered.iter().flatten().find(|other| other.setup.name == setup.name || other.mac() == setup.rules.mac)
        {
            let (other, mac) = (&other.setup.name, setup.rules.mac);
            return Err(match *other == setup.name {
                true => format!("port '{}/{other}' is there already; detach it first, or choose another name", network.name),
                false => format!("port '{}/{other}' has the MAC address {mac}; choose another one", network.name),
            });
        }
        let is_free = |index: &usize| numbered[*index].is_none() && holders[*index].is_none();
        let index = (0..numbered.len()).find(is_free).unwrap_or(numbered.len());
        let number = PortNumber::try_from(index).ok().filter(|_| index < MAX_PORTS);
        let number =
            number.ok_or_else(|| format!("the network has {MAX_PORTS} ports, as many as are possible; detach one first"))?;
        let port = Arc::new(Port::new(setup));
        if index == numbered.len() {
            numbered.push(None);
            holders.push(None);
        }
        numbered[index] = Some(Arc::clone(&port));
        holders[index] = holder.map(|holder| (holder, false));
        network.data().put(number, Arc::clone(&port));
        let served = ServedPort::new(Arc::clone(network), number, port);
        ports.insert(served.name(), served.clone());
        Ok(served)
    }

    /// These ports are there no more, or all are still. Of one that is a device of the host that is to end next.
    ///
    /// # Errors
    /// In words: there is none of such a name, or a client or machine has it.
    pub fn remove(&self, names: &[String]) -> Result<Vec<ServedPort>, String> {
        let mut ports = self.ports_mut();
        let find = |name: &String| {
            ports.get(name).cloned().ok_or_else(|| format!("no port '{name}' here; `fipsee net ls` lists those that are there"))
        };
        let found = names.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let of = |network: &Arc<Network>| found.iter().filter(|port| Arc::ptr_eq(&port.network, network)).collect::<Vec<_>>();
        // Each once, in one order, until the end.
        let mut held = Vec::new();
        for network in self.networks.iter().filter(|network| !of(network).is_empty()) {
            let attached = network.attached();
            for port in of(network) {
                if matches!(attached.holders[usize::from(port.number)], Some((Holder::Client(_) | Holder::Machine, _))) {
                    return Err(format!("port '{}' is in use; end what has it first (`fipsee net info` shows it)", port.name()));
                }
            }
            held.push((network, attached));
        }
        for (network, mut attached) in held {
            for port in of(network) {
                attached.ports[usize::from(port.number)] = None;
                network.data().switch.remove(port.number);
            }
        }
        names.iter().for_each(|name| _ = ports.remove(name));
        Ok(found)
    }

    /// Ports that were removed, and no others since, are there again.
    pub fn put_back(&self, removed: Vec<ServedPort>) {
        let mut ports = self.ports_mut();
        for port in removed {
            // The switch still has the state of the removed port.
            let is_down = port.link() == Link::Down;
            port.network.attached().ports[usize::from(port.number)] = Some(port.port_handle());
            let mut data = port.network.data();
            data.put(port.number, port.port_handle());
            data.switch.set_down(port.number, is_down);
            drop(data);
            ports.insert(port.name(), port);
        }
    }
}
