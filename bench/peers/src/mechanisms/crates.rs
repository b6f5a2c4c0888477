//! Queues of crates. rtrb: a wait-free ring for one producer and one consumer. ringbuf: `SharedRb` behind its caching ends, as its
//! documentation advises between threads. Both move single messages one by one and several by slices. crossbeam: the bounded
//! lock-free `ArrayQueue`, and a bounded channel of `crossbeam-channel`, both for many producers and consumers, without a way to
//! move several at once; the channel is polled: `send` and `recv` would look for a while and then put the thread to sleep.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use crossbeam_queue::ArrayQueue;
use fipsee_ring::Message;
use ringbuf::traits::{Consumer as _, Producer as _, Split as _};
use ringbuf::{CachingCons, CachingProd, HeapRb};

use super::queue::{Queue, take};

pub struct Rtrb;

impl Queue for Rtrb {
    type Writer = rtrb::Producer<Message>;
    type Reader = rtrb::Consumer<Message>;

    fn make(slots: u32) -> Result<(Self::Writer, Self::Reader), String> {
        Ok(rtrb::RingBuffer::new(slots as usize))
    }

    #[inline(always)]
    fn push(writer: &mut Self::Writer, messages: &[Message]) -> usize {
        match messages {
            [message] => usize::from(writer.push(*message).is_ok()),
            _ => writer.push_partial_slice(messages).0.len(),
        }
    }

    #[inline(always)]
    fn pop(reader: &mut Self::Reader, into: &mut [Message]) -> usize {
        match into {
            [_] => take(into, || reader.pop().ok()),
            _ => reader.pop_partial_slice(into).0.len(),
        }
    }
}

pub struct Ringbuf;

impl Queue for Ringbuf {
    type Writer = CachingProd<Arc<HeapRb<Message>>>;
    type Reader = CachingCons<Arc<HeapRb<Message>>>;

    fn make(slots: u32) -> Result<(Self::Writer, Self::Reader), String> {
        Ok(HeapRb::<Message>::new(slots as usize).split())
    }

    #[inline(always)]
    fn push(writer: &mut Self::Writer, messages: &[Message]) -> usize {
        match messages {
            [message] => usize::from(writer.try_push(*message).is_ok()),
            _ => writer.push_slice(messages),
        }
    }

    #[inline(always)]
    fn pop(reader: &mut Self::Reader, into: &mut [Message]) -> usize {
        match into {
            [_] => take(into, || reader.try_pop()),
            _ => reader.pop_slice(into),
        }
    }
}

pub struct Array;

impl Queue for Array {
    type Writer = Arc<ArrayQueue<Message>>;
    type Reader = Arc<ArrayQueue<Message>>;

    fn make(slots: u32) -> Result<(Self::Writer, Self::Reader), String> {
        let queue = Arc::new(ArrayQueue::new(slots as usize));
        Ok((Arc::clone(&queue), queue))
    }

    #[inline(always)]
    fn push(writer: &mut Self::Writer, messages: &[Message]) -> usize {
        messages.iter().take_while(|message| writer.push(**message).is_ok()).count()
    }

    #[inline(always)]
    fn pop(reader: &mut Self::Reader, into: &mut [Message]) -> usize {
        take(into, || reader.pop())
    }
}

pub struct CrossbeamChannel;

impl Queue for CrossbeamChannel {
    type Writer = Sender<Message>;
    type Reader = Receiver<Message>;

    fn make(slots: u32) -> Result<(Self::Writer, Self::Reader), String> {
        Ok(crossbeam_channel::bounded(slots as usize))
    }

    #[inline(always)]
    fn push(writer: &mut Self::Writer, messages: &[Message]) -> usize {
        messages.iter().take_while(|message| writer.try_send(**message).is_ok()).count()
    }

    #[inline(always)]
    fn pop(reader: &mut Self::Reader, into: &mut [Message]) -> usize {
        take(into, || reader.try_recv().ok())
    }
}
