//! `fipsee.Frame` and `fipsee.TransmitBuffer`: frames in the memory that a port shares with its daemon.

use std::sync::{Arc, Mutex};

use fipsee_net::{Buffer, Frame as HeldFrame};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::lent::{Connection, Lent};
use crate::memory::{Piece, lock};
use crate::offload::Offload;

/// Memory of a port that a program has, and the views of it that the program was given.
struct Shared {
    lent: Arc<Lent>,
    views: Mutex<Option<Py<PyTuple>>>,
}

impl Shared {
    const fn new(lent: Arc<Lent>) -> Self {
        Self { lent, views: Mutex::new(None) }
    }

    /// A memoryview of each piece: the same ones every time.
    fn views<'py>(&self, py: Python<'py>, pieces: usize) -> PyResult<Bound<'py, PyTuple>> {
        self.lent.check()?;
        if let Some(views) = &*lock(&self.views) {
            return Ok(views.bind(py).clone());
        }
        let views = (0..pieces).map(|index| Piece::view(py, &self.lent, index)).collect::<PyResult<Vec<_>>>()?;
        let views = PyTuple::new(py, views)?;
        *lock(&self.views) = Some(views.clone().unbind());
        Ok(views)
    }

    /// Release the views that the program was given, so that using them raises.
    fn forget_views(&self, py: Python<'_>) -> PyResult<()> {
        let views = lock(&self.views).take();
        for view in views.iter().flat_map(|views| views.bind(py)) {
            view.call_method0("release")?;
        }
        Ok(())
    }

    fn give_back(&self, py: Python<'_>) -> PyResult<()> {
        self.forget_views(py)?;
        self.lent.give_back()
    }
}

/// A received frame in the buffers where the daemon put it: nothing was copied.
///
/// Its buffers are given back by `release`, or at the end of `with`, or with the last use of it and its views. Views that are used after
/// `release` raise ValueError. The daemon may write to this memory at any time: copy first what must be checked. It outlives the port.
#[pyclass(frozen, module = "fipsee")]
pub(crate) struct Frame {
    shared: Shared,
    length_bytes: usize,
    pieces: usize,
    offload: Offload,
}

impl Frame {
    pub(crate) fn new(frame: HeldFrame, connection: &Arc<Connection>) -> Self {
        let (length_bytes, offload) = (usize::try_from(frame.length_bytes()).unwrap_or(0), frame.offload().into());
        let pieces = frame.pieces().count();
        Self { shared: Shared::new(Lent::frame(frame, connection)), length_bytes, pieces, offload }
    }
}

#[pymethods]
impl Frame {
    fn __len__(&self) -> usize {
        self.length_bytes
    }

    /// The frame as a read-only memoryview. BufferError if it is in several buffers: see `pieces`.
    #[getter]
    fn view<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if self.pieces > 1 {
            let text =
                format!("the frame is in {} buffers; use pieces, or open the port with a greater buffer_size", self.pieces);
            return Err(PyBufferError::new_err(text));
        }
        self.shared.views(py, self.pieces)?.get_item(0)
    }

    /// Read-only memoryviews of the buffers that it is in, in their order: one, unless the frame is longer than a receive buffer.
    #[getter]
    fn pieces<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.shared.views(py, self.pieces)
    }

    /// What it leaves to be done.
    #[getter]
    const fn offload(&self) -> Offload {
        self.offload
    }

    /// A copy of it.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        PyBytes::new_with(py, self.length_bytes, |bytes| self.shared.lent.read(bytes))
    }

    /// Have its buffers been given back?
    #[getter]
    fn released(&self) -> bool {
        self.shared.lent.is_given_back()
    }

    /// Give its buffers back: they are posted again by the next call that receives, or by `Port.arm`. BufferError while slices or arrays
    /// of its views exist.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.give_back(py)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let released = self.release(py);
        // The first error is the one raised; the buffers are given back with the last view.
        if kind.is_none() { released } else { Ok(()) }
    }

    fn __repr__(&self) -> String {
        format!("<fipsee.Frame of {} bytes{}>", self.length_bytes, if self.released() { ", released" } else { "" })
    }
}

/// A transmit buffer of a port, to be filled in place and sent: nothing is copied.
///
/// `Port.send_buffer` sends it. `release`, the end of `with`, or the last use of it and its view give it back unsent. A view that is used
/// after either raises ValueError. It outlives the port, but can only be sent by it.
#[pyclass(frozen, module = "fipsee")]
pub(crate) struct TransmitBuffer {
    shared: Shared,
    length_bytes: usize,
}

impl TransmitBuffer {
    pub(crate) fn new(buffer: Buffer, connection: &Arc<Connection>) -> Self {
        let length_bytes = usize::try_from(buffer.length_bytes()).unwrap_or(0);
        Self { shared: Shared::new(Lent::buffer(buffer, connection)), length_bytes }
    }

    /// The buffer, if it is of this port and no view of it is left.
    pub(crate) fn take(&self, py: Python<'_>, connection: &Arc<Connection>) -> PyResult<Buffer> {
        self.shared.lent.check()?;
        if !self.shared.lent.is_of(connection) {
            return Err(PyValueError::new_err("the buffer is of another port; send it there, or take one of this port"));
        }
        self.shared.forget_views(py)?;
        self.shared.lent.take_buffer()
    }
}

#[pymethods]
impl TransmitBuffer {
    fn __len__(&self) -> usize {
        self.length_bytes
    }

    /// All of it as a memoryview that can be written: as long as the longest frame of the port. What was in it before is undefined.
    #[getter]
    fn view<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.shared.views(py, 1)?.get_item(0)
    }

    /// Has it been sent, or given back?
    #[getter]
    fn released(&self) -> bool {
        self.shared.lent.is_given_back()
    }

    /// Give it back unsent. BufferError while slices or arrays of its view exist.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.give_back(py)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let released = self.release(py);
        // The first error is the one raised; the buffer is given back with the last view.
        if kind.is_none() { released } else { Ok(()) }
    }

    fn __repr__(&self) -> String {
        format!("<fipsee.TransmitBuffer of {} bytes{}>", self.length_bytes, if self.released() { ", released" } else { "" })
    }
}
