//! Memory that Python and the daemon share, of disks and of ports, and the bytes of Python's buffers. The only unsafe code of this crate.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use fipsee_block::client::transfer::TransferMemory;
use fipsee_block::client::{Buffer, Bytes, Error, Memory as ClientMemory};
use fipsee_block::wire::SECTOR_BYTES;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

use crate::attached::DiskConnection;
use crate::lent::Lent;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Data under the locks of this crate is consistent wherever a panic is possible.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory that a disk's daemon has mapped, until it is no longer in use.
pub(crate) struct Registered {
    memory: ClientMemory,
    /// All of it, for requests.
    pub(crate) whole: Buffer,
    disk: Weak<DiskConnection>,
}

impl Registered {
    pub(crate) fn new(memory: ClientMemory, disk: Weak<DiskConnection>) -> Result<Self, Error> {
        let whole = memory.buffer(0, memory.length_bytes())?;
        Ok(Self { memory, whole, disk })
    }

    fn length_bytes(&self) -> usize {
        usize::try_from(self.memory.length_bytes()).unwrap_or(usize::MAX)
    }

    /// The offset in this memory of `length_bytes` bytes at `start`, if they are in it and requests can name them.
    pub(crate) fn offset_of(&self, start: usize, length_bytes: usize) -> Option<u64> {
        let offset = start.checked_sub(self.memory.base().as_ptr().addr())?;
        let end = offset.checked_add(length_bytes)?;
        let offset_bytes = u64::try_from(offset).ok()?;
        (end <= self.length_bytes() && offset_bytes.is_multiple_of(SECTOR_BYTES)).then_some(offset_bytes)
    }

    /// Data of a transfer that begins so far into it.
    pub(crate) fn place(&self, offset_bytes: u64) -> TransferMemory<'static> {
        TransferMemory::Direct(self.memory.id(), offset_bytes)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(disk) = self.disk.upgrade() {
            disk.forget(&self.memory);
        }
    }
}

/// The bytes of a Python object, which cannot move or be freed meanwhile.
pub(crate) struct View {
    buffer: PyUntypedBuffer,
}

impl View {
    /// Of any object with the buffer protocol whose bytes are contiguous.
    pub(crate) fn of(object: &Bound<'_, PyAny>, is_written_to: bool) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        if is_written_to && buffer.readonly() {
            return Err(PyTypeError::new_err("the buffer is read-only; give one that can be written, such as a bytearray"));
        }
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer is not contiguous; give a contiguous one or a copy"));
        }
        Ok(Self { buffer })
    }

    /// Of a new bytes object, which may be filled until the caller gives it to others.
    pub(crate) fn of_new_bytes(py: Python<'_>, length_bytes: u64) -> PyResult<(Self, Py<PyAny>)> {
        let object = PyBytes::new_with(py, usize::try_from(length_bytes)?, |_| Ok(()))?.into_any();
        Ok((Self::of(&object, false)?, object.unbind()))
    }

    pub(crate) fn length_bytes(&self) -> usize {
        self.buffer.len_bytes()
    }

    pub(crate) fn address(&self) -> usize {
        self.buffer.buf_ptr().addr()
    }

    /// Its bytes, as long as the interpreter is held.
    pub(crate) fn slice<'a>(&'a self, _py: Python<'a>) -> &'a [u8] {
        // SAFETY: they cannot go away while the view lives. Python code that changes them needs the interpreter; other code that does
        // so at the same time is at fault.
        unsafe { std::slice::from_raw_parts(self.buffer.buf_ptr().cast(), self.length_bytes()) }
    }

    /// Have `fill` write into its bytes, which `View::of` was asked for.
    pub(crate) fn fill<R>(&self, _py: Python<'_>, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        // SAFETY: as in `slice`, and the view is exclusive in this call, which runs no Python code.
        fill(unsafe { std::slice::from_raw_parts_mut(self.buffer.buf_ptr().cast(), self.length_bytes()) })
    }

    pub(crate) fn bytes(&self) -> Bytes<'_> {
        // SAFETY: they cannot go away while the view lives; they are read into only if `View::of` was asked for that, or if nothing
        // else has them yet.
        unsafe { Bytes::from_raw(self.buffer.buf_ptr().cast(), self.length_bytes() as u64) }
    }
}

/// Memory shared with the daemon of one disk: data moves between it and the disk without a copy.
///
/// It has the buffer protocol: `numpy.frombuffer(memory, dtype)` and `memoryview(memory)` are views of the same bytes. It
/// stays mapped as long as it or a view of it is used, longer than the disk.
#[pyclass(frozen, module = "fipsee")]
pub(crate) struct Memory {
    registered: Mutex<Option<Arc<Registered>>>,
    length_bytes: usize,
    exports: AtomicUsize,
}

impl Memory {
    pub(crate) fn new(registered: Arc<Registered>, length_bytes: usize) -> Self {
        Self { registered: Mutex::new(Some(registered)), length_bytes, exports: AtomicUsize::new(0) }
    }
}

#[pymethods]
impl Memory {
    /// Length in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.length_bytes
    }

    fn __len__(&self) -> usize {
        self.length_bytes
    }

    /// Has it been released?
    #[getter]
    fn closed(&self) -> bool {
        lock(&self.registered).is_none()
    }

    /// Release the memory now. BufferError while views of it exist.
    fn close(&self) -> PyResult<()> {
        let mut registered = lock(&self.registered);
        let exports = self.exports.load(Ordering::Relaxed);
        if exports > 0 {
            return Err(PyBufferError::new_err(format!(
                "{exports} views of this memory exist (arrays, memoryviews, requests in flight); delete them first"
            )));
        }
        let last = registered.take();
        drop(registered);
        drop(last);
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(&self, kind: &Bound<'_, PyAny>, _value: &Bound<'_, PyAny>, _trace: &Bound<'_, PyAny>) -> PyResult<()> {
        let closed = self.close();
        // The first error is the one raised.
        if kind.is_none() { closed } else { Ok(()) }
    }

    fn __repr__(&self) -> String {
        format!("<fipsee.Memory of {} bytes{}>", self.length_bytes, if self.closed() { ", closed" } else { "" })
    }

    /// # Safety
    /// Called by the interpreter, with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let registered = lock(&this.registered);
        let Some(base) = registered.as_ref().map(|registered| registered.memory.base()) else {
            return Err(PyValueError::new_err("the memory is closed; allocate new memory"));
        };
        let length = ffi::Py_ssize_t::try_from(this.length_bytes)?;
        let base: NonNull<std::ffi::c_void> = base.cast();
        // SAFETY: `view` is the interpreter's to fill, the object exists, and the bytes stay mapped while the view
        // counts in `exports`: `close` refuses, and the view holds a reference to the object.
        let outcome = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), base.as_ptr(), length, 0, flags) };
        if outcome != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        this.exports.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// # Safety
    /// Called by the interpreter, with a view that `__getbuffer__` filled.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.exports.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A piece of a frame or transmit buffer of a port, for the buffer protocol. Programs have memoryviews of it.
#[pyclass(frozen)]
pub(crate) struct Piece {
    lent: Arc<Lent>,
    index: usize,
}

impl Piece {
    pub(crate) fn view<'py>(py: Python<'py>, lent: &Arc<Lent>, index: usize) -> PyResult<Bound<'py, PyMemoryView>> {
        let piece = Bound::new(py, Self { lent: Arc::clone(lent), index })?;
        PyMemoryView::from(piece.as_any())
    }
}

#[pymethods]
impl Piece {
    /// # Safety
    /// Called by the interpreter, with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let Self { lent, index } = slf.get();
        let (base, length_bytes, is_read_only) = lent.begin_view(*index)?;
        let (base, read_only) = (base.as_ptr().cast(), c_int::from(is_read_only));
        let length = ffi::Py_ssize_t::try_from(length_bytes).unwrap_or(0);
        // SAFETY: `view` is the interpreter's to fill, the object exists, and the bytes stay mapped while the view counts in `lent`,
        // which the object keeps: the view holds a reference to it.
        let outcome = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), base, length, read_only, flags) };
        if outcome != 0 {
            lent.end_view();
            return Err(PyErr::fetch(slf.py()));
        }
        Ok(())
    }

    /// # Safety
    /// Called by the interpreter, with a view that `__getbuffer__` filled.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.lent.end_view();
    }
}
