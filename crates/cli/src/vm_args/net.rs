//! Ports of networks, as network interfaces of the machine.

use std::path::Path;

use serde_json::{Value, json};

use crate::admin;
use crate::error::Error;

/// The MTU that a guest has unless it is given another.
const USUAL_MTU: u64 = 1500;

/// A port and its vhost-user socket.
#[derive(Debug)]
pub(super) struct Interface {
    /// Network and port.
    pub(super) port: String,
    pub(super) socket: String,
    pub(super) mac: String,
    pub(super) mtu: u64,
}

/// What the running daemon says of these ports; of a network, of its only port that a machine can have.
pub(super) fn interfaces(daemon: &Path, names: &[String]) -> Result<Vec<Interface>, Error> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let stat = admin::ask(daemon, "stat", &json!({})).map_err(|no_answer| match no_answer {
        admin::NoAnswer::NoPermission(error) => Error::at("ask for ports as root or the daemon's user", error),
        admin::NoAnswer::Other(error) => error,
    })?;
    let mut interfaces: Vec<Interface> = Vec::new();
    for name in names {
        let interface = find(&stat, name)?;
        if interfaces.iter().any(|other| other.port == interface.port) {
            return Err(format!("port '{}' is named twice; a machine has it once", interface.port).into());
        }
        interfaces.push(interface);
    }
    Ok(interfaces)
}

fn find(stat: &Value, name: &str) -> Result<Interface, Error> {
    let networks = admin::list(stat, "networks");
    let network_of = |wanted: &str| networks.iter().find(|network| admin::text(network, "network") == wanted);
    let (network, port) = match name.split_once('/') {
        Some((of, own)) => {
            let is_it = |port: &&Value| admin::text(port, "port") == own;
            let found = network_of(of).and_then(|network| Some((network, admin::list(network, "ports").iter().find(is_it)?)));
            found.ok_or_else(|| format!("no port '{name}' here; fipsee net info {of} lists those that are there"))?
        }
        None => {
            let network = network_of(name).ok_or_else(|| format!("no network '{name}' here; {}", there(networks)))?;
            (network, free_port(network)?)
        }
    };
    let of = admin::text(network, "network");
    let socket = port.get("vhost_user").and_then(Value::as_str).ok_or_else(|| {
        format!("port '{name}' has no vhost-user socket; write vhost_user = \"PATH\" in its table, or {}", make_one(of))
    })?;
    let mtu = network.get("mtu").and_then(Value::as_u64).unwrap_or(USUAL_MTU);
    let text = |key| admin::text(port, key).to_owned();
    Ok(Interface { port: format!("{of}/{}", text("port")), socket: socket.to_owned(), mac: text("mac"), mtu })
}

fn there(networks: &[Value]) -> String {
    let names: Vec<&str> = networks.iter().map(|network| admin::text(network, "network")).collect();
    if names.is_empty() { "there is none".to_owned() } else { format!("there are: {}", names.join(", ")) }
}

fn make_one(network: &str) -> String {
    format!("make a port with: fipsee net attach {network} --vhost-user PATH")
}

/// The one port of a network that is for a virtual machine and that none has.
fn free_port(network: &Value) -> Result<&Value, Error> {
    let name = admin::text(network, "network");
    let of_machines = admin::list(network, "ports").iter().filter(|port| port.get("vhost_user").is_some());
    let (in_use, free): (Vec<&Value>, Vec<&Value>) = of_machines.partition(|port| port.get("holder").is_some());
    let names = |ports: &[&Value]| {
        ports.iter().map(|port| format!("{name}/{}", admin::text(port, "port"))).collect::<Vec<_>>().join(", ")
    };
    match *free {
        [port] => Ok(port),
        [] => {
            let used = if in_use.is_empty() { String::new() } else { format!(" (in use: {})", names(&in_use)) };
            Err(format!("network '{name}' has no free port for a virtual machine{used}; {}", make_one(name)).into())
        }
        [first, ..] => {
            let (all, first) = (names(&free), names(&[first]));
            Err(format!("network '{name}' has several free ports for virtual machines ({all}); name one: --net {first}").into())
        }
    }
}

/// Options of QEMU, in groups.
pub(super) fn qemu(interface: &Interface, queues: u16) -> [Vec<String>; 3] {
    let Interface { port, socket, mac, mtu } = interface;
    // A comma within a value is doubled. An identifier holds no slash.
    let (path, id) = (socket.replace(',', ",,"), format!("fipsee-{}", port.replace('/', "-")));
    let (pairs, of_device) = match queues {
        1 => (String::new(), String::new()),
        // Vectors: one for each queue, for commands and for changes of the configuration.
        queues => (format!(",queues={queues}"), format!(",mq=on,vectors={}", 2 * queues + 2)),
    };
    let mtu = if *mtu == USUAL_MTU { String::new() } else { format!(",host_mtu={mtu}") };
    let group = |option: &str, value: String| vec![option.to_owned(), value];
    [
        group("-chardev", format!("socket,id={id},path={path},reconnect=1")),
        group("-netdev", format!("vhost-user,id={id}-net,chardev={id}{pairs}")),
        group("-device", format!("virtio-net-pci,netdev={id}-net,mac={mac}{of_device}{mtu}")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_found_and_qemu_gets_its_address_mtu_and_pairs() {
        let port = json!({ "port": "vm1", "mac": "02:00:00:00:00:01", "vhost_user": "/run/a,b" });
        let stat = json!({ "networks": [{ "network": "lan", "mtu": 9000, "ports": [port, { "port": "a", "mac": "" }] }] });
        let found = find(&stat, "lan/vm1").expect("it is there");
        assert_eq!(
            qemu(&found, 1).concat().join(" "),
            "-chardev socket,id=fipsee-lan-vm1,path=/run/a,,b,reconnect=1 -netdev vhost-user,id=fipsee-lan-vm1-net,chardev=fipsee-lan-vm1 \
             -device virtio-net-pci,netdev=fipsee-lan-vm1-net,mac=02:00:00:00:00:01,host_mtu=9000"
        );
        let of_pairs = qemu(&Interface { mtu: 1500, ..found }, 4).concat().join(" ");
        assert!(of_pairs.contains(",queues=4 -device") && of_pairs.ends_with(",mq=on,vectors=10"), "{of_pairs}");
        for (name, why) in [
            ("lan/a", "has no vhost-user socket"),
            ("lan/b", "no port 'lan/b' here; fipsee net info lan"),
            ("x/vm1", "no port"),
            ("x", "no network 'x' here; there are: lan"),
        ] {
            let refused = find(&stat, name).expect_err(name).to_string();
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn network_has_one_free_port_or_the_ports_are_named() {
        let machine = |name: &str| json!({ "port": name, "mac": "", "vhost_user": "/run/s" });
        let used = |name: &str| json!({ "port": name, "mac": "", "vhost_user": "/run/s", "holder": "virtual machine" });
        let find = |ports: &[Value]| {
            let found = find(&json!({ "networks": [{ "network": "lan", "ports": ports }] }), "lan");
            found.map(|found| found.port).map_err(|error| error.to_string())
        };
        let program = json!({ "port": "a", "mac": "" });
        assert_eq!(find(&[program.clone(), used("vm1"), machine("vm2")]).as_deref(), Ok("lan/vm2"));
        let make = "make a port with: fipsee net attach lan --vhost-user PATH";
        let none = "network 'lan' has no free port for a virtual machine";
        assert_eq!(find(&[program]), Err(format!("{none}; {make}")));
        assert_eq!(find(&[used("vm1"), used("vm2")]), Err(format!("{none} (in use: lan/vm1, lan/vm2); {make}")));
        let several = "network 'lan' has several free ports for virtual machines (lan/vm1, lan/vm3); name one: --net lan/vm1";
        assert_eq!(find(&[machine("vm1"), used("vm2"), machine("vm3")]), Err(several.to_owned()));
    }
}
