//! ringbuf: `SharedRb` behind its caching ends, as its documentation advises between threads. `try_push` and `try_pop` for
//! single messages, slices for several.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use fipsee_ring::Message;
use ringbuf::traits::{Consumer, Producer, Split};
use ringbuf::{CachingCons, CachingProd, HeapRb};

use crate::harness::spin_backoff::SpinBackoff;
use crate::harness::{End, Mechanism, Plan, Side, shared};

type Prod = CachingProd<Arc<HeapRb<Message>>>;
type Cons = CachingCons<Arc<HeapRb<Message>>>;

/// One ring each way, made in shared memory.
pub struct Ringbuf {
    calls: (Prod, Cons),
    answers: (Prod, Cons),
}

/// One side of it.
pub struct RingbufEnd {
    producer: Prod,
    consumer: Cons,
}

impl Mechanism for Ringbuf {
    type End = RingbufEnd;

    fn share(plan: &Plan) -> Result<Self, String> {
        let ring = || HeapRb::<Message>::new(plan.slots as usize).split();
        shared::in_shared_memory(|| Self { calls: ring(), answers: ring() })
    }

    fn open(self, side: Side, _: &Plan) -> Result<RingbufEnd, String> {
        let Self { calls, answers } = self;
        let ((producer, unused_consumer), (unused_producer, consumer)) =
            if side == Side::Client { (calls, answers) } else { (answers, calls) };
        // The other process uses them.
        let _others = ManuallyDrop::new((unused_consumer, unused_producer));
        Ok(RingbufEnd { producer, consumer })
    }
}

impl End for RingbufEnd {
    #[inline(always)]
    fn send(&mut self, mut messages: &[Message]) {
        let mut backoff = SpinBackoff::default();
        if let [message] = messages {
            while self.producer.try_push(*message).is_err() {
                backoff.pause();
            }
            return;
        }
        while !messages.is_empty() {
            let count = self.producer.push_slice(messages);
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
            if let [message] = into {
                if let Some(popped) = self.consumer.try_pop() {
                    *message = popped;
                    return 1;
                }
            } else {
                let count = self.consumer.pop_slice(into);
                if count > 0 {
                    return count;
                }
            }
            backoff.pause();
        }
    }
}
