//! A virtual machine in user space, for tests: memory files as its memory, the hypervisor's half of vhost-user, a virtqueue
//! driver, and the guest's half of the in-band upgrade (docs/protocol.md section 9). None of it is shared with the daemon, except
//! the ring itself and the encoders of upgrade requests; `tests/` also drives the rings by the C header.

pub mod c;
pub mod device;
pub mod frontend;
pub mod ram;
pub mod ring;
pub mod virtqueue;

use std::time::Duration;

/// What should happen at once has failed after so long. A bound against hanging, not a claim about speed.
pub const TIMEOUT: Duration = Duration::from_secs(120);
