//! A virtual machine in user space: memory files as its memory, the hypervisor's half of vhost-user, a virtqueue driver, and the
//! guest's half of the in-band upgrade (docs/protocol.md section 9). None of it is shared with the daemon, except the ring itself
//! and the encoders of upgrade requests; [`c`] drives the rings by the C header.

pub mod c;
pub mod device;
pub mod frontend;
pub mod load;
pub mod machine;
pub mod net;
pub mod ram;
pub mod ring;
pub mod virtqueue;
