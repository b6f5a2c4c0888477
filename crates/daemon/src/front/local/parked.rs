//! Clients that want what others still hold who are gone: they are answered when the last requests of those are finished.

use fipsee_ring::control::{Control, RefusalCode};
use fipsee_ring::handshake::{HANDSHAKE_TIMEOUT, Refusal, Wanted, refuse};

use super::LocalFront;
use crate::front::session::{Session, State};

/// An ATTACH that is not answered yet.
pub(in crate::front) struct Parked {
    message: Control,
    /// What it is told if that takes too long.
    pub(super) refusal: Refusal,
}

impl Parked {
    pub(super) fn new(wanted: &Wanted<'_>, refusal: Refusal) -> Self {
        let Wanted { service, queue_count, depth, flags, pool_bytes, name } = *wanted;
        Self { message: Control::Attach { service, queue_count, depth, flags, pool_bytes, name: name.to_owned() }, refusal }
    }
}

impl LocalFront {
    /// ATTACH, as it came or once more.
    pub(super) fn attach(&mut self, id: u64, message: &Control) -> Result<(), Refusal> {
        let Control::Attach { service, queue_count, depth, flags, pool_bytes, name } = message else { return Ok(()) };
        let (service, queue_count, depth, flags, pool_bytes) = (*service, *queue_count, *depth, *flags, *pool_bytes);
        self.attach_as(id, &Wanted { service, queue_count, depth, flags, pool_bytes, name })
    }

    /// Does anybody wait for others to be gone?
    pub(super) fn has_parked(&self) -> bool {
        self.sessions.values().any(|session| session.parked.is_some())
    }

    /// Answer those who need not wait any more.
    pub(super) fn retry_parked(&mut self) {
        let departures = self.live.departures();
        if std::mem::replace(&mut self.departures_seen, departures) == departures {
            return;
        }
        let take = |session: &mut Session| session.parked.take().map(|parked| (session.id, parked.message));
        // In the order in which they came.
        let mut waiting: Vec<(u64, Control)> = self.sessions.values_mut().filter_map(take).collect();
        waiting.sort_unstable_by_key(|(id, _)| *id);
        for (id, message) in waiting {
            if let Err(refusal) = self.attach(id, &message) {
                self.refuse(id, refusal);
            }
        }
    }

    /// Who is waiting for an answer says nothing.
    pub(super) fn check_not_parked(&self, id: u64) -> Result<(), Refusal> {
        match self.sessions.get(&id) {
            Some(Session { parked: Some(_), .. }) => {
                Err(refuse(RefusalCode::Malformed, "a message came before ATTACH was answered; wait for the answer"))
            }
            _ => Ok(()),
        }
    }

    /// Refuse who has not attached in time, whether it said nothing or waited for an answer.
    pub(super) fn drop_silent(&mut self) {
        let late = |session: &Session| match session.state {
            State::Silent { since } | State::Greeted { since } => since.elapsed() > HANDSHAKE_TIMEOUT,
            _ => false,
        };
        let late: Vec<u64> = self.sessions.values().filter(|session| late(session)).map(|session| session.id).collect();
        for id in late {
            let parked = self.sessions.get_mut(&id).and_then(|session| session.parked.take());
            let silent = || {
                let text =
                    format!("nothing was said within {} s; greet and attach right after connecting", HANDSHAKE_TIMEOUT.as_secs());
                refuse(RefusalCode::Malformed, text)
            };
            self.refuse_and_close(id, parked.map_or_else(silent, |parked| parked.refusal));
        }
    }
}
