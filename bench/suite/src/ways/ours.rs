//! Our own clients that are no separate program: the Rust library and the FUSE mount.

use std::path::PathBuf;
use std::process::Command;

use fipsee::cpus::CpuChoice;
use fipsee::load::{self, count_f64};

use super::through_fio::ThroughFio;
use super::vhost::Vhost;
use super::{Measured, Site, Way};
use crate::generator;
use crate::matrix::Cell;
use crate::server::{Server, find_program, is_mounted};

struct Library {
    socket: PathBuf,
    disk: String,
    cpu: usize,
    daemon_pid: u32,
}

/// The load generator of `fipsee bench`, with memory of its own that the daemon maps.
pub(super) fn library(site: &Site, disk: &str) -> Result<Box<dyn Way>, String> {
    let (socket, disk) = (site.socket.clone(), disk.to_owned());
    Ok(Box::new(Library { socket, disk, cpu: site.cpus.client, daemon_pid: site.daemon_pid }))
}

/// Our daemon's vhost-user-blk, with the client that the peers' has.
pub(super) fn vhost(site: &Site, polling: bool) -> Result<Box<dyn Way>, String> {
    let (socket, pid) = (site.vhost_user.clone(), site.daemon_pid);
    Ok(Box::new(Vhost { server: None, pid, socket, polling, cpu: site.cpus.client, disk_bytes: site.null_bytes }))
}

impl Way for Library {
    fn measure(&mut self, cell: Cell, seconds: f64) -> Result<Measured, String> {
        let settings = generator::settings(&self.socket, &self.disk, cell, seconds, CpuChoice::List(vec![self.cpu]));
        let report = load::run(&settings).map_err(|error| error.to_string())?;
        let latency = (count_f64(report.latency_ns(0.5)), count_f64(report.latency_ns(0.99)));
        Ok(Measured { iops: Some(report.iops), latency_ns: Some(latency), requests: Some(count_f64(report.requests)) })
    }

    fn servers(&self) -> Vec<u32> {
        vec![self.daemon_pid]
    }
}

/// `fipsee mount`, with fio on the file.
pub(super) fn fuse(site: &Site, disk: &str) -> Result<Box<dyn Way>, String> {
    let fio = site.fio()?;
    let program = site.shipped("bin/fipsee")?;
    find_program("fusermount3")?;
    let file = site.fresh("mount");
    std::fs::write(&file, "").map_err(|error| format!("cannot create {}: {error}", file.display()))?;
    let mut command = Command::new(program);
    command.env("FIPSEE_SOCKET", &site.socket).arg("mount").arg(disk).arg(&file);
    let server = Server::start(command, &site.log("mount"), || is_mounted(&file))?.mounted_on(&file);
    let mut way = ThroughFio::new(fio, site.cpus.client, Vec::new());
    way.on_fuse(&file);
    way.add_pid(site.daemon_pid);
    way.keep(server);
    // By default it leaves the daemon's CPU alone, as it does for users.
    way.leave_placing();
    Ok(Box::new(way))
}
