//! Known-bad variants: each an ordering or an omission that the oracle must find.

/// What is broken on purpose, in the simulator's adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Memory of a client goes at once instead of when nothing is in flight.
    MemoryGoesAtOnce,
    /// The new daemon reads the last request once more.
    TakeoverRepeatsRequest,
    /// The new daemon writes its first completion one slot further.
    TakeoverSkipsCompletion,
    /// A client that reconnects does not submit again what was not answered.
    NothingResubmitted,
    /// A client that reconnects submits again what was answered.
    AnsweredResubmitted,
    /// A client that has gone keeps its claim.
    ClaimKept,
    /// A claim ends with the connection instead of after the last request.
    ClaimEndsAtHangUp,
    /// DETACHED before what was published is served.
    DetachedEarly,
    /// A flush is acknowledged before earlier writes are durable.
    FlushEarly,
    /// An acknowledgement of a worker is lost.
    AcknowledgementLost,
    /// An ATTACH that waits for others to be gone is not looked at again.
    PendingAttachForgotten,
    /// A worker that arms a doorbell does not look once more.
    SleepWithoutLook,
    /// A write is acknowledged when it begins.
    WriteEarly,
    /// So is a discard.
    DiscardEarly,
    /// A flush covers what its own client wrote.
    FlushOfOwn,
    /// A client that attached for reading only writes.
    ReadOnlyWrites,
    /// A client that claims to be the sole writer is not alone.
    ClaimsIgnored,
    /// The new daemon does not know which events are still to be sent, or to be acknowledged.
    TakeoverForgetsEvents,
    /// The new daemon does not have what a service said of its client.
    TakeoverForgetsService,
    /// Only the first worker is notified of a new size.
    ResizeNotAnnounced,
    /// A call is answered before it is carried out.
    AnsweredFirst,
    /// A queue that moves between workers is lost on its way.
    MoveLosesQueue,
    /// A queue that has moved begins its requests at the worker it came from.
    MoveKeepsEngine,
    /// A queue moves although requests of it are in flight, which end where it is no more.
    MoveLosesInFlight,
    /// A queue that has moved goes on one request before the one that it was at.
    MoveRestoresStaleIndex,
    /// A daemon that takes back what it handed over does not look for `Taken`.
    WithdrawnWithoutLook,
    /// A daemon that takes back what it handed over can still be sent `Taken`.
    WithdrawnWithoutShutdown,
    /// A daemon serves although `Taken` could not be sent.
    ServedUnheard,
    /// A request leaves the inflight area before the used index is published.
    InflightClearedEarly,
    /// The used index is published before the elements.
    UsedIndexFirst,
    /// GET_VRING_BASE is answered while requests are in flight.
    StoppedInFlight,
    /// A worker that arms a virtqueue's notification does not look once more.
    VirtqueueSleepsWithoutLook,
    /// A virtqueue that has moved begins its requests under the number that it had at the worker it came from.
    MovedVirtqueueKeepsNumber,
    /// A daemon that comes after a killed one does not look at the inflight area.
    InflightIgnored,
    /// The new daemon does not know a buffer that was taken from a ring and holds no frame.
    TakeoverForgetsBuffer,
    /// Frames of a visit are taken once more.
    FrameTakenTwice,
    /// The second of two frames is taken first.
    FramesSwapped,
    /// Ports send with any address.
    SourceUnchecked,
    /// Ports of different VLANs are in one.
    VlansJoined,
}

impl Variant {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 39] = [
        (Self::MemoryGoesAtOnce, "memory-goes-at-once"),
        (Self::TakeoverRepeatsRequest, "takeover-repeats-request"),
        (Self::TakeoverSkipsCompletion, "takeover-skips-completion"),
        (Self::NothingResubmitted, "nothing-resubmitted"),
        (Self::AnsweredResubmitted, "answered-resubmitted"),
        (Self::ClaimKept, "claim-kept"),
        (Self::ClaimEndsAtHangUp, "claim-ends-at-hang-up"),
        (Self::DetachedEarly, "detached-early"),
        (Self::FlushEarly, "flush-early"),
        (Self::AcknowledgementLost, "acknowledgement-lost"),
        (Self::PendingAttachForgotten, "pending-attach-forgotten"),
        (Self::SleepWithoutLook, "sleep-without-look"),
        (Self::WriteEarly, "write-early"),
        (Self::DiscardEarly, "discard-early"),
        (Self::FlushOfOwn, "flush-of-own"),
        (Self::ReadOnlyWrites, "read-only-writes"),
        (Self::ClaimsIgnored, "claims-ignored"),
        (Self::TakeoverForgetsEvents, "takeover-forgets-events"),
        (Self::TakeoverForgetsService, "takeover-forgets-service"),
        (Self::ResizeNotAnnounced, "resize-not-announced"),
        (Self::AnsweredFirst, "answered-first"),
        (Self::MoveLosesQueue, "move-loses-queue"),
        (Self::MoveKeepsEngine, "move-keeps-engine"),
        (Self::MoveLosesInFlight, "move-loses-in-flight"),
        (Self::MoveRestoresStaleIndex, "move-restores-stale-index"),
        (Self::WithdrawnWithoutLook, "withdrawn-without-look"),
        (Self::WithdrawnWithoutShutdown, "withdrawn-without-shutdown"),
        (Self::ServedUnheard, "served-unheard"),
        (Self::InflightClearedEarly, "inflight-cleared-early"),
        (Self::UsedIndexFirst, "used-index-first"),
        (Self::StoppedInFlight, "stopped-in-flight"),
        (Self::VirtqueueSleepsWithoutLook, "virtqueue-sleeps-without-look"),
        (Self::MovedVirtqueueKeepsNumber, "moved-virtqueue-keeps-number"),
        (Self::InflightIgnored, "inflight-ignored"),
        (Self::TakeoverForgetsBuffer, "takeover-forgets-buffer"),
        (Self::FrameTakenTwice, "frame-taken-twice"),
        (Self::FramesSwapped, "frames-swapped"),
        (Self::SourceUnchecked, "source-unchecked"),
        (Self::VlansJoined, "vlans-joined"),
    ];

    /// The one of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(variant, _)| *variant)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(variant, _)| *variant == self).map_or("", |(_, name)| name)
    }
}
