//! The Python module `fipsee._fipsee`: `Disk` with blocking calls and batches, `EventQueue` for
//! asyncio, `Memory` that the daemon reaches, too. What users import is `python/fipsee`.
//!
//! Whoever waits has released the interpreter; nothing here takes it while it holds a lock.

mod attached;
mod disk;
mod error;
mod events;
mod memory;
mod transfer;
mod wait;

use pyo3::pymodule;

/// What `fipsee` is made of; import that instead.
#[pymodule]
mod _fipsee {
    #[pymodule_export]
    use super::attached::forked;
    #[pymodule_export]
    use super::disk::Disk;
    #[pymodule_export]
    use super::events::EventQueue;
    #[pymodule_export]
    use super::memory::Memory;
}
