//! Requests that are in flight for very long: recorded once each, and again when they end.
//!
//! Looking costs a request nothing: it carries the time at which it was taken anyway, and the worker asks the clock once in
//! several polls, or when it wakes up from a sleep that it limits for this.

use std::time::Duration;

use fipsee_ring::clock;

use super::Awaited;
use crate::Ticket;

/// Far longer than a healthy request takes.
const LIMIT: Duration = Duration::from_secs(30);
/// Checks within the limit.
const LOOKS: u32 = 8;
/// The clock is asked once in this many polls. A thread that yields after each may not run again for some ten milliseconds on a busy machine.
const POLLS: u32 = 16;
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

pub(super) struct Stalls<A: Awaited> {
    pub(super) limit: Duration,
    polls: u32,
    next_look_ticks: u64,
    found: Vec<(Ticket, A)>,
}

impl<A: Awaited> Default for Stalls<A> {
    fn default() -> Self {
        Self { limit: LIMIT, polls: 0, next_look_ticks: 0, found: Vec::new() }
    }
}

impl<A: Awaited> Stalls<A> {
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

    pub(super) fn time_to_look(&self) -> Duration {
        clock::until(self.next_look_ticks).max(SHORTEST_PAUSE)
    }

    /// The age from which on a request counts as stalled, if it is time to look.
    pub(super) fn begin_look(&mut self, now_ticks: u64) -> Option<Duration> {
        if now_ticks < self.next_look_ticks {
            return None;
        }
        self.next_look_ticks = now_ticks.saturating_add(clock::duration_to_ticks(self.limit / LOOKS));
        Some(self.limit)
    }

    /// Record it, unless that is done.
    pub(super) fn add(&mut self, ticket: Ticket, age: Duration, awaited: A) {
        if !self.found.iter().any(|(other, _)| *other == ticket) {
            awaited.stalled(age);
            self.found.push((ticket, awaited));
        }
    }

    /// This request has ended: record that, if it was recorded before.
    #[cold]
    pub(super) fn end(&mut self, ticket: Ticket) {
        if let Some(index) = self.found.iter().position(|(other, _)| *other == ticket) {
            self.found.swap_remove(index).1.stall_ended(age_of(ticket, clock::ticks()));
        }
    }
}

impl<A: Awaited> Drop for Stalls<A> {
    fn drop(&mut self) {
        for (ticket, awaited) in self.found.drain(..) {
            awaited.stall_ended(age_of(ticket, clock::ticks()));
        }
    }
}

/// Zero, if it is not known when the request was taken.
pub(super) fn age_of(ticket: Ticket, now_ticks: u64) -> Duration {
    match ticket.started_ticks {
        0 => Duration::ZERO,
        started_ticks => Duration::from_nanos(clock::ticks_to_ns(now_ticks.saturating_sub(started_ticks))),
    }
}
