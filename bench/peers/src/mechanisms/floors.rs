//! What the machine itself takes: a bare number bounced between the two CPUs, without any payload. No way to carry messages;
//! the harness sees to it that the numbers arrive.

use std::sync::atomic::{AtomicU64, Ordering};

use fipsee_ring::Message;

use crate::harness::message::{answer_to, call};
use crate::harness::spin_backoff::SpinBackoff;
use crate::harness::{End, Mechanism, Plan, Side, shared};

/// Alone in its pair of lines.
#[repr(align(256))]
struct Line(AtomicU64);

/// The lines that numbers are written to; for one line both are the same.
pub struct Bounce<const LINES: usize>(&'static [Line; 2]);

/// One side of it.
pub struct BounceEnd {
    ours: &'static AtomicU64,
    theirs: &'static AtomicU64,
    side: Side,
    /// Exchanges so far.
    sequence: u64,
}

impl<const LINES: usize> Mechanism for Bounce<LINES> {
    type End = BounceEnd;

    fn share(_: &Plan) -> Result<Self, String> {
        // SAFETY: two atomics.
        unsafe { shared::zeroed::<[Line; 2]>() }.map(Self)
    }

    fn open(self, side: Side, _: &Plan) -> Result<BounceEnd, String> {
        let [first, second] = self.0;
        let (ours, theirs) = match (LINES, side) {
            (1, _) => (first, first),
            (_, Side::Client) => (first, second),
            (_, Side::Server) => (second, first),
        };
        Ok(BounceEnd { ours: &ours.0, theirs: &theirs.0, side, sequence: 0 })
    }
}

impl End for BounceEnd {
    /// Calls are odd numbers, answers even ones.
    #[inline(always)]
    fn send(&mut self, _: &[Message]) {
        let number = 2 * self.sequence + if self.side == Side::Client { 1 } else { 0 };
        self.ours.store(number, Ordering::Release);
        if self.side == Side::Client {
            self.sequence += 1;
        }
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [Message]) -> usize {
        let mut backoff = SpinBackoff::default();
        let expected = 2 * self.sequence + if self.side == Side::Client { 0 } else { 1 };
        while self.theirs.load(Ordering::Acquire) != expected {
            backoff.pause();
        }
        // What the harness wants to see: the number that came represents a whole message.
        into[0] = match self.side {
            Side::Client => answer_to(&call(self.sequence - 1)),
            Side::Server => call(self.sequence),
        };
        if self.side == Side::Server {
            self.sequence += 1;
        }
        1
    }
}
