//! What the daemon's workers serve: disks, to clients and to virtual machines. The workers themselves are in `fipsee_serve`.

mod engine;

use std::sync::Arc;

pub(crate) use fipsee_block::disk::Engine as DiskEngine;
use fipsee_block::server::DiskQueue;
use fipsee_block::wire::BlockInfo;
use fipsee_serve::{NotQuiesced, When, Which};
use fipsee_virtio::blk::server::GuestDiskQueue;

pub(crate) use self::engine::{make_rings_for_machines, spawn, start_engines};
use crate::export::Export;

pub(crate) type Command = fipsee_serve::Command<DiskEngine>;
pub(crate) type WorkerHandle = fipsee_serve::WorkerHandle<DiskEngine>;

/// Announce a disk's new size to every client of the export.
pub(crate) fn announce_resize(export: &Export, info: BlockInfo) -> [Command; 2] {
    let (disk, same) = (Arc::clone(&export.disk), Arc::clone(&export.disk));
    let (all, now) = (Which::All, When::Now);
    [
        Command::change(all, now, move |queue: &mut DiskQueue| queue.announce_resize(&disk, &info)),
        Command::change(all, now, move |queue: &mut GuestDiskQueue| queue.announce_resize(&same, &info)),
    ]
}

pub(crate) fn why_not_quiesced(error: NotQuiesced, timeout: std::time::Duration) -> String {
    match error {
        NotQuiesced::InFlight => format!(
            "requests are still in flight at a disk after {} ms; try again when it is less busy, or with a longer --takeover-wait-ms",
            timeout.as_millis()
        ),
        NotQuiesced::NoAnswer(index) => format!("worker {index} does not answer; the machine is overloaded"),
    }
}
