//! Commands for the queues of a client.

use std::sync::Arc;

use fipsee_block::server::{DiskQueue, QueueServer};
use fipsee_block::wire::Status;
use fipsee_ring::region::Region;
use fipsee_serve::{NotAdded, QueueName, When, Which};

use super::{Ack, Command};
use crate::export::Export;

/// Serve a queue; `make` builds its server once the worker knows its number.
pub fn add(
    name: QueueName,
    export: &Arc<Export>,
    make: impl FnOnce(u32) -> Result<QueueServer, Status> + Send + 'static,
) -> Command {
    let (client, disk) = (name.client, Arc::clone(export.disk()));
    let make = move |id| {
        let server = make(id).map_err(|_| "it does not fit the region that was laid out for it".to_owned())?;
        Ok(DiskQueue::new(server, disk))
    };
    let added = move |added| match added {
        Ok(()) => {}
        Err(NotAdded::NotMade(reason)) => tracing::error!(client, reason, "a queue is not served"),
        Err(NotAdded::Bell(error)) => tracing::error!(client, %error, "cannot watch a doorbell; the queue is not served"),
    };
    Command::add(name, make, added)
}

/// Give the client's queues a region under this id; `access`: `ACCESS_*` bits.
pub fn add_region(client: u64, id: u16, region: &Arc<Region>, access: u16, ack: Ack) -> Command {
    let region = Arc::clone(region);
    Command::change(Which::Client(client), When::Now, move |queue: &mut DiskQueue| {
        let _until_dropped = &ack;
        let added = queue.regions_mut().insert(id, &region, 0, region.length_bytes(), access);
        debug_assert!(added.is_ok(), "the session keeps the ids");
    })
}

/// Take a region away once nothing of the client is in flight.
pub fn remove_region(client: u64, id: u16, ack: Ack) -> Command {
    Command::change(Which::Client(client), When::Idle, move |queue: &mut DiskQueue| {
        let _until_dropped = &ack;
        let _ = queue.regions_mut().remove(id);
    })
}
