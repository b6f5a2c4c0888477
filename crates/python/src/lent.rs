//! The client of a port, and what it has lent to the program: frames and transmit buffers, until no view of them is left.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};

use fipsee_net::{Buffer, Error, Frame, Port as Client};
use fipsee_ring::PeerFault;
use pyo3::exceptions::{PyBufferError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::error::{busy, net_exception};
use crate::memory::lock;
use crate::opened::{Opener, closed};

/// A port's client, for one call at a time.
pub(crate) struct Connection {
    /// In memory of Rust's: it begins at a cache line, which Python's memory need not.
    client: Mutex<Option<Box<Client>>>,
    opener: Opener,
    /// Receive buffers of frames that the program has.
    lent: AtomicUsize,
    /// Transmit buffers that were released while another call had the client.
    unsent: Mutex<Vec<Buffer>>,
}

impl Connection {
    pub(crate) fn new(client: Client) -> Arc<Self> {
        let (client, unsent) = (Mutex::new(Some(Box::new(client))), Mutex::new(Vec::new()));
        Arc::new(Self { client, opener: Opener::this("port"), lent: AtomicUsize::new(0), unsent })
    }

    /// Does a parent of this process use it?
    pub(crate) fn is_inherited(&self) -> bool {
        self.opener.is_inherited()
    }

    /// `None`: another call has it, or it is a parent's.
    pub(crate) fn try_client(&self) -> Option<MutexGuard<'_, Option<Box<Client>>>> {
        if self.is_inherited() {
            return None;
        }
        match self.client.try_lock() {
            Ok(client) => Some(client),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn client(&self) -> PyResult<MutexGuard<'_, Option<Box<Client>>>> {
        self.opener.check()?;
        let mut client = self.try_client().ok_or_else(|| {
            PyRuntimeError::new_err("another call uses the port; it is for one thread at a time: receive with a timeout, or lock")
        })?;
        if let Some(client) = client.as_mut() {
            // One of an attachment before is not taken back: it went with that.
            lock(&self.unsent).drain(..).for_each(|buffer| _ = client.put_back(buffer));
        }
        Ok(client)
    }

    pub(crate) fn with<R>(&self, call: impl FnOnce(&mut Client) -> Result<R, Error>) -> PyResult<R> {
        call(self.client()?.as_mut().ok_or_else(|| closed("port"))?).map_err(|error| net_exception(&error))
    }

    /// # Errors
    /// The program has so many frames that none can come, out of so many receive buffers.
    pub(crate) fn check_frames(&self, receive_buffers: usize) -> PyResult<()> {
        if self.lent.load(Ordering::Relaxed) < receive_buffers {
            return Ok(());
        }
        Err(busy(&format!(
            "the program has frames in all {receive_buffers} receive buffers; release some, or open the port with a greater depth"
        )))
    }

    /// It is given back.
    fn take_back(&self, loan: Loan) {
        match loan {
            Loan::Frame(frame) => {
                self.lent.fetch_sub(frame.pieces().count(), Ordering::Relaxed);
                drop(frame);
                // An event loop may wait already; any other call that has the client posts them itself.
                if let Some(client) = self.try_client().as_mut().and_then(|client| client.as_mut()) {
                    client.post_returned();
                }
            }
            Loan::Buffer(buffer) if !self.is_inherited() => match self.try_client() {
                Some(mut client) => _ = client.as_mut().map(|client| client.put_back(buffer)),
                None => lock(&self.unsent).push(buffer),
            },
            Loan::Buffer(_) => {}
        }
    }
}

/// What is lent.
enum Loan {
    Frame(Frame),
    Buffer(Buffer),
}

struct State {
    /// `None`: it was given back.
    loan: Option<Loan>,
    views: usize,
}

/// A frame or transmit buffer that a program has. Its memory is mapped as long as a view of it exists, longer than the port.
pub(crate) struct Lent {
    state: Mutex<State>,
    connection: Weak<Connection>,
}

impl Lent {
    fn new(loan: Loan, connection: &Arc<Connection>) -> Arc<Self> {
        let state = Mutex::new(State { loan: Some(loan), views: 0 });
        Arc::new(Self { state, connection: Arc::downgrade(connection) })
    }

    pub(crate) fn frame(frame: Frame, connection: &Arc<Connection>) -> Arc<Self> {
        connection.lent.fetch_add(frame.pieces().count(), Ordering::Relaxed);
        Self::new(Loan::Frame(frame), connection)
    }

    pub(crate) fn buffer(buffer: Buffer, connection: &Arc<Connection>) -> Arc<Self> {
        Self::new(Loan::Buffer(buffer), connection)
    }

    pub(crate) fn is_of(&self, connection: &Arc<Connection>) -> bool {
        std::ptr::eq(self.connection.as_ptr(), Arc::as_ptr(connection))
    }

    pub(crate) fn is_given_back(&self) -> bool {
        lock(&self.state).loan.is_none()
    }

    pub(crate) fn check(&self) -> PyResult<()> {
        if self.is_given_back() { Err(given_back()) } else { Ok(()) }
    }

    /// Count a view of one of its pieces: where that is, its length, and whether it may not be written.
    pub(crate) fn begin_view(&self, piece: usize) -> PyResult<(NonNull<u8>, usize, bool)> {
        let State { loan, views } = &mut *lock(&self.state);
        let place = match loan.as_ref().ok_or_else(given_back)? {
            Loan::Frame(frame) => frame.pieces().nth(piece).map(|(base, length_bytes)| (base, length_bytes, true)),
            Loan::Buffer(buffer) => NonNull::new(buffer.as_ptr()).map(|base| (base, buffer.length_bytes(), false)),
        };
        let (base, length_bytes, is_read_only) = place.ok_or_else(given_back)?;
        *views += 1;
        Ok((base, usize::try_from(length_bytes)?, is_read_only))
    }

    pub(crate) fn end_view(&self) {
        lock(&self.state).views -= 1;
    }

    /// Copy a frame.
    pub(crate) fn read(&self, into: &mut [u8]) -> PyResult<()> {
        match &lock(&self.state).loan {
            Some(Loan::Frame(frame)) => frame.read(0, into).map(drop).map_err(|fault: PeerFault| net_exception(&fault.into())),
            _ => Err(given_back()),
        }
    }

    /// Take it from the program, if no views are left. `None`: it was given back before.
    fn take(&self) -> PyResult<Option<Loan>> {
        let State { loan, views } = &mut *lock(&self.state);
        if loan.is_some() && *views > 0 {
            let text = format!("{views} views of this memory exist (slices, arrays); delete or release them first");
            return Err(PyBufferError::new_err(text));
        }
        Ok(loan.take())
    }

    /// Take a transmit buffer from the program, to send it.
    pub(crate) fn take_buffer(&self) -> PyResult<Buffer> {
        match self.take()? {
            Some(Loan::Buffer(buffer)) => Ok(buffer),
            _ => Err(given_back()),
        }
    }

    /// Give it back, if no views are left.
    pub(crate) fn give_back(&self) -> PyResult<()> {
        let loan = self.take()?;
        self.take_back(loan);
        Ok(())
    }

    fn take_back(&self, loan: Option<Loan>) {
        if let (Some(loan), Some(connection)) = (loan, self.connection.upgrade()) {
            connection.take_back(loan);
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let loan = lock(&self.state).loan.take();
        self.take_back(loan);
    }
}

#[cold]
fn given_back() -> PyErr {
    PyValueError::new_err("the memory was given back to the port; copy what is needed before that")
}
