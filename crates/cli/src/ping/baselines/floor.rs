//! The cost of the machine itself: words bounced between two CPUs, without a ring and without a payload. The value written is
//! the number of the exchange, so neither side can take an old value for a new one.

use fipsee_ring::mapped::MappedRing;
use fipsee_ring::ring::RingMemory;
use fipsee_ring::{AtomicU32, Message, Ordering};

use crate::ping::drive::{Answers, Calls, PeerError};
use crate::ping::payload;
use crate::ping::spin::Spin;

/// One side: it writes odd (the caller) or even numbers to `out` and waits for the next on `into`.
pub(in crate::ping) struct Floor<'a> {
    ring: &'a MappedRing,
    out: u32,
    into: u32,
    count: u32,
    spin: Spin<'a>,
}

/// Lines to choose from: those of the smallest ring that is laid out here.
pub(in crate::ping) const LINES: u32 = 64;
/// Distance in slots at which no prefetcher takes one line for the other's neighbour.
const APART_SLOTS: u32 = 4;
/// The value that ends the other side.
const END: u32 = u32::MAX;

impl<'a> Floor<'a> {
    /// Both directions in one line.
    pub(in crate::ping) const fn one_line(ring: &'a MappedRing, line: u32, spin: Spin<'a>) -> Self {
        Self { ring, out: line, into: line, count: 0, spin }
    }

    /// A line for each direction.
    pub(in crate::ping) const fn two_lines(ring: &'a MappedRing, line: u32, calls: bool, spin: Spin<'a>) -> Self {
        let (first, second) = (line, line ^ APART_SLOTS);
        let (out, into) = if calls { (first, second) } else { (second, first) };
        Self { ring, out, into, count: 0, spin }
    }

    #[inline(always)]
    fn next(&mut self) -> u32 {
        self.count = (self.count + 1) & (END >> 1);
        self.count
    }

    #[inline(always)]
    fn line(&self, index: u32) -> &'a AtomicU32 {
        self.ring.stamp(index)
    }
}

impl Calls for Floor<'_> {
    #[inline(always)]
    fn exchange(&mut self, calls: &[Message], answers: &mut [Message]) -> Result<(), PeerError> {
        for (call, answer) in calls.iter().zip(answers) {
            let sent = self.next();
            self.line(self.out).store(sent, Ordering::Release);
            let (line, wanted) = (self.line(self.into), self.next());
            self.spin.until(|| line.load(Ordering::Acquire) == wanted)?;
            *answer = payload::answer_to(call); // The lines carry no payload.
        }
        Ok(())
    }

    fn send(&mut self, _: &Message) {
        self.line(self.out).store(END, Ordering::Release);
    }
}

impl Answers for Floor<'_> {
    #[inline(always)]
    fn serve(&mut self, _: &mut impl FnMut(&Message) -> Option<Message>) -> Result<(), PeerError> {
        loop {
            let (line, wanted) = (self.line(self.into), self.next());
            let mut seen = 0;
            self.spin.until(|| {
                seen = line.load(Ordering::Acquire);
                seen == wanted || seen == END
            })?;
            if seen == END {
                return Ok(());
            }
            let answer = self.next();
            self.line(self.out).store(answer, Ordering::Release);
        }
    }
}
