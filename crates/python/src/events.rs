//! A queue for event loops: nothing here waits. `python/fipsee/aio.py` is the event loop's side.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};

use fipsee_block::client::transfer::{Action, BOUNCE_PIECE_BYTES, Piece, Pieces, Plan, TransferMemory};
use fipsee_block::client::{Buffer, Completion, Error};
use fipsee_block::wire::{SECTOR_BYTES, Status};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::attached::{DiskConnection, Lane};
use crate::doorbells::DoorbellCounts;
use crate::error::{Failure, request_exception};
use crate::memory::{Registered, View};
use crate::opened::closed;

/// What is awaited, and what it must keep alive. Each of its pieces in flight holds it: it has ended when the last one is dropped.
struct Transfer {
    future: Py<PyAny>,
    /// What the future gets.
    value: Option<Py<PyAny>>,
    view: Option<View>,
    /// Where the daemon finds the data, if it does not go through the bounce memory.
    direct: Option<(Arc<Registered>, u64)>,
    action: Action,
    disk_offset: u64,
    length_bytes: u64,
    failed: OnceLock<Status>,
}

impl Transfer {
    fn plan<'a>(&'a self, bounce: &'a Buffer) -> Plan<'a> {
        let place = match (&self.direct, &self.view) {
            (Some((registered, offset_bytes)), _) => registered.place(*offset_bytes),
            (None, Some(view)) => TransferMemory::Bounce(view.bytes(), bounce),
            (None, None) => TransferMemory::None,
        };
        let Self { action, length_bytes, .. } = *self;
        let disk_offsets = std::slice::from_ref(&self.disk_offset);
        Plan { action, disk_offsets, length_bytes, keep_going: false, place }
    }

    /// Is there no use in beginning more of it: it failed, or was cancelled?
    fn is_given_up(&self, py: Python<'_>) -> bool {
        let is_done = || self.future.call_method0(py, "done").and_then(|done| done.is_truthy(py));
        self.failed.get().is_some() || is_done().unwrap_or(true)
    }
}

struct State {
    lane: Lane,
    /// One piece per request.
    bounce: Arc<Registered>,
    /// By token.
    in_flight: Vec<Option<(Arc<Transfer>, Piece)>>,
    free: Vec<usize>,
    /// The transfer of which more is to be staged.
    begun: Option<(Arc<Transfer>, Pieces)>,
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
        let in_flight = (0..depth).map(|_| None).collect();
        let state = State { lane, bounce, in_flight, free: (0..depth).rev().collect(), begun: None };
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
            None => Err(closed("disk")),
        }
    }
}

impl State {
    fn begin(&mut self, transfer: Transfer) -> Result<(), Failure> {
        let (pieces, _) = self.lane.transfers.pieces(&transfer.plan(&self.bounce.whole), self.in_flight.len());
        self.begun = Some((Arc::new(transfer), pieces));
        self.go_on()
    }

    /// Stage as much of the transfer that was begun as there is room for.
    fn go_on(&mut self) -> Result<(), Failure> {
        let Self { lane, bounce, in_flight, free, begun } = self;
        while let Some((transfer, pieces)) = begun.as_mut()
            && lane.queue.free() > 0
            && let Some(slot) = free.pop()
        {
            if let Some(piece) = pieces.next(std::slice::from_ref(&transfer.disk_offset)) {
                let (plan, token) = (transfer.plan(&bounce.whole), slot as u64);
                plan.stage(&mut lane.queue, &piece, token * BOUNCE_PIECE_BYTES, token).map_err(Error::from)?;
                in_flight[slot] = Some((Arc::clone(transfer), piece));
            }
            if pieces.is_over() {
                *begun = None;
            }
        }
        Ok(())
    }

    /// Deliver what a request brought, before its slot is used again; the transfer if that was the last of it.
    fn finish(&mut self, completion: Completion) -> Option<Transfer> {
        let slot = usize::try_from(completion.token).ok()?;
        let (transfer, piece) = self.in_flight.get_mut(slot)?.take()?;
        self.free.push(slot);
        match completion.status {
            Status::Ok => transfer.plan(&self.bounce.whole).deliver(&piece, completion.token * BOUNCE_PIECE_BYTES),
            status => drop(transfer.failed.set(status)), // The first failure is the one that is reported.
        }
        Arc::into_inner(transfer)
    }

    /// Stage no more of the transfer that was begun if there is no use in it; the transfer if nothing of it is in flight.
    fn give_up(&mut self, py: Python<'_>) -> Option<Transfer> {
        let (transfer, _) = self.begun.take_if(|(transfer, _)| transfer.is_given_up(py))?;
        Arc::into_inner(transfer)
    }
}

fn action_of(name: &str, flag: bool) -> PyResult<Action> {
    Ok(match name {
        "read" | "readinto" => Action::Read,
        "write" => Action::Write { fua: flag },
        "flush" => Action::Flush,
        "discard" => Action::Discard,
        "write_zeroes" => Action::WriteZeroes { unmap: flag, fua: false },
        other => return Err(PyValueError::new_err(format!("no operation '{other}'"))),
    })
}

#[pymethods]
impl EventQueue {
    /// The descriptor to watch.
    fn fileno(&self) -> PyResult<i32> {
        self.with(|state| Ok(state.lane.queue.as_fd().as_raw_fd()))
    }

    /// Requests without an answer.
    fn outstanding(&self) -> PyResult<usize> {
        self.with(|state| Ok(state.in_flight.len() - state.free.len()))
    }

    /// Of this queue.
    #[getter]
    fn doorbell_counts(&self) -> PyResult<DoorbellCounts> {
        self.with(|state| Ok(state.lane.queue.doorbell_counts().into()))
    }

    /// Begin a transfer that completes `future`, with `buffer` for readinto and write. False when the queue is full.
    #[expect(clippy::too_many_arguments, reason = "a transfer has so many fields")]
    fn stage(
        &self,
        py: Python<'_>,
        future: Py<PyAny>,
        operation: &str,
        offset: u64,
        buffer: Option<Bound<'_, PyAny>>,
        length: u64,
        flag: bool,
    ) -> PyResult<bool> {
        let action = action_of(operation, flag)?;
        if !(offset | length).is_multiple_of(SECTOR_BYTES) {
            return Err(request_exception(Status::Misaligned, (offset, length), &self.disk.info));
        }
        if !self.with(|state| Ok(state.begun.is_none() && !state.free.is_empty() && state.lane.queue.free() > 0))? {
            return Ok(false);
        }
        let (view, value) = match buffer {
            Some(buffer) => (Some(View::of(&buffer, operation == "readinto")?), None),
            None if operation == "read" => View::of_new_bytes(py, length).map(|(view, bytes)| (Some(view), Some(bytes)))?,
            None => (None, None),
        };
        if view.as_ref().is_some_and(|view| length == 0 || length > view.length_bytes() as u64) {
            return Err(PyValueError::new_err("more data than the buffer has, or none"));
        }
        let direct = view.as_ref().and_then(|view| self.disk.find(view));
        let (disk_offset, length_bytes, failed) = (offset, length, OnceLock::new());
        let transfer = Transfer { future, value, view, direct, action, disk_offset, length_bytes, failed };
        self.with(|state| state.begin(transfer))?;
        Ok(true)
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
        let ended = self.with(|state| {
            if state.lane.is_faulty {
                return Err(Error::Disconnected.into());
            }
            let mut done: Vec<Completion> = Vec::new();
            let reaped = state.lane.queue.woken().and_then(|()| state.lane.queue.reap(&mut |completion| done.push(completion)));
            state.lane.is_faulty |= matches!(reaped, Err(Error::Fault(_)));
            reaped?;
            while state.lane.queue.next_event().is_some() {} // The new size is in the disk's description.
            let mut ended: Vec<Transfer> = done.into_iter().filter_map(|completion| state.finish(completion)).collect();
            ended.extend(state.give_up(py));
            state.go_on()?;
            Ok(ended)
        })?;
        // The state is free again: what follows may run Python's code.
        let outcome = |transfer: Transfer| {
            let range = (transfer.disk_offset, transfer.length_bytes);
            let error = |status: &Status| request_exception(*status, range, &self.disk.info).into_value(py).into_any();
            (transfer.future, transfer.failed.get().map(error), transfer.value)
        };
        Ok(ended.into_iter().map(outcome).collect())
    }

    /// Give the queue back to its disk; futures of requests in flight are never completed.
    fn close(&self) -> PyResult<()> {
        if self.disk.check_process().is_err() {
            return Ok(());
        }
        let state = self.with(|_| Ok(())).ok().and_then(|()| self.state.try_lock().ok()?.take());
        if let Some(State { lane, bounce, in_flight, begun, .. }) = state {
            self.disk.give_lane(lane);
            drop((bounce, in_flight, begun));
        }
        Ok(())
    }
}
