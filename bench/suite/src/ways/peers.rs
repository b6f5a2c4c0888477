//! Servers of others, each started once and asleep while others are measured.

use std::path::Path;
use std::process::Command;

use super::through_fio::ThroughFio;
use super::vhost::Vhost;
use super::{Site, Way};
use crate::server::{Server, find_program, is_mounted};

/// What may make a peer faster or slower. `cargo xtask bench block --tune` measures the choices.
#[derive(Clone, Copy)]
pub(super) struct Setting {
    /// Nanoseconds for which qemu's I/O thread polls before it sleeps; `None`: the export lives in the main loop.
    pub(super) thread_polls_ns: Option<u32>,
    /// Bound to the server's CPU, or free to share the client's.
    pub(super) bound: bool,
}

/// An I/O thread with qemu's own polling time, bound: measured to be as good as any other for each peer but NBD.
pub(super) const USUAL: Setting = Setting { thread_polls_ns: Some(32768), bound: true };
/// qemu's main loop: with an I/O thread, NBD of qemu 7.2 ends with a failed assertion when its client leaves.
pub(super) const MAIN_LOOP: Setting = Setting { thread_polls_ns: None, bound: true };

impl Setting {
    fn cpu(self, site: &Site) -> Option<usize> {
        self.bound.then_some(site.cpus.server)
    }

    const fn thread(self) -> &'static str {
        if self.thread_polls_ns.is_some() { ",iothread=io0" } else { "" }
    }
}

/// `qemu-storage-daemon` with a null disk `n0` and what `export` asks for.
fn qemu(site: &Site, setting: Setting, export: &[&str], name: &str, is_ready: impl Fn() -> bool) -> Result<Server, String> {
    let mut command = Command::new(find_program("qemu-storage-daemon")?);
    if let Some(polls_ns) = setting.thread_polls_ns {
        command.args(["--object", &format!("iothread,id=io0,poll-max-ns={polls_ns}")]);
    }
    command.args(["--blockdev", &format!("driver=null-co,node-name=n0,size={},read-zeroes=off", site.null_bytes)]);
    command.args(export);
    Server::start(command, setting.cpu(site), &site.log(name), is_ready)
}

/// vhost-user-blk, with libblkio as its client.
pub(super) fn vhost(site: &Site, polling: bool, setting: Setting) -> Result<Box<dyn Way>, String> {
    let socket = site.fresh("vhost");
    let export = format!(
        "type=vhost-user-blk,id=e0,node-name=n0,addr.type=unix,addr.path={},writable=on,num-queues=1{}",
        socket.display(),
        setting.thread()
    );
    let server = qemu(site, setting, &["--export", &export], "vhost", || socket.exists())?;
    Ok(Box::new(Vhost { server, socket, polling, cpu: site.cpus.client, disk_bytes: site.null_bytes }))
}

/// NBD over a Unix socket, with fio's own client.
pub(super) fn nbd(site: &Site, setting: Setting) -> Result<Box<dyn Way>, String> {
    let socket = site.fresh("nbd");
    let mut way = nbd_client(site, "n0", &socket)?;
    let listen = format!("addr.type=unix,addr.path={}", socket.display());
    let export = format!("type=nbd,id=e0,node-name=n0,name=n0,writable=on{}", setting.thread());
    let arguments = ["--nbd-server", &listen, "--export", &export];
    way.keep(qemu(site, setting, &arguments, "nbd", || socket.exists())?);
    Ok(Box::new(way))
}

/// `nbdkit null`.
pub(super) fn nbdkit(site: &Site, setting: Setting) -> Result<Box<dyn Way>, String> {
    let socket = site.fresh("nbdkit");
    let mut command = Command::new(find_program("nbdkit")?);
    command.args(["--foreground", "--unix"]).arg(&socket).arg("null").arg(site.null_bytes.to_string());
    let mut way = nbd_client(site, "", &socket)?;
    way.keep(Server::start(command, setting.cpu(site), &site.log("nbdkit"), || socket.exists())?);
    Ok(Box::new(way))
}

fn nbd_client(site: &Site, export: &str, socket: &Path) -> Result<ThroughFio, String> {
    let uri = format!("--uri=nbd+unix:///{export}?socket={}", socket.display());
    Ok(ThroughFio::new(site.fio()?, site.cpus.client, vec!["--ioengine=nbd".to_owned(), uri]))
}

/// A file served through FUSE.
pub(super) fn fuse(site: &Site, setting: Setting) -> Result<Box<dyn Way>, String> {
    let mut way = ThroughFio::new(site.fio()?, site.cpus.client, Vec::new());
    find_program("fusermount3")?;
    let file = site.fresh("fuse");
    std::fs::write(&file, "").map_err(|error| format!("cannot create {}: {error}", file.display()))?;
    let export = format!("type=fuse,id=e0,node-name=n0,mountpoint={},writable=on{}", file.display(), setting.thread());
    let server = qemu(site, setting, &["--export", &export], "fuse", || is_mounted(&file))?;
    way.keep(server.mounted_on(&file));
    way.on_fuse(&file);
    Ok(Box::new(way))
}
