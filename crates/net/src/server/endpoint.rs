//! Where the frames for a port go.

use std::any::Any;

use fipsee_ring::memory::Span;

use super::events::{Events, PortState};
use super::queue::QueueState;
use super::receiver::Receiver;
use crate::wire::{Offload, Status};

/// A frame on its way to a port.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Its first bytes, which were copied from the sender: at most 68, or 142 with all headers of a frame that is or was to be divided.
    pub head: &'a [u8],
    /// The rest, mostly in the sender's memory, which may change at any moment.
    pub rest: &'a [Span],
    /// Of both.
    pub length_bytes: u32,
    pub offload: Offload,
}

/// What came of a frame for a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// The port has it; if not, it is dropped and counted.
    pub is_taken: bool,
    /// It is the first since [`Receive::flush`] that the peer may have to be notified of.
    pub is_first: bool,
    /// Work beyond that of a usual delivery, in deliveries, for the cost of the visit: buffers that were looked at beyond those that a frame
    /// needs, system calls.
    pub extra_work: u32,
}

/// One receiving side of a port other than the rings of a client: a virtqueue, a device of the host. The worker of the network calls it.
pub trait Receive: Any + Send {
    /// Take a frame, or drop it. It neither waits nor allocates.
    ///
    /// # Safety
    /// `frame.rest` is mapped for loads during the call.
    unsafe fn deliver(&mut self, frame: &Frame<'_>) -> Delivered;

    /// What may be left to it: bits `OFFLOAD_*`. It gets no frame whose offload needs others. That is asked for such frames alone.
    fn offloads(&self) -> u32 {
        0
    }

    /// An administrator has taken the port down, or up again. It gets no frames while it is down in any case.
    fn set_link(&mut self, _is_up: bool) {}

    /// At the end of a visit in which a delivery was the first: notify the peer, if it asks for that.
    fn flush(&mut self);
}

/// The receiving side of one pair of queues of a port.
pub(super) enum Endpoint {
    /// Rings of a client; they are the common case and have no virtual call.
    Rings(Box<Receiver>),
    Other(Box<dyn Receive>),
}

impl Endpoint {
    /// `is_burst`: more frames follow at once.
    ///
    /// # Safety
    /// As [`Receive::deliver`].
    pub(super) unsafe fn deliver(&mut self, frame: &Frame<'_>, is_burst: bool) -> Delivered {
        match self {
            // SAFETY: by the caller.
            Self::Rings(receiver) => unsafe { receiver.deliver(frame, is_burst) },
            // SAFETY: by the caller.
            Self::Other(receiver) => unsafe { receiver.deliver(frame) },
        }
    }

    pub(super) fn offloads(&self) -> u32 {
        match self {
            Self::Rings(receiver) => receiver.offloads(),
            Self::Other(receiver) => receiver.offloads(),
        }
    }

    /// `fenced`: a full fence has been executed since the last delivery of the visit. Returns whether one has now.
    pub(super) fn flush(&mut self, fenced: bool) -> bool {
        match self {
            Self::Rings(receiver) => {
                receiver.flush(fenced);
                true
            }
            Self::Other(receiver) => {
                receiver.flush();
                fenced
            }
        }
    }

    /// What the port is like now. `true`: it is the first since the last flush that the peer may have to be notified of.
    pub(super) fn set_state(&mut self, state: PortState) -> bool {
        match self {
            Self::Rings(receiver) => receiver.report(|events| Ok(events.set(state))).unwrap_or(false),
            Self::Other(receiver) => {
                receiver.set_link(!state.down);
                false
            }
        }
    }

    /// The client has taken the last event.
    ///
    /// # Errors
    /// There was none.
    pub(super) fn acknowledge(&mut self) -> Result<bool, Status> {
        match self {
            Self::Rings(receiver) => receiver.report(Events::acknowledge),
            Self::Other(_) => Err(Status::Invalid),
        }
    }

    /// What another process needs to continue with it.
    pub(super) fn state(&self) -> Option<QueueState> {
        match self {
            Self::Rings(receiver) => Some(receiver.state()),
            Self::Other(_) => None,
        }
    }
}
