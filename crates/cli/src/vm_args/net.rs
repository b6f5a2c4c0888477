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

/// What the running daemon says of these ports.
pub(super) fn interfaces(daemon: &Path, ports: &[String]) -> Result<Vec<Interface>, Error> {
    if let Some(twice) = ports.iter().enumerate().find(|(index, port)| ports[..*index].contains(port)) {
        return Err(format!("port '{}' is named twice; a machine has it once", twice.1).into());
    }
    if ports.is_empty() {
        return Ok(Vec::new());
    }
    let stat = admin::ask(daemon, "stat", &json!({})).map_err(|no_answer| match no_answer {
        admin::NoAnswer::NoPermission(error) => Error::at("ask for ports as root or the daemon's user", error),
        admin::NoAnswer::Other(error) => error,
    })?;
    ports.iter().map(|port| find(&stat, port)).collect()
}

fn find(stat: &Value, name: &str) -> Result<Interface, Error> {
    let is_it = |network: &&Value| name.split_once('/').is_some_and(|(of, _)| admin::text(network, "network") == of);
    let network = admin::list(stat, "networks").iter().find(is_it);
    let is_port = |port: &&Value| name.split_once('/').is_some_and(|(_, own)| admin::text(port, "port") == own);
    let port = network.and_then(|network| Some((network, admin::list(network, "ports").iter().find(is_port)?)));
    let (network, port) = port.ok_or_else(|| format!("no port '{name}' here; fipsee net info lists those that are there"))?;
    let socket = port.get("vhost_user").and_then(Value::as_str).ok_or_else(|| {
        format!(
            "port '{name}' has no vhost-user socket; write vhost_user = \"PATH\" in its table of the configuration file, or add \
             another port (fipsee net attach --vhost-user PATH)"
        )
    })?;
    let mtu = network.get("mtu").and_then(Value::as_u64).unwrap_or(USUAL_MTU);
    Ok(Interface { port: name.to_owned(), socket: socket.to_owned(), mac: admin::text(port, "mac").to_owned(), mtu })
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
        for (name, why) in [("lan/a", "has no vhost-user socket"), ("lan/b", "no port"), ("lan", "no port"), ("x/vm1", "no port")]
        {
            let refused = find(&stat, name).expect_err(name).to_string();
            assert!(refused.contains(why), "{refused}");
        }
    }
}
