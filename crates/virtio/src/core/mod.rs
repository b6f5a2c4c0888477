//! What every virtio device is built on, whatever it does: guest memory, virtqueues and their chains, interrupts, the inflight area, the
//! log of written pages.

pub(crate) mod copy;
pub(crate) mod fault_guard;
pub mod inflight;
pub(crate) mod interrupt;
pub mod memory;
pub(crate) mod queue;
mod spare;

pub use spare::make_spare_rings;
