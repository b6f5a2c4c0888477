//! `[[network]]`: a switch and its ports.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fipsee_block::disk::spec::check_name;
use fipsee_net::frame::{MAX_VLAN, Mac};
use fipsee_net::server::{MAX_PORTS, tap};
use fipsee_net::switch::{Learning, Rules, Vlans};
use fipsee_net::wire::{MAX_MTU, MIN_MTU};
use toml::de::{DeTable, DeValue};

use super::disk::{Find, allow_list, path};
use super::file::{SETTINGS, tables};
use super::share::rates;
use super::table::{Mistake, Table, integer, list, text};
use crate::admin::quoted;
use crate::export::AllowList;
use crate::rates::RateLimits;

pub(super) const KEYS: &[&str] = &["name", "mtu", "max_macs", "mac_ageing_s", "port"];
const PORT_KEYS: &[&str] = &[
    "name",
    "mac",
    "vlan",
    "trunk",
    "any_source",
    "isolated",
    "mirror",
    "allmulti",
    "ips",
    "down",
    "flood_limit",
    "tap",
    "queues",
    "vhost_user",
    "iops",
    "bytes_per_second",
    "burst",
    "allow_users",
    "allow_groups",
    "allow_uids",
    "allow_gids",
    "allow_everyone",
];
const DEFAULT_MTU: u16 = 1500;
const MAX_MACS: usize = 1 << 20;
/// A day.
const MAX_AGEING_S: u64 = 86_400;

/// A switch and its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    pub name: String,
    pub mtu: u16,
    pub learning: Learning,
    pub ports: Vec<PortConfig>,
}

/// A port, and the users that may attach to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    pub name: String,
    pub rules: Rules,
    pub allow: AllowList,
    /// The device of the host that it is.
    pub tap: Option<TapConfig>,
    /// Where a virtual machine connects, which alone may have the port then.
    pub vhost_user: Option<PathBuf>,
    /// Of the frames that it sends.
    pub rates: RateLimits,
}

impl PortConfig {
    /// As in ATTACH.
    pub fn full_name(&self, network: &str) -> String {
        format!("{network}/{}", self.name)
    }
}

/// A device of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapConfig {
    pub name: String,
    pub queues: u16,
}

pub(super) fn read(entries: &DeTable<'_>, at: Range<usize>, find: Find<'_>) -> Result<NetworkConfig, Mistake> {
    let table = Table::new(entries, at, KEYS);
    table.check((SETTINGS, "above the first table"))?;
    let name = table.take("name", text)?;
    let name = name.ok_or_else(|| table.mistake(None, "the network needs a name: name = \"lan\""))?;
    check_name(&name).map_err(|problem| table.mistake(Some("name"), problem))?;
    let about = |mistake: Mistake| mistake.about(&format!("network '{name}': "));
    let mtu = table.take("mtu", |value| integer(value, MIN_MTU, MAX_MTU)).map_err(about)?.unwrap_or(DEFAULT_MTU);
    let learning = learning(&table).map_err(about)?;
    let mut ports: Vec<PortConfig> = Vec::new();
    for (entries, at) in tables(entries, "port", "network.port").map_err(about)? {
        let port = read_port(&name, entries, at.clone(), find).map_err(about)?;
        let table = Table::new(entries, at, PORT_KEYS);
        if ports.iter().any(|other| other.name == port.name) {
            let text = format!("port '{}' is defined twice; give each its own name", port.name);
            return Err(about(table.mistake(Some("name"), text)));
        }
        if let Some(other) = ports.iter().find(|other| other.rules.mac == port.rules.mac) {
            let text =
                format!("ports '{}' and '{}' have the MAC address {}; give each its own", other.name, port.name, port.rules.mac);
            return Err(about(table.mistake(Some("mac"), text)));
        }
        ports.push(port);
    }
    if ports.is_empty() || ports.len() > MAX_PORTS {
        let text = format!("it has {} ports; write 1 to {MAX_PORTS} tables [[network.port]] below it", ports.len());
        return Err(about(table.mistake(None, text)));
    }
    Ok(NetworkConfig { name, mtu, learning, ports })
}

fn learning(table: &Table<'_>) -> Result<Learning, Mistake> {
    let usual = Learning::default();
    let max_macs = table.take("max_macs", |value| integer(value, 1, MAX_MACS))?.unwrap_or(usual.max_macs);
    let ageing = table.take("mac_ageing_s", |value| integer(value, 1, MAX_AGEING_S))?.map_or(usual.ageing, Duration::from_secs);
    // A port leaves places for others.
    Ok(Learning { max_macs, max_macs_per_port: (max_macs / 8).max(1), ageing })
}

fn read_port(network: &str, entries: &DeTable<'_>, at: Range<usize>, find: Find<'_>) -> Result<PortConfig, Mistake> {
    let table = Table::new(entries, at, PORT_KEYS);
    table.check((SETTINGS, "above the first table"))?;
    let name = table.take("name", text)?.ok_or_else(|| table.mistake(None, "the port needs a name: name = \"a\""))?;
    check_name(&name).map_err(|problem| table.mistake(Some("name"), problem))?;
    if network.len() + 1 + name.len() > fipsee_ring::control::MAX_NAME_BYTES {
        let text = format!("'{network}/{name}' has more than {} bytes; use shorter names", fipsee_ring::control::MAX_NAME_BYTES);
        return Err(table.mistake(Some("name"), text));
    }
    let described = || -> Result<PortConfig, Mistake> {
        let usual = Rules::new(table.take("mac", mac)?.unwrap_or_else(|| own_mac(network, &name)));
        let flood_limit = table.take("flood_limit", |value| integer(value, 1, 1_000_000_000))?;
        let rules = Rules {
            vlans: vlans(&table)?,
            any_source: table.flag("any_source")?,
            isolated: table.flag("isolated")?,
            mirror: table.flag("mirror")?,
            allmulti: table.flag("allmulti")?,
            ips: table.take("ips", |value| list(value, "[\"192.0.2.1\"]", ip))?.unwrap_or_default(),
            down: table.flag("down")?,
            flood_limit: flood_limit.unwrap_or(usual.flood_limit),
            ..usual
        };
        let (tap, vhost_user) = (tap(&table)?, table.take("vhost_user", path)?);
        if tap.is_some() && vhost_user.is_some() {
            return Err(
                table.mistake(Some("vhost_user"), "a port is a TAP device or a virtual machine's; leave tap or vhost_user out")
            );
        }
        let (allow, rates) = (allow_list(&table, find)?, rates(&table)?);
        Ok(PortConfig { name: name.clone(), rules, allow, tap, vhost_user, rates })
    };
    described().map_err(|mistake| mistake.about(&format!("port '{name}': ")))
}

fn vlans(table: &Table<'_>) -> Result<Vlans, Mistake> {
    let vlan = |value: &DeValue<'_>| integer(value, 1, MAX_VLAN);
    let native = table.take("vlan", vlan)?;
    Ok(match table.take("trunk", |value| list(value, "[10, 20]", vlan))? {
        Some(tagged) if tagged.is_empty() && native.is_none() => {
            let text = "the port would be in no VLAN; name some, for example [10, 20], or leave trunk out";
            return Err(table.mistake(Some("trunk"), text));
        }
        Some(tagged) => Vlans::Trunk { tagged, native },
        None => Vlans::Access(native.unwrap_or(0)),
    })
}

fn tap(table: &Table<'_>) -> Result<Option<TapConfig>, Mistake> {
    let queues = table.take("queues", |value| integer(value, 1, tap::MAX_QUEUES))?;
    let name = table.take("tap", |value| text(value).and_then(|name| tap::check_name(&name).map(|()| name)))?;
    match (name, queues) {
        (None, Some(_)) => Err(table.mistake(Some("queues"), "only a device has queues; write tap = \"NAME\", or remove it")),
        (name, queues) => Ok(name.map(|name| TapConfig { name, queues: queues.unwrap_or(1) })),
    }
}

fn mac(value: &DeValue<'_>) -> Result<Mac, String> {
    let mac: Mac = text(value)?.parse()?;
    match mac.is_group() || mac == Mac::default() {
        true => Err(format!("{mac} is no address of one station; its first byte is even, for example 02")),
        false => Ok(mac),
    }
}

fn ip(value: &DeValue<'_>) -> Result<IpAddr, String> {
    let text = text(value)?;
    let ip: IpAddr = text.parse().map_err(|_| format!("'{text}' is no IP address; for example 192.0.2.1 or 2001:db8::1"))?;
    match ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
        true => Err(format!("{ip} is no address of one station")),
        false => Ok(ip),
    }
}

/// Of a port for which none is configured: always the same for its name, locally administered.
fn own_mac(network: &str, port: &str) -> Mac {
    // FNV-1a.
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = network.bytes().chain([b'/']).chain(port.bytes()).fold(0xcbf2_9ce4_8422_2325, mix);
    let [a, b, c, d, e, ..] = (hash ^ (hash >> 32)).to_le_bytes();
    Mac([0x02, a, b, c, d, e])
}

/// The ports with a vhost-user socket, by the names of network and port, and that.
pub(crate) fn sockets(networks: &[NetworkConfig]) -> impl Iterator<Item = (String, &Path)> {
    let ports = networks.iter().flat_map(|network| network.ports.iter().map(move |port| (network, port)));
    ports.filter_map(|(network, port)| Some((format!("{}/{}", network.name, port.name), port.vhost_user.as_deref()?)))
}

/// As the file has it.
/// Those of ports from elsewhere have a comment with their `origin`.
pub(crate) fn dump(networks: &[NetworkConfig], origin: impl Fn(&str) -> Option<&'static str>) -> String {
    let mut out = String::new();
    for NetworkConfig { name, mtu, learning, ports } in networks {
        let Learning { max_macs, ageing, .. } = learning;
        let _ = writeln!(out, "\n[[network]]\nname = {}\nmtu = {mtu}\nmax_macs = {max_macs}", quoted(name));
        let _ = writeln!(out, "mac_ageing_s = {}", ageing.as_secs());
        for port in ports {
            let origin = origin(&port.full_name(name)).map(|origin| format!("# {origin}\n")).unwrap_or_default();
            let _ = write!(out, "\n{origin}[[network.port]]\n{}", dump_port(port));
        }
    }
    out
}

/// The keys of a port, as the file has them.
pub(crate) fn dump_port(PortConfig { name, rules, allow, tap, vhost_user, rates }: &PortConfig) -> String {
    let mut out = String::new();
    let mac = quoted(&rules.mac.to_string());
    let _ = writeln!(out, "name = {}\nmac = {mac}", quoted(name));
    match &rules.vlans {
        Vlans::Access(0) => {}
        Vlans::Access(vlan) => _ = writeln!(out, "vlan = {vlan}"),
        Vlans::Trunk { tagged, native } => {
            let _ = writeln!(out, "trunk = {tagged:?}");
            native.iter().for_each(|vlan| _ = writeln!(out, "vlan = {vlan}"));
        }
    }
    if !rules.ips.is_empty() {
        let ips: Vec<String> = rules.ips.iter().map(|ip| quoted(&ip.to_string())).collect();
        let _ = writeln!(out, "ips = [{}]", ips.join(", "));
    }
    let (multi, down) = (("allmulti", rules.allmulti), ("down", rules.down));
    let flags = [("any_source", rules.any_source), ("isolated", rules.isolated), ("mirror", rules.mirror), multi, down];
    for (key, _) in flags.into_iter().chain([("allow_everyone", allow.everyone)]).filter(|(_, set)| *set) {
        let _ = writeln!(out, "{key} = true");
    }
    let _ = writeln!(out, "flood_limit = {}", rules.flood_limit);
    if let Some(TapConfig { name, queues }) = tap {
        let _ = writeln!(out, "tap = {}\nqueues = {queues}", quoted(name));
    }
    vhost_user.iter().for_each(|path| _ = writeln!(out, "vhost_user = {}", quoted(&path.to_string_lossy())));
    rates.keys().for_each(|(key, rate)| _ = writeln!(out, "{key} = {rate}"));
    for (key, ids) in [("allow_uids", &allow.uids), ("allow_gids", &allow.gids)] {
        if !ids.is_empty() {
            let _ = writeln!(out, "{key} = {ids:?}");
        }
    }
    out
}

/// A port of a network, from its keys.
///
/// # Errors
/// What is wrong, without its place.
pub(crate) fn parse_port(network: &str, keys: &str) -> Result<PortConfig, String> {
    let (table, errors) = DeTable::parse_recoverable(keys);
    if let Some(error) = errors.first() {
        return Err(error.message().to_owned());
    }
    let find: Find<'_> = &|_, name| Err(format!("'{name}' is no number"));
    read_port(network, table.get_ref(), 0..0, find).map_err(Mistake::into_text)
}
