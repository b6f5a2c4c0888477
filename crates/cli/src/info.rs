//! `fipsee info DISK`: a disk as the daemon describes it, and its clients.

use std::fmt::Write as _;
use std::path::Path;

use fipsee_block::client::{AttachOptions, Disk};
use fipsee_block::wire::{BlockInfo, CAPABILITY_NAMES, SECTOR_BYTES};
use serde_json::{Map, Value, json};

use crate::admin::{self, NoAnswer};
use crate::error::Error;
use crate::{ls, names, notify, output, units};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Name of the disk
    disk: String,
    /// Print JSON: {"disk", "size_bytes", "first_sector", "last_sector", "block_bytes", "capabilities", ...}
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(socket: &Path, arguments: &Arguments) -> Result<(), Error> {
    let description = match admin::ask(socket, "disk.info", &json!({ "disk": arguments.disk })) {
        Ok(description) => description,
        // Another user's daemon: a client may still attach, and gets the same description of the disk, without its clients.
        Err(NoAnswer::NoPermission(_)) => attach_and_describe(socket, &arguments.disk)?,
        Err(NoAnswer::Other(error)) => return Err(error),
    };
    if arguments.json { output::print_json(&description) } else { output::print(&render(&description)) }
}

fn attach_and_describe(socket: &Path, name: &str) -> Result<Value, Error> {
    let options = AttachOptions { read_only: true, depth: 1, pool_bytes: 0, ..AttachOptions::new(name) };
    let (disk, queues) = Disk::attach(socket, &options)?;
    let info = disk.info();
    disk.detach(queues)?;
    Ok(describe(name, &info))
}

/// The client's information in the form of the admin socket. The capability to write is missing, because it was not requested.
fn describe(name: &str, info: &BlockInfo) -> Value {
    json!({
        "disk": name,
        "size_bytes": info.size_bytes(),
        "first_sector": info.first_sector,
        "last_sector": info.first_sector + info.sector_count - 1,
        "block_bytes": info.block_bytes,
        "optimal_bytes": info.optimal_bytes,
        "max_transfer_bytes": info.max_transfer_bytes,
        "max_range_bytes": u64::from(info.max_range_sectors) * SECTOR_BYTES,
        "max_segments": info.max_segments,
        "capabilities": CAPABILITY_NAMES.iter().filter(|(bit, _)| info.can(*bit)).map(|(_, name)| *name).collect::<Vec<_>>(),
        "attached_as": "read-only client",
    })
}

type Describe = fn(&Value) -> String;

/// Of which nothing need be said.
const USUAL_WEIGHT: u64 = 100;

/// Parts of a description that need words: key, name, and how they are put.
const PARTS: [(&str, &str, Describe); 3] = [
    ("allow", "for users", describe_users),
    ("limits", "limit of a client", describe_limits),
    ("notify", "notifications", notify::describe),
];

fn render(disk: &Value) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{:<20}{value}", format!("{name}:"));
    };
    let number = |key| disk.get(key).and_then(Value::as_u64);
    line("disk", admin::text(disk, "disk").to_owned());
    let kinds = ls::kinds(disk, ", around ");
    if !kinds.is_empty() {
        line("kind", kinds);
    }
    if let Some(path) = disk.get("path").and_then(Value::as_str) {
        line("path", path.to_owned());
    }
    let size_bytes = admin::number(disk, "size_bytes");
    line("size", format!("{} ({size_bytes} bytes)", units::bytes(size_bytes)));
    line("first sector", admin::number(disk, "first_sector").to_string());
    line("last sector", format!("{} (of {SECTOR_BYTES} bytes)", admin::number(disk, "last_sector")));
    line("block size", format!("{} bytes", admin::number(disk, "block_bytes")));
    if let Some(io) = disk.get("io").and_then(Value::as_str) {
        let unit = number("direct_unit_bytes").map_or_else(|| io.to_owned(), |unit| format!("{io}, in units of {unit} bytes"));
        line("file I/O", unit);
    }
    let sizes = [
        ("optimal_bytes", "optimal transfer"),
        ("max_transfer_bytes", "longest transfer"),
        ("max_range_bytes", "longest zeroing"),
    ];
    for (key, name) in sizes {
        if let Some(length_bytes) = number(key) {
            line(name, units::bytes(length_bytes));
        }
    }
    if let Some(segments) = number("max_segments") {
        line("most segments", segments.to_string());
    }
    let capabilities: Vec<&str> = admin::list(disk, "capabilities").iter().filter_map(Value::as_str).collect();
    line("capabilities", if capabilities.is_empty() { "read".to_owned() } else { format!("read, {}", capabilities.join(", ")) });
    let flags = [("read_only", "read-only"), ("exclusive", "exclusive"), ("shared", "shared"), ("dedicated", "worker to itself")];
    for (key, name) in flags {
        if let Some(set) = disk.get(key).and_then(Value::as_bool) {
            line(name, if set { "yes" } else { "no" }.to_owned());
        }
    }
    for (key, name, describe) in PARTS {
        if let Some(part) = disk.get(key) {
            line(name, describe(part));
        }
    }
    if let Some(limits) = disk.get("limits") {
        line("limit of clients", describe_most_clients(limits, &disk["own_limits"]));
    }
    let sockets: Vec<&str> = admin::list(disk, "vhost_user").iter().filter_map(Value::as_str).collect();
    if !sockets.is_empty() {
        line("for machines at", sockets.join(", "));
    }
    if let Some(errors) = disk.get("errors").and_then(Value::as_object) {
        line("errors", describe_errors(errors));
        line("stalled requests", admin::number(disk, "stalled").to_string());
    }
    match disk.get("clients").and_then(Value::as_array) {
        Some(clients) => {
            line("clients", clients.len().to_string());
            for client in clients {
                line(&format!("  client {}", client["client"]), describe_client(client));
            }
        }
        None => line("clients", "unknown: only the daemon's user and root may ask".to_owned()),
    }
    text
}

fn describe_client(client: &Value) -> String {
    let (pid, uid, queues) = (&client["pid"], &client["uid"], &client["queues"]);
    let kind = if admin::text(client, "kind") == "vhost-user" { ", a virtual machine" } else { "" };
    let says = |key| client.get(key).and_then(Value::as_bool).unwrap_or(false);
    let claim = if says("sole_writer") { ", sole writer" } else { "" };
    let gone = if says("leaving") { ", gone, its last requests are not finished" } else { "" };
    let mut own = String::new();
    if let Some(weight) = client.get("weight").and_then(Value::as_u64).filter(|weight| *weight != USUAL_WEIGHT) {
        let _ = write!(own, ", weight {weight}");
    }
    if says("dedicated") {
        own.push_str(", with a worker to itself");
    }
    let [read, written] = ["read_bytes", "written_bytes"].map(|key| units::bytes(admin::number(client, key)));
    format!("process {pid}, user {uid}, {queues} queues{kind}{claim}{own}{gone}; {read} read, {written} written")
}

/// Root and the daemon's own user always may.
fn describe_users(allow: &Value) -> String {
    if allow.get("everyone").and_then(Value::as_bool).unwrap_or(false) {
        return "everyone".to_owned();
    }
    let (users, groups) = (names::users(admin::list(allow, "uids")), names::groups(admin::list(allow, "gids")));
    let listed = [("users", users), ("groups", groups)].into_iter().filter(|(_, ids)| !ids.is_empty());
    let listed = listed.map(|(what, ids)| format!("; {what} {ids}"));
    format!("root and the daemon's own{}", listed.collect::<String>())
}

fn describe_limits(limits: &Value) -> String {
    let [queues, depth] = ["max_queues", "max_depth"].map(|key| admin::number(limits, key));
    let [pool, memory] = ["max_pool_bytes", "max_memory_bytes"].map(|key| units::bytes(admin::number(limits, key)));
    format!("{queues} queues of depth {depth}, {pool} of pool, {memory} of its own memory")
}

fn describe_most_clients(limits: &Value, own: &Value) -> String {
    let own = own.get("max_clients").and_then(Value::as_u64).map_or_else(String::new, |count| format!("{count} on this disk, "));
    let all = admin::number(limits, "max_clients");
    let of_user = limits.get("max_clients_per_user").and_then(Value::as_u64);
    let of_user = of_user.map_or_else(|| "three quarters".to_owned(), |count| count.to_string());
    let memory = limits.get("max_memory_bytes_per_user").and_then(Value::as_u64);
    let memory = memory.map_or_else(String::new, |limit| format!(" with {} of memory", units::bytes(limit)));
    format!("{own}{all} on all disks, {of_user} of one user{memory}")
}

/// Errors of the disk itself, since the daemon opened it.
fn describe_errors(errors: &Map<String, Value>) -> String {
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    let failed = errors.iter().filter(|(_, value)| count(value) > 0);
    let failed: Vec<_> = failed.map(|(operation, value)| format!("{operation} {}", count(value))).collect();
    if failed.is_empty() { "none".to_owned() } else { format!("{} (see the daemon's log)", failed.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_kinds_and_limits_are_shown() {
        let text = render(&json!({
            "disk": "a", "kinds": ["delay", "file"], "path": "/srv/a.img",
            "allow": { "everyone": false, "uids": [0, 4_000_000_000_u32], "gids": [] },
            "own_limits": { "max_clients": 3, "max_queues": null, "max_depth": null },
            "limits": { "max_queues": 16, "max_depth": 256, "max_pool_bytes": 1 << 20, "max_memory_bytes": 1 << 30, "max_clients": 9 },
        }));
        for part in [
            "kind:               delay, around file\n",
            "path:               /srv/a.img\n",
            "for users:          root and the daemon's own; users root (0), 4000000000\n",
            "limit of a client:  16 queues of depth 256, 1 MiB of pool, 1 GiB of its own memory\n",
            "limit of clients:   3 on this disk, 9 on all disks, three quarters of one user\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(render(&json!({ "disk": "a", "allow": { "everyone": true } })).contains("for users:          everyone\n"));
    }

    #[test]
    fn errors_of_a_disk_are_listed_by_operation() {
        let disk = |errors: Value| json!({ "disk": "a", "errors": errors, "stalled": 3 });
        let text = render(&disk(json!({ "read": 0, "write": 2, "flush": 1 })));
        assert!(text.contains("flush 1, write 2 (see the daemon's log)"), "{text}");
        assert!(text.contains("stalled requests:   3"), "{text}");
        assert!(render(&disk(json!({ "read": 0 }))).contains("errors:             none"));
        assert!(!render(&disk(Value::Null)).contains("errors"), "a disk without errors");
    }

    #[test]
    fn a_client_without_the_admin_socket_learns_size_block_and_limits() {
        let info = BlockInfo {
            first_sector: 0,
            sector_count: 2048,
            block_bytes: 4096,
            optimal_bytes: 4096,
            max_transfer_bytes: 1 << 20,
            max_range_sectors: 1024,
            max_segments: 256,
            capabilities: fipsee_block::wire::CAPABILITY_FLUSH,
            identity: [0; 16],
        };
        let text = render(&describe("a", &info));
        for part in
            ["1 MiB (1048576 bytes)", "last sector:        2047", "4096 bytes", "512 KiB", "256", "read, flush", "unknown: only"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
