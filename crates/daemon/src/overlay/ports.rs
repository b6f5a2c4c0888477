//! Ports of networks that were added and removed since the start.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::config::{NetworkConfig, PortConfig};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PortChanges {
    added: Vec<AddedPort>,
    /// Configured ports that are not there, by network and name as in ATTACH.
    removed: BTreeSet<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AddedPort {
    network: String,
    #[serde(with = "port_as_table")]
    port: PortConfig,
}

impl AddedPort {
    fn name(&self) -> String {
        self.port.full_name(&self.network)
    }
}

impl PortChanges {
    /// A port is there that was not.
    pub(crate) fn add(&mut self, network: &str, port: PortConfig) {
        self.added.push(AddedPort { network: network.to_owned(), port });
    }

    /// A port is there no more, whether it was added or is configured.
    pub(crate) fn remove(&mut self, name: &str, configured: &[NetworkConfig]) {
        self.added.retain(|added| added.name() != name);
        if find(configured, name).is_some() {
            self.removed.insert(name.to_owned());
        }
    }

    pub(crate) fn was_added(&self, name: &str) -> bool {
        self.added.iter().any(|added| added.name() == name)
    }

    /// The configured networks with these changes.
    pub(crate) fn over(&self, configured: &[NetworkConfig]) -> Vec<NetworkConfig> {
        let with_changes = |network: &NetworkConfig| {
            let mut network = network.clone();
            network.ports.retain(|port| !self.removed.contains(&port.full_name(&network.name)));
            network.ports.extend(self.added.iter().filter(|added| added.network == network.name).map(|added| added.port.clone()));
            network
        };
        configured.iter().map(with_changes).collect()
    }

    /// The same changes over another configuration. A port that was added and is configured now is a configured one.
    ///
    /// # Errors
    /// A port was added, and another one of that name or address is configured, or its network is not.
    pub(super) fn rebased(&self, configured: &[NetworkConfig]) -> Result<Self, String> {
        let mut rebased = self.clone();
        rebased.removed.retain(|name| find(configured, name).is_some());
        for added in &self.added {
            let (name, network) = (added.name(), &added.network);
            let Some(ports) = configured.iter().find(|other| other.name == *network).map(|network| &network.ports) else {
                return Err(format!(
                    "port '{name}' was added at run time, and there is no network '{network}' in the configuration; remove the port \
                     (fipsee net detach {name}), or keep the network"
                ));
            };
            match find(configured, &name) {
                Some(port) if *port == added.port => {
                    rebased.added.retain(|other| other.name() != name);
                    rebased.removed.remove(&name);
                }
                Some(_) if !rebased.removed.contains(&name) => {
                    return Err(format!(
                        "port '{name}' is in the configuration and was added at run time as another one; remove that (fipsee net detach \
                         {name}), or give the configured one another name"
                    ));
                }
                _ => {}
            }
            let is_other =
                |port: &&PortConfig| port.name != added.port.name && !rebased.removed.contains(&port.full_name(network));
            if let Some(other) = ports.iter().filter(is_other).find(|port| port.rules.mac == added.port.rules.mac) {
                return Err(format!(
                    "port '{name}' was added at run time with the MAC address {} of port '{}'; remove it (fipsee net detach {name}), or \
                     give that one another address",
                    added.port.rules.mac,
                    other.full_name(network)
                ));
            }
        }
        Ok(rebased)
    }

    /// In pieces of one change each.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Self> {
        let Self { added, removed } = self;
        let added = added.iter().map(|port| Self { added: vec![port.clone()], ..Self::default() });
        added.chain(removed.iter().map(|name| Self { removed: BTreeSet::from([name.clone()]), ..Self::default() }))
    }

    pub(super) fn extend(&mut self, Self { added, removed }: Self) {
        self.added.extend(added);
        self.removed.extend(removed);
    }
}

fn find<'a>(networks: &'a [NetworkConfig], name: &str) -> Option<&'a PortConfig> {
    networks.iter().find_map(|network| network.ports.iter().find(|port| port.full_name(&network.name) == name))
}

/// As the configuration file has it.
mod port_as_table {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    use crate::config::{PortConfig, dump_port, parse_port};

    pub(super) fn serialize<S: Serializer>(port: &PortConfig, serializer: S) -> Result<S::Ok, S::Error> {
        dump_port(port).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PortConfig, D::Error> {
        parse_port("", &String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use fipsee_net::switch::Learning;

    use super::*;
    use crate::config::parse_port;

    fn lan(ports: &[&str]) -> Vec<NetworkConfig> {
        let ports = ports.iter().map(|text| parse_port("lan", text).expect(text)).collect();
        vec![NetworkConfig { name: "lan".to_owned(), mtu: 1500, learning: Learning::default(), ports }]
    }

    fn names(networks: &[NetworkConfig]) -> Vec<&str> {
        networks[0].ports.iter().map(|port| port.name.as_str()).collect()
    }

    const A: &str = "name = \"a\"\nvlan = 10\n";
    const B: &str = "name = \"b\"\ntrunk = [1, 2]\ntap = \"fip0\"\nallow_uids = [7]\n";

    #[test]
    fn ports_are_laid_over_a_configuration_and_move_to_the_next() {
        let (configured, mut changes) = (lan(&[A]), PortChanges::default());
        changes.add("lan", parse_port("lan", B).expect("a port"));
        changes.remove("lan/a", &configured);
        assert_eq!(names(&changes.over(&configured)), ["b"]);
        let mut sent = PortChanges::default();
        for piece in changes.pieces() {
            let text = serde_json::to_string(&piece).expect("JSON");
            sent.extend(serde_json::from_str(&text).expect("the same"));
        }
        assert_eq!(sent.over(&configured), changes.over(&configured));
        // It is configured now, and a is not.
        let next = lan(&[B]);
        let rebased = changes.rebased(&next).expect("the same port");
        assert_eq!((names(&rebased.over(&next)), rebased.was_added("lan/b")), (vec!["b"], false));
        // What was removed stays away as long as it is configured.
        assert_eq!(names(&changes.rebased(&configured).expect("the same").over(&configured)), ["b"]);
    }

    #[test]
    fn port_that_contradicts_the_configuration_is_named() {
        let mut changes = PortChanges::default();
        let port = parse_port("lan", B).expect("a port");
        changes.add("lan", port.clone());
        let other = format!("name = \"c\"\nmac = \"{}\"\n", port.rules.mac);
        for (next, text) in [
            (lan(&["name = \"b\"\n"]), "port 'lan/b' is in the configuration and was added at run time as another one"),
            (lan(&[A, &other]), "of port 'lan/c'"),
            (Vec::new(), "there is no network 'lan' in the configuration"),
        ] {
            let said = changes.rebased(&next).expect_err(text);
            assert!(said.contains(text) && said.contains("fipsee net detach lan/b"), "{said}");
        }
    }
}
