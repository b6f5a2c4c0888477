//! What a service provides for the engine: the work of one request.

use std::sync::Arc;
use std::time::Duration;

use io_uring::squeue::Entry;
use rustix::io::Errno;

use super::{Buffers, Grants, Needs};

/// The work of one request: one operation of the kernel after another. Its place in the engine is used again by the next.
///
/// # Safety
/// What an [`entry`](Self::entry) names stays open and in place, even when the job is moved, until [`advance`](Self::advance)
/// gets its result or the engine is gone: descriptors, memory that is not the client's.
pub unsafe trait Job: Sized + 'static {
    type Status: Copy;
    type Awaited: Awaited;
    /// The engine did not begin it, or the kernel did not take it.
    const NOT_DONE: Self::Status;

    fn needs() -> &'static Needs;

    /// A place without work.
    fn idle() -> Self;

    /// May it begin? If it waits for a lock, [`Grants::add`] is called with `slot` and the lock when it is held.
    fn may_begin(&mut self, grants: &Arc<Grants>, slot: u32) -> bool;

    fn set_lock(&mut self, lock: u32);

    /// The kernel's form of the next step; `None`: it needs a buffer, and none is left.
    fn entry(&mut self, buffers: &mut Buffers) -> Option<Entry>;

    /// What the kernel's result of the last [`entry`](Self::entry) means.
    fn advance(&mut self, result: i32, buffers: &mut Buffers) -> Progress<Self::Status>;

    /// The kernel does not take it any more.
    fn refused(&self, errno: Errno);

    fn release(&mut self, buffers: &mut Buffers, grants: &Arc<Grants>);

    /// The engine ends, whatever the job waits for.
    fn abandon(&mut self, buffers: &mut Buffers, grants: &Arc<Grants>);

    /// What the client waits for; `None`: no client waits.
    fn awaited(&self) -> Option<Self::Awaited>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<S> {
    Finished(S),
    /// Submit [`Job::entry`] again: the rest, or the next step.
    Again,
}

/// What a client waits for, and where that is recorded if it takes too long.
pub trait Awaited: 'static {
    fn stalled(&self, age: Duration);

    fn stall_ended(&self, age: Duration);
}
