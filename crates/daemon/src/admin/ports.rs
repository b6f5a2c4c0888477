//! Ports of networks that are added and removed at run time.

use std::fmt::Write as _;
use std::os::fd::OwnedFd;

use fipsee_net::server::tap;
use serde_json::{Value, json};

use super::Admin;
use super::disks::check_absolute;
use super::dump::quoted;
use super::methods::AttachPort;
use super::rpc::RpcError;
use crate::config::{NetworkConfig, PortConfig, parse_port};
use crate::reload::Behind;

impl Admin {
    pub(super) fn attach_port(&mut self, attach: &AttachPort, files: &mut Vec<OwnedFd>) -> Result<Value, RpcError> {
        let AttachPort { network, device_queues, .. } = attach;
        let queues = usize::from(*device_queues);
        if files.len() < queues {
            return Err(
                format!("device_queues is {queues}, and {} descriptors came with the request; send them", files.len()).into()
            );
        }
        let device = (queues > 0).then(|| tap::passed(files.drain(..queues).collect())).transpose()?;
        let networks = self.networks();
        let found = networks.iter().find(|found| found.name == *network);
        let there = || networks.iter().map(|network| network.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = found.ok_or_else(|| match networks.is_empty() {
            true => format!("no network '{network}' here; there is none (see [[network]] in the configuration)"),
            false => format!("no network '{network}' here; there are: {}", there()),
        })?;
        attach.vhost_user.iter().try_for_each(|path| check_absolute(path))?;
        let name = attach.port.clone().unwrap_or_else(|| self.free_name(found, attach, device.as_ref()));
        let port = parse_port(network, &table(&name, attach, device.as_ref()))?;
        let full_name = port.full_name(network);
        if let Some(there) = found.ports.iter().find(|there| there.name == name && self.taps.is_gone(&full_name)) {
            // As it is configured, with a device that is there again.
            let was = there.tap.as_ref().map_or("", |tap| &tap.name);
            let device = device.filter(|device| device.name == was);
            let device = device
                .ok_or_else(|| format!("port '{full_name}' was device '{was}', which is gone: pass that, or detach the port"))?;
            self.taps.serve_again(&full_name, device);
            return Ok(describe(network, found.mtu, there));
        }
        let behind = match (device, &port.vhost_user) {
            (Some(device), _) => Behind::Device(device),
            (None, Some(path)) => Behind::Machines(self.new_listener(&full_name, path)?),
            (None, None) => Behind::Clients,
        };
        self.begin_port(self.add_port(network, &port, behind)?);
        let description = describe(network, found.mtu, &port);
        tracing::info!(port = full_name, "added");
        self.overlay.ports.add(network, port);
        Ok(description)
    }

    /// The name of a port for which none is given: that of its device, or of its socket without the ending, if a port can have it; with a
    /// number if one has.
    fn free_name(&self, network: &NetworkConfig, attach: &AttachPort, device: Option<&tap::Tap>) -> String {
        let is_its = |port: &&PortConfig| {
            let is_gone = self.taps.is_gone(&port.full_name(&network.name));
            is_gone && port.tap.as_ref().map(|tap| &tap.name) == device.map(|device| &device.name)
        };
        if let Some(port) = network.ports.iter().find(is_its) {
            return port.name.clone();
        }
        let of_socket = || attach.vhost_user.as_deref()?.file_stem()?.to_str();
        let is_possible = |name: &&str| parse_port(&network.name, &format!("name = {}\n", quoted(name))).is_ok();
        let wanted = device.map(|device| device.name.as_str()).or_else(of_socket).filter(is_possible);
        let numbered = |number: u32| match wanted {
            Some(name) if number == 1 => name.to_owned(),
            name => format!("{}-{number}", name.unwrap_or("port")),
        };
        let is_free = |name: &String| !network.ports.iter().any(|port| port.name == *name);
        (1..).map(numbered).find(is_free).unwrap_or_default()
    }

    pub(super) fn detach_port(&mut self, name: &str) -> Result<Value, RpcError> {
        let networks = self.networks();
        let of = |network: &NetworkConfig| {
            let port = network.ports.iter().find(|port| port.full_name(&network.name) == name)?;
            Some(describe(&network.name, network.mtu, port))
        };
        let description = networks.iter().find_map(of);
        let removed = self.live.switches.remove(&[name.to_owned()])?;
        // A socket without a machine has no port.
        self.vms.retire(|target, _| target.name() == name).inspect_err(|_| self.live.switches.put_back(removed))?;
        self.vms.remove_retired();
        self.taps.remove(name);
        self.overlay.remove_port(name, &self.running.networks);
        tracing::info!(port = name, "removed");
        Ok(description.unwrap_or_default())
    }
}

fn describe(network: &str, mtu: u16, port: &PortConfig) -> Value {
    json!({
        "port": port.full_name(network),
        "mac": port.rules.mac.to_string(),
        "mtu": mtu,
        "any_source": port.rules.any_source,
        "device": port.tap.as_ref().map(|tap| &tap.name),
        "vhost_user": port.vhost_user.as_ref().map(|path| path.to_string_lossy()),
    })
}

/// The port as the configuration file would have it, whose reader checks it.
fn table(name: &str, attach: &AttachPort, device: Option<&tap::Tap>) -> String {
    let AttachPort { mac, vlan, trunk, ips, flood_limit, .. } = attach;
    let mut text = format!("name = {}\n", quoted(name));
    if let Some(mac) = mac {
        let _ = writeln!(text, "mac = {}", quoted(mac));
    }
    let numbers = [("vlan", vlan.map(u32::from)), ("flood_limit", *flood_limit)];
    for (key, number) in numbers {
        number.iter().for_each(|number| _ = writeln!(text, "{key} = {number}"));
    }
    trunk.iter().for_each(|vlans| _ = writeln!(text, "trunk = {vlans:?}"));
    if !ips.is_empty() {
        let ips: Vec<String> = ips.iter().map(|ip| quoted(ip)).collect();
        let _ = writeln!(text, "ips = [{}]", ips.join(", "));
    }
    let flags = [
        ("any_source", attach.any_source),
        ("isolated", attach.isolated),
        ("mirror", attach.mirror),
        ("allmulti", attach.allmulti),
        ("down", attach.down),
        ("allow_everyone", attach.allow_everyone),
    ];
    for (key, _) in flags.into_iter().filter(|(_, set)| *set) {
        let _ = writeln!(text, "{key} = true");
    }
    let _ = writeln!(text, "allow_uids = {:?}\nallow_gids = {:?}", attach.allow_uids, attach.allow_gids);
    if let Some(device) = device {
        let _ = writeln!(text, "tap = {}\nqueues = {}", quoted(&device.name), device.queues.len());
    }
    attach.vhost_user.iter().for_each(|path| _ = writeln!(text, "vhost_user = {}", quoted(&path.to_string_lossy())));
    text
}
