//! Changes of disks and sockets that the admin socket requests.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use fipsee_block::disk::Disk;
use serde_json::Value;

use super::Admin;
use super::disks::check_absolute;
use super::methods::Resize;
use crate::export::Export;
use crate::transport::vhost_user::Target;
use crate::worker;

impl Admin {
    pub(super) fn attach(&mut self, disk: &str, path: &Path) -> Result<Value, String> {
        let export = self.live.now().find(disk)?.clone();
        check_absolute(path)?;
        self.vms.add(vec![self.new_socket(&export, path)?]);
        self.overlay.attach(disk, path, &self.running.disks);
        tracing::info!(disk, path = %path.display(), "serves virtual machines");
        Ok(self.describe(&export))
    }

    pub(super) fn detach(&mut self, path: &Path) -> Result<Value, String> {
        let exports = self.live.now().exports.clone();
        let is_there = |export: &&Arc<Export>| self.vms.paths_of(export).iter().any(|other| other == path);
        if let Some(Target::Port(port, _)) = self.vms.target_at(path) {
            return Err(format!(
                "{} is the vhost-user socket of port '{port}'; fipsee net detach {port} removes both",
                path.display()
            ));
        }
        let export = exports.iter().find(is_there).ok_or_else(|| {
            let paths = exports.iter().flat_map(|export| self.vms.paths_of(export));
            let paths: Vec<_> = paths.map(|path| path.display().to_string()).collect();
            let there = if paths.is_empty() { "no disk has one".to_owned() } else { format!("there are: {}", paths.join(", ")) };
            format!("no vhost-user socket {} here; {there} (`fipsee info DISK` names a disk's)", path.display())
        })?;
        self.vms.retire(|_, other| other == path)?;
        self.vms.remove_retired();
        self.overlay.detach(path, &self.running.disks);
        tracing::info!(disk = export.name(), path = %path.display(), "no longer serves virtual machines there");
        Ok(self.describe(export))
    }

    pub(super) fn resize(&mut self, &Resize { ref disk, size_bytes, shrink, force }: &Resize) -> Result<Value, String> {
        let export = self.live.now().find(disk)?.clone();
        let block_bytes = u64::from(export.disk.info().block_bytes);
        if size_bytes == 0 || !size_bytes.is_multiple_of(block_bytes) {
            return Err(bad_size(size_bytes, block_bytes));
        }
        let lost_bytes = export.info(false).size_bytes().saturating_sub(size_bytes);
        if lost_bytes > 0 {
            check_shrinking(&export, lost_bytes, shrink, force)?;
        }
        export.disk.resize(size_bytes / 512)?;
        let info = export.disk.info();
        for worker in &self.workers {
            worker.mailbox.send_all(worker::announce_resize(&export, info));
        }
        self.vms.changed(disk);
        self.overlay.resize(disk, size_bytes);
        match lost_bytes {
            0 => tracing::info!(disk, size_bytes, "resized"),
            _ => tracing::warn!(disk, size_bytes, lost_bytes, "resized; the data beyond the new size is lost"),
        }
        Ok(self.describe(&export))
    }
}

fn bad_size(size_bytes: u64, block_bytes: u64) -> String {
    let below_bytes = size_bytes / block_bytes * block_bytes;
    let above = below_bytes.checked_add(block_bytes).map(|bytes| bytes.to_string());
    let below = (below_bytes != 0).then(|| below_bytes.to_string());
    let possible: Vec<String> = below.into_iter().chain(above).collect();
    let possible = possible.join(" or ");
    match size_bytes {
        0 => format!("a disk cannot have 0 bytes; use {possible} or more"),
        _ => format!("{size_bytes} bytes is no multiple of the disk's blocks of {block_bytes} bytes; use {possible}"),
    }
}

/// May the last `lost_bytes` of a disk be given up?
fn check_shrinking(export: &Export, lost_bytes: u64, shrink: bool, force: bool) -> Result<(), String> {
    let (name, old_bytes) = (export.name(), export.info(false).size_bytes());
    let pids: BTreeSet<i32> = export.attached().iter().map(|client| client.pid).collect();
    let shrink = (!shrink).then_some("--shrink");
    let force = (!pids.is_empty() && !force).then_some("--force");
    let missing: Vec<_> = shrink.into_iter().chain(force).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let pids: Vec<String> = pids.iter().take(8).map(i32::to_string).collect();
    let used = if pids.is_empty() { String::new() } else { format!(", and it is in use by process {}", pids.join(", ")) };
    Err(format!(
        "disk '{name}' has {old_bytes} bytes: its last {lost_bytes} bytes would be lost{used}; add {} if that is meant",
        missing.join(" and ")
    ))
}
