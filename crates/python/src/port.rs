//! `fipsee.Port`: frames of a network.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use fipsee_block::client::default_socket_path;
use fipsee_net::frame::Mac;
use fipsee_net::wire::{OFFLOADS, Offload as WireOffload, PortInfo};
use fipsee_net::{AttachOptions, Error, Frame, ListedPortInfo, Port as Client};
use fipsee_ring::clock;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::error::{Failure, net_exception};
use crate::memory::View;
use crate::offload::Offload;
use crate::opened::{Opener, closed, detached, keep_trying};
use crate::wait::SIGNAL_PERIOD;

/// A port of a network: it sends and receives Ethernet frames, from the destination address to the end of the payload.
///
/// It is for one thread at a time. A receiver that is too slow loses frames; no sender waits for it.
#[pyclass(frozen, module = "fipsee")]
pub(crate) struct Port {
    /// In memory of Rust's: it begins at a cache line, which Python's memory need not.
    client: Mutex<Option<Box<Client>>>,
    name: String,
    info: PortInfo,
    opener: Opener,
}

/// When a wait that may take so many seconds is over.
fn deadline(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(seconds) = timeout else { return Ok(None) };
    let timeout = Duration::try_from_secs_f64(if seconds < 0.0 { 0.0 } else { seconds });
    let timeout =
        timeout.map_err(|_| PyValueError::new_err(format!("a timeout of {seconds}; give seconds, or None for ever")))?;
    Ok(Instant::now().checked_add(timeout))
}

/// Call `wait` with deadlines, the interpreter released, until it has something, `timeout` is over, or a signal handler raises.
fn wait<T: Send>(
    py: Python<'_>,
    client: &mut Client,
    timeout: Option<f64>,
    mut wait: impl FnMut(&mut Client, u64) -> Result<Option<T>, Error> + Send,
) -> PyResult<Option<T>> {
    let deadline = deadline(timeout)?;
    loop {
        let left =
            deadline.map_or(SIGNAL_PERIOD, |deadline| deadline.saturating_duration_since(Instant::now()).min(SIGNAL_PERIOD));
        let until = clock::ticks().saturating_add(clock::duration_to_ticks(left));
        if let Some(found) = py.detach(|| wait(client, until)).map_err(|error| net_exception(&error))? {
            return Ok(Some(found));
        }
        py.check_signals()?;
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(None);
        }
    }
}

fn bytes_of(py: Python<'_>, frame: &Frame) -> PyResult<Py<PyBytes>> {
    let length = usize::try_from(frame.length_bytes())?;
    let bytes = PyBytes::new_with(py, length, |bytes| {
        frame.read(0, bytes).map_err(|fault| net_exception(&fault.into()))?;
        Ok(())
    })?;
    Ok(bytes.unbind())
}

impl Port {
    fn client(&self) -> PyResult<MutexGuard<'_, Option<Box<Client>>>> {
        self.opener.check()?;
        match self.client.try_lock() {
            Ok(client) => Ok(client),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(PyRuntimeError::new_err(
                "another call uses the port; it is for one thread at a time: receive with a timeout, or lock",
            )),
        }
    }

    fn with<R>(&self, call: impl FnOnce(&mut Client) -> Result<R, Error>) -> PyResult<R> {
        call(self.client()?.as_mut().ok_or_else(|| closed("port"))?).map_err(|error| net_exception(&error))
    }

    /// Address and MTU of now, or as they were last.
    fn now(&self) -> (Mac, u16) {
        let client = if self.opener.is_inherited() { None } else { self.client.try_lock().ok() };
        let now = client.and_then(|client| client.as_ref().map(|client| (client.mac(), client.mtu())));
        now.unwrap_or((Mac(self.info.mac), self.info.mtu))
    }

    fn received(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Frame>> {
        let mut client = self.client()?;
        let client = client.as_mut().ok_or_else(|| closed("port"))?;
        // The usual case needs no release of the interpreter.
        match client.take().map_err(|error| net_exception(&error))? {
            Some(frame) => Ok(Some(frame)),
            None if timeout.is_some_and(|timeout| timeout <= 0.0) => Ok(None),
            None => wait(py, client, timeout, |client, until| client.wait_frame(Some(until))),
        }
    }
}

#[pymethods]
impl Port {
    #[new]
    #[pyo3(signature = (name, *, socket=None, depth=256, buffer_size=None, wait="adaptive", offloads=0, least_mtu=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        name: String,
        socket: Option<PathBuf>,
        depth: u32,
        buffer_size: Option<u32>,
        wait: &str,
        offloads: u32,
        least_mtu: Option<u16>,
    ) -> PyResult<Self> {
        let wait = wait.parse().map_err(PyValueError::new_err::<String>)?;
        if offloads & !OFFLOADS != 0 {
            return Err(PyValueError::new_err(format!("offloads of {offloads}; add Offload.CHECKSUM, TSO4, TSO6, TSO_ECN, USO")));
        }
        let attach = AttachOptions { depth, buffer_bytes: buffer_size, wait, ..AttachOptions::new(&name) };
        let options = AttachOptions { offloads, least_mtu, ..attach };
        let socket = socket.unwrap_or_else(default_socket_path);
        let client = py.detach(|| Client::attach(&socket, &options)).map_err(|error| net_exception(&error))?;
        let info = client.info();
        Ok(Self { client: Mutex::new(Some(Box::new(client))), name, info, opener: Opener::this("port") })
    }

    /// Network and port, such as "lan/a".
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The port's address, as in "02:00:00:00:00:0a".
    #[getter]
    fn mac(&self) -> String {
        self.now().0.to_string()
    }

    /// The port's address, as in a frame.
    #[getter]
    fn address<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.now().0.0)
    }

    #[getter]
    fn mtu(&self) -> u16 {
        self.now().1
    }

    /// Longest frame: MTU, Ethernet header and a VLAN tag; more with TSO4, TSO6 or USO in force.
    #[getter]
    const fn max_frame_size(&self) -> u32 {
        self.info.max_frame_bytes
    }

    /// What frames may leave to be done: of `Offload.CHECKSUM` and so on, those in force.
    #[getter]
    const fn offloads(&self) -> u32 {
        self.info.offloads
    }

    /// Does it send and get frames, or has an administrator taken it down? As of the last call that received, with or without a frame.
    #[getter]
    fn up(&self) -> PyResult<bool> {
        self.with(|client| Ok(client.is_up()))
    }

    /// How often the daemon has reported a change, of `up`, `mtu` or `mac`; as `up`.
    #[getter]
    fn changes(&self) -> PyResult<u64> {
        self.with(|client| Ok(client.changes()))
    }

    /// Of a port that has one; else None.
    #[getter]
    const fn vlan(&self) -> Option<u16> {
        if self.info.vlan == 0 { None } else { Some(self.info.vlan) }
    }

    #[getter]
    fn closed(&self) -> bool {
        !self.opener.is_inherited() && self.client.try_lock().is_ok_and(|client| client.is_none())
    }

    /// What became of frames: sent_back (taken by the daemon or refused), refused, refusal (why, of the newest), lost, unsent.
    #[getter]
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (counters, unsent) = self.with(|client| {
            client.reap()?;
            Ok((client.counters(), client.unsent()))
        })?;
        let dict = PyDict::new(py);
        dict.set_item("sent_back", counters.sent_back)?;
        dict.set_item("refused", counters.refused)?;
        dict.set_item("refusal", counters.newest_refusal.map(fipsee_net::wire::Status::text))?;
        dict.set_item("lost", counters.lost)?;
        dict.set_item("unsent", unsent)?;
        Ok(dict)
    }

    /// Send a frame. It is copied; BusyError when all transmit buffers are in use. `offload`: what it leaves to be done, of what is in force.
    #[pyo3(signature = (frame, offload=None))]
    fn send(&self, frame: &Bound<'_, PyAny>, offload: Option<Offload>) -> PyResult<()> {
        let view = View::of(frame, false)?;
        let offload = offload.map_or(WireOffload::NONE, WireOffload::from);
        self.with(|client| {
            client.stage_offloaded(view.slice(frame.py()), offload)?;
            client.submit();
            Ok(())
        })
    }

    /// Send frames in one burst. Returns how many: fewer when transmit buffers ran out.
    fn send_batch(&self, frames: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut count = 0;
        let mut stage = || {
            for frame in frames.try_iter()? {
                let frame = frame?;
                let view = View::of(&frame, false)?;
                let staged = self.with(|client| match client.stage(view.slice(frame.py())) {
                    Err(Error::Full) => Ok(false),
                    staged => staged.map(|()| true),
                })?;
                if !staged {
                    break;
                }
                count += 1;
            }
            Ok(())
        };
        let staged = stage();
        self.with(|client| {
            client.submit();
            Ok(())
        })?;
        staged.map(|()| count)
    }

    /// Wait until the daemon has given back all that was sent: True, or False after `timeout` seconds.
    #[pyo3(signature = (timeout=None))]
    fn wait_sent(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let mut client = self.client()?;
        let client = client.as_mut().ok_or_else(|| closed("port"))?;
        let sent = wait(py, client, timeout, |client, until| Ok(client.wait_sent(Some(until))?.then_some(())))?;
        Ok(sent.is_some())
    }

    /// The next frame; None when none came within `timeout` seconds. 0: do not wait; None: wait for ever.
    #[pyo3(signature = (timeout=None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyBytes>>> {
        self.received(py, timeout)?.map(|frame| bytes_of(py, &frame)).transpose()
    }

    /// The next frame with what it leaves to be done; None when none came within `timeout` seconds.
    #[pyo3(signature = (timeout=None))]
    fn receive_offloaded(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<(Py<PyBytes>, Offload)>> {
        let Some(frame) = self.received(py, timeout)? else { return Ok(None) };
        Ok(Some((bytes_of(py, &frame)?, frame.offload().into())))
    }

    /// The next frame into a buffer: its length, of which what does not fit is cut off; None when none came in time.
    #[pyo3(signature = (buffer, timeout=None))]
    fn receive_into(&self, buffer: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<Option<u32>> {
        let view = View::of(buffer, true)?;
        let Some(frame) = self.received(buffer.py(), timeout)? else { return Ok(None) };
        view.fill(buffer.py(), |bytes| frame.read(0, bytes)).map_err(|fault| net_exception(&fault.into()))?;
        Ok(Some(frame.length_bytes()))
    }

    /// Frames that are there, at most `most`; waits for the first as `receive` does.
    #[pyo3(signature = (most=64, timeout=Some(0.0)))]
    fn receive_batch(&self, py: Python<'_>, most: usize, timeout: Option<f64>) -> PyResult<Vec<Py<PyBytes>>> {
        let mut frames = Vec::new();
        while frames.len() < most {
            let timeout = if frames.is_empty() { timeout } else { Some(0.0) };
            match self.received(py, timeout) {
                Ok(Some(frame)) => frames.push(bytes_of(py, &frame)?),
                Ok(None) => break,
                // The frames before are the caller's; the error is raised again.
                Err(_) if !frames.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(frames)
    }

    /// After DisconnectedError: attach again, for at most `timeout` seconds. Frames in flight are lost, and counted.
    #[pyo3(signature = (timeout=60.0))]
    fn reconnect(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let give_up_after = Duration::try_from_secs_f64(if timeout < 0.0 { 0.0 } else { timeout });
        let give_up_after = give_up_after.map_err(|_| PyValueError::new_err(format!("a timeout of {timeout}; give seconds")))?;
        let mut client = self.client()?;
        let client = client.as_mut().ok_or_else(|| closed("port"))?;
        let attempt = || Client::attach_again(std::slice::from_mut(client)).map_err(Failure::Client);
        let is_transient = |failure: &Failure<Error>| matches!(failure, Failure::Client(error) if error.is_transient());
        Ok(py.detach(|| keep_trying(give_up_after, attempt, is_transient))?)
    }

    fn _fileno(&self) -> PyResult<i32> {
        self.with(|client| Ok(client.descriptor()?.as_raw_fd()))
    }

    fn _arm(&self) -> PyResult<bool> {
        self.with(Client::arm)
    }

    fn _woken(&self) -> PyResult<()> {
        self.with(Client::woken)
    }

    /// Send what was submitted and release the port.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.opener.is_inherited() {
            return Ok(());
        }
        let Some(client) = self.client()?.take() else { return Ok(()) };
        py.detach(|| detached(client.detach())).map_err(|error| net_exception(&error))
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
        let closed = self.close(py);
        // The first error is the one raised.
        if kind.is_none() { closed } else { Ok(()) }
    }

    fn __repr__(&self) -> String {
        format!("<fipsee.Port '{}'{}>", self.name, if self.closed() { ", closed" } else { "" })
    }
}

/// A port that this user may open.
#[pyclass(frozen, eq, module = "fipsee")]
#[derive(PartialEq, Eq)]
pub(crate) struct ListedPort(ListedPortInfo);

#[pymethods]
impl ListedPort {
    /// Network and port, for `Port`.
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// Its address, as in "02:00:00:00:00:0a".
    #[getter]
    fn mac(&self) -> String {
        self.0.mac.to_string()
    }

    #[getter]
    const fn mtu(&self) -> u16 {
        self.0.mtu
    }

    /// Does a client have it?
    #[getter]
    const fn in_use(&self) -> bool {
        self.0.in_use
    }

    fn __repr__(&self) -> String {
        format!("<fipsee.ListedPort '{}', {}{}>", self.0.name, self.0.mac, if self.0.in_use { ", in use" } else { "" })
    }
}

/// The ports that this user may open, in the order of their names. None is opened.
#[pyfunction]
#[pyo3(signature = (*, socket=None))]
pub(crate) fn list_ports(py: Python<'_>, socket: Option<PathBuf>) -> PyResult<Vec<ListedPort>> {
    let socket = socket.unwrap_or_else(default_socket_path);
    let ports = py.detach(|| fipsee_net::list(&socket)).map_err(|error| net_exception(&error))?;
    Ok(ports.into_iter().map(ListedPort).collect())
}
