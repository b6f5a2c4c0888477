//! Servers of others, each started once and asleep while others are measured.

use std::path::Path;
use std::process::Command;

use super::through_fio::ThroughFio;
use super::vhost::Vhost;
use super::{Site, Way};
use crate::server::{Server, find_program, is_mounted};

/// Where qemu serves an export. `cargo xtask bench block --tune` measures the choices.
#[derive(Clone, Copy)]
pub(super) enum Loop {
    /// The main loop. With an I/O thread, NBD of qemu 7.2 ends with a failed assertion when its client leaves.
    Main,
    /// An I/O thread of its own, which polls for so many nanoseconds before it sleeps.
    Thread(u32),
}

/// An I/O thread with qemu's own polling time.
pub(super) const THREAD: Loop = Loop::Thread(32768);

impl Loop {
    const fn text(self) -> &'static str {
        match self {
            Self::Main => "",
            Self::Thread(_) => ",iothread=io0",
        }
    }
}

/// `qemu-storage-daemon` with a null disk `n0` and what `export` asks for.
fn qemu(site: &Site, place: Loop, export: &[&str], name: &str, is_ready: impl Fn() -> bool) -> Result<Server, String> {
    let mut command = Command::new(find_program("qemu-storage-daemon")?);
    if let Loop::Thread(polls_ns) = place {
        command.args(["--object", &format!("iothread,id=io0,poll-max-ns={polls_ns}")]);
    }
    command.args(["--blockdev", &format!("driver=null-co,node-name=n0,size={},read-zeroes=off", site.null_bytes)]);
    command.args(export);
    Server::start(command, &site.log(name), is_ready)
}

/// vhost-user-blk, with libblkio as its client.
pub(super) fn vhost(site: &Site, polling: bool, place: Loop) -> Result<Box<dyn Way>, String> {
    let socket = site.fresh("vhost");
    let export = format!(
        "type=vhost-user-blk,id=e0,node-name=n0,addr.type=unix,addr.path={},writable=on,num-queues=1{}",
        socket.display(),
        place.text()
    );
    let server = qemu(site, place, &["--export", &export], "vhost", || socket.exists())?;
    let pid = server.pid();
    Ok(Box::new(Vhost { server: Some(server), pid, socket, polling, cpu: site.cpus.client, disk_bytes: site.null_bytes }))
}

/// NBD over a Unix socket, with fio's own client.
pub(super) fn nbd(site: &Site, place: Loop) -> Result<Box<dyn Way>, String> {
    let socket = site.fresh("nbd");
    let mut way = nbd_client(site, "n0", &socket)?;
    let listen = format!("addr.type=unix,addr.path={}", socket.display());
    let export = format!("type=nbd,id=e0,node-name=n0,name=n0,writable=on{}", place.text());
    let arguments = ["--nbd-server", &listen, "--export", &export];
    way.keep(qemu(site, place, &arguments, "nbd", || socket.exists())?);
    Ok(Box::new(way))
}

/// `nbdkit null`.
pub(super) fn nbdkit(site: &Site, threads: u32) -> Result<Box<dyn Way>, String> {
    let socket = site.fresh("nbdkit");
    let mut command = Command::new(find_program("nbdkit")?);
    command
        .args(["--foreground", &format!("--threads={threads}"), "--unix"])
        .arg(&socket)
        .arg("null")
        .arg(site.null_bytes.to_string());
    let mut way = nbd_client(site, "", &socket)?;
    way.keep(Server::start(command, &site.log("nbdkit"), || socket.exists())?);
    Ok(Box::new(way))
}

fn nbd_client(site: &Site, export: &str, socket: &Path) -> Result<ThroughFio, String> {
    let uri = format!("--uri=nbd+unix:///{export}?socket={}", socket.display());
    Ok(ThroughFio::new(site.fio()?, site.cpus.client, vec!["--ioengine=nbd".to_owned(), uri]))
}

/// A file served through FUSE.
pub(super) fn fuse(site: &Site, place: Loop) -> Result<Box<dyn Way>, String> {
    let mut way = ThroughFio::new(site.fio()?, site.cpus.client, Vec::new());
    find_program("fusermount3")?;
    let file = site.fresh("fuse");
    std::fs::write(&file, "").map_err(|error| format!("cannot create {}: {error}", file.display()))?;
    let export = format!("type=fuse,id=e0,node-name=n0,mountpoint={},writable=on{}", file.display(), place.text());
    let server = qemu(site, place, &["--export", &export], "fuse", || is_mounted(&file))?;
    way.keep(server.mounted_on(&file));
    way.on_fuse(&file);
    Ok(Box::new(way))
}
