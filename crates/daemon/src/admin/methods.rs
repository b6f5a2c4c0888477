//! The methods of the admin socket, with their parameters. `docs/admin-schema.json` describes them for programs; a test makes it
//! from these types.

use std::num::{NonZeroU16, NonZeroU32, NonZeroU64};
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use super::rpc::{RpcError, parameters};
use crate::disk_limits::Limit;

/// What `rpc.discover` returns: an OpenRPC document.
pub(super) const SCHEMA: &str = include_str!("../../../../docs/admin-schema.json");

macro_rules! parameters {
    ($($(#[$meta:meta])* struct $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* })+) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Debug, Deserialize)]
            #[cfg_attr(test, derive(schemars::JsonSchema))]
            #[serde(deny_unknown_fields)]
            pub(super) struct $name { $($(#[$field_meta])* pub(super) $field: $type,)* }
        )+
    };
}

parameters! {
    struct Nothing {}

    struct DiskName {
        disk: String,
    }

    struct AddDisk {
        /// `NAME=KIND:ARGS`, as `fipseed --disk` has it; the path of a file is absolute
        spec: String,
        /// The path of a file disk in place of the one in `spec`, for example because it has a comma
        path: Option<PathBuf>,
        /// Users that may attach, besides root and the daemon's own
        #[serde(default)]
        allow_uids: Vec<u32>,
        #[serde(default)]
        allow_gids: Vec<u32>,
        #[serde(default)]
        allow_everyone: bool,
        /// Clients and virtual machines attached at once
        max_clients: Option<NonZeroU32>,
        /// Of one of them, and the next; each at most the daemon's
        max_queues: Option<NonZeroU16>,
        /// Requests outstanding per queue
        max_depth: Option<NonZeroU32>,
        /// Sockets at which virtual machines are served
        #[serde(default)]
        vhost_user: Vec<PathBuf>,
        /// The descriptor of the disk's open file comes with the request (SCM_RIGHTS): for a path that the daemon cannot reach
        #[serde(default)]
        file_passed: bool,
    }

    struct SetDisk {
        disk: String,
        /// In place of the whole list, as each of these
        allow_uids: Option<Vec<u32>>,
        allow_gids: Option<Vec<u32>>,
        allow_everyone: Option<bool>,
        /// May several clients write at a time, whatever they claim? For those that attach from now on
        shared: Option<bool>,
        /// Clients and virtual machines attached at once; none of those that are there is ended
        max_clients: Option<Limit<NonZeroU32>>,
        /// Of one of them, and the next; for those that attach from now on
        max_queues: Option<Limit<NonZeroU16>>,
        /// Requests outstanding per queue
        max_depth: Option<Limit<NonZeroU32>>,
        /// Is a worker for this disk alone? Refused if no other is left for the rest
        dedicated: Option<bool>,
    }

    struct SetLimit {
        /// One of these six: of all clients of a disk
        disk: Option<String>,
        /// Of the frames that a port sends, by network and name, for example `lan/a`
        port: Option<String>,
        /// Of all clients of a user together, by its number
        user: Option<u32>,
        /// Of a configured group
        group: Option<String>,
        /// Of a virtual machine, as a LIMIT names it: the process of its hypervisor
        machine: Option<MachineName>,
        /// Of one client, by its number in `disk.info`, or in a PORT of `stat`
        client: Option<u64>,
        /// Requests or frames per second
        iops: Option<Limit<NonZeroU64>>,
        bytes_per_second: Option<Limit<NonZeroU64>>,
        /// For how long what is not used is kept
        burst_ms: Option<Limit<NonZeroU32>>,
        /// Of a user, group or virtual machine among the others, or of a client among those that have one share with it, from 1 to
        /// 1000; usually 100. Not of a disk or port
        weight: Option<Limit<NonZeroU16>>,
        /// Is a worker for its queues alone? Not of a disk: `disk.set`; nor of a port or its client. Refused if no other is left for the rest
        dedicated: Option<bool>,
    }

    struct Resize {
        disk: String,
        size_bytes: u64,
        /// Accept a smaller size, and with it the loss of the data beyond
        #[serde(default)]
        shrink: bool,
        /// Even while it is in use
        #[serde(default)]
        force: bool,
    }

    /// A policy takes the place of the one of now; what it leaves out is not limited.
    struct SetNotify {
        disk: String,
        /// Only this client's queues, in place of all queues of the disk, of clients and machines of now and later
        client: Option<u64>,
        /// Most notifications per second and queue; it takes precedence over `max_delay_us`
        max_rate: Option<u64>,
        /// So many completions are worth a notification; no more are waited for than are in flight
        min_completions: Option<u64>,
        /// What fewer completions wait at most
        max_delay_us: Option<u64>,
        /// Rate and occupancy of the queue decide how many completions are waited for
        #[serde(default)]
        auto: bool,
        /// Without a policy: each notification is sent at once
        #[serde(default)]
        off: bool,
    }

    struct Attach {
        disk: String,
        /// An absolute path
        vhost_user: PathBuf,
    }

    struct Detach {
        vhost_user: PathBuf,
    }

    struct SetPort {
        /// Network and port, for example `lan/a`
        port: String,
        /// Does it neither send nor get frames, also while a client has it?
        down: Option<bool>,
        /// Its address from now on, for example `02:00:00:00:00:01`
        mac: Option<String>,
    }

    struct SetMtu {
        network: String,
        /// At most the one that is configured
        mtu: u16,
    }

    struct AttachPort {
        network: String,
        /// Its name. Without one: that of the device, or the file name of `vhost_user` without its ending, with a number if it is taken;
        /// otherwise `port-1`, `port-2`, ...
        port: Option<String>,
        /// Its address; made from the names otherwise
        mac: Option<String>,
        /// As the keys of `[[network.port]]`
        vlan: Option<u16>,
        trunk: Option<Vec<u16>>,
        #[serde(default)]
        any_source: bool,
        #[serde(default)]
        isolated: bool,
        #[serde(default)]
        mirror: bool,
        #[serde(default)]
        allmulti: bool,
        /// The IP addresses that it may send with; none: any
        #[serde(default)]
        ips: Vec<String>,
        /// Does it neither send nor get frames, until `net.set`?
        #[serde(default)]
        down: bool,
        flood_limit: Option<u32>,
        /// Users that may attach, besides root and the daemon's own
        #[serde(default)]
        allow_uids: Vec<u32>,
        #[serde(default)]
        allow_gids: Vec<u32>,
        #[serde(default)]
        allow_everyone: bool,
        /// The port is a device of the host: so many descriptors of its queues come with the request (SCM_RIGHTS)
        #[serde(default)]
        device_queues: u16,
        /// The port is a virtual machine's, which connects there: an absolute path
        vhost_user: Option<PathBuf>,
    }

    struct PortName {
        /// Network and port, for example `lan/a`
        port: String,
    }

    struct SetWorkers {
        /// A number; a range, of which as many are used as the load needs: `1..4`; `auto`; or `off`: nothing changes
        workers: String,
    }

    struct Takeover {
        /// Of the conversation between the two daemons
        version: u32,
        /// How long requests in flight are waited for
        wait_ms: u64,
    }
}

#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "a virtual machine is a process, or the path of its socket")]
pub(super) enum MachineName {
    Process(u32),
    /// Where the process cannot be seen
    Socket(String),
}

macro_rules! methods {
    ($($(#[doc = $doc:literal])+ $method:literal $call:ident($params:ident) -> $result:ident,)+) => {
        #[derive(Debug)]
        pub(super) enum Call { $($call($params),)+ }

        impl Call {
            pub(super) fn parse(method: &str, params: Option<Value>) -> Result<Self, RpcError> {
                match method {
                    $($method => parameters(params).map(Self::$call),)+
                    _ => Err(RpcError::no_method(method)),
                }
            }
        }

        /// Name, description, parameters, result.
        #[cfg(test)]
        fn all() -> Vec<(&'static str, &'static str, schemars::Schema, schemars::Schema)> {
            vec![$(($method, concat!($($doc),+), schemars::schema_for!($params), schemars::schema_for!(schema::$result)),)+]
        }
    };
}

methods! {
    /// The disks that are served.
    "disk.list" List(Nothing) -> Disks,
    /// A disk and its clients.
    "disk.info" Info(DiskName) -> Disk,
    /// Serve one more disk, until the daemon is restarted.
    "disk.add" Add(AddDisk) -> Disk,
    /// Serve a disk no longer; refused while a client is attached to it.
    "disk.remove" Remove(DiskName) -> Disk,
    /// Change who may use a disk, and how; clients that are attached stay.
    "disk.set" Set(SetDisk) -> Disk,
    /// Rates and weights in force.
    "limit.list" Limits(Nothing) -> Limits,
    /// Limit the requests and bytes per second of a disk, port, user, group, virtual machine or client, change its weight, or give it a worker.
    "limit.set" Limit(SetLimit) -> LimitOf,
    /// Change the size of a disk; a smaller one needs `shrink`, and `force` as well while a client is attached.
    "disk.resize" Resize(Resize) -> Disk,
    /// Serve a disk to virtual machines at one more Unix socket.
    "disk.attach" Attach(Attach) -> Disk,
    /// Remove such a socket; refused while a machine is connected to it.
    "disk.detach" Detach(Detach) -> Disk,
    /// Add a port to a network, until the daemon is restarted; or give one its device again, which was gone.
    "net.attach" AttachPort(AttachPort) -> NewPort,
    /// Remove a port; refused while a client is attached to it. A device of the host is closed.
    "net.detach" DetachPort(PortName) -> NewPort,
    /// When sleeping clients and guests of a disk are notified of completions.
    "notify.set" Notify(SetNotify) -> Disk,
    /// Take a port of a network down, or up again, or give it another address. Its client is notified.
    "net.set" SetPort(SetPort) -> Port,
    /// Give a network another MTU. Clients of its ports are notified.
    "net.set_mtu" SetMtu(SetMtu) -> Network,
    /// What queues and workers have done since the start.
    "stat" Stat(Nothing) -> Stat,
    /// The workers: their CPUs, whether they are in use, and how long they were busy.
    "workers" Workers(Nothing) -> Workers,
    /// How many of the workers that were started are in use, until the daemon is restarted.
    "workers.set" SetWorkers(SetWorkers) -> Workers,
    /// Read the configuration file again; an error means that nothing has changed.
    "reload" Reload(Nothing) -> Outcome,
    /// The configuration in force, with the changes since the start, as a configuration file.
    "config.dump" Dump(Nothing) -> Dump,
    /// For `fipseed --takeover` alone, of root and the daemon's own user: hand everything over; a socket comes with the answer.
    "takeover" Takeover(Takeover) -> HandedOver,
    /// This document.
    "rpc.discover" Discover(Nothing) -> Document,
}

/// The results, as far as the schema describes them; docs/admin.md has the fields.
#[cfg(test)]
mod schema {
    use std::collections::BTreeMap;

    use schemars::JsonSchema;
    use serde_json::Value;

    pub(super) use crate::reload::Outcome;

    macro_rules! results {
        ($($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* })+) => {
            $(
                $(#[$meta])*
                #[derive(JsonSchema)]
                #[allow(dead_code, reason = "only its schema is used")]
                pub(super) struct $name { $($(#[$field_meta])* $field: $type,)* }
            )+
        };
    }

    results! {
        /// DISK in docs/admin.md.
        Disk {
            disk: String,
            kind: String,
            size_bytes: u64,
            block_bytes: u32,
            #[schemars(flatten)]
            more: BTreeMap<String, Value>,
        }
        /// What limits one disk, port, user, group, machine or client; docs/admin.md.
        LimitOf {
            iops: Option<u64>,
            bytes_per_second: Option<u64>,
            burst_ms: Option<u32>,
            throttled: u64,
            #[schemars(flatten)]
            more: BTreeMap<String, Value>,
        }
        Limits {
            limits: Vec<BTreeMap<String, Value>>,
        }
        Port {
            port: String,
            link: String,
            mac: String,
        }
        Network {
            network: String,
            mtu: u16,
        }
        /// A port that was added or removed.
        NewPort {
            port: String,
            mac: String,
            mtu: u16,
            any_source: bool,
            device: Option<String>,
            vhost_user: Option<String>,
        }
        Disks {
            disks: Vec<BTreeMap<String, Value>>,
        }
        Stat {
            uptime_s: u64,
            #[schemars(flatten)]
            more: BTreeMap<String, Value>,
        }
        Workers {
            mode: String,
            workers: Vec<BTreeMap<String, Value>>,
        }
        Dump {
            toml: String,
        }
        HandedOver {
            takeover: u32,
        }
        /// OpenRPC.
        Document {
            openrpc: String,
            #[schemars(flatten)]
            more: BTreeMap<String, Value>,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::rpc::CODES;
    use super::*;

    /// Raised by what a client would notice: the first number by changes that break one.
    const VERSION: &str = "1.4.0";

    fn document() -> Value {
        let methods = all().into_iter().map(|(name, doc, params, result)| {
            let schema = params.to_value();
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            let properties = schema["properties"].as_object().cloned().unwrap_or_default();
            let param = |(name, schema): (String, Value)| {
                json!({ "required": required.contains(&json!(name)), "name": name, "schema": schema })
            };
            json!({
                "name": name,
                "summary": doc.trim(),
                "paramStructure": "by-name",
                "params": properties.into_iter().map(param).collect::<Vec<_>>(),
                "result": { "name": "result", "schema": result.to_value() },
            })
        });
        let errors = CODES.map(|(code, message)| json!({ "code": code, "message": message }));
        json!({
            "openrpc": "1.3.2",
            "info": {
                "title": "The admin socket of fipseed",
                "version": VERSION,
                "description": "JSON-RPC 2.0 over a Unix stream socket, one object per line (docs/admin.md)",
            },
            "methods": methods.collect::<Vec<_>>(),
            "components": { "errors": errors },
        })
    }

    /// `FIPSEE_WRITE_SCHEMA=1` writes it anew.
    #[test]
    fn the_schema_that_is_shipped_is_that_of_the_types() {
        let text = format!("{}\n", serde_json::to_string_pretty(&document()).expect("JSON"));
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/admin-schema.json");
        if std::env::var_os("FIPSEE_WRITE_SCHEMA").is_some() {
            std::fs::write(path, &text).expect("written");
        }
        let there = std::fs::read_to_string(path).expect("a file");
        assert!(
            there == text,
            "docs/admin-schema.json is not that of the types; run this test with FIPSEE_WRITE_SCHEMA=1, and look"
        );
    }

    #[test]
    fn the_document_names_every_method() {
        let document = include_str!("../../../../docs/admin.md");
        for (name, ..) in all() {
            assert!(document.contains(&format!("`{name}`")), "docs/admin.md has no {name}");
        }
    }

    #[test]
    fn parameters_are_checked() {
        let code = |method, params: Value| {
            let error = Call::parse(method, Some(params)).expect_err(method);
            serde_json::from_str::<Value>(&super::super::rpc::failure(&Value::Null, error)).expect("JSON")["error"]["code"]
                .clone()
        };
        assert_eq!(code("disk", json!({})), -32601);
        assert_eq!(code("disk.info", json!({})), -32602);
        assert_eq!(code("disk.info", json!(["a"])), -32602);
        assert_eq!(code("disk.info", json!({ "disk": "a", "name": "b" })), -32602);
        assert_eq!(code("stat", json!({ "disk": "a" })), -32602);
        assert!(Call::parse("stat", None).is_ok());
    }
}
