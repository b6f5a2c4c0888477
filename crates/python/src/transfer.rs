//! Plans of the client library, carried out on a lane.

use std::sync::Arc;

use fipsee_block::client::transfer::{Plan, TransferMemory};
use fipsee_block::client::{Bytes, Error};
use fipsee_block::wire::Status;

use crate::attached::{DiskConnection, Lane};
use crate::error::Failure;
use crate::wait::{settle, wait};

/// Carry out `plan`; returns the index and status of what failed. `bytes`: its data, if that goes through the lane's bounce memory.
pub(crate) fn run(
    disk: &Arc<DiskConnection>,
    lane: &mut Lane,
    plan: Plan<'_>,
    bytes: Option<Bytes<'_>>,
) -> Result<Vec<(usize, Status)>, Failure> {
    if lane.is_faulty {
        return Err(Error::Disconnected.into());
    }
    // What an interrupted call left behind.
    while lane.queue.outstanding() > 0 {
        wait(disk, lane)?;
    }
    lane.kept.clear();
    let bounce;
    let plan = match bytes {
        Some(_) if plan.length_bytes == 0 => return Ok(Vec::new()),
        Some(bytes) => {
            bounce = disk.bounce_of(lane)?;
            Plan { place: TransferMemory::Bounce(bytes, &bounce.whole), ..plan }
        }
        None => plan,
    };
    let Lane { queue, transfers, is_faulty, .. } = lane;
    transfers.run(queue, &plan, |queue, waited| settle(disk, is_faulty, queue, waited))
}
