//! Requests of several steps, for disks that wrap others: what follows when a step has ended, and waiting.
//!
//! A step carries a *link*, a ticket that the engine keeps to itself, instead of the request's own ticket. When the engine
//! would report a link, it does what was said to follow; that ends the request, or begins its next step.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::super::{Submitted, Ticket};
use super::{Awaited, Engine};
use crate::wire::Status;

/// What follows a step: told how it ended, it says how the request ended, or has begun the next step.
type Then = Box<dyn FnOnce(Status, &mut Engine) -> Submitted>;

/// The queue of links. A worker's queues are numbered from 0, and it never has so many.
const LINK_QUEUE: u32 = u32::MAX;

#[derive(Default)]
pub(super) struct Chains {
    /// By the number of a link: whose step it is, and what follows.
    steps: Vec<Option<(Ticket, Option<Then>)>>,
    free: Vec<usize>,
    ended: Vec<(Ticket, Status)>,
}

impl Chains {
    #[inline(always)]
    pub(super) const fn is_link(ticket: Ticket) -> bool {
        ticket.queue == LINK_QUEUE
    }

    pub(super) fn ended(&mut self, link: Ticket, status: Status) {
        self.ended.push((link, status));
    }

    fn place(link: Ticket) -> usize {
        usize::try_from(link.started_ticks).unwrap_or(usize::MAX)
    }

    /// The request that a step belongs to.
    pub(super) fn request_of(&self, mut ticket: Ticket) -> Ticket {
        while Self::is_link(ticket)
            && let Some(Some((of, _))) = self.steps.get(Self::place(ticket))
        {
            ticket = *of;
        }
        ticket
    }

    fn take(&mut self, link: Ticket) -> Option<(Ticket, Option<Then>)> {
        let taken = self.steps.get_mut(Self::place(link))?.take()?;
        self.free.push(Self::place(link));
        Some(taken)
    }
}

impl Engine {
    /// A link for the next step of the request `ticket`, to be given to the disk below. If that disk leaves the step to the
    /// engine, the caller says what [`follow`](Self::follow)s, else it takes the link back: [`unlink`](Self::unlink).
    pub(in crate::disk) fn link(&mut self, ticket: Ticket) -> Ticket {
        let steps = &mut self.chains.steps;
        let place = self.chains.free.pop().unwrap_or_else(|| {
            steps.push(None);
            steps.len() - 1
        });
        steps[place] = Some((ticket, None));
        Ticket { queue: LINK_QUEUE, tag: ticket.tag, started_ticks: place as u64 }
    }

    pub(in crate::disk) fn unlink(&mut self, link: Ticket) {
        self.chains.take(link);
    }

    pub(in crate::disk) fn follow(&mut self, link: Ticket, then: Then) {
        if let Some(Some((_, follows))) = self.chains.steps.get_mut(Chains::place(link)) {
            *follows = Some(then);
        }
    }

    /// Let `duration` pass as a step of the request `ticket`, for what is `awaited`; then `then`.
    pub(in crate::disk) fn wait(
        &mut self,
        duration: Duration,
        awaited: Option<Awaited>,
        ticket: Ticket,
        then: Then,
    ) -> Submitted {
        let now = clock_gettime(ClockId::Monotonic);
        let now = Duration::new(now.tv_sec.cast_unsigned(), u32::try_from(now.tv_nsec).unwrap_or(0));
        let link = self.link(ticket);
        // SAFETY: a timer names no memory but its own.
        let begun = unsafe { self.begin(link, |job| job.set_up_timer(now.saturating_add(duration), awaited)) };
        match begun {
            Submitted::Pending => self.follow(link, then),
            Submitted::Done(_) => self.unlink(link),
        }
        begun
    }

    /// Go on with the requests of which a step has ended; returns how many were reported to `finished`.
    #[cold]
    pub(super) fn continue_chains(&mut self, finished: &mut impl FnMut(Ticket, Status)) -> usize {
        let mut count = 0;
        while let Some((link, status)) = self.chains.ended.pop() {
            let Some((ticket, then)) = self.chains.take(link) else {
                debug_assert!(false, "a link ends once");
                continue;
            };
            let outcome = then.map_or(Submitted::Done(status), |then| then(status, self));
            match outcome {
                Submitted::Pending => {}
                Submitted::Done(status) if Chains::is_link(ticket) => self.chains.ended(ticket, status),
                Submitted::Done(status) => {
                    count += 1;
                    finished(ticket, status);
                }
            }
        }
        count
    }

    pub(super) fn has_ended_steps(&self) -> bool {
        !self.chains.ended.is_empty()
    }
}
