//! `[[disk]]`: a disk as a specification or as keys, and who may use it. Both ways make the same [`DiskSpec`].

use std::num::{NonZeroU16, NonZeroU32};
use std::ops::Range;
use std::path::PathBuf;

use fipsee_block::disk::spec::check_name;
use fipsee_block::disk::wrap::{Wrapper, duration};
use fipsee_block::disk::{DirectMode, DiskSpec, FileOptions, KindSpec, MemoryOptions, NullOptions};
use fipsee_ring::notify::{Policy, Wanted};
use toml::de::{DeTable, DeValue};

use super::DiskConfig;
use super::file::{MAX_CLIENTS, SETTINGS};
use super::names::NameOf;
use super::share::rates;
use super::table::{Mistake, Table, boolean, integer, list, shown, size, text};
use crate::disk_limits::DiskLimits;
use crate::export::AllowList;
use crate::notification::Notify;

pub(super) const KEYS: &[&str] = &[
    "name",
    "spec",
    "kind",
    "path",
    "size",
    "max",
    "block",
    "direct",
    "pages",
    "lock",
    "overcommit",
    "delay",
    "error",
    "powercut",
    "read_only",
    "exclusive",
    "shared",
    "allow_users",
    "allow_groups",
    "allow_uids",
    "allow_gids",
    "allow_everyone",
    "max_clients",
    "max_queues",
    "max_depth",
    "iops",
    "bytes_per_second",
    "burst",
    "vhost_user",
    "notify",
    "dedicated",
];
/// The keys that describe a disk of a kind.
const KINDS: [(&str, &[&str]); 3] = [
    ("file", &["path", "size", "block", "direct"]),
    ("memory", &["size", "max", "block", "pages", "lock", "overcommit"]),
    ("null", &["size", "block"]),
];
/// What wraps another disk, from the innermost to the outermost.
const WRAPPERS: [&str; 3] = ["powercut", "error", "delay"];

/// Finds the number of a user or group.
pub(super) type Find<'a> = &'a dyn Fn(NameOf, &str) -> Result<u32, String>;

pub(super) fn read(entries: &DeTable<'_>, at: Range<usize>, find: Find<'_>) -> Result<DiskConfig, Mistake> {
    let table = Table::new(entries, at, KEYS);
    table.check((SETTINGS, "above the first [[disk]]"))?;
    let name = table.take("name", text)?.ok_or_else(|| table.mistake(None, "the disk needs a name: name = \"a\""))?;
    let described =
        check_name(&name).map_err(|problem| table.mistake(Some("name"), problem)).and_then(|()| describe(&table, &name, find));
    described.map_err(|mistake| mistake.about(&format!("disk '{name}': ")))
}

fn describe(table: &Table<'_>, name: &str, find: Find<'_>) -> Result<DiskConfig, Mistake> {
    let (spec, kind) = (table.take("spec", text)?, table.take("kind", kind)?);
    let mut spec = match (spec, kind) {
        (Some(spec), None) => specified(table, name, &spec)?,
        (None, Some(kind)) => {
            DiskSpec { name: name.to_owned(), kind: keyed(table, kind)?, ro: false, exclusive: false, shared: false }
        }
        (Some(_), Some(_)) => {
            return Err(table.mistake(Some("kind"), "kind and spec both say what the disk is; remove one of them"));
        }
        (None, None) => {
            let advice = "write kind = \"file\" with path, kind = \"memory\" or \"null\" with size, or spec = \"KIND:ARGS\"";
            return Err(table.mistake(None, format!("it is not said what the disk is; {advice}")));
        }
    };
    spec.ro |= table.flag("read_only")?;
    spec.exclusive |= table.flag("exclusive")?;
    spec.shared |= table.flag("shared")?;
    let contradicts =
        |problem: String| table.mistake(["shared", "exclusive", "spec"].into_iter().find(|key| table.has(key)), problem);
    spec.check_sharing().map_err(contradicts)?;
    let vhost_user = table.take("vhost_user", path)?.into_iter().collect();
    let notify = table.take("notify", notify)?.unwrap_or_default();
    let (limits, rates, dedicated) = (limits(table)?, rates(table)?, table.flag("dedicated")?);
    Ok(DiskConfig { spec, allow: allow_list(table, find)?, limits, rates, vhost_user, notify, dedicated })
}

/// `spec`, with the path beside it that cannot be part of it because it has a comma.
fn specified(table: &Table<'_>, name: &str, spec: &str) -> Result<DiskSpec, Mistake> {
    let of_kinds = KINDS.iter().flat_map(|(_, keys)| keys.iter()).chain(&WRAPPERS);
    if let Some(key) = of_kinds.filter(|key| **key != "path").find(|key| table.has(key)) {
        let text = format!("{key} cannot be beside spec; make it a part of spec, or write kind and keys in place of spec");
        return Err(table.mistake(Some(key), text));
    }
    let about_spec = |problem: String| {
        let problem = problem.strip_prefix(&format!("disk '{name}': ")).unwrap_or(&problem).to_owned();
        table.take("spec", |_| Err::<(), _>(problem)).err().unwrap_or_else(|| table.mistake(None, ""))
    };
    let Some(path) = table.take("path", path)? else {
        return DiskSpec::parse(&format!("{name}={spec}")).map_err(about_spec);
    };
    let (before, after) = spec.split_once("file:").unwrap_or((spec, ""));
    if !after.is_empty() && !after.starts_with(',') {
        return Err(
            table.mistake(Some("path"), "spec has a path, too; remove one of them (without one, spec = \"file:,size=1G\")")
        );
    }
    let filled = if spec.contains("file:") { format!("{before}file:path{after}") } else { spec.to_owned() };
    let mut parsed = DiskSpec::parse(&format!("{name}={filled}")).map_err(about_spec)?;
    let Some(options) = parsed.kind.file_mut() else {
        return Err(table.mistake(Some("path"), "only a file disk has a path; remove it"));
    };
    options.path = path;
    Ok(parsed)
}

fn keyed(table: &Table<'_>, kind: &'static str) -> Result<KindSpec, Mistake> {
    let keys = KINDS.iter().find(|(other, _)| *other == kind).map_or(&[][..], |(_, keys)| keys);
    let foreign = KINDS.iter().flat_map(|(_, keys)| keys.iter()).find(|key| !keys.contains(key) && table.has(key));
    if let Some(key) = foreign {
        let text = format!("a {kind} disk has no {key}; remove it (it can have {})", keys.join(", "));
        return Err(table.mistake(Some(key), text));
    }
    let missing = |key: &str, example: &str| table.mistake(None, format!("{key} is missing; write {key} = {example}"));
    let needed_size = || table.take("size", size)?.ok_or_else(|| missing("size", "\"256M\""));
    let block_bytes = table.take("block", block)?;
    let mut disk = match kind {
        "file" => KindSpec::File(FileOptions {
            path: table.take("path", path)?.ok_or_else(|| missing("path", "\"/srv/disk.img\""))?,
            size_bytes: table.take("size", size)?,
            block_bytes,
            direct: table.take("direct", direct)?.unwrap_or_default(),
            read_only: false,
        }),
        "memory" => {
            let pages = table.take("pages", pages)?;
            KindSpec::Memory(MemoryOptions {
                size_bytes: needed_size()?,
                max_bytes: table.take("max", size)?,
                block_bytes,
                huge: pages == Some("huge"),
                thp: pages == Some("thp"),
                lock: table.flag("lock")?,
                overcommit: table.flag("overcommit")?,
                read_only: false,
            })
        }
        _ => KindSpec::Null(NullOptions { size_bytes: needed_size()?, block_bytes, read_only: false }),
    };
    for key in WRAPPERS {
        if let Some(wrapper) = table.take(key, |value| wrapper(key, value))? {
            disk = KindSpec::Wrapped(wrapper, Box::new(disk));
        }
    }
    Ok(disk)
}

pub(super) fn allow_list(table: &Table<'_>, find: Find<'_>) -> Result<AllowList, Mistake> {
    let numbers = |key, key_of_names| {
        let number = |value: &DeValue<'_>| {
            let is_name = value.as_str().is_some_and(|text| text.starts_with(char::is_alphabetic));
            let or_name = |problem: String| if is_name { format!("{problem}; names are for {key_of_names}") } else { problem };
            integer(value, 0, u32::MAX).map_err(or_name)
        };
        table.take(key, |value| list(value, "[1000]", number))
    };
    let named = |key, of, example| {
        let number = |value: &DeValue<'_>| match value {
            DeValue::Integer(_) => integer(value, 0, u32::MAX),
            value => find(of, &text(value)?),
        };
        table.take(key, |value| list(value, example, number))
    };
    let all = |numbers: Option<Vec<u32>>, named: Option<Vec<u32>>| [numbers, named].into_iter().flatten().flatten().collect();
    Ok(AllowList {
        everyone: table.flag("allow_everyone")?,
        uids: all(numbers("allow_uids", "allow_users")?, named("allow_users", NameOf::User, "[\"alice\"]")?),
        gids: all(numbers("allow_gids", "allow_groups")?, named("allow_groups", NameOf::Group, "[\"disk\"]")?),
    })
}

fn limits(table: &Table<'_>) -> Result<DiskLimits, Mistake> {
    let clients = |value: &DeValue<'_>| integer(value, 1, u32::try_from(MAX_CLIENTS).unwrap_or(u32::MAX));
    Ok(DiskLimits {
        max_clients: table.take("max_clients", clients)?.and_then(NonZeroU32::new),
        max_queues: table.take("max_queues", |value| integer(value, 1, u16::MAX))?.and_then(NonZeroU16::new),
        max_depth: table.take("max_depth", |value| integer(value, 1, u32::MAX))?.and_then(NonZeroU32::new),
    })
}

pub(super) fn path(value: &DeValue<'_>) -> Result<PathBuf, String> {
    let path = text(value).map(PathBuf::from)?;
    match path.as_os_str().is_empty() {
        true => Err("the path is empty; write one, or remove the key".to_owned()),
        false => Ok(path),
    }
}

/// One of these words, with what it stands for.
fn one_of<T: Copy>(value: &DeValue<'_>, words: &[(&str, T)]) -> Result<T, String> {
    let found = value.as_str().and_then(|text| words.iter().find(|(word, _)| *word == text));
    found.map(|(_, meant)| *meant).ok_or_else(|| {
        let words: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        format!("{} is not possible; write {}", shown(value), words.join(" or "))
    })
}

fn kind(value: &DeValue<'_>) -> Result<&'static str, String> {
    one_of(value, &KINDS.map(|(kind, _)| (kind, kind)))
}

fn pages(value: &DeValue<'_>) -> Result<&'static str, String> {
    one_of(value, &["huge", "thp"].map(|pages| (pages, pages)))
}

fn direct(value: &DeValue<'_>) -> Result<DirectMode, String> {
    one_of(value, &[("auto", DirectMode::Auto), ("on", DirectMode::On), ("off", DirectMode::Off)])
}

fn block(value: &DeValue<'_>) -> Result<u32, String> {
    match size(value)? {
        512 => Ok(512),
        4096 => Ok(4096),
        other => Err(format!("{other} is not possible; write 512 or 4096")),
    }
}

/// `error = { every = 100, op = ["read", "flush"] }`: the options of the specification, as keys.
fn wrapper(name: &str, value: &DeValue<'_>) -> Result<Wrapper, String> {
    let DeValue::Table(entries) = value else {
        return Err(format!("{} is not possible; write its options in braces: {name} = {{ seed = 1 }}", shown(value)));
    };
    let mut options = Vec::new();
    let mut times = [None, None];
    for (key, value) in entries.iter() {
        let (key, value) = (key.get_ref().as_ref(), option(value.get_ref())?);
        match (name, key) {
            ("delay", "time") => times[0] = Some(value),
            ("delay", "random") => times[1] = Some(value),
            _ => options.push(format!("{key}={value}")),
        }
    }
    match times {
        [None, _] if name == "delay" => return Err("the time is missing; write delay = { time = \"5ms\" }".to_owned()),
        [time, random] => options.extend(time.map(|time| random.map_or(time.clone(), |random| format!("{time}+{random}")))),
    }
    Wrapper::parse(name, &options.join(",")).unwrap_or_else(|| Err(format!("there is no {name}")))
}

/// `notify = { max_rate = 10000, min_completions = 8, max_delay = "100us" }`
fn notify(value: &DeValue<'_>) -> Result<Notify, String> {
    const KEYS: [&str; 4] = ["max_rate", "min_completions", "max_delay", "auto"];
    let DeValue::Table(entries) = value else {
        return Err(format!("{} is not possible; write its keys in braces: notify = {{ max_rate = 10000 }}", shown(value)));
    };
    let mut wanted = Wanted::default();
    for (key, value) in entries.iter() {
        let (key, value) = (key.get_ref().as_ref(), value.get_ref());
        let about = |text: String| format!("{key}: {text}");
        match key {
            "max_rate" => wanted.max_rate = Some(integer(value, 0, u64::MAX).map_err(about)?),
            "min_completions" => wanted.min_completions = Some(integer(value, 0, u64::MAX).map_err(about)?),
            "max_delay" => {
                let delay = text(value).and_then(|text| duration(&text)).map_err(about)?;
                wanted.max_delay_us = Some(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX));
            }
            "auto" => wanted.auto = boolean(value).map_err(about)?,
            _ => return Err(format!("there is no {key}; the keys are {}", KEYS.join(", "))),
        }
    }
    Policy::new(&wanted).map(|policy| Notify(Some(policy)))
}

fn option(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) => Ok(number.to_string()),
        DeValue::Array(items) => Ok(items.iter().map(|item| option(item.get_ref())).collect::<Result<Vec<_>, _>>()?.join("+")),
        other => Err(format!("{} is not possible; write an integer, or text in quotes", shown(other))),
    }
}
