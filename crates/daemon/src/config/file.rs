//! The configuration file.

use std::ops::Range;

use fipsee_ring::wait::WaitMode;
use fipsee_serve::governor::Mode;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::disk::{self, Find, path};
use super::network::{self, NetworkConfig};
use super::share::{self, ShareConfig};
use super::table::{Mistake, Table, choice, integer, list, size, text};
use super::{DiskConfig, LogFormat, MAX_WORKERS, Settings, above_all_clients, check_workers, defined_twice};
use crate::log;
use crate::metrics::{self, Endpoint};

/// The keys outside of tables.
pub(super) const SETTINGS: &[&str] = &[
    "listen",
    "workers",
    "cpus",
    "placement",
    "wait",
    "look_us",
    "max_clients",
    "max_clients_per_user",
    "max_queues",
    "max_depth",
    "max_pool_bytes",
    "max_memory_bytes",
    "max_memory_bytes_per_user",
    "metrics",
    "confine",
    "confine_paths",
    "log_level",
    "log_format",
    "disk",
    "user",
    "group",
    "network",
];
/// An hour.
const MAX_LOOK_US: u64 = 3_600_000_000;
/// More connections than a process can have descriptors.
pub(super) const MAX_CLIENTS: usize = 1 << 20;
const MAX_CPU: usize = 65535;

/// What a file describes.
#[derive(Default)]
pub(super) struct File {
    pub(super) settings: Settings,
    pub(super) disks: Vec<DiskConfig>,
    pub(super) shares: Vec<ShareConfig>,
    pub(super) networks: Vec<NetworkConfig>,
}

/// What a file of this text describes.
///
/// # Errors
/// What is wrong, beginning with line and column, and what to write.
pub(super) fn read(file: &str, find: Find<'_>) -> Result<File, String> {
    let (table, errors) = DeTable::parse_recoverable(file);
    let read = match errors.first() {
        Some(error) => Err(Mistake::new(error.span().unwrap_or_default(), in_words(error.message()))),
        None => read_table(table.get_ref(), find),
    };
    read.map_err(|mistake| mistake.shown(file))
}

/// Most messages of the parser are about its grammar.
fn in_words(message: &str) -> &str {
    const WORDS: [(&str, &str); 5] = [
        ("string values must be quoted", "text must be in quotes: \"64M\""),
        ("invalid basic string, expected `\"`", "the text has no closing quote"),
        ("invalid literal string, expected `'`", "the text has no closing quote"),
        ("key with no value", "the key has no value; write key = value"),
        ("duplicate key", "this key is there twice; remove one of them"),
    ];
    WORDS.iter().find(|(beginning, _)| message.starts_with(beginning)).map_or(message, |(_, words)| words)
}

/// What the file says, or its undamaged part, about the format of messages.
pub(super) fn log_format(file: &str) -> Option<LogFormat> {
    let (table, _) = DeTable::parse_recoverable(file);
    choice(table.get_ref().get("log_format")?.get_ref()).ok()
}

fn read_table(entries: &DeTable<'_>, find: Find<'_>) -> Result<File, Mistake> {
    let table = Table::new(entries, 0..0, SETTINGS);
    table.check((disk::KEYS, "in a table of a disk, below [[disk]]"))?;
    let settings = settings(&table)?;
    let mut disks = Vec::new();
    for (entries, at) in tables(entries, "disk", "disk")? {
        let disk = disk::read(entries, at.clone(), find)?;
        if disks.iter().any(|other: &DiskConfig| other.spec.name == disk.spec.name) {
            let table = Table::new(entries, at, disk::KEYS);
            return Err(table.mistake(Some("name"), defined_twice(&disk.spec.name)));
        }
        disks.push(disk);
    }
    type Read = Result<(ShareConfig, Range<usize>), Mistake>;
    let user = |(entries, at): Found<'_>| -> Read { Ok((share::read_user(entries, at.clone(), find)?, at)) };
    let group = |(entries, at): Found<'_>| -> Read { Ok((share::read_group(entries, at.clone(), find)?, at)) };
    let (users, groups) = (tables(entries, "user", "user")?, tables(entries, "group", "group")?);
    let shares: Vec<_> = users.into_iter().map(user).chain(groups.into_iter().map(group)).collect::<Result<_, _>>()?;
    share::check_members(&shares)?;
    let networks = networks(entries, find)?;
    Ok(File { settings, disks, shares: shares.into_iter().map(|(share, _)| share).collect(), networks })
}

fn networks(entries: &DeTable<'_>, find: Find<'_>) -> Result<Vec<NetworkConfig>, Mistake> {
    let mut networks: Vec<NetworkConfig> = Vec::new();
    for (entries, at) in tables(entries, "network", "network")? {
        let network = network::read(entries, at.clone(), find)?;
        if networks.iter().any(|other| other.name == network.name) {
            let text = format!("network '{}' is defined twice; give each its own name", network.name);
            return Err(Table::new(entries, at, network::KEYS).mistake(Some("name"), text));
        }
        networks.push(network);
    }
    Ok(networks)
}

/// A table, and where it is.
type Found<'a> = (&'a DeTable<'a>, Range<usize>);

/// The tables of this name, which is written `path` in brackets.
pub(super) fn tables<'a>(entries: &'a DeTable<'_>, name: &str, path: &str) -> Result<Vec<Found<'a>>, Mistake> {
    let Some(found) = entries.get(name) else { return Ok(Vec::new()) };
    let DeValue::Array(tables) = found.get_ref() else {
        return Err(Mistake::new(
            found.span(),
            format!("there may be several {name}s; write [[{path}]], in two pairs of brackets"),
        ));
    };
    let table = |found: &'a Spanned<DeValue<'_>>| match found.get_ref() {
        DeValue::Table(entries) => Ok((entries, found.span())),
        _ => Err(Mistake::new(found.span(), format!("a {name} is a table; write [[{path}]] and its keys below"))),
    };
    tables.iter().map(table).collect()
}

fn settings(table: &Table<'_>) -> Result<Settings, Mistake> {
    let settings = Settings {
        listen: table.take("listen", path)?,
        workers: table.take("workers", workers)?,
        cpus: table.take("cpus", |value| list(value, "[2, 3]", |value| integer(value, 0, MAX_CPU)))?.unwrap_or_default(),
        placement: table.take("placement", choice)?,
        wait: table.take("wait", |value| text(value)?.parse::<WaitMode>().map_err(|problem| problem.to_string()))?,
        look_us: table.take("look_us", |value| integer(value, 0, MAX_LOOK_US))?,
        max_clients: table.take("max_clients", |value| integer(value, 1, MAX_CLIENTS))?,
        max_clients_per_user: table.take("max_clients_per_user", |value| integer(value, 1, MAX_CLIENTS))?,
        max_queues: table.take("max_queues", |value| integer(value, 1, u16::MAX))?,
        max_depth: table.take("max_depth", |value| integer(value, 1, u32::MAX))?,
        max_pool_bytes: table.take("max_pool_bytes", pool_size)?,
        max_memory_bytes: table.take("max_memory_bytes", size)?,
        max_memory_bytes_per_user: table.take("max_memory_bytes_per_user", pool_size)?,
        metrics: table.take("metrics", endpoints)?.unwrap_or_default(),
        confine: table.take("confine", choice)?,
        confine_paths: table.take("confine_paths", |value| list(value, "[\"/srv\"]", path))?.unwrap_or_default(),
        log_level: table.take("log_level", |value| text(value).and_then(|level| log::parse_level(&level).map(|_| level)))?,
        log_format: table.take("log_format", choice)?,
        ..Settings::default()
    };
    match (settings.max_clients_per_user, settings.max_clients) {
        (Some(of_one), Some(of_all)) if of_one > of_all => {
            Err(table.mistake(Some("max_clients_per_user"), above_all_clients(of_one, of_all)))
        }
        _ => Ok(settings),
    }
}

/// One, or a list.
fn endpoints(value: &DeValue<'_>) -> Result<Vec<Endpoint>, String> {
    let endpoint = |value: &DeValue<'_>| metrics::parse(&text(value)?);
    match value {
        DeValue::String(_) => endpoint(value).map(|one| vec![one]),
        _ => list(value, "[\"/run/fipsee/metrics.sock\"]", endpoint),
    }
}

/// An integer, or a range or "auto" in quotes.
fn workers(value: &DeValue<'_>) -> Result<Mode, String> {
    let words = value.as_str().and_then(|text| text.parse().ok());
    match words.filter(|mode| matches!(mode, Mode::Auto { .. })) {
        Some(mode) => check_workers(mode).map(|()| mode),
        None => integer(value, 1, MAX_WORKERS)
            .map(Mode::Fixed)
            .map_err(|problem| if value.is_str() { format!("{problem}, or a range, \"1..4\", or \"auto\"") } else { problem }),
    }
}

fn pool_size(value: &DeValue<'_>) -> Result<u64, String> {
    match size(value)? {
        0 => Err("0 is not possible, as no data could be transferred; write for example \"64M\"".to_owned()),
        bytes => Ok(bytes),
    }
}
