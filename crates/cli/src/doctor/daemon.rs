//! The running daemon, and the requirements of a configuration.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use clap::Parser;
use fipsee_block::disk::Engine;
use fipsee_daemon::admin::admin_path;
use fipsee_daemon::config::{Arguments, Config};
use fipsee_daemon::credentials_of;
use fipsee_ring::seqpacket::Seqpacket;
use rustix::fs::Access;

use super::{Finding, Root, State, limits};

const DAEMON: &str = "Daemon";
const CONFIGURATION: &str = "Configuration";
const THIS_USER: &str = "A daemon started here";

pub(super) fn look(root: Root<'_>, socket: &Path, is_named: bool) -> Vec<Finding> {
    let shown = socket.display();
    let Ok(connection) = Seqpacket::connect(socket) else {
        let found = format!("none at {shown}");
        let advice = "start fipseed, or name the socket at which it listens";
        let mut findings = vec![Finding::when(DAEMON, "running", !is_named, State::Fail, found, advice)];
        findings.extend(limits::look(THIS_USER, root, "self"));
        findings.push(kernel_rings());
        return findings;
    };
    let pid = credentials_of(&connection).map(|peer| peer.pid);
    let mut findings = vec![Finding::new(DAEMON, "running", State::Ok, format!("at {shown}"), "")];
    findings.extend(sockets(socket));
    match pid.ok().filter(|pid| root.text(&format!("proc/{pid}/comm")).is_some_and(|name| name.starts_with("fip"))) {
        Some(pid) => findings.extend(process(root, &pid.to_string())),
        // The service manager made the socket, so the peer's credentials are its own.
        None => {
            let advice = "systemctl status fipseed names the process";
            let found = "the service manager holds the socket; its limits and confinement are not looked at";
            findings.push(Finding::new(DAEMON, "process", State::Ok, format!("{found}: {advice}"), ""));
        }
    }
    findings
}

/// Limits and confinement of a daemon.
pub(super) fn process(root: Root<'_>, pid: &str) -> Vec<Finding> {
    let mut findings = limits::look(DAEMON, root, pid);
    let status = format!("proc/{pid}/status");
    let field = |name: &str| root.field(&status, name).unwrap_or_default();
    let is_root = field("Uid").split_whitespace().nth(1) == Some("0");
    let found = if is_root { "root" } else { "not root" };
    let advice = "it needs no privileges: run it as a user of its own, as the packages' unit does";
    findings.push(Finding::when(DAEMON, "user", !is_root, State::Warn, found, advice));
    let is_confined = field("Seccomp") == "2" && field("NoNewPrivs") == "1";
    let found = if is_confined { "system calls are restricted, no new privileges" } else { "not confined" };
    let advice = "confine = \"best-effort\" in its configuration; its log says what the kernel lacks";
    findings.push(Finding::when(DAEMON, "confinement", is_confined, State::Warn, found, advice));
    findings
}

fn sockets(socket: &Path) -> Vec<Finding> {
    let admin = admin_path(socket);
    let mode = |path: &Path| path.metadata().ok().map(|found| found.mode() & 0o777);
    let mut findings = Vec::new();
    if let Some(mode) = mode(socket) {
        let advice = "only some can connect at all; the disks' lists decide who may attach, so 0666 is safe";
        findings.push(Finding::when(
            DAEMON,
            "client socket",
            mode & 0o666 == 0o666,
            State::Warn,
            format!("mode {mode:04o}"),
            advice,
        ));
    }
    if let Some(mode) = mode(&admin) {
        let advice = "every user may resize disks and reload: chmod 0600, or 0660 with a group of administrators";
        findings.push(Finding::when(DAEMON, "admin socket", mode & 0o007 == 0, State::Fail, format!("mode {mode:04o}"), advice));
    }
    findings
}

/// Can this user have the kernel rings that file disks need?
fn kernel_rings() -> Finding {
    match Engine::check() {
        Ok(()) => Finding::new(THIS_USER, "kernel rings for file disks", State::Ok, "can be made", ""),
        Err(why) => Finding::new(THIS_USER, "kernel rings for file disks", State::Warn, "cannot be made", &why),
    }
}

pub(super) fn look_at_configuration(file: &Path) -> Vec<Finding> {
    let arguments = Arguments::try_parse_from([Path::new("fipseed"), Path::new("--config"), file]);
    let config = match arguments.map_err(|error| error.to_string()).and_then(Arguments::into_config) {
        Ok(config) => config,
        Err(why) => return vec![Finding::new(CONFIGURATION, "understood", State::Fail, "no", &why)],
    };
    let mut findings = vec![Finding::new(CONFIGURATION, "understood", State::Ok, format!("{} disks", config.disks.len()), "")];
    findings.push(safe_file(file));
    findings.extend(config.disks.iter().filter_map(|disk| {
        let path = disk.spec.kind.file()?;
        Some(disk_file(&disk.spec.name, path, disk.spec.ro))
    }));
    findings.extend(lists(&config));
    findings
}

/// A user who can write the file decides what is served to which users.
fn safe_file(file: &Path) -> Finding {
    let mode = file.metadata().map_or(0, |found| found.mode() & 0o777);
    let advice = "every user may change what is served: chmod o-w";
    Finding::when(CONFIGURATION, "file", mode & 0o002 == 0, State::Fail, format!("mode {mode:04o}"), advice)
}

fn disk_file(name: &str, path: &Path, read_only: bool) -> Finding {
    let check = format!("disk '{name}'");
    let shown = path.display();
    let Ok(found) = path.metadata() else {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let may_create = rustix::fs::access(folder, Access::WRITE_OK).is_ok();
        let advice = "create its folder, or let the daemon's user write there";
        return Finding::when(CONFIGURATION, &check, may_create, State::Fail, format!("{shown} is not there yet"), advice);
    };
    let wanted = if read_only { Access::READ_OK } else { Access::READ_OK | Access::WRITE_OK };
    if rustix::fs::access(path, wanted).is_err() {
        let advice = "change its owner or mode, or the daemon's user (run this as that user)";
        return Finding::new(CONFIGURATION, &check, State::Fail, format!("{shown} cannot be opened by this user"), advice);
    }
    let is_open = found.mode() & 0o006 != 0 && !found.file_type().is_block_device();
    let advice = "others can read or write the file past the daemon's lists: chmod o-rw";
    Finding::when(CONFIGURATION, &check, !is_open, State::Warn, format!("{shown}, mode {:04o}", found.mode() & 0o777), advice)
}

fn lists(config: &Config) -> Option<Finding> {
    let open: Vec<&str> =
        config.disks.iter().filter(|disk| disk.allow.everyone && !disk.spec.ro).map(|disk| disk.spec.name.as_str()).collect();
    let advice = "every user may write there: name users or groups in allow_uids, allow_gids, or add ro";
    (!open.is_empty())
        .then(|| Finding::new(CONFIGURATION, "lists", State::Warn, format!("{} for everyone", open.join(", ")), advice))
}
