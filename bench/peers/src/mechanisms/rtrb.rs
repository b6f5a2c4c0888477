//! rtrb: a wait-free ring for one producer and one consumer. `push` and `pop` for single messages, its slices for several,
//! as its documentation advises for more than one.

use std::mem::ManuallyDrop;

use fipsee_ring::Message;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::harness::spin_backoff::SpinBackoff;
use crate::harness::{End, Mechanism, Plan, Side, shared};

/// One ring each way, made in shared memory.
pub struct Rtrb {
    calls: (Producer<Message>, Consumer<Message>),
    answers: (Producer<Message>, Consumer<Message>),
}

/// One side of it.
pub struct RtrbEnd {
    producer: Producer<Message>,
    consumer: Consumer<Message>,
}

impl Mechanism for Rtrb {
    type End = RtrbEnd;

    fn share(plan: &Plan) -> Result<Self, String> {
        let slots = plan.slots as usize;
        shared::in_shared_memory(|| Self { calls: RingBuffer::new(slots), answers: RingBuffer::new(slots) })
    }

    fn open(self, side: Side, _: &Plan) -> Result<RtrbEnd, String> {
        let Self { calls, answers } = self;
        let ((producer, unused_consumer), (unused_producer, consumer)) =
            if side == Side::Client { (calls, answers) } else { (answers, calls) };
        // The other process uses them.
        let _others = ManuallyDrop::new((unused_consumer, unused_producer));
        Ok(RtrbEnd { producer, consumer })
    }
}

impl End for RtrbEnd {
    #[inline(always)]
    fn send(&mut self, mut messages: &[Message]) {
        let mut backoff = SpinBackoff::default();
        if let [message] = messages {
            while self.producer.push(*message).is_err() {
                backoff.pause();
            }
            return;
        }
        while !messages.is_empty() {
            let (pushed, rest) = self.producer.push_partial_slice(messages);
            if pushed.is_empty() {
                backoff.pause();
            }
            messages = rest;
        }
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [Message]) -> usize {
        let mut backoff = SpinBackoff::default();
        if let [message] = into {
            loop {
                if let Ok(popped) = self.consumer.pop() {
                    *message = popped;
                    return 1;
                }
                backoff.pause();
            }
        }
        loop {
            let (popped, _) = self.consumer.pop_partial_slice(into);
            if !popped.is_empty() {
                return popped.len();
            }
            backoff.pause();
        }
    }
}
