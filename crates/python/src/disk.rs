//! `fipsee.Disk`: calls that return when they are done.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fipsee_block::client::transfer::{Action, Plan, TransferMemory};
use fipsee_block::client::{AttachOptions, Bytes, Claim, Error};
use fipsee_block::wire::{CAPABILITY_NAMES, CAPABILITY_WRITE, SECTOR_BYTES, Status};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::attached::{Borrowed, DiskConnection};
use crate::doorbells::DoorbellCounts;
use crate::error::{Failure, batch_exception, request_exception};
use crate::events::EventQueue;
use crate::memory::{Memory, View};
use crate::transfer;

/// A plan that ends with its first failure.
const fn plan<'a>(action: Action, disk_offsets: &'a [u64], length_bytes: u64) -> Plan<'a> {
    Plan { action, disk_offsets, length_bytes, keep_going: false, place: TransferMemory::None }
}

/// A disk of a daemon. Offsets and lengths are in bytes and multiples of `block_size`.
///
/// Several threads may use it at a time: as many as it has queues work at once, the others wait.
#[pyclass(frozen, module = "fipsee")]
pub(crate) struct Disk {
    attached: Arc<DiskConnection>,
}

impl Disk {
    /// Execute `plan`, with the interpreter released.
    fn run(&self, py: Python<'_>, plan: Plan<'_>, bytes: Option<Bytes<'_>>) -> PyResult<Vec<(usize, Status)>> {
        let mut borrowed = self.attached.borrow(py)?;
        let done = py.detach(|| match borrowed.lane() {
            Some(lane) => transfer::run(&self.attached, lane, plan, bytes),
            None => Err(Error::Full.into()),
        });
        Ok(done?)
    }

    /// One action on one range.
    fn run_one(&self, py: Python<'_>, action: Action, offset: u64, length_bytes: u64, bytes: Option<Bytes<'_>>) -> PyResult<()> {
        match self.run(py, plan(action, &[offset], length_bytes), bytes)?.first() {
            Some((_, status)) => Err(request_exception(*status, (offset, length_bytes), &self.attached.info)),
            None => Ok(()),
        }
    }

    /// Execute `plan` on the bytes of a view, which are kept if the daemon may still use them.
    fn run_on_view(&self, py: Python<'_>, plan: Plan<'_>, view: View) -> PyResult<Vec<(usize, Status)>> {
        let found = self.attached.find(&view);
        let mut borrowed = self.attached.borrow(py)?;
        // A view that is not kept is dropped by the caller: dropping it takes the interpreter.
        let (done, _view) = py.detach(|| {
            let Some(lane) = borrowed.lane() else { return (Err(Error::Full.into()), Some(view)) };
            let Some((registered, offset_bytes)) = found else {
                return (transfer::run(&self.attached, lane, plan, Some(view.bytes())), Some(view));
            };
            let plan = Plan { place: registered.place(offset_bytes), ..plan };
            let done = transfer::run(&self.attached, lane, plan, None);
            if lane.queue.outstanding() == 0 {
                return (done, Some(view));
            }
            lane.kept.push((view, registered));
            (done, None)
        });
        Ok(done?)
    }

    fn batch(&self, offsets: &Bound<'_, PyAny>, memory: &Bound<'_, PyAny>, block_bytes: u64, action: Action) -> PyResult<()> {
        let py = memory.py();
        let disk_offsets = extract_offsets(offsets)?;
        let view = View::of(memory, action == Action::Read)?;
        let wanted_bytes = (disk_offsets.len() as u64).checked_mul(block_bytes);
        if block_bytes == 0 || wanted_bytes.is_none_or(|wanted| wanted > view.length_bytes() as u64) {
            return Err(PyValueError::new_err(format!(
                "{} blocks of {block_bytes} bytes do not fit into the memory of {} bytes; give larger memory, or fewer offsets",
                disk_offsets.len(),
                view.length_bytes()
            )));
        }
        let plan = Plan { keep_going: true, ..plan(action, &disk_offsets, block_bytes) };
        let mut failures = self.run_on_view(py, plan, view)?;
        if failures.is_empty() {
            return Ok(());
        }
        failures.sort_unstable_by_key(|(index, _)| *index);
        failures.dedup_by_key(|(index, _)| *index);
        Err(batch_exception(disk_offsets.len(), &failures))
    }
}

#[pymethods]
impl Disk {
    #[new]
    #[pyo3(signature = (name, *, socket=None, queues=1, depth=64, read_only=false, exclusive=false, claim="none", wait="adaptive", reconnect=0.0, notify=None))]
    #[expect(clippy::too_many_arguments, reason = "Python has keywords for them")]
    fn new(
        py: Python<'_>,
        name: String,
        socket: Option<PathBuf>,
        queues: u16,
        depth: u32,
        read_only: bool,
        exclusive: bool,
        claim: &str,
        wait: &str,
        reconnect: f64,
        notify: Option<&str>,
    ) -> PyResult<Self> {
        let bad_notify = |problem: String| PyValueError::new_err(format!("notify: {problem}"));
        let notify = notify.map(|policy| policy.parse().map_err(bad_notify)).transpose()?;
        let mode = wait.parse().map_err(PyValueError::new_err)?;
        let claim = match claim {
            "none" => Claim::None,
            "sole_writer" => Claim::SoleWriter,
            "ignore" => Claim::Ignore,
            other => return Err(PyValueError::new_err(format!("claim={other:?}: use 'none', 'sole_writer' or 'ignore'"))),
        };
        let reconnect_for = Duration::try_from_secs_f64(reconnect)
            .map_err(|_| PyValueError::new_err(format!("reconnect={reconnect}: use a number of seconds, 0 or more")))?;
        if queues == 0 || depth == 0 {
            return Err(PyValueError::new_err("a disk needs at least one queue of depth 1"));
        }
        if queues > 1 && !reconnect_for.is_zero() {
            return Err(PyValueError::new_err("a disk that reconnects has one queue; open it once per thread instead"));
        }
        let options = AttachOptions {
            queue_count: queues,
            depth,
            pool_bytes: 0,
            read_only,
            exclusive,
            claim,
            wait: mode,
            notify,
            ..AttachOptions::new(&name)
        };
        let attached = py.detach(|| DiskConnection::open(socket, &options, reconnect_for)).map_err(Failure::from)?;
        Ok(Self { attached })
    }

    /// The name of the export.
    #[getter]
    fn name(&self) -> &str {
        &self.attached.name
    }

    /// Size in bytes, the newest known.
    #[getter]
    fn size(&self) -> PyResult<u64> {
        self.attached.check_process()?;
        if let Some(mut borrowed) = self.attached.try_borrow()?
            && let Some(lane) = borrowed.lane()
        {
            // Not for completions, for which no call waits, but for a new size.
            let _ = lane.queue.reap(&mut |_| {});
        }
        Ok(self.attached.newest_info()?.size_bytes())
    }

    /// Logical block size in bytes: the unit of offsets and lengths.
    #[getter]
    fn block_size(&self) -> u32 {
        self.attached.info.block_bytes
    }

    /// Preferred size and alignment of a request, in bytes.
    #[getter]
    fn optimal_size(&self) -> u32 {
        self.attached.info.optimal_bytes
    }

    /// Are writes refused?
    #[getter]
    fn read_only(&self) -> bool {
        !self.attached.info.can(CAPABILITY_WRITE)
    }

    /// The capabilities of the disk: some of write, flush, fua, discard, write_zeroes.
    #[getter]
    fn capabilities(&self) -> Vec<&'static str> {
        let can = |(bit, name): &(u32, &'static str)| self.attached.info.can(*bit).then_some(*name);
        CAPABILITY_NAMES.iter().filter_map(can).collect()
    }

    /// Queues the daemon granted.
    #[getter]
    fn queues(&self) -> usize {
        self.attached.near.queue_count()
    }

    /// Requests at a time the daemon granted, per queue.
    #[getter]
    fn depth(&self) -> usize {
        self.attached.depth
    }

    /// How often program and daemon woke each other, by all queues together. A queue that a thread uses is counted as before its call.
    #[getter]
    fn doorbell_counts(&self) -> PyResult<DoorbellCounts> {
        Ok(self.attached.doorbell_counts()?.into())
    }

    /// Bind the calling thread to a CPU near the daemon's worker that served this queue when the disk was opened: one of those that the
    /// thread which opened the disk could use. The CPU, or None where there is one for everything and nothing has changed.
    #[pyo3(signature = (queue=0))]
    fn place_thread(&self, py: Python<'_>, queue: usize) -> PyResult<Option<usize>> {
        self.attached.check_process()?;
        let count = self.attached.near.queue_count();
        if queue >= count {
            return Err(PyValueError::new_err(format!("there is no queue {queue}; the disk has {count}, numbered from 0")));
        }
        Ok(py.detach(|| self.attached.near.place_thread(queue))?)
    }

    #[getter]
    fn closed(&self) -> bool {
        self.attached.is_closed()
    }

    /// Read `length` bytes at `offset`.
    fn read<'py>(&self, py: Python<'py>, offset: u64, length: usize) -> PyResult<Bound<'py, PyBytes>> {
        self.attached.check_process()?;
        let wanted = length as u64;
        PyBytes::new_with(py, length, |bytes| self.run_one(py, Action::Read, offset, wanted, Some(Bytes::of_slice(bytes))))
    }

    /// Fill `buffer` with data from `offset`; returns how many bytes. Without a copy if it is memory of `alloc`.
    fn readinto(&self, py: Python<'_>, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.transfer(py, Action::Read, offset, buffer)
    }

    /// Write `buffer` at `offset`; returns how many bytes. Durable after the next flush, or, with `fua`, on return.
    #[pyo3(signature = (offset, buffer, fua=false))]
    fn write(&self, py: Python<'_>, offset: u64, buffer: &Bound<'_, PyAny>, fua: bool) -> PyResult<usize> {
        self.transfer(py, Action::Write { fua }, offset, buffer)
    }

    /// Make everything written so far durable.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.run_one(py, Action::Flush, 0, 0, None)
    }

    /// Discard a range: its contents are no longer needed.
    fn discard(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<()> {
        self.run_one(py, Action::Discard, offset, length, None)
    }

    /// Make a range read as zeroes; `unmap`: its blocks may be deallocated.
    #[pyo3(signature = (offset, length, unmap=false))]
    fn write_zeroes(&self, py: Python<'_>, offset: u64, length: u64, unmap: bool) -> PyResult<()> {
        self.run_one(py, Action::WriteZeroes { unmap, fua: false }, offset, length, None)
    }

    /// Read `block_bytes` at each of `offsets`, number `i` to `memory[i * block_bytes:]`, as many at a time as the queue takes.
    fn read_batch(&self, offsets: &Bound<'_, PyAny>, memory: &Bound<'_, PyAny>, block_bytes: u64) -> PyResult<()> {
        self.batch(offsets, memory, block_bytes, Action::Read)
    }

    /// Write `block_bytes` at each of `offsets`, number `i` from `memory[i * block_bytes:]`, in no order.
    #[pyo3(signature = (offsets, memory, block_bytes, fua=false))]
    fn write_batch(&self, offsets: &Bound<'_, PyAny>, memory: &Bound<'_, PyAny>, block_bytes: u64, fua: bool) -> PyResult<()> {
        self.batch(offsets, memory, block_bytes, Action::Write { fua })
    }

    /// New memory shared with the daemon: data moves between it and the disk without a copy. Up to 63 a disk, less one per queue
    /// that copies.
    fn alloc(&self, py: Python<'_>, nbytes: u64) -> PyResult<Memory> {
        self.attached.check_process()?;
        let length_bytes = usize::try_from(nbytes).ok().filter(|bytes| (1..=isize::MAX as usize).contains(bytes));
        let length_bytes = length_bytes.ok_or_else(|| PyValueError::new_err("memory has 1 byte to half the address space"))?;
        let rounded_bytes = nbytes.next_multiple_of(SECTOR_BYTES);
        let mut borrowed = if self.attached.reconnects() { Some(self.attached.borrow(py)?) } else { None };
        let registered = py.detach(|| match borrowed.as_mut().and_then(Borrowed::lane) {
            Some(lane) => self.attached.allocate_across(lane, rounded_bytes),
            None => self.attached.allocate(rounded_bytes),
        })?;
        Ok(Memory::new(registered, length_bytes))
    }

    /// A numpy array in memory of its own from `alloc`.
    fn array<'py>(slf: Bound<'py, Self>, shape: Bound<'py, PyAny>, dtype: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("fipsee._numpy")?.getattr("array")?.call1((slf, shape, dtype))
    }

    /// For event loops: take a queue of this disk.
    fn _event_queue(&self, py: Python<'_>) -> PyResult<EventQueue> {
        EventQueue::new(py, &self.attached)
    }

    /// Wait until no thread uses the disk, and release it. Memory and its arrays stay valid.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.attached.close(py)
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
        let state = if self.closed() { ", closed" } else { "" };
        format!("<fipsee.Disk '{}' of {} bytes{state}>", self.attached.name, self.attached.info.size_bytes())
    }
}

impl Disk {
    fn transfer(&self, py: Python<'_>, action: Action, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let view = View::of(buffer, action == Action::Read)?;
        let length = view.length_bytes();
        match self.run_on_view(py, plan(action, &[offset], length as u64), view)?.first() {
            Some((_, status)) => Err(request_exception(*status, (offset, length as u64), &self.attached.info)),
            None => Ok(length),
        }
    }
}

/// Offsets from an array of 64-bit numbers, or from any sequence of numbers.
fn extract_offsets(offsets: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let py = offsets.py();
    if let Ok(unsigned) = PyBuffer::<u64>::get(offsets) {
        return unsigned.to_vec(py);
    }
    if let Ok(signed) = PyBuffer::<i64>::get(offsets) {
        let negative = |offset| PyValueError::new_err(format!("the offset {offset} is negative"));
        return signed.to_vec(py)?.into_iter().map(|offset| u64::try_from(offset).map_err(|_| negative(offset))).collect();
    }
    offsets.extract()
}
