//! crossbeam: the bounded lock-free `ArrayQueue`, and a bounded channel of `crossbeam-channel`. Both are for many producers
//! and consumers and have no way to move several messages at once. Polled: the channel's `send` and `recv` would look
//! for a while and then put the thread to sleep.

use std::mem::ManuallyDrop;

use crossbeam_channel::{Receiver, Sender};
use crossbeam_queue::ArrayQueue;
use fipsee_ring::Message;

use crate::harness::spin_backoff::SpinBackoff;
use crate::harness::{End, Mechanism, Plan, Side, shared};

/// One queue each way, made in shared memory.
pub struct Queue {
    calls: Box<ArrayQueue<Message>>,
    answers: Box<ArrayQueue<Message>>,
}

/// One side of it.
pub struct QueueEnd {
    outgoing: Box<ArrayQueue<Message>>,
    incoming: Box<ArrayQueue<Message>>,
}

impl Mechanism for Queue {
    type End = QueueEnd;

    fn share(plan: &Plan) -> Result<Self, String> {
        let queue = || Box::new(ArrayQueue::new(plan.slots as usize));
        shared::in_shared_memory(|| Self { calls: queue(), answers: queue() })
    }

    fn open(self, side: Side, _: &Plan) -> Result<QueueEnd, String> {
        let Self { calls, answers } = self;
        let (outgoing, incoming) = if side == Side::Client { (calls, answers) } else { (answers, calls) };
        Ok(QueueEnd { outgoing, incoming })
    }
}

impl End for QueueEnd {
    #[inline(always)]
    fn send(&mut self, messages: &[Message]) {
        for message in messages {
            let mut backoff = SpinBackoff::default();
            while self.outgoing.push(*message).is_err() {
                backoff.pause();
            }
        }
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [Message]) -> usize {
        poll(into, || self.incoming.pop())
    }
}

/// One channel each way, made in shared memory.
pub struct CrossbeamChannel {
    calls: (Sender<Message>, Receiver<Message>),
    answers: (Sender<Message>, Receiver<Message>),
}

/// One side of it.
pub struct ChannelEnd {
    sender: Sender<Message>,
    receiver: Receiver<Message>,
}

impl Mechanism for CrossbeamChannel {
    type End = ChannelEnd;

    fn share(plan: &Plan) -> Result<Self, String> {
        let channel = || crossbeam_channel::bounded(plan.slots as usize);
        shared::in_shared_memory(|| Self { calls: channel(), answers: channel() })
    }

    fn open(self, side: Side, _: &Plan) -> Result<ChannelEnd, String> {
        let Self { calls, answers } = self;
        let ((sender, unused_receiver), (unused_sender, receiver)) =
            if side == Side::Client { (calls, answers) } else { (answers, calls) };
        // The other process uses them.
        let _others = ManuallyDrop::new((unused_receiver, unused_sender));
        Ok(ChannelEnd { sender, receiver })
    }
}

impl End for ChannelEnd {
    #[inline(always)]
    fn send(&mut self, messages: &[Message]) {
        for message in messages {
            let mut backoff = SpinBackoff::default();
            while self.sender.try_send(*message).is_err() {
                backoff.pause();
            }
        }
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [Message]) -> usize {
        poll(into, || self.receiver.try_recv().ok())
    }
}

/// Wait for a message, then take all that are there.
#[inline(always)]
fn poll(into: &mut [Message], mut pop: impl FnMut() -> Option<Message>) -> usize {
    let mut backoff = SpinBackoff::default();
    let mut count = 0;
    while count < into.len() {
        match pop() {
            Some(message) => {
                into[count] = message;
                count += 1;
            }
            None if count > 0 => break,
            None => backoff.pause(),
        }
    }
    count
}
