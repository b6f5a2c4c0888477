//! `fipsee limit`: rates and weights of disks, ports, users, groups and clients.

use std::path::Path;

use clap::ArgGroup;
use fipsee_block::disk::spec::parse_size;
use fipsee_daemon::config::user_number;
use fipsee_daemon::rates::{MAX_IOPS, MAX_WEIGHT, parse_burst};
use serde_json::{Map, Value, json};

use crate::error::Error;
use crate::output::{self, Table};
use crate::{admin, names, units};

/// Without an option that changes something, it shows what is in force. A limit is for all requests of what it is of: of all clients
/// of a disk together, of all connections of a user or group, of all disks and ports of a virtual machine, of all queues of a client. A
/// frame that a port sends is a request, with the bytes of each copy of it.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("of").args(["disk", "port", "user", "group", "machine", "client"]))]
pub(crate) struct Arguments {
    /// Limit all clients of this disk together
    disk: Option<String>,
    /// Limit what a port of a network sends, whatever has it: NETWORK/PORT
    #[arg(long, value_name = "PORT")]
    port: Option<String>,
    /// Limit all clients of this user together, by name or number
    #[arg(long, value_name = "NAME", value_parser = user_number)]
    user: Option<u32>,
    /// Limit a [[group]] of the configuration
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Limit all disks and ports of a virtual machine together, by the process of its hypervisor
    #[arg(long, value_name = "PID", value_parser = machine)]
    machine: Option<Value>,
    /// Limit one client of a disk or port, or one disk of a virtual machine, by its number in fipsee info or fipsee net info
    #[arg(long, value_name = "N", value_parser = crate::disk::up_to::<{ u64::MAX }>)]
    client: Option<u64>,
    /// Requests or frames per second, or off
    #[arg(long, value_name = "N", value_parser = crate::disk::limit::<MAX_IOPS>, requires = "of")]
    iops: Option<Value>,
    /// Bytes per second, for example 100M, or off
    #[arg(long, value_name = "SIZE", value_parser = bytes, requires = "of")]
    bytes_per_second: Option<Value>,
    /// How long what is not used is kept, and may be used at once, for example 100ms [default: 5ms], or off: the default
    #[arg(long, value_name = "TIME", value_parser = burst, requires = "of")]
    burst: Option<Value>,
    /// Weight in sharing a worker, 1 to 1000, or off: the usual 100. Of a user, group or virtual machine among all others; of a client
    /// among those that have one share with it
    #[arg(long, value_name = "N", value_parser = crate::disk::limit::<{ MAX_WEIGHT as u64 }>, requires = "of")]
    weight: Option<Value>,
    /// Is a worker, and its CPU, for these queues alone? Not for those of ports; for those of a disk: fipsee disk set --dedicated
    #[arg(long, value_name = "BOOL", requires = "of")]
    dedicated: Option<bool>,
    /// Remove the limits
    #[arg(long, conflicts_with_all = ["iops", "bytes_per_second", "burst"], requires = "of")]
    off: bool,
    /// Print JSON: {"limits": [{"disk", "iops", "bytes_per_second", "burst_ms", "clients"}, ...]}
    #[arg(long)]
    json: bool,
}

fn bytes(text: &str) -> Result<Value, String> {
    match text {
        "off" => Ok(text.into()),
        _ => match parse_size(text)? {
            0 => Err("0 is not possible; write a size, for example 100M, or off".to_owned()),
            bytes => Ok(bytes.into()),
        },
    }
}

/// A process, or the path of the socket of one that cannot be seen.
fn machine(text: &str) -> Result<Value, String> {
    match text.parse::<u32>() {
        Ok(pid) => Ok(pid.into()),
        Err(_) if text.starts_with('/') => Ok(text.into()),
        Err(_) => Err("write the number of the hypervisor's process, as fipsee limit shows it".to_owned()),
    }
}

fn burst(text: &str) -> Result<Value, String> {
    match text {
        "off" => Ok(text.into()),
        _ => parse_burst(text).map(|ms| ms.get().into()).map_err(|problem| format!("{problem}, or off")),
    }
}

pub(crate) fn run(socket: &Path, arguments: &Arguments) -> Result<(), Error> {
    let Arguments { disk, port, user, group, machine, client, iops, bytes_per_second, burst, weight, dedicated, off, json } =
        arguments;
    let target = json!({ "disk": disk, "port": port, "user": user, "group": group, "machine": machine, "client": client });
    let target = given(&target);
    let off_or = |value: &Option<Value>| if *off { Some(json!("off")) } else { value.clone() };
    let changes = json!({
        "iops": off_or(iops),
        "bytes_per_second": off_or(bytes_per_second),
        "burst_ms": off_or(burst),
        "weight": weight,
        "dedicated": dedicated,
    });
    let changes = given(&changes);
    let limits = if changes.is_empty() {
        let answer = admin::ask(socket, "limit.list", &json!({}))?;
        let is_meant = |limit: &&Value| target.iter().all(|(key, value)| limit.get(key) == Some(value));
        let found: Vec<Value> = admin::list(&answer, "limits").iter().filter(is_meant).cloned().collect();
        if found.is_empty() {
            nothing_of(socket, &target)?;
        }
        found
    } else {
        let params: Map<String, Value> = target.into_iter().chain(changes).collect();
        vec![admin::ask(socket, "limit.set", &params.into())?]
    };
    if *json { output::print_json(&json!({ "limits": limits })) } else { output::print(&render(&limits)) }
}

/// What is not null.
fn given(values: &Value) -> Map<String, Value> {
    let values = values.as_object().into_iter().flatten();
    values.filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// It is not there, or nothing limits it.
fn nothing_of(socket: &Path, target: &Map<String, Value>) -> Result<(), Error> {
    match target.iter().next() {
        // The daemon says which there are.
        Some((key, name)) if key == "disk" => admin::ask(socket, "disk.info", &json!({ "disk": name })).map(drop)?,
        Some((key, name)) if key == "group" => {
            let name = name.as_str().unwrap_or_default();
            return Err(format!("no group '{name}' is configured; `fipsee limit` lists those that are").into());
        }
        Some((key, name)) if key == "port" => {
            let stat = admin::ask(socket, "stat", &json!({}))?;
            let of = |network: &Value| {
                let ports = admin::list(network, "ports").iter().map(|port| admin::text(port, "port"));
                ports.map(|port| format!("{}/{port}", admin::text(network, "network"))).collect::<Vec<_>>()
            };
            let ports: Vec<String> = admin::list(&stat, "networks").iter().flat_map(of).collect();
            let name = name.as_str().unwrap_or_default();
            if !ports.iter().any(|port| port == name) {
                return Err(format!("no port '{name}' here; `fipsee net stat` names them, for example lan/a").into());
            }
        }
        _ => {}
    }
    Ok(())
}

fn render(limits: &[Value]) -> String {
    if limits.is_empty() {
        return "nothing limits it\n".to_owned();
    }
    let mut table = Table::new(1, &["OF", "WEIGHT", "IOPS", "BYTES/S", "BURST", "WORKER", "CLIENTS", "THROTTLED"]);
    for limit in limits {
        let number = |key: &str| limit.get(key).and_then(Value::as_u64);
        let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let is_limited = number("iops").or(number("bytes_per_second")).is_some();
        let burst = number("burst_ms").or(is_limited.then_some(5)).map(|ms| format!("{ms} ms"));
        table.push(vec![
            what(limit),
            or_none(number("weight").map(|weight| weight.to_string())),
            or_none(number("iops").map(|iops| iops.to_string())),
            or_none(number("bytes_per_second").map(units::bytes)),
            or_none(burst),
            or_none(limit.get("dedicated").and_then(Value::as_bool).filter(|own| *own).map(|_| "own".to_owned())),
            or_none(limit.get("clients").and_then(Value::as_array).map(|clients| clients.len().to_string())),
            admin::number(limit, "throttled").to_string(),
        ]);
    }
    table.render()
}

/// What a limit is of.
fn what(limit: &Value) -> String {
    let text = |key: &str| limit.get(key).and_then(Value::as_str);
    let number = |key: &str| limit.get(key).filter(|value| value.is_u64());
    if let Some(uid) = number("user") {
        return format!("user {}", names::users(std::slice::from_ref(uid)));
    }
    if let Some(client) = number("client") {
        let of_port = || text("of_port").map(|port| format!("port {port}"));
        let of = text("of_disk").map(|disk| format!("disk {disk}")).or_else(of_port);
        return format!("client {client} of {}", of.as_deref().unwrap_or("?"));
    }
    if let Some(pid) = number("machine") {
        return format!("virtual machine, process {pid}");
    }
    let kinds = [("disk", "disk"), ("port", "port"), ("group", "group"), ("machine", "virtual machine at"), ("device", "device")];
    let found = kinds.into_iter().find_map(|(key, word)| Some(format!("{word} {}", text(key)?)));
    found.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_listed_with_what_they_are_of() {
        let limits = [
            json!({ "disk": "a", "iops": 2000, "bytes_per_second": null, "burst_ms": null, "clients": [1, 2] }),
            json!({ "user": 4_000_000_000_u32, "weight": 50, "iops": null, "bytes_per_second": 1 << 20, "burst_ms": 100, "clients": [] }),
            json!({ "group": "batch", "weight": 100, "iops": null, "bytes_per_second": null, "burst_ms": null, "clients": [] }),
            json!({ "machine": 42, "weight": 100, "clients": [7] }),
            json!({ "client": 7, "of_disk": "a", "iops": 1, "weight": 100, "dedicated": true, "throttled": 3 }),
            json!({ "port": "lan/a", "iops": 9, "bytes_per_second": null, "burst_ms": null, "clients": [4], "throttled": 2 }),
            json!({ "client": 8, "of_port": "lan/a", "iops": null, "weight": 50, "dedicated": false, "throttled": 0 }),
            json!({ "device": "fip0", "weight": 100, "clients": [] }),
        ];
        let text = render(&limits);
        let lines: Vec<String> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines[1..],
            [
                "disk a - 2000 - 5 ms - 2 0",
                "user 4000000000 50 - 1 MiB 100 ms - 0 0",
                "group batch 100 - - - - 0 0",
                "virtual machine, process 42 100 - - - - 1 0",
                "client 7 of disk a 100 1 - 5 ms own - 3",
                "port lan/a - 9 - 5 ms - 1 2",
                "client 8 of port lan/a 50 - - - - - 0",
                "device fip0 100 - - - - 0 0",
            ]
        );
        assert_eq!(render(&[]), "nothing limits it\n");
    }
}
