//! What any device's virtqueue can be asked for while it is served.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::memory::{DirtyLog, GuestMemory};
use super::{DeviceQueue, RingAddresses};

/// One virtqueue that is served, between two visits.
pub trait ServedVirtqueue: Any {
    /// As [`DeviceQueue::set_call`].
    ///
    /// # Errors
    /// Likewise.
    fn set_call(&mut self, call: Option<OwnedFd>) -> Result<(), String>;

    /// As [`DeviceQueue::set_log`].
    fn set_log(&mut self, log: Option<Arc<DirtyLog>>, used_log_address: Option<u64>);

    /// Continue in other memory, with the rings at these addresses. Nothing is in flight.
    ///
    /// # Errors
    /// The virtqueue is not in it, or requests are in flight. The server is unchanged, in the old memory.
    fn set_memory(&mut self, memory: Arc<GuestMemory>, rings: RingAddresses) -> Result<(), String>;
}

/// Of a device that finishes each chain in the visit that takes it.
impl ServedVirtqueue for DeviceQueue {
    fn set_call(&mut self, call: Option<OwnedFd>) -> Result<(), String> {
        Self::set_call(self, call)
    }

    fn set_log(&mut self, log: Option<Arc<DirtyLog>>, used_log_address: Option<u64>) {
        Self::set_log(self, log, used_log_address);
    }

    fn set_memory(&mut self, memory: Arc<GuestMemory>, rings: RingAddresses) -> Result<(), String> {
        if self.flush() {
            self.interrupt();
        }
        Self::set_memory(self, memory, rings)
    }
}
