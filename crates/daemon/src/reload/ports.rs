//! Networks in a configuration that is read again: their ports come and go, the rest stays as it is.

use std::collections::BTreeMap;

use fipsee_net::server::tap::Tap;

use crate::admin::Admin;
use crate::config::{NetworkConfig, PortConfig};
use crate::rates::RateLimits;
use crate::services::net;
use crate::transport::tap;

/// Ports that come and go.
#[derive(Default)]
pub(super) struct PortPlan {
    /// Each with its network, and its device if it is one.
    added: Vec<(String, PortConfig, Option<Tap>)>,
    removed: Vec<String>,
}

impl PortPlan {
    pub(super) fn removed(&self) -> &[String] {
        &self.removed
    }
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
        keep_machines(&mut network, old, kept);
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

/// The sockets of virtual machines are made at the start, so their ports neither come nor go.
fn keep_machines(network: &mut NetworkConfig, old: &NetworkConfig, kept: &mut Vec<String>) {
    let has = |network: &NetworkConfig, port: &PortConfig| network.ports.iter().any(|other| other.name == port.name);
    let (stay, new): (Vec<_>, Vec<_>) = network.ports.drain(..).partition(|port| port.vhost_user.is_none() || has(old, port));
    network.ports = stay;
    let gone = old.ports.iter().filter(|port| port.vhost_user.is_some() && !has(network, port)).cloned();
    let gone: Vec<PortConfig> = gone.collect();
    kept.extend(new.iter().chain(&gone).map(|port| format!("port '{}'", port.full_name(&old.name))));
    network.ports.extend(gone);
}

impl Admin {
    /// From the ports that are there to those of these networks. Devices are opened, and closed if the plan is dropped.
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
                let device =
                    port.tap.as_ref().map(|device| self.open_device(port.full_name(&new.name), device, new.mtu, &port.rules));
                plan.added.push((new.name.clone(), port.clone(), device.transpose()?));
            }
        }
        Ok(plan)
    }

    /// First what may be refused: ports that are to go are in use. Returns them, to be [put back](fipsee_net::server::Switches::put_back).
    pub(super) fn retire_ports(&self, plan: &PortPlan) -> Result<Vec<fipsee_net::server::ServedPort>, String> {
        self.live.switches.remove(&plan.removed).map_err(|text| format!("{text}, or keep the port in the configuration"))
    }

    /// Returns the names of the ports that are there now and were not, and of those that are gone.
    pub(super) fn change_ports(&self, plan: PortPlan) -> (Vec<String>, Vec<String>) {
        let PortPlan { added, removed } = plan;
        removed.iter().for_each(|name| _ = self.taps.remove(name));
        let shown = |name: &String| format!("port '{name}'");
        let names: Vec<String> = added.iter().map(|(network, port, _)| port.full_name(network)).collect();
        for (network, port, device) in added {
            if let Err(error) = self.add_port(&network, &port, device) {
                tracing::error!(port = port.full_name(&network), error, "a port is not added; this is a bug");
            }
        }
        (names.iter().map(shown).collect(), removed.iter().map(shown).collect())
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
    pub(crate) fn add_port(&self, network: &str, port: &PortConfig, device: Option<Tap>) -> Result<(), String> {
        let name = port.full_name(network);
        self.live.switches.add(network, net::port(port.clone()))?;
        if let Some(device) = device {
            let prepared = self.taps.prepare(&name, device);
            // Nothing else can have it yet but a client, which came at once.
            let prepared = prepared.inspect_err(|_| drop(self.live.switches.remove(&[name])))?;
            self.taps.begin(prepared);
        }
        Ok(())
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
