//! The cost of the machine itself: words bounced between two CPUs, without a ring and without a payload.

use fipsee_ring::Message;
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::ring::RingMemory;
use fipsee_topology::bounce::Bounce;
use fipsee_topology::payload;

use super::drive::{Answers, Calls, PeerError};
use super::spin::Spin;

pub(super) struct Floor<'a> {
    side: Bounce<'a>,
    spin: Spin<'a>,
}

/// Lines to choose from: those of the smallest ring that is laid out here.
pub(super) const LINES: u32 = 64;
/// Distance in slots at which no prefetcher takes one line for the other's neighbour.
const APART_SLOTS: u32 = 4;

impl<'a> Floor<'a> {
    /// Both directions in one line.
    pub(super) fn one_line(ring: &'a MappedRing, line: u32, spin: Spin<'a>) -> Self {
        Self { side: Bounce::new(ring.stamp(line), ring.stamp(line)), spin }
    }

    /// A line for each direction.
    pub(super) fn two_lines(ring: &'a MappedRing, line: u32, calls: bool, spin: Spin<'a>) -> Self {
        let (first, second) = (ring.stamp(line), ring.stamp(line ^ APART_SLOTS));
        let (out, into) = if calls { (first, second) } else { (second, first) };
        Self { side: Bounce::new(out, into), spin }
    }
}

impl Calls for Floor<'_> {
    #[inline(always)]
    fn exchange(&mut self, calls: &[Message], answers: &mut [Message]) -> Result<(), PeerError> {
        for (call, answer) in calls.iter().zip(answers) {
            self.side.call(|| self.spin.step())?;
            self.spin.reset();
            *answer = payload::answer_to(call); // The lines carry no payload.
        }
        Ok(())
    }

    fn send(&mut self, _: &Message) {
        self.side.end();
    }
}

impl Answers for Floor<'_> {
    #[inline(always)]
    fn serve(&mut self, _: &mut impl FnMut(&Message) -> Option<Message>) -> Result<(), PeerError> {
        while self.side.answer(|| self.spin.step())? {
            self.spin.reset();
        }
        Ok(())
    }
}
