//! The Python module `fipsee._fipsee`: `Disk` with blocking calls and batches, `EventQueue` for
//! asyncio, `Memory` shared with the daemon, `Port` for frames. Users import `python/fipsee`.
//!
//! A waiting thread has released the interpreter; no code here takes it while it holds a lock.

mod attached;
mod disk;
mod doorbells;
mod error;
mod events;
mod frame;
mod lent;
mod list;
mod memory;
mod offload;
mod opened;
mod port;
mod transfer;
mod wait;

use pyo3::pymodule;

/// Objects are in memory that Python allocates, which begins at a multiple of this many bytes.
const PYTHON_ALIGNMENT: usize = 16;
const _: () = assert!(align_of::<disk::Disk>() <= PYTHON_ALIGNMENT && align_of::<events::EventQueue>() <= PYTHON_ALIGNMENT);
const _: () = assert!(align_of::<memory::Memory>() <= PYTHON_ALIGNMENT && align_of::<port::Port>() <= PYTHON_ALIGNMENT);

/// The internals of `fipsee`; import that instead.
#[pymodule]
mod _fipsee {
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_export]
    use super::disk::Disk;
    #[pymodule_export]
    use super::doorbells::DoorbellCounts;
    #[pymodule_export]
    use super::events::EventQueue;
    #[pymodule_export]
    use super::frame::{Frame, TransmitBuffer};
    #[pymodule_export]
    use super::list::{ListedDisk, ListedPort, list_disks, list_ports};
    #[pymodule_export]
    use super::memory::Memory;
    #[pymodule_export]
    use super::offload::Offload;
    #[pymodule_export]
    use super::opened::forked;
    #[pymodule_export]
    use super::port::Port;
}
