//! Requests of several steps: what follows when a step has ended.
//!
//! A step carries a *link*, a ticket that the engine keeps to itself, instead of the request's own ticket. When the engine
//! would report a link, it runs the continuation; that ends the request, or begins its next step.

use super::stalled::Stalls;
use super::{Engine, Job, Submitted};
use crate::Ticket;

/// What follows a step: from how it ended, it says how the request ended, or has begun the next step.
type Then<J> = Box<dyn FnOnce(<J as Job>::Status, &mut Engine<J>) -> Submitted<<J as Job>::Status>>;

/// The request of the step, and what follows.
type Step<J> = (Ticket, Option<Then<J>>);

/// The queue of links. A worker's queues are numbered from 0 and never reach this number.
const LINK_QUEUE: u32 = u32::MAX;

pub(super) struct Ended<J: Job> {
    /// By the number of a link.
    steps: Vec<Option<Step<J>>>,
    free: Vec<usize>,
    links: Vec<(Ticket, J::Status)>,
    pub(super) stalls: Stalls<J::Awaited>,
}

impl<J: Job> Default for Ended<J> {
    fn default() -> Self {
        Self { steps: Vec::new(), free: Vec::new(), links: Vec::new(), stalls: Stalls::default() }
    }
}

impl<J: Job> Ended<J> {
    const fn is_link(ticket: Ticket) -> bool {
        ticket.queue == LINK_QUEUE
    }

    /// A job has ended, and with it its request, which is reported, or a step. Returns how many were reported.
    #[inline(always)]
    pub(super) fn job(&mut self, ticket: Ticket, status: J::Status, finished: &mut impl FnMut(Ticket, J::Status)) -> usize {
        if Self::is_link(ticket) {
            self.links.push((ticket, status));
            return 0;
        }
        if !self.stalls.is_empty() {
            self.stalls.end(ticket);
        }
        finished(ticket, status);
        1
    }

    #[inline(always)]
    pub(super) const fn has_steps(&self) -> bool {
        !self.links.is_empty()
    }

    fn place(link: Ticket) -> usize {
        usize::try_from(link.started_ticks).unwrap_or(usize::MAX)
    }

    pub(super) fn request_of(&self, mut ticket: Ticket) -> Ticket {
        while Self::is_link(ticket)
            && let Some(Some((of, _))) = self.steps.get(Self::place(ticket))
        {
            ticket = *of;
        }
        ticket
    }

    fn take(&mut self, link: Ticket) -> Option<Step<J>> {
        let taken = self.steps.get_mut(Self::place(link))?.take()?;
        self.free.push(Self::place(link));
        Some(taken)
    }
}

impl<J: Job> Engine<J> {
    /// A link for the next step of the request `ticket`, to be given to whatever does the step. If that leaves it to the
    /// engine, the caller says what [`follow`](Self::follow)s, else it takes the link back: [`unlink`](Self::unlink).
    #[must_use]
    pub fn link(&mut self, ticket: Ticket) -> Ticket {
        let steps = &mut self.ended.steps;
        let place = self.ended.free.pop().unwrap_or_else(|| {
            steps.push(None);
            steps.len() - 1
        });
        steps[place] = Some((ticket, None));
        Ticket { queue: LINK_QUEUE, tag: ticket.tag, started_ticks: place as u64 }
    }

    /// Take back a link of a step that is done, or was not begun.
    pub fn unlink(&mut self, link: Ticket) {
        self.ended.take(link);
    }

    pub fn follow(&mut self, link: Ticket, then: Then<J>) {
        if let Some(Some((_, follows))) = self.ended.steps.get_mut(Ended::<J>::place(link)) {
            *follows = Some(then);
        }
    }

    /// Continue the requests of which a step has ended; returns how many were reported to `finished`.
    #[cold]
    pub(super) fn continue_chains(&mut self, finished: &mut impl FnMut(Ticket, J::Status)) -> usize {
        let mut count = 0;
        while let Some((link, status)) = self.ended.links.pop() {
            let Some((ticket, then)) = self.ended.take(link) else {
                debug_assert!(false, "a link ends once");
                continue;
            };
            let outcome = then.map_or(Submitted::Done(status), |then| then(status, self));
            if let Submitted::Done(status) = outcome {
                count += self.ended.job(ticket, status, finished);
            }
        }
        count
    }
}
