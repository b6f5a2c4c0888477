//! Plans of the client library, executed on a lane.

use std::sync::Arc;

use fipsee_block::client::transfer::{Plan, TransferMemory};
use fipsee_block::client::{Bytes, Error};
use fipsee_block::wire::Status;

use crate::attached::{DiskConnection, Lane};
use crate::error::Failure;
use crate::wait::{settle, wait};

/// Execute `plan`; returns the index and status of each failure. `bytes`: its data, if that goes through the lane's bounce
/// memory.
pub(crate) fn run(
    disk: &Arc<DiskConnection>,
    lane: &mut Lane,
    plan: Plan<'_>,
    bytes: Option<Bytes<'_>>,
) -> Result<Vec<(usize, Status)>, Failure> {
    if lane.is_faulty {
        return Err(Error::Disconnected.into());
    }
    // Left over from an interrupted call.
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
