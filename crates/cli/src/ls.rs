//! `fipsee ls`: the daemon's disks, or those of them that this user may use.

use std::path::Path;

use fipsee_block::client;
use fipsee_daemon::admin::admin_path;
use serde_json::{Value, json};

use crate::admin::NoAnswer;
use crate::error::Error;
use crate::output::{self, Table};
use crate::{admin, units};

/// Columns of a terminal that the table fits, by showing the end of a long path only.
const WIDTH: usize = 100;
/// Columns that a path has at least.
const MIN_PATH_WIDTH: usize = 16;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Print JSON: {"disks": [{"disk", "kind", "size_bytes", "block_bytes", ...}]}
    #[arg(long)]
    json: bool,
}

/// What the daemon serves.
pub(crate) fn ask(socket: &Path) -> Result<Value, Error> {
    match admin::ask(socket, "disk.list", &json!({})) {
        Ok(answer) => Ok(answer),
        // Another user's daemon, or one of which only the client socket is reachable.
        Err(NoAnswer::NoPermission(_)) => ask_as_client(socket),
        Err(NoAnswer::Other(_)) if socket.exists() && !admin_path(socket).exists() => ask_as_client(socket),
        Err(NoAnswer::Other(error)) => Err(error),
    }
}

pub(crate) fn run(socket: &Path, arguments: &Arguments) -> Result<(), Error> {
    let answer = ask(socket)?;
    if arguments.json {
        return output::print_json(&answer);
    }
    let disks = admin::list(&answer, "disks");
    if answer.get("for_uid").is_some() {
        return output::print(&render_for_client(disks));
    }
    output::print(&render(disks))
}

/// What an ordinary client may know: the disks that its user may attach.
fn ask_as_client(socket: &Path) -> Result<Value, Error> {
    let disks = client::list(socket)?.into_iter().map(|disk| {
        json!({
            "disk": disk.name,
            "size_bytes": disk.size_bytes,
            "block_bytes": disk.block_bytes,
            "read_only": disk.read_only,
        })
    });
    Ok(json!({ "disks": disks.collect::<Vec<_>>(), "for_uid": rustix::process::geteuid().as_raw() }))
}

/// With as much of the paths as there is room for.
fn render(disks: &[Value]) -> String {
    let without_paths = render_with(disks, 0);
    let width = without_paths.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    let room = (WIDTH + "PATH".len()).saturating_sub(width).max(MIN_PATH_WIDTH);
    render_with(disks, room)
}

/// A path has at most so many columns.
fn render_with(disks: &[Value], path_width: usize) -> String {
    let mut table = Table::new(5, &["DISK", "KIND", "IO", "ACCESS", "PATH", "SIZE", "BLOCK", "CLIENTS"]);
    for disk in disks {
        let or_none = |key| disk.get(key).and_then(Value::as_str).unwrap_or("-").to_owned();
        table.push(vec![
            admin::text(disk, "disk").to_owned(),
            kinds(disk, ":"),
            or_none("io"),
            access(disk),
            shorten(&or_none("path"), path_width),
            units::bytes(admin::number(disk, "size_bytes")),
            admin::number(disk, "block_bytes").to_string(),
            admin::number(disk, "attached").to_string(),
        ]);
    }
    table.render()
}

fn render_for_client(disks: &[Value]) -> String {
    let mut table = Table::new(2, &["DISK", "ACCESS", "SIZE", "BLOCK"]);
    for disk in disks {
        table.push(vec![
            admin::text(disk, "disk").to_owned(),
            access(disk),
            units::bytes(admin::number(disk, "size_bytes")),
            admin::number(disk, "block_bytes").to_string(),
        ]);
    }
    table.render()
}

/// Its kind, after those that it is wrapped in.
pub(crate) fn kinds(disk: &Value, between: &str) -> String {
    let kinds: Vec<&str> = admin::list(disk, "kinds").iter().filter_map(Value::as_str).collect();
    if kinds.is_empty() { admin::text(disk, "kind").to_owned() } else { kinds.join(between) }
}

/// The end of a text says more of a path than its beginning.
fn shorten(path: &str, width: usize) -> String {
    const DOTS: &str = "...";
    let length = path.chars().count();
    if length <= width {
        return path.to_owned();
    }
    let end: String = path.chars().skip(length - width.saturating_sub(DOTS.len())).collect();
    format!("{}{end}", DOTS.get(..width.min(DOTS.len())).unwrap_or(DOTS))
}

fn access(disk: &Value) -> String {
    let has = |key| disk.get(key).and_then(Value::as_bool).unwrap_or(false);
    let mode = if has("read_only") { "read-only" } else { "read-write" };
    let words = ["exclusive", "shared", "claimed"].into_iter().filter(|key| has(key));
    std::iter::once(mode).chain(words).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_is_shown_by_its_end() {
        assert_eq!(shorten("/srv/a.img", 10), "/srv/a.img");
        assert_eq!(shorten("/srv/disks/a.img", 10), "...s/a.img");
        assert_eq!(shorten("/srv", 0), "");
        let path = format!("/{}/a.img", "folder".repeat(30));
        let disk = json!({ "disk": "a", "kinds": ["delay", "file"], "io": "direct", "path": path, "size_bytes": 1_u64 << 40 });
        let table = render(&[disk]);
        assert!(table.lines().all(|line| line.chars().count() <= WIDTH), "{table}");
        assert!(table.contains("delay:file  direct") && table.contains("folder/a.img"), "{table}");
    }
}
