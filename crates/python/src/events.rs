//! A queue for event loops: nothing here waits. `python/fipsee/aio.py` is the event loop's side.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, TryLockError};

use fipsee_block::client::transfer::BOUNCE_PIECE_BYTES;
use fipsee_block::client::{Bytes, Completion, DiskError, Error};
use fipsee_block::wire::{FLAG_FUA, FLAG_UNMAP, Operation, SECTOR_BYTES, SECTOR_SHIFT, Segment, Status};
use fipsee_ring::ring::Full;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::attached::{DiskConnection, Lane};
use crate::error::{Failure, closed, exception};
use crate::memory::{Registered, View};

/// The segment of a request without data.
const NO_SEGMENT: Segment = Segment { offset_sectors: 0, length_sectors: 0, region: 0 };

/// What to do with the data on completion.
enum Delivery {
    Nothing,
    /// This many bytes, as a bytes object.
    Bytes(u64),
    /// This many bytes from the bounce memory into the view, at this place.
    Copy {
        start_bytes: u64,
        length_bytes: u64,
    },
}

/// A request and the objects that it must keep.
struct Entry {
    future: Py<PyAny>,
    view: Option<View>,
    /// Where the data is, if not in the slot of the bounce memory.
    _direct: Option<Arc<Registered>>,
    delivery: Delivery,
}

struct State {
    lane: Lane,
    /// One piece per request.
    bounce: Arc<Registered>,
    /// By token.
    entries: Vec<Option<Entry>>,
    free: Vec<usize>,
}

/// A queue in an event loop. Not for users.
#[pyclass(frozen, module = "fipsee._fipsee")]
pub(crate) struct EventQueue {
    disk: Arc<DiskConnection>,
    state: Mutex<Option<State>>,
}

/// A future, its exception, its result.
type Done = (Py<PyAny>, Option<Py<PyAny>>, Option<Py<PyAny>>);

impl EventQueue {
    pub(crate) fn new(py: Python<'_>, disk: &Arc<DiskConnection>) -> PyResult<Self> {
        let lane = disk.take_lane()?;
        let depth = lane.queue.depth();
        let bounce = py.detach(|| disk.allocate(depth as u64 * BOUNCE_PIECE_BYTES));
        let bounce = match bounce {
            Ok(bounce) => bounce,
            Err(failure) => {
                disk.give_lane(lane);
                return Err(failure.into());
            }
        };
        let state = State { lane, bounce, entries: (0..depth).map(|_| None).collect(), free: (0..depth).rev().collect() };
        Ok(Self { disk: Arc::clone(disk), state: Mutex::new(Some(state)) })
    }

    fn with<R>(&self, call: impl FnOnce(&mut State) -> Result<R, Failure>) -> PyResult<R> {
        self.disk.check_process()?;
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(PyRuntimeError::new_err("two threads use the queue of one event loop"));
            }
        };
        match state.as_mut() {
            Some(state) => Ok(call(state)?),
            None => Err(closed()),
        }
    }
}

impl State {
    fn stage(
        &mut self,
        request: &Request,
        view: Option<View>,
        direct: Option<(Arc<Registered>, u64)>,
        future: Py<PyAny>,
    ) -> Result<(), Full> {
        if self.lane.queue.free() == 0 {
            return Err(Full);
        }
        let slot = self.free.pop().ok_or(Full)?;
        let (token, length_bytes) = (slot as u64, request.length_bytes);
        let slot_bytes = token * BOUNCE_PIECE_BYTES;
        let segment = match &direct {
            Some((registered, offset_bytes)) => registered.whole.segment(offset_bytes + request.start_bytes, length_bytes),
            None if request.has_data() => self.bounce.whole.segment(slot_bytes, length_bytes),
            None => NO_SEGMENT,
        };
        if let (Operation::Write, Some(view), None) = (request.operation, &view, &direct) {
            self.bounce.whole.copy(false, slot_bytes, view.bytes(), request.start_bytes, length_bytes);
        }
        let delivery = match (request.operation, &view, &direct) {
            (Operation::Read, None, _) => Delivery::Bytes(length_bytes),
            (Operation::Read, Some(_), None) => Delivery::Copy { start_bytes: request.start_bytes, length_bytes },
            _ => Delivery::Nothing,
        };
        let range = (request.offset_bytes >> SECTOR_SHIFT, length_bytes >> SECTOR_SHIFT);
        self.lane.queue.request(request.operation, request.flags, range, segment, token)?;
        let direct = direct.map(|(registered, _)| registered);
        self.entries[slot] = Some(Entry { future, view, _direct: direct, delivery });
        Ok(())
    }

    /// Deliver the data of a request, before its slot is used again.
    fn finish(&mut self, py: Python<'_>, completion: Completion) -> Option<(Entry, Status, Option<Py<PyAny>>)> {
        let slot = usize::try_from(completion.token).ok()?;
        let entry = self.entries.get_mut(slot)?.take()?;
        self.free.push(slot);
        let slot_bytes = completion.token * BOUNCE_PIECE_BYTES;
        let value = match (&entry.delivery, &entry.view, completion.status) {
            (Delivery::Bytes(length_bytes), _, Status::Ok) => {
                let length = usize::try_from(*length_bytes).unwrap_or(usize::MAX);
                let copied = PyBytes::new_with(py, length, |bytes| {
                    self.bounce.whole.copy(true, slot_bytes, Bytes::of_slice(bytes), 0, *length_bytes);
                    Ok(())
                });
                // Without memory for it the future gets None, which is not bytes.
                copied.ok().map(|bytes| bytes.into_any().unbind())
            }
            (Delivery::Copy { start_bytes, length_bytes }, Some(view), Status::Ok) => {
                self.bounce.whole.copy(true, slot_bytes, view.bytes(), *start_bytes, *length_bytes);
                None
            }
            _ => None,
        };
        Some((entry, completion.status, value))
    }
}

/// The arguments of `stage`, checked.
struct Request {
    operation: Operation,
    flags: u16,
    offset_bytes: u64,
    /// Where in the view its data begins.
    start_bytes: u64,
    length_bytes: u64,
}

impl Request {
    const fn has_data(&self) -> bool {
        matches!(self.operation, Operation::Read | Operation::Write)
    }
}

fn operation_of(name: &str, flag: bool) -> PyResult<(Operation, u16)> {
    let flags = |bit| if flag { bit } else { 0 };
    Ok(match name {
        "read" | "readinto" => (Operation::Read, 0),
        "write" => (Operation::Write, flags(FLAG_FUA)),
        "flush" => (Operation::Flush, 0),
        "discard" => (Operation::Discard, 0),
        "write_zeroes" => (Operation::WriteZeroes, flags(FLAG_UNMAP)),
        other => return Err(PyValueError::new_err(format!("no operation '{other}'"))),
    })
}

#[pymethods]
impl EventQueue {
    /// Longest data of one request, in bytes.
    #[getter]
    fn piece_bytes(&self) -> u64 {
        let (block, longest) = (u64::from(self.disk.info.block_bytes), u64::from(self.disk.info.max_transfer_bytes));
        let longest = BOUNCE_PIECE_BYTES.min(longest);
        longest - longest % block
    }

    /// The descriptor to watch.
    fn fileno(&self) -> PyResult<i32> {
        self.with(|state| Ok(state.lane.queue.as_fd().as_raw_fd()))
    }

    /// Requests without an answer.
    fn outstanding(&self) -> PyResult<usize> {
        self.with(|state| Ok(state.entries.len() - state.free.len()))
    }

    /// Stage a request that completes `future`, with `length` bytes of `buffer` from `start` on for readinto and write.
    /// False when the queue is full.
    #[expect(clippy::too_many_arguments, reason = "a request has so many fields")]
    fn stage(
        &self,
        future: Bound<'_, PyAny>,
        operation: &str,
        offset: u64,
        buffer: Option<Bound<'_, PyAny>>,
        start: u64,
        length: u64,
        flag: bool,
    ) -> PyResult<bool> {
        let (name, (operation, flags)) = (operation, operation_of(operation, flag)?);
        let view = buffer.map(|buffer| View::of(&buffer, name == "readinto")).transpose()?;
        let most = view.as_ref().map_or(u64::MAX, |view| view.length_bytes() as u64);
        let request = Request { operation, flags, offset_bytes: offset, start_bytes: start, length_bytes: length };
        if request.has_data() && (length > self.piece_bytes() || start.checked_add(length).is_none_or(|end| end > most)) {
            return Err(PyValueError::new_err("more data than the buffer, or one request, has"));
        }
        if !(offset | length).is_multiple_of(SECTOR_BYTES) {
            return Err(exception(&Error::Service(DiskError::Request(Status::Misaligned))));
        }
        let direct = view.as_ref().and_then(|view| self.disk.find(view));
        let future = future.unbind();
        self.with(|state| Ok(state.stage(&request, view, direct, future).is_ok()))
    }

    /// Publish what is staged.
    fn submit(&self) -> PyResult<()> {
        self.with(|state| {
            state.lane.queue.submit();
            Ok(())
        })
    }

    /// Publish what is staged and ask for the descriptor to become readable. True: a completion came meanwhile; reap again.
    fn arm(&self) -> PyResult<bool> {
        self.with(|state| Ok(state.lane.queue.arm_and_work_remains()))
    }

    /// Clear the descriptor and take completions: a list of future, exception or None, result or None.
    fn reap(&self, py: Python<'_>) -> PyResult<Vec<Done>> {
        let finished = self.with(|state| {
            if state.lane.is_faulty {
                return Err(Error::Disconnected.into());
            }
            let mut done: Vec<Completion> = Vec::new();
            let reaped = state.lane.queue.woken().and_then(|()| state.lane.queue.reap(&mut |completion| done.push(completion)));
            state.lane.is_faulty |= matches!(reaped, Err(Error::Fault(_)));
            reaped?;
            while state.lane.queue.next_event().is_some() {} // The new size is in the disk's description.
            Ok(done.into_iter().filter_map(|completion| state.finish(py, completion)).collect::<Vec<_>>())
        })?;
        // The state is free again: the code below may run Python's code.
        finished
            .into_iter()
            .map(|(entry, status, value)| {
                let error = (status != Status::Ok)
                    .then(|| exception(&Error::Service(DiskError::Request(status))).into_value(py).into_any());
                Ok((entry.future, error, value))
            })
            .collect()
    }

    /// Give the queue back to its disk; futures of requests in flight are never completed.
    fn close(&self) -> PyResult<()> {
        if self.disk.check_process().is_err() {
            return Ok(());
        }
        let state = self.with(|_| Ok(())).ok().and_then(|()| self.state.try_lock().ok()?.take());
        if let Some(State { lane, bounce, entries, .. }) = state {
            self.disk.give_lane(lane);
            drop((bounce, entries));
        }
        Ok(())
    }
}
