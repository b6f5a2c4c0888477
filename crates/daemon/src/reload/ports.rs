//! Networks in a configuration that is read again: their ports come and go, the rest stays as it is.

use std::collections::BTreeMap;

use fipsee_net::server::ServedPort;
use fipsee_net::server::tap::Tap;
use fipsee_serve::unix::listener::Listener;

use crate::admin::Admin;
use crate::config::{NetworkConfig, PortConfig};
use crate::rates::RateLimits;
use crate::services::net;
use crate::transport::tap::{self, ServedTap};
use crate::transport::vhost_user::{Socket, Target};

/// Ports that come and go.
#[derive(Default)]
pub(super) struct PortPlan {
    /// Each with its network.
    added: Vec<(String, PortConfig, Behind)>,
    removed: Vec<String>,
}

impl PortPlan {
    pub(super) fn removed(&self) -> &[String] {
        &self.removed
    }
}

/// What a port is for.
pub(crate) enum Behind {
    Clients,
    Device(Tap),
    /// Virtual machines, which connect there.
    Machines(Listener),
}

/// A port that is there, and what serves it from [`begin_port`](Admin::begin_port) on.
pub(crate) struct AddedPort {
    name: String,
    tap: Option<ServedTap>,
    socket: Option<Socket>,
}

/// What only a restart can change stays as it is and is reported: networks, and what is configured of a port that stays, but for its rates.
pub(super) fn keep_networks(next: &mut Vec<NetworkConfig>, running: &[NetworkConfig], kept: &mut Vec<String>) {
    let is_new = |network: &&NetworkConfig| running.iter().all(|old| old.name != network.name);
    let new: Vec<String> = next.iter().filter(is_new).map(|network| format!("network '{}'", network.name)).collect();
    let mut keep = |old: &NetworkConfig| {
        let same = next.iter().find(|new| (&new.name, new.mtu, new.learning) == (&old.name, old.mtu, old.learning));
        let Some(mut network) = same.cloned() else {
            kept.push(format!("network '{}'", old.name));
            return old.clone();
        };
        for port in &mut network.ports {
            let before = old.ports.iter().find(|before| before.name == port.name);
            let before = before.map(|before| PortConfig { rates: port.rates, ..before.clone() });
            if let Some(before) = before.filter(|before| before != port) {
                kept.push(format!("port '{}'", before.full_name(&old.name)));
                *port = before;
            }
        }
        network
    };
    *next = running.iter().map(&mut keep).collect();
    kept.extend(new);
}

impl Admin {
    /// From the ports that are there to those of these networks. Devices are opened and sockets bound, which ends if the plan is dropped.
    pub(super) fn plan_ports(&self, next: &[NetworkConfig]) -> Result<PortPlan, String> {
        let (before, mut plan) = (self.networks(), PortPlan::default());
        for (old, new) in before.iter().zip(next) {
            let is_in = |ports: &[PortConfig], port: &PortConfig| ports.iter().any(|other| other.name == port.name);
            let gone = old.ports.iter().filter(|port| !is_in(&new.ports, port));
            plan.removed.extend(gone.map(|port| port.full_name(&old.name)));
            for port in new.ports.iter().filter(|port| !is_in(&old.ports, port)) {
                if let Some(other) = new.ports.iter().find(|other| other.name != port.name && other.rules.mac == port.rules.mac) {
                    let (name, mac) = (port.full_name(&new.name), port.rules.mac);
                    return Err(format!("port '{name}' has the MAC address {mac} of port '{}'; give each its own", other.name));
                }
                plan.added.push((new.name.clone(), port.clone(), self.behind(new, port)?));
            }
        }
        Ok(plan)
    }

    fn behind(&self, network: &NetworkConfig, port: &PortConfig) -> Result<Behind, String> {
        let name = port.full_name(&network.name);
        Ok(match (&port.tap, &port.vhost_user) {
            (Some(device), _) => Behind::Device(self.open_device(name, device, network.mtu, &port.rules)?),
            (None, Some(path)) => Behind::Machines(self.new_listener(&name, path)?),
            (None, None) => Behind::Clients,
        })
    }

    /// First what may be refused: ports that are to go are in use. Returns them, to be [put back](fipsee_net::server::Switches::put_back).
    pub(super) fn retire_ports(&self, plan: &PortPlan) -> Result<Vec<ServedPort>, String> {
        self.live.switches.remove(&plan.removed).map_err(|text| format!("{text}, or keep the port in the configuration"))
    }

    /// The ports of the plan that are to come, or none of them.
    pub(super) fn add_ports(&self, plan: PortPlan) -> Result<Vec<AddedPort>, String> {
        let mut all = Vec::new();
        for (network, port, behind) in plan.added {
            match self.add_port(&network, &port, behind) {
                Ok(added) => all.push(added),
                Err(reason) => {
                    self.take_back(all);
                    return Err(reason);
                }
            }
        }
        Ok(all)
    }

    /// They are not to come after all.
    pub(super) fn take_back(&self, added: Vec<AddedPort>) {
        for AddedPort { name, tap, socket } in added {
            drop((tap, socket));
            // A client may have come at once: then it has the port until the daemon ends.
            let _ = self.live.switches.remove(&[name]);
        }
    }

    /// From here on nothing can fail. Returns the names of the ports that are there now and were not, and of those that are gone.
    pub(super) fn change_ports(&self, added: Vec<AddedPort>, removed: &[String]) -> (Vec<String>, Vec<String>) {
        removed.iter().for_each(|name| _ = self.taps.remove(name));
        let shown = |name: &String| format!("port '{name}'");
        let names = added.iter().map(|added| shown(&added.name)).collect();
        added.into_iter().for_each(|added| self.begin_port(added));
        (names, removed.iter().map(shown).collect())
    }

    /// Have these networks, whose ports are there, take effect in rates. Returns the names of the ports that have others now.
    pub(super) fn change_rates(&self, before: &[NetworkConfig], next: &[NetworkConfig]) -> Vec<String> {
        net::set_rates(&self.live.switches, next);
        let rates = |networks: &[NetworkConfig]| -> BTreeMap<String, RateLimits> {
            let of = |network: &NetworkConfig| {
                network.ports.iter().map(|port| (port.full_name(&network.name), port.rates)).collect::<Vec<_>>()
            };
            networks.iter().flat_map(of).collect()
        };
        let before = rates(before);
        let has_changed = |(name, rates): &(String, RateLimits)| before.get(name).is_some_and(|before| before != rates);
        rates(next).into_iter().filter(has_changed).map(|(name, _)| format!("port '{name}'")).collect()
    }

    /// The networks as they are configured and have been changed since.
    pub(crate) fn networks(&self) -> Vec<NetworkConfig> {
        self.overlay.ports.over(&self.running.networks)
    }

    /// Likewise, with what was set of their ports.
    pub(crate) fn networks_in_force(&self) -> Vec<NetworkConfig> {
        self.overlay.over_networks(&self.networks())
    }

    /// There is a port that was not there.
    pub(crate) fn add_port(&self, network: &str, port: &PortConfig, behind: Behind) -> Result<AddedPort, String> {
        let name = port.full_name(network);
        // A client may attach as soon as the port is there.
        let holder = if let Behind::Device(device) = &behind { Some(device.holder()) } else { None };
        let served = self.live.switches.add(network, net::port(port.clone()), holder)?;
        match behind {
            Behind::Clients => Ok(AddedPort { name, tap: None, socket: None }),
            Behind::Device(device) => Ok(AddedPort { name, tap: Some(self.taps.held(served, device)), socket: None }),
            Behind::Machines(listener) => match self.vms.serve_at(Target::Port(name.clone(), served), listener) {
                Ok(socket) => Ok(AddedPort { name, tap: None, socket: Some(socket) }),
                Err(reason) => {
                    // It is reserved for machines, which cannot have come.
                    let _ = self.live.switches.remove(&[name]);
                    Err(reason)
                }
            },
        }
    }

    pub(crate) fn begin_port(&self, AddedPort { tap, socket, .. }: AddedPort) {
        tap.into_iter().for_each(|tap| self.taps.begin(tap));
        self.vms.add(socket.into_iter().collect());
    }

    fn open_device(
        &self,
        port: String,
        device: &crate::config::TapConfig,
        mtu: u16,
        rules: &fipsee_net::switch::Rules,
    ) -> Result<Tap, String> {
        if self.confinement.is_wanted() {
            let (network, name) = port.split_once('/').unwrap_or_default();
            return Err(format!(
                "port '{port}' is a device, and the daemon has confined itself and opens none any more; have it passed: fipsee net attach \
                 {network} --name {name} --tap {}",
                device.name
            ));
        }
        tap::open(device, mtu, rules).map_err(|text| format!("port '{port}': {text}"))
    }
}
