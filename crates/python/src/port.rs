//! `fipsee.Port`: frames of a network.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fipsee_block::client::default_socket_path;
use fipsee_net::frame::{HEADER_BYTES, Mac};
use fipsee_net::wire::{OFFLOADS, Offload as WireOffload, PortInfo};
use fipsee_net::{AttachOptions, Error, Frame as HeldFrame, NetError, Port as Client};
use fipsee_ring::clock;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::doorbells::DoorbellCounts;
use crate::error::{Failure, net_exception};
use crate::frame::{Frame, TransmitBuffer};
use crate::lent::Connection;
use crate::memory::View;
use crate::offload::Offload;
use crate::opened::{closed, detached, keep_trying};
use crate::wait::SIGNAL_PERIOD;

/// A port of a network: it sends and receives Ethernet frames, from the destination address to the end of the payload.
///
/// It is for one thread at a time. A receiver that is too slow loses frames; no sender waits for it.
#[pyclass(frozen, module = "fipsee")]
pub(crate) struct Port {
    connection: Arc<Connection>,
    name: String,
    info: PortInfo,
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

fn bytes_of(py: Python<'_>, frame: &HeldFrame) -> PyResult<Py<PyBytes>> {
    let length = usize::try_from(frame.length_bytes())?;
    let bytes = PyBytes::new_with(py, length, |bytes| {
        frame.read(0, bytes).map_err(|fault| net_exception(&fault.into()))?;
        Ok(())
    })?;
    Ok(bytes.unbind())
}

/// The address of a group, as text or bytes.
fn address_of_group(group: &Bound<'_, PyAny>) -> PyResult<Mac> {
    let address = match group.extract::<&str>() {
        Ok(text) => text.parse::<Mac>(),
        Err(_) => {
            let view = View::of(group, false)?;
            let bytes = view.slice(group.py());
            bytes.try_into().map(Mac).map_err(|_| format!("{} bytes are no MAC address; give 6, or text", bytes.len()))
        }
    };
    address.and_then(Mac::to_join).map_err(PyValueError::new_err)
}

impl Port {
    fn with<R>(&self, call: impl FnOnce(&mut Client) -> Result<R, Error>) -> PyResult<R> {
        self.connection.with(call)
    }

    /// Address and MTU of now, or as they were last.
    fn now(&self) -> (Mac, u16) {
        let now = self.connection.try_client().and_then(|client| client.as_ref().map(|client| (client.mac(), client.mtu())));
        now.unwrap_or((Mac(self.info.mac), self.info.mtu))
    }

    fn received(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<HeldFrame>> {
        let mut client = self.connection.client()?;
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
        Ok(Self { connection: Connection::new(client), name, info })
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
        self.connection.try_client().is_some_and(|client| client.is_none())
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

    /// How often program and daemon woke each other, over reconnections, too.
    #[getter]
    fn doorbell_counts(&self) -> PyResult<DoorbellCounts> {
        self.with(|client| Ok(client.doorbell_counts().into()))
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
        let mut client = self.connection.client()?;
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
        let mut client = self.connection.client()?;
        let client = client.as_mut().ok_or_else(|| closed("port"))?;
        let attempt = || Client::attach_again(std::slice::from_mut(client)).map_err(Failure::Client);
        let is_transient = |failure: &Failure<Error>| matches!(failure, Failure::Client(error) if error.is_transient());
        Ok(py.detach(|| keep_trying(give_up_after, attempt, is_transient))?)
    }

    /// The next frame where the daemon put it, without a copy; None when none came within `timeout` seconds. Its buffers are the program's
    /// until it is released: while a program has frames in all of them, others are lost, and this raises BusyError.
    #[pyo3(signature = (timeout=None))]
    fn take(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Frame>> {
        self.connection.check_frames(self.with(|client| Ok(client.depths().1))?)?;
        Ok(self.received(py, timeout)?.map(|frame| Frame::new(frame, &self.connection)))
    }

    /// A transmit buffer, to be filled in place; BusyError when all are in use.
    fn buffer(&self) -> PyResult<TransmitBuffer> {
        Ok(TransmitBuffer::new(self.with(Client::buffer)?, &self.connection))
    }

    /// Send the first `length` bytes of a transmit buffer of this port, without a copy. BufferError while slices or arrays of its view exist;
    /// then, and with a length that no frame has, nothing is sent and the buffer stays the program's. `offload`: as with `send`.
    #[pyo3(signature = (buffer, length, offload=None))]
    fn send_buffer(&self, py: Python<'_>, buffer: &TransmitBuffer, length: usize, offload: Option<Offload>) -> PyResult<()> {
        let (least, most) = (usize::try_from(HEADER_BYTES)?, usize::try_from(self.info.max_frame_bytes)?);
        if !(least..=most).contains(&length) {
            return Err(net_exception(&Error::Service(NetError::Length { length_bytes: length, least, most })));
        }
        let offload = offload.map_or(WireOffload::NONE, WireOffload::from);
        let length_bytes = u32::try_from(length)?;
        let mut client = self.connection.client()?;
        let client = client.as_mut().ok_or_else(|| closed("port"))?;
        let buffer = buffer.take(py, &self.connection)?;
        client.send_buffer_offloaded(buffer, length_bytes, offload).map_err(|error| net_exception(&error))?;
        client.submit();
        Ok(())
    }

    /// Get frames to this multicast group: its address, as text or 6 bytes. With the first one that is joined, frames to others do not come any
    /// more, but broadcasts do. In force once the daemon has given back what was sent (`wait_sent`); a 65th group is counted as refused.
    fn join(&self, group: &Bound<'_, PyAny>) -> PyResult<()> {
        let group = address_of_group(group)?;
        self.with(|client| client.join(group))
    }

    /// Get no frames to this group any more.
    fn leave(&self, group: &Bound<'_, PyAny>) -> PyResult<()> {
        let group = address_of_group(group)?;
        self.with(|client| client.leave(group))
    }

    /// Get frames to all groups, as in the beginning, or to none; either way none is joined any more.
    #[pyo3(signature = (all=true))]
    fn all_groups(&self, all: bool) -> PyResult<()> {
        self.with(|client| client.all_groups(all))
    }

    /// A descriptor for event loops: after `arm` it is readable when a frame came, when a transmit buffer is free again that was missing, and
    /// when the daemon is gone. After `reconnect` there is another.
    fn fileno(&self) -> PyResult<i32> {
        self.with(|client| Ok(client.descriptor()?.as_raw_fd()))
    }

    /// Before waiting for the descriptor. True: something came meanwhile; receive, do not wait.
    fn arm(&self) -> PyResult<bool> {
        self.with(Client::arm)
    }

    /// After waiting, or giving it up: the descriptor is silent until `arm`. DisconnectedError when the daemon is gone and no frame is left.
    fn woken(&self) -> PyResult<()> {
        self.with(Client::woken)
    }

    /// Send what was submitted and release the port.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.connection.is_inherited() {
            return Ok(());
        }
        let Some(client) = self.connection.client()?.take() else { return Ok(()) };
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
