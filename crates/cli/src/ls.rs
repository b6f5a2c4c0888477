//! `fipsee ls`: the daemon's disks.

use std::path::Path;

use serde_json::{Value, json};

use crate::error::Error;
use crate::output::{self, Table};
use crate::{admin, units};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Print JSON: {"disks": [{"disk", "kind", "size_bytes", "block_bytes", ...}]}
    #[arg(long)]
    json: bool,
}

/// What the daemon serves.
pub(crate) fn ask(socket: &Path) -> Result<Value, Error> {
    Ok(admin::ask(socket, "disk.list", &json!({}))?)
}

pub(crate) fn run(socket: &Path, arguments: &Arguments) -> Result<(), Error> {
    let answer = ask(socket)?;
    if arguments.json {
        return output::print_json(&answer);
    }
    let mut table = Table::new(3, &["DISK", "KIND", "ACCESS", "SIZE", "BLOCK", "CLIENTS"]);
    for disk in admin::list(&answer, "disks") {
        table.push(vec![
            admin::text(disk, "disk").to_owned(),
            admin::text(disk, "kind").to_owned(),
            access(disk),
            units::bytes(admin::number(disk, "size_bytes")),
            admin::number(disk, "block_bytes").to_string(),
            admin::number(disk, "attached").to_string(),
        ]);
    }
    output::print(&table.render())
}

fn access(disk: &Value) -> String {
    let has = |key| disk.get(key).and_then(Value::as_bool).unwrap_or(false);
    let mode = if has("read_only") { "read-only" } else { "read-write" };
    let words = ["exclusive", "shared", "claimed"].into_iter().filter(|key| has(key));
    std::iter::once(mode).chain(words).collect::<Vec<_>>().join(", ")
}
