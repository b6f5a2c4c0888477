//! `[[user]]` and `[[group]]`: weights and rates of those that share workers.

use std::collections::BTreeSet;
use std::num::{NonZeroU16, NonZeroU64};
use std::ops::Range;

use fipsee_block::disk::spec::check_name;
use toml::de::{DeTable, DeValue};

use super::disk::Find;
use super::file::SETTINGS;
use super::names::NameOf;
use super::table::{Mistake, Table, integer, list, shown, size, text};
use super::{DiskConfig, NetworkConfig, sockets_of_ports};
use crate::rates::{MAX_IOPS, MAX_WEIGHT, RateLimits, ShareSettings, parse_burst};

pub(super) const USER_KEYS: &[&str] = &["name", "weight", "iops", "bytes_per_second", "burst", "dedicated"];
pub(super) const GROUP_KEYS: &[&str] =
    &["name", "users", "groups", "machines", "weight", "iops", "bytes_per_second", "burst", "dedicated"];

/// Of a user, or of several users, Unix groups and virtual machines together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShareConfig {
    /// `None`: of the only user.
    pub(crate) group: Option<String>,
    pub(crate) uids: Vec<u32>,
    pub(crate) gids: Vec<u32>,
    /// Disks and ports: those of their virtual machines.
    pub(crate) machines: Vec<String>,
    pub(crate) settings: ShareSettings,
}

impl ShareConfig {
    /// What it is called where weights and rates are set: `user:1000`, `group:batch`.
    pub(crate) fn key(&self) -> String {
        match &self.group {
            Some(name) => format!("group:{name}"),
            None => user_key(self.uids.first().copied().unwrap_or_default()),
        }
    }

    /// For people.
    pub(crate) fn shown(&self) -> String {
        match &self.group {
            Some(name) => format!("group '{name}'"),
            None => format!("user {}", self.uids.first().copied().unwrap_or_default()),
        }
    }
}

pub(crate) fn user_key(uid: u32) -> String {
    format!("user:{uid}")
}

pub(super) fn read_user(entries: &DeTable<'_>, at: Range<usize>, find: Find<'_>) -> Result<ShareConfig, Mistake> {
    let table = Table::new(entries, at, USER_KEYS);
    table.check((SETTINGS, "above the first table"))?;
    let uid = table.take("name", |value| number(value, NameOf::User, find))?;
    let uid = uid.ok_or_else(|| table.mistake(None, "it is not said which user: name = \"alice\", or a number"))?;
    let settings = settings(&table)?;
    Ok(ShareConfig { group: None, uids: vec![uid], gids: Vec::new(), machines: Vec::new(), settings })
}

pub(super) fn read_group(entries: &DeTable<'_>, at: Range<usize>, find: Find<'_>) -> Result<ShareConfig, Mistake> {
    let table = Table::new(entries, at, GROUP_KEYS);
    table.check((SETTINGS, "above the first table"))?;
    let name = table.take("name", text)?.ok_or_else(|| table.mistake(None, "the group needs a name: name = \"batch\""))?;
    check_name(&name).map_err(|problem| table.mistake(Some("name"), problem))?;
    let members = |key, of, example| table.take(key, |value| list(value, example, |value| number(value, of, find)));
    let uids = members("users", NameOf::User, "[\"alice\"]")?.unwrap_or_default();
    let gids = members("groups", NameOf::Group, "[\"staff\"]")?.unwrap_or_default();
    let machines = table.take("machines", |value| list(value, "[\"a\"]", text))?.unwrap_or_default();
    if uids.is_empty() && gids.is_empty() && machines.is_empty() {
        let text =
            format!("group '{name}' has no members; write users = [\"alice\"], groups = [\"staff\"] or machines = [\"DISK\"]");
        return Err(table.mistake(Some("name"), text));
    }
    let settings = settings(&table)?;
    Ok(ShareConfig { group: Some(name), uids, gids, machines, settings })
}

fn number(value: &DeValue<'_>, of: NameOf, find: Find<'_>) -> Result<u32, String> {
    match value {
        DeValue::Integer(_) => integer(value, 0, u32::MAX),
        value => find(of, &text(value)?),
    }
}

fn settings(table: &Table<'_>) -> Result<ShareSettings, Mistake> {
    let weight = table.take("weight", |value| integer(value, 1, MAX_WEIGHT))?.and_then(NonZeroU16::new);
    Ok(ShareSettings { weight, rates: rates(table)?, dedicated: table.flag("dedicated")? })
}

/// `iops`, `bytes_per_second` and `burst` of a table.
pub(super) fn rates(table: &Table<'_>) -> Result<RateLimits, Mistake> {
    let bytes = |value: &DeValue<'_>| match size(value)? {
        0 => Err("0 is not possible; leave it out for no limit".to_owned()),
        bytes => Ok(bytes),
    };
    let burst = |value: &DeValue<'_>| match value.as_str() {
        Some(text) => parse_burst(text),
        None => Err(format!("{} is no time; write a number with its unit in quotes: \"100ms\"", shown(value))),
    };
    let rates = RateLimits {
        iops: table.take("iops", |value| integer(value, 1, MAX_IOPS))?.and_then(NonZeroU64::new),
        bytes_per_second: table.take("bytes_per_second", bytes)?.and_then(NonZeroU64::new),
        burst_ms: table.take("burst", burst)?,
    };
    let key = ["burst", "bytes_per_second", "iops"].into_iter().find(|key| table.has(key));
    rates.check().map_err(|problem| table.mistake(key, problem))?;
    Ok(rates)
}

/// Is each user, Unix group and disk in one of them at most?
pub(super) fn check_members(shares: &[(ShareConfig, Range<usize>)]) -> Result<(), Mistake> {
    let mut seen = BTreeSet::new();
    for (share, at) in shares {
        if let Some(name) = share.group.as_ref().filter(|name| !seen.insert(("group", (*name).clone()))) {
            return Err(Mistake::new(at.clone(), format!("the group '{name}' is defined twice; give each its own name")));
        }
        let numbers = |what, ids: &[u32]| ids.iter().map(|id| (what, id.to_string())).collect::<Vec<_>>();
        let machines = share.machines.iter().map(|disk| ("disk of machines", disk.clone()));
        let members = [numbers("user", &share.uids), numbers("Unix group", &share.gids), machines.collect()].concat();
        for (what, which) in members {
            if !seen.insert((what, which.clone())) {
                let text = "is in several of [[user]] and [[group]]; only one can count: remove it from the others";
                return Err(Mistake::new(at.clone(), format!("the {what} {which} {text}")));
            }
        }
    }
    Ok(())
}

/// Does each disk or port of machines exist? Some disks may be of the command line.
pub(super) fn check_machines(shares: &[ShareConfig], disks: &[DiskConfig], networks: &[NetworkConfig]) -> Result<(), String> {
    let disks: Vec<String> = disks.iter().map(|disk| disk.spec.name.clone()).collect();
    let ports: Vec<String> = sockets_of_ports(networks).map(|(name, _)| name).collect();
    let unknown = |name: &&String| !disks.contains(name) && !ports.contains(name);
    let Some((share, name)) = shares.iter().find_map(|share| Some((share, share.machines.iter().find(unknown)?))) else {
        return Ok(());
    };
    let (what, there) = match name.contains('/') {
        true => (format!("no port '{name}' with vhost_user is defined"), ports),
        false => (format!("no disk '{name}' is defined"), disks),
    };
    let there = if there.is_empty() { "there is none".to_owned() } else { format!("there are: {}", there.join(", ")) };
    Err(format!("machines of {}: {what}; {there}", share.shown()))
}
