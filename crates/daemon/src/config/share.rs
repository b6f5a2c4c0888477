//! `[[user]]` and `[[group]]`: weights and rates of those that share workers.

use std::num::{NonZeroU16, NonZeroU64};
use std::ops::Range;

use fipsee_block::disk::spec::check_name;
use toml::de::{DeTable, DeValue};

use super::disk::Find;
use super::file::SETTINGS;
use super::names::NameOf;
use super::table::{Mistake, Table, integer, list, shown, size, text};
use super::{DiskConfig, given_twice};
use crate::rates::{MAX_IOPS, MAX_WEIGHT, RateLimits, ShareSettings, parse_burst};

pub(super) const USER_KEYS: &[&str] = &["name", "weight", "iops", "bytes_per_second", "burst"];
pub(super) const GROUP_KEYS: &[&str] = &["name", "users", "groups", "machines", "weight", "iops", "bytes_per_second", "burst"];

/// Of a user, or of several users, Unix groups and virtual machines together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShareConfig {
    /// `None`: of the only user.
    pub(crate) group: Option<String>,
    pub(crate) uids: Vec<u32>,
    pub(crate) gids: Vec<u32>,
    /// Disks: those of their virtual machines.
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
    Ok(ShareSettings { weight, rates: rates(table)? })
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

/// Is each user, Unix group and disk in one of them at most, and does each disk exist?
pub(super) fn check(shares: &[ShareConfig], disks: &[DiskConfig]) -> Result<(), String> {
    if let Some(name) = given_twice(shares.iter().filter_map(|share| share.group.as_deref())) {
        return Err(format!("the group '{name}' is defined twice; give each its own name"));
    }
    let twice = |what: &str, which: &str| {
        format!("the {what} {which} is in several of [[user]] and [[group]]; only one can count: remove it from the others")
    };
    if let Some(uid) = given_twice(shares.iter().flat_map(|share| &share.uids)) {
        return Err(twice("user", &uid.to_string()));
    }
    if let Some(gid) = given_twice(shares.iter().flat_map(|share| &share.gids)) {
        return Err(twice("Unix group", &gid.to_string()));
    }
    if let Some(disk) = given_twice(shares.iter().flat_map(|share| &share.machines)) {
        return Err(twice("disk of machines", disk));
    }
    let names: Vec<&str> = disks.iter().map(|disk| disk.spec.name.as_str()).collect();
    let unknown = |disk: &&String| !names.contains(&disk.as_str());
    if let Some(disk) = shares.iter().flat_map(|share| &share.machines).find(unknown) {
        return Err(format!("machines: no disk '{disk}' is defined; there are: {}", names.join(", ")));
    }
    Ok(())
}
