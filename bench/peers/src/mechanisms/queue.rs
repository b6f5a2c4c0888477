//! Queues that are polled: one each way.

use std::mem::ManuallyDrop;

use fipsee_ring::Message;

use crate::harness::spin_backoff::SpinBackoff;
use crate::harness::{End, Mechanism, Plan, Side, shared};

/// One of them. It was made for threads, unless `IS_FOR_THREADS` says otherwise: what it allocates is then in shared memory.
pub trait Queue {
    type Writer;
    type Reader;
    /// Does it allocate its memory itself?
    const IS_FOR_THREADS: bool = true;

    /// With room for so many messages.
    fn make(slots: u32) -> Result<(Self::Writer, Self::Reader), String>;

    /// Write as many as there is room for; how many.
    fn push(writer: &mut Self::Writer, messages: &[Message]) -> usize;

    /// Take as many as are there and fit; how many.
    fn pop(reader: &mut Self::Reader, into: &mut [Message]) -> usize;
}

type Ends<Q> = (<Q as Queue>::Writer, <Q as Queue>::Reader);

pub struct Pair<Q: Queue> {
    calls: Ends<Q>,
    answers: Ends<Q>,
}

pub struct PairEnd<Q: Queue> {
    writer: Q::Writer,
    reader: Q::Reader,
}

impl<Q: Queue> Mechanism for Pair<Q> {
    type End = PairEnd<Q>;

    fn share(plan: &Plan) -> Result<Self, String> {
        let make = || Ok(Self { calls: Q::make(plan.slots)?, answers: Q::make(plan.slots)? });
        if Q::IS_FOR_THREADS { shared::in_shared_memory(make)? } else { make() }
    }

    fn open(self, side: Side, _: &Plan) -> Result<PairEnd<Q>, String> {
        let Self { calls, answers } = self;
        let ((writer, unused_reader), (unused_writer, reader)) =
            if side == Side::Client { (calls, answers) } else { (answers, calls) };
        // The other process uses them.
        let _others = ManuallyDrop::new((unused_reader, unused_writer));
        Ok(PairEnd { writer, reader })
    }
}

impl<Q: Queue> End for PairEnd<Q> {
    #[inline(always)]
    fn send(&mut self, mut messages: &[Message]) {
        let mut backoff = SpinBackoff::default();
        while !messages.is_empty() {
            let count = Q::push(&mut self.writer, messages);
            if count == 0 {
                backoff.pause();
            }
            messages = &messages[count..];
        }
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [Message]) -> usize {
        let mut backoff = SpinBackoff::default();
        loop {
            let count = Q::pop(&mut self.reader, into);
            if count > 0 {
                return count;
            }
            backoff.pause();
        }
    }
}

/// Fill `into` one by one from what `pop` finds; how many.
#[cfg(feature = "peers")]
#[inline(always)]
pub(super) fn take(into: &mut [Message], mut pop: impl FnMut() -> Option<Message>) -> usize {
    let mut count = 0;
    while count < into.len() {
        let Some(message) = pop() else { break };
        into[count] = message;
        count += 1;
    }
    count
}
