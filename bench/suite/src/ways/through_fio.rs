//! Everything that fio can reach.

use std::path::Path;
use std::time::Duration;

use super::{Measured, Site, Way};
use crate::files::TemporaryFile;
use crate::fio::{self, Fio};
use crate::matrix::Cell;
use crate::server::Server;

/// fio on one CPU, with what it needs.
pub(super) struct ThroughFio {
    fio: Fio,
    cpu: usize,
    /// What names engine and disk where one request is in flight.
    shallow: Vec<String>,
    /// The same where many are.
    deep: Vec<String>,
    servers: Vec<Server>,
    /// The servers choose their CPUs themselves.
    place_themselves: bool,
    /// Servers that are not ours to stop.
    others: Vec<u32>,
    file: Option<TemporaryFile>,
}

impl ThroughFio {
    pub(super) fn new(fio: &Fio, cpu: usize, arguments: Vec<String>) -> Self {
        let deep = arguments.clone();
        Self {
            fio: fio.clone(),
            cpu,
            shallow: arguments,
            deep,
            servers: Vec::new(),
            place_themselves: false,
            others: Vec::new(),
            file: None,
        }
    }

    /// Let fio use a file that a FUSE server answers for: plain system calls one at a time, libaio for more.
    pub(super) fn on_fuse(&mut self, path: &Path) {
        self.shallow = fio::on_file("psync", path, true);
        self.deep = fio::on_file("libaio", path, true);
    }

    /// Count the processor time of this process, too.
    pub(super) fn add_pid(&mut self, pid: u32) {
        self.others.push(pid);
    }

    /// Leave the choice of CPUs to the servers.
    pub(super) fn leave_placing(&mut self) {
        self.place_themselves = true;
    }

    /// Stop this server with the way, and count its processor time.
    pub(super) fn keep(&mut self, server: Server) {
        self.servers.push(server);
    }
}

impl Way for ThroughFio {
    fn measure(&mut self, cell: Cell, seconds: f64) -> Result<Measured, String> {
        let arguments = if cell.depth == 1 { &self.shallow } else { &self.deep };
        let report = self.fio.run(arguments, cell, seconds, self.cpu);
        let report = report.map_err(|error| self.servers.iter_mut().fold(error, |error, server| server.explain(error)))?;
        Ok(Measured {
            iops: Some(report.iops),
            latency_ns: Some((report.latency_ns_p50, report.latency_ns_p99)),
            requests: Some(report.requests),
        })
    }

    fn servers(&self) -> Vec<u32> {
        self.servers.iter().map(Server::pid).chain(self.others.iter().copied()).collect()
    }

    fn placeable(&self) -> Vec<u32> {
        if self.place_themselves { Vec::new() } else { self.servers.iter().map(Server::pid).collect() }
    }

    fn start_cost(&self) -> Duration {
        self.fio.start_cost
    }
}

/// fio with an engine that does nothing: what fio itself can do.
pub(super) fn null(site: &Site) -> Result<Box<dyn Way>, String> {
    let arguments = vec!["--ioengine=null".to_owned(), format!("--size={}", site.null_bytes)];
    Ok(Box::new(ThroughFio::new(site.fio()?, site.cpus.client, arguments)))
}

/// fio with our engine.
pub(super) fn engine(site: &Site, disk: &str) -> Result<Box<dyn Way>, String> {
    let fio = site.fio()?;
    let of_version = format!("lib/fio/fipsee-{}.so", fio.version);
    let engine = site.shipped(&of_version).or_else(|_| site.shipped("lib/fio/fipsee.so"))?;
    let arguments = vec![
        format!("--ioengine=external:{}", engine.display()),
        format!("--filename={disk}"),
        format!("--socket={}", site.socket.display()),
    ];
    let mut way = ThroughFio::new(fio, site.cpus.client, arguments);
    way.add_pid(site.daemon_pid);
    Ok(Box::new(way))
}

/// A file in memory, without any server.
pub(super) fn on_tmpfs(site: &Site, engine: &str) -> Result<Box<dyn Way>, String> {
    let fio = site.fio()?;
    let folder = &site.memory_directory;
    if !is_tmpfs(folder) {
        return Err(format!("{} is no tmpfs; name one with --memory-directory", folder.display()));
    }
    let file = TemporaryFile(folder.join(format!("fipsee-bench-{engine}-{}", std::process::id())));
    // Holes read faster than data.
    let content = vec![0x5a; usize::try_from(site.memory_bytes).map_err(|error| error.to_string())?];
    std::fs::write(&file.0, content).map_err(|error| format!("cannot write {}: {error}", file.0.display()))?;
    let mut way = ThroughFio::new(fio, site.cpus.client, fio::on_file(engine, &file.0, false));
    way.file = Some(file);
    Ok(Box::new(way))
}

fn is_tmpfs(folder: &Path) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    rustix::fs::statfs(folder).is_ok_and(|found| u64::try_from(found.f_type) == Ok(TMPFS_MAGIC))
}
