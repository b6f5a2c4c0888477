//! What the admin socket has changed since the start, over the configuration. It survives a reload and a takeover, and is gone
//! at a restart (docs/decisions/0032-changes-at-run-time.md).

mod ports;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use fipsee_block::disk::DiskSpec;
use fipsee_net::frame::Mac;
use fipsee_net::server::Switches;
use fipsee_serve::governor::Mode;
use serde::{Deserialize, Serialize};

pub(crate) use self::ports::PortChanges;
use crate::config::{DiskConfig, NetworkConfig, ShareConfig, user_key};
use crate::disk_limits::DiskLimits;
use crate::disk_text;
use crate::export::AllowList;
use crate::notification::{Notify, given};
use crate::rates::{RateLimits, ShareSettings};
use crate::services;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Overlay {
    added: Vec<AddedDisk>,
    /// Configured disks that are not served.
    removed: BTreeSet<String>,
    /// Settings of configured disks.
    set: BTreeMap<String, Settings>,
    /// Configured sockets that are not served.
    detached: BTreeSet<PathBuf>,
    /// How many workers serve, as [`Mode`] is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workers: Option<String>,
    /// What was set of users, groups, virtual machines and clients, by their keys.
    #[serde(default)]
    shares: BTreeMap<String, ShareSettings>,
    /// Is a port of a network down? By its name, with that of its network.
    #[serde(default)]
    ports_down: BTreeMap<String, bool>,
    /// Addresses of ports, likewise, and the MTU of networks.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    port_macs: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    mtus: BTreeMap<String, u16>,
    /// Rates of ports, likewise.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    port_rates: BTreeMap<String, RateLimits>,
    /// Of networks.
    #[serde(default)]
    pub(crate) ports: PortChanges,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AddedDisk {
    #[serde(with = "spec_as_text")]
    spec: DiskSpec,
    allow: AllowList,
    #[serde(default)]
    limits: DiskLimits,
    #[serde(default)]
    rates: RateLimits,
    /// Its file was opened by another process, and its path is only a name.
    was_passed: bool,
    notify: Notify,
    #[serde(default)]
    dedicated: bool,
}

/// `None`: as configured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) allow: Option<AllowList>,
    pub(crate) shared: Option<bool>,
    #[serde(default)]
    pub(crate) limits: Option<DiskLimits>,
    #[serde(default)]
    pub(crate) rates: Option<RateLimits>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub(crate) notify: Option<Notify>,
    #[serde(default)]
    pub(crate) dedicated: Option<bool>,
}

impl Overlay {
    pub(crate) fn add(&mut self, disk: &DiskConfig, was_passed: bool) {
        let DiskConfig { spec, allow, limits, rates, notify, dedicated, .. } = disk.clone();
        self.added.push(AddedDisk { spec, allow, limits, rates, notify, dedicated, was_passed });
    }

    /// It is no longer served, whether it was added or is configured.
    pub(crate) fn remove(&mut self, name: &str, configured: &[DiskConfig]) {
        self.added.retain(|added| added.spec.name != name);
        self.set.remove(name);
        if find(configured, name).is_some() {
            self.removed.insert(name.to_owned());
        }
    }

    pub(crate) fn set(&mut self, name: &str, Settings { allow, shared, limits, rates, notify, dedicated }: Settings) {
        if let Some(added) = self.added.iter_mut().find(|added| added.spec.name == name) {
            added.allow = allow.unwrap_or_else(|| added.allow.clone());
            added.spec.shared = shared.unwrap_or(added.spec.shared);
            added.limits = limits.unwrap_or(added.limits);
            added.rates = rates.unwrap_or(added.rates);
            added.notify = notify.unwrap_or(added.notify);
            added.dedicated = dedicated.unwrap_or(added.dedicated);
            return;
        }
        let settings = self.set.entry(name.to_owned()).or_default();
        settings.allow = allow.or_else(|| settings.allow.take());
        settings.shared = shared.or(settings.shared);
        settings.limits = limits.or(settings.limits);
        settings.notify = notify.or(settings.notify);
        settings.dedicated = dedicated.or(settings.dedicated);
        settings.rates = rates.or(settings.rates);
    }

    /// Of the user, group, virtual machine or client of this key.
    pub(crate) fn set_share(&mut self, key: String, settings: ShareSettings) {
        self.shares.insert(key, settings);
    }

    /// What was set of users, groups, virtual machines and clients.
    pub(crate) const fn shares(&self) -> &BTreeMap<String, ShareSettings> {
        &self.shares
    }

    /// Forget the groups that are not configured, and the users that are in one.
    pub(crate) fn retain_groups(&mut self, configured: &[ShareConfig]) {
        self.retain_shares("group:", &configured.iter().map(ShareConfig::key).collect());
        let groups = configured.iter().filter(|share| share.group.is_some());
        let members: BTreeSet<String> = groups.flat_map(|group| &group.uids).map(|uid| user_key(*uid)).collect();
        self.shares.retain(|key, _| !members.contains(key));
    }

    /// Of those keys that begin like this, forget all but these.
    pub(crate) fn retain_shares(&mut self, beginning: &str, kept: &BTreeSet<String>) {
        self.shares.retain(|key, _| !key.starts_with(beginning) || kept.contains(key));
    }

    /// The disk has another size. A configured one is known by that of the configuration.
    pub(crate) fn resize(&mut self, name: &str, size_bytes: u64) {
        if let Some(added) = self.added.iter_mut().find(|added| added.spec.name == name) {
            added.spec.kind.set_size(size_bytes);
        }
    }

    /// A disk is served at this socket. One that is not configured needs no record: a reload leaves it, and it is handed over.
    pub(crate) fn attach(&mut self, name: &str, path: &Path, configured: &[DiskConfig]) {
        if find(configured, name).is_some_and(|disk| disk.vhost_user.iter().any(|other| other == path)) {
            self.detached.remove(path);
        }
    }

    pub(crate) fn detach(&mut self, path: &Path, configured: &[DiskConfig]) {
        if configured.iter().any(|disk| disk.vhost_user.iter().any(|other| other == path)) {
            self.detached.insert(path.to_owned());
        }
    }

    pub(crate) fn set_workers(&mut self, mode: Mode) {
        self.workers = Some(mode.to_string());
    }

    pub(crate) fn set_port_down(&mut self, name: &str, down: bool) {
        self.ports_down.insert(name.to_owned(), down);
    }

    pub(crate) fn set_port_mac(&mut self, name: &str, mac: Mac) {
        self.port_macs.insert(name.to_owned(), mac.to_string());
    }

    pub(crate) fn set_mtu(&mut self, network: &str, mtu: u16) {
        self.mtus.insert(network.to_owned(), mtu);
    }

    fn port_mac(&self, name: &str) -> Option<Mac> {
        self.port_macs.get(name)?.parse().ok()
    }

    pub(crate) fn set_port_rates(&mut self, name: &str, rates: RateLimits) {
        self.port_rates.insert(name.to_owned(), rates);
    }

    /// The configured networks with the ports that were added and removed, taken down or up, given other addresses, and limited.
    pub(crate) fn switches(&self, configured: &[NetworkConfig]) -> Switches {
        let mut networks = self.ports.over(configured);
        let in_force = self.over_networks(&networks);
        for (network, in_force) in networks.iter_mut().zip(&in_force) {
            let ports = network.ports.iter_mut().zip(&in_force.ports);
            ports.for_each(|(port, in_force)| port.rules.mac = in_force.rules.mac);
        }
        let switches = services::net::switches(&networks);
        services::net::set_rates(&switches, &in_force);
        for (name, down) in &self.ports_down {
            switches.port(name).into_iter().for_each(|port| port.set_down(*down));
        }
        for (name, mtu) in &self.mtus {
            // The configuration may have another network by now.
            let _ = switches.set_mtu(name, *mtu);
        }
        switches
    }

    /// These ports are removed: others of their names begin as they are configured.
    pub(crate) fn forget_ports(&mut self, names: &[String]) {
        for name in names {
            self.ports_down.remove(name);
            self.port_rates.remove(name);
            self.port_macs.remove(name);
        }
    }

    /// A port is there no more.
    pub(crate) fn remove_port(&mut self, name: &str, configured: &[NetworkConfig]) {
        self.forget_ports(&[name.to_owned()]);
        self.ports.remove(name, configured);
    }

    /// The networks with these changes of their ports.
    pub(crate) fn over_networks(&self, configured: &[NetworkConfig]) -> Vec<NetworkConfig> {
        let mut networks = configured.to_vec();
        for network in &mut networks {
            network.mtu = self.mtus.get(&network.name).copied().filter(|mtu| *mtu < network.mtu).unwrap_or(network.mtu);
            for port in &mut network.ports {
                let name = port.full_name(&network.name);
                port.rules.down = self.ports_down.get(&name).copied().unwrap_or(port.rules.down);
                port.rules.mac = self.port_mac(&name).unwrap_or(port.rules.mac);
                port.rates = self.port_rates.get(&name).copied().unwrap_or(port.rates);
            }
        }
        networks
    }

    pub(crate) fn workers(&self) -> Option<Mode> {
        self.workers.as_deref()?.parse().ok()
    }

    /// The same in pieces of one change each, which fit a packet.
    pub(crate) fn pieces(&self) -> Vec<Self> {
        let Self { added, removed, set, detached, workers, shares, ports_down, port_macs, mtus, port_rates, ports } = self;
        let of = Self::default;
        let added = added.iter().map(|disk| Self { added: vec![disk.clone()], ..of() });
        let removed = removed.iter().map(|name| Self { removed: BTreeSet::from([name.clone()]), ..of() });
        let set = set.iter().map(|(name, to)| Self { set: BTreeMap::from([(name.clone(), to.clone())]), ..of() });
        let detached = detached.iter().map(|path| Self { detached: BTreeSet::from([path.clone()]), ..of() });
        let workers = workers.iter().map(|mode| Self { workers: Some(mode.clone()), ..of() });
        let shares = shares.iter().map(|(key, to)| Self { shares: BTreeMap::from([(key.clone(), *to)]), ..of() });
        let ports = ports.pieces().map(|ports| Self { ports, ..of() });
        let down = ports_down.iter().map(|(name, down)| Self { ports_down: BTreeMap::from([(name.clone(), *down)]), ..of() });
        let rates = port_rates.iter().map(|(name, to)| Self { port_rates: BTreeMap::from([(name.clone(), *to)]), ..of() });
        let macs = port_macs.iter().map(|(name, mac)| Self { port_macs: BTreeMap::from([(name.clone(), mac.clone())]), ..of() });
        let mtus = mtus.iter().map(|(name, mtu)| Self { mtus: BTreeMap::from([(name.clone(), *mtu)]), ..of() });
        let of_ports = down.chain(rates).chain(ports).chain(macs).chain(mtus);
        added.chain(removed).chain(set).chain(detached).chain(workers).chain(shares).chain(of_ports).collect()
    }

    pub(crate) fn extend(&mut self, other: Self) {
        let Self { added, removed, set, detached, workers, shares, ports_down, port_macs, mtus, port_rates, ports } = other;
        self.port_macs.extend(port_macs);
        self.mtus.extend(mtus);
        self.ports_down.extend(ports_down);
        self.port_rates.extend(port_rates);
        self.workers = workers.or_else(|| self.workers.take());
        self.added.extend(added);
        self.removed.extend(removed);
        self.set.extend(set);
        self.detached.extend(detached);
        self.shares.extend(shares);
        self.ports.extend(ports);
    }

    /// Was the disk added, or, if not, was anything of it set?
    pub(crate) fn origin_of(&self, name: &str) -> Option<&'static str> {
        if self.added.iter().any(|added| added.spec.name == name) {
            return Some("added at run time");
        }
        self.set.contains_key(name).then_some("set at run time")
    }

    pub(crate) fn was_passed(&self, name: &str) -> bool {
        self.added.iter().any(|added| added.spec.name == name && added.was_passed)
    }

    /// The configured disks with these changes.
    pub(crate) fn over(&self, configured: &[DiskConfig]) -> Vec<DiskConfig> {
        let there = configured.iter().filter(|disk| !self.removed.contains(&disk.spec.name)).cloned().map(|mut disk| {
            if let Some(Settings { allow, shared, limits, rates, notify, dedicated }) = self.set.get(&disk.spec.name) {
                disk.allow = allow.clone().unwrap_or(disk.allow);
                disk.spec.shared = shared.unwrap_or(disk.spec.shared);
                disk.limits = limits.unwrap_or(disk.limits);
                disk.notify = notify.unwrap_or(disk.notify);
                disk.dedicated = dedicated.unwrap_or(disk.dedicated);
                disk.rates = rates.unwrap_or(disk.rates);
            }
            disk.vhost_user.retain(|path| !self.detached.contains(path));
            disk
        });
        let added = self.added.iter().map(|AddedDisk { spec, allow, limits, rates, notify, dedicated, .. }| DiskConfig {
            limits: *limits,
            notify: *notify,
            dedicated: *dedicated,
            rates: *rates,
            ..DiskConfig::new(spec.clone(), allow.clone())
        });
        there.chain(added).collect()
    }

    /// The same changes over another configuration. A disk that was added and is configured now is a configured one.
    ///
    /// # Errors
    /// A disk was added, and another one of that name is configured.
    pub(crate) fn rebased(&self, configured: &[DiskConfig], networks: &[NetworkConfig]) -> Result<Self, String> {
        let mut rebased = self.clone();
        rebased.removed.retain(|name| find(configured, name).is_some());
        rebased.set.retain(|name, _| find(configured, name).is_some());
        rebased.detached.retain(|path| configured.iter().any(|disk| disk.vhost_user.contains(path)));
        for added in &self.added {
            let name = &added.spec.name;
            let Some(disk) = find(configured, name) else { continue };
            if is_same(&disk.spec, &added.spec) && added.was_passed {
                // Its path may lead nowhere, or to another file: it stays the disk that was added.
                rebased.removed.insert(name.clone());
            } else if is_same(&disk.spec, &added.spec) {
                rebased.added.retain(|other| other.spec.name != *name);
                rebased.removed.remove(name);
            } else if !rebased.removed.contains(name) {
                return Err(format!(
                    "disk '{name}' is in the configuration as {} and was added at run time as {}; remove that (fipsee disk remove {name}), \
                     or give the configured one another name",
                    disk_text::text_of(&disk.spec).0,
                    disk_text::text_of(&added.spec).0
                ));
            }
        }
        rebased.ports = self.ports.rebased(networks)?;
        for disk in rebased.over(configured) {
            disk.spec.check_sharing().map_err(|text| format!("disk '{}': {text}", disk.spec.name))?;
        }
        Ok(rebased)
    }
}

fn find<'a>(disks: &'a [DiskConfig], name: &str) -> Option<&'a DiskConfig> {
    disks.iter().find(|disk| disk.spec.name == name)
}

/// The same disk, apart from what can be set.
pub(crate) fn is_same(one: &DiskSpec, other: &DiskSpec) -> bool {
    *one == DiskSpec { shared: one.shared, ..other.clone() }
}

/// As `NAME=KIND:ARGS` and, if need be, a path.
mod spec_as_text {
    use serde::{Deserializer, Serializer, de};

    use super::{Deserialize, DiskSpec, PathBuf, Serialize, disk_text};

    pub(super) fn serialize<S: Serializer>(spec: &DiskSpec, serializer: S) -> Result<S::Ok, S::Error> {
        disk_text::text_of(spec).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DiskSpec, D::Error> {
        let (text, path) = <(String, Option<PathBuf>)>::deserialize(deserializer)?;
        disk_text::parse(&text, path.as_deref()).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disks(specs: &[&str]) -> Vec<DiskConfig> {
        let disk = |text: &&str| DiskConfig {
            vhost_user: vec![PathBuf::from(format!("/run/{}", &text[..1]))],
            ..DiskConfig::new(DiskSpec::parse(text).expect(text), AllowList::default())
        };
        specs.iter().map(disk).collect()
    }

    fn names(disks: &[DiskConfig]) -> Vec<String> {
        disks.iter().map(|disk| disk.spec.to_string()).collect()
    }

    #[test]
    fn changes_are_laid_over_a_configuration_and_move_to_the_next() {
        let configured = disks(&["a=null:1M", "b=null:2M"]);
        let mut overlay = Overlay::default();
        overlay.add(&disks(&["c=null:3M"])[0], true);
        overlay.remove("a", &configured);
        overlay.set("b", Settings { shared: Some(true), ..Settings::default() });
        let limits = DiskLimits { max_depth: std::num::NonZeroU32::new(7), ..DiskLimits::default() };
        let rates = RateLimits { iops: std::num::NonZeroU64::new(5), ..RateLimits::default() };
        for name in ["b", "c"] {
            overlay.set(name, Settings { limits: Some(limits), dedicated: Some(true), ..Settings::default() });
            overlay.set(name, Settings { rates: Some(rates), ..Settings::default() });
        }
        overlay.set_share("user:7".to_owned(), ShareSettings { rates, ..ShareSettings::default() });
        let everyone = AllowList { everyone: true, ..AllowList::default() };
        overlay.set("c", Settings { allow: Some(everyone), ..Settings::default() });
        overlay.detach(Path::new("/run/b"), &configured);
        overlay.set_workers(Mode::Fixed(3));
        let over = overlay.over(&configured);
        assert_eq!(names(&over), ["b=null:2097152,shared", "c=null:3145728"]);
        assert!(over.iter().all(|disk| disk.limits == limits && disk.rates == rates && disk.dedicated));
        assert!(over[0].vhost_user.is_empty() && over[1].allow.everyone && overlay.was_passed("c"));
        let wire: Vec<String> = overlay.pieces().iter().map(|piece| serde_json::to_string(piece).expect("JSON")).collect();
        let mut overlay = Overlay::default();
        wire.iter().for_each(|piece| overlay.extend(serde_json::from_str(piece).expect("the same")));
        assert_eq!((names(&overlay.over(&configured)), overlay.workers()), (names(&over), Some(Mode::Fixed(3))));
        assert!(overlay.over(&configured).iter().all(|disk| disk.limits == limits && disk.rates == rates));
        assert_eq!(overlay.shares().get("user:7").map(|settings| settings.rates), Some(rates));
        // The configured disk a may change while it is removed; b is gone, and with it what was set.
        let rebased = overlay.rebased(&disks(&["a=null:9M", "d=null:4M"]), &[]).expect("no conflict");
        assert_eq!(names(&rebased.over(&disks(&["a=null:9M", "b=null:2M"]))), ["b=null:2097152", "c=null:3145728"]);
        // The same disk is configured now, and the file that was passed for it is kept.
        let next = disks(&["c=null:3M"]);
        let rebased = overlay.rebased(&next, &[]).expect("the same disk").rebased(&next, &[]).expect("again");
        assert_eq!(names(&rebased.over(&next)), ["c=null:3145728"]);
        assert!(rebased.was_passed("c"));
        let text = overlay.rebased(&disks(&["c=null:4M"]), &[]).expect_err("another disk");
        assert!(text.contains("c=null:4194304") && text.contains("fipsee disk remove c"), "{text}");
    }

    #[test]
    fn a_disk_that_was_resized_is_configured_with_its_new_size() {
        let mut overlay = Overlay::default();
        overlay.add(&disks(&["a=memory:2M"])[0], false);
        overlay.resize("a", 1 << 20);
        let next = disks(&["a=memory:1M,max=2M"]);
        let rebased = overlay.rebased(&next, &[]).expect("the same");
        assert_eq!((names(&rebased.over(&next)).len(), rebased.origin_of("a")), (1, None));
        assert!(overlay.rebased(&disks(&["a=memory:2M"]), &[]).is_err());
    }

    #[test]
    fn exclusive_and_shared_are_not_joined() {
        let mut overlay = Overlay::default();
        overlay.set("a", Settings { shared: Some(true), ..Settings::default() });
        assert!(
            overlay
                .rebased(&disks(&["a=null:1M,exclusive"]), &[])
                .expect_err("refused")
                .contains("disk 'a': exclusive and shared")
        );
    }

    #[test]
    fn a_removed_disk_may_be_added_as_another_one() {
        let configured = disks(&["a=null:1M"]);
        let mut overlay = Overlay::default();
        overlay.remove("a", &configured);
        overlay.add(&disks(&["a=null:2M"])[0], false);
        assert_eq!(names(&overlay.rebased(&configured, &[]).expect("hidden").over(&configured)), ["a=null:2097152"]);
        let next = disks(&["a=null:2M"]);
        assert_eq!(overlay.rebased(&next, &[]).expect("the same").origin_of("a"), None);
    }
}
