//! What the daemon has its workers serve: disks, to clients and to virtual machines. The workers themselves are `fipsee_serve`'s.

pub mod block_queue;
mod engine;
pub mod virtqueue;

use std::any::Any;
use std::sync::Arc;

use fipsee_block::wire::BlockInfo;
use fipsee_serve::{NotQuiesced, Queue, When, Which};

use self::block_queue::BlockQueue;
pub use self::engine::{DiskEngine, make_rings_for_machines, spawn, start_engines};
use self::virtqueue::Virtqueue;
use crate::export::Export;

/// What a worker is asked for.
pub type Command = fipsee_serve::Command<DiskEngine>;
/// How to reach a worker.
pub type WorkerHandle = fipsee_serve::WorkerHandle<DiskEngine>;
pub use fipsee_serve::session::Ack;

/// Announce a disk's new size to every client of the export.
#[must_use]
pub fn announce_resize(export: &Arc<Export>, info: BlockInfo) -> Command {
    let export = Arc::clone(export);
    let change = move |queue: &mut dyn Queue<DiskEngine>| {
        if let Some(queue) = as_mut::<BlockQueue>(queue) {
            queue.announce_resize(&export, &info);
        } else if let Some(queue) = as_mut::<Virtqueue>(queue) {
            queue.announce_resize(&export, &info);
        }
    };
    Command::Change { which: Which::All, when: When::Now, change: Box::new(change) }
}

/// Why a takeover cannot be, in words.
#[must_use]
pub fn why_not_quiesced(error: NotQuiesced, timeout: std::time::Duration) -> String {
    match error {
        NotQuiesced::InFlight => format!(
            "requests are still in flight at a disk after {} ms; try again when it is less busy, or with a longer --takeover-wait-ms",
            timeout.as_millis()
        ),
        NotQuiesced::NoAnswer(index) => format!("worker {index} does not answer; the machine is overloaded"),
    }
}

/// The queue, if it is of this kind.
fn as_mut<T: Any>(queue: &mut dyn Queue<DiskEngine>) -> Option<&mut T> {
    (queue as &mut dyn Any).downcast_mut()
}
