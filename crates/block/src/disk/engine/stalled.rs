//! Requests that are in flight for very long: recorded once each at their disk, and again when they end.
//!
//! Looking costs a request nothing: it carries the time at which it was taken anyway, and the worker asks the clock once in very many
//! polls, or when it wakes up from a sleep that it limits for this.

use std::sync::Arc;
use std::time::Duration;

use fipsee_ring::clock;

use super::super::Ticket;
use super::super::faults::Faults;
use super::Engine;
use crate::wire::{Operation, Status};

/// What a healthy disk needs by far less for.
const LIMIT: Duration = Duration::from_secs(30);
/// Looks within the limit.
const LOOKS: u32 = 8;
/// The clock is asked once in so many polls.
const POLLS: u32 = 4096;
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// What a request waits for, and where it is recorded if it waits for too long.
#[derive(Clone, Debug)]
pub(in crate::disk) struct Awaited {
    pub(in crate::disk) faults: Arc<Faults>,
    pub(in crate::disk) operation: Operation,
    pub(in crate::disk) sector: u64,
}

pub(super) struct Stalls {
    limit: Duration,
    polls: u32,
    next_look_ticks: u64,
    found: Vec<(Ticket, Awaited)>,
}

impl Default for Stalls {
    fn default() -> Self {
        Self { limit: LIMIT, polls: 0, next_look_ticks: 0, found: Vec::new() }
    }
}

impl Stalls {
    #[inline(always)]
    pub(super) const fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Is this the poll after which to look?
    #[inline(always)]
    pub(super) const fn is_due(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.polls.is_multiple_of(POLLS)
    }
}

impl Engine {
    /// From when on a request counts as stalled, instead of 30 seconds. For tests.
    pub fn set_stall_limit(&mut self, limit: Duration) {
        self.stalls.limit = limit;
    }

    /// How long the worker may sleep before it calls [`look_for_stalled`](Self::look_for_stalled). `None`: until something happens.
    #[must_use]
    pub fn time_to_look(&self) -> Option<Duration> {
        (self.in_flight() > 0).then(|| clock::until(self.stalls.next_look_ticks).max(SHORTEST_PAUSE))
    }

    /// Record requests that are in flight for too long, if it is time to look.
    #[cold]
    pub fn look_for_stalled(&mut self) {
        let now = clock::ticks();
        if now < self.stalls.next_look_ticks {
            return;
        }
        let limit = self.stalls.limit;
        self.stalls.next_look_ticks = now.saturating_add(clock::duration_to_ticks(limit / LOOKS));
        for slot in &self.slots {
            let Some(awaited) = slot.job.awaited() else { continue };
            let ticket = self.chains.request_of(slot.ticket);
            let age = age_of(ticket, now);
            if age < limit || self.stalls.found.iter().any(|(other, _)| *other == ticket) {
                continue;
            }
            awaited.faults.stalled(awaited.operation, awaited.sector, age);
            self.stalls.found.push((ticket, awaited));
        }
    }

    /// Poll, and record those that end.
    #[cold]
    pub(super) fn poll_with_stalled(&mut self, limit: usize, finished: &mut dyn FnMut(Ticket, Status)) -> usize {
        let mut found = std::mem::take(&mut self.stalls.found);
        let count = self.poll_once(limit, &mut |ticket, status| {
            if let Some(index) = found.iter().position(|(other, _)| *other == ticket) {
                let (_, Awaited { faults, operation, sector }) = found.swap_remove(index);
                faults.stall_ended(operation, sector, age_of(ticket, clock::ticks()));
            }
            finished(ticket, status);
        });
        self.stalls.found = found;
        count
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        for (ticket, Awaited { faults, operation, sector }) in self.found.drain(..) {
            faults.stall_ended(operation, sector, age_of(ticket, clock::ticks()));
        }
    }
}

/// Nothing, for a request of which nobody knows when it was taken.
fn age_of(ticket: Ticket, now_ticks: u64) -> Duration {
    match ticket.started_ticks {
        0 => Duration::ZERO,
        started_ticks => Duration::from_nanos(clock::ticks_to_ns(now_ticks.saturating_sub(started_ticks))),
    }
}
