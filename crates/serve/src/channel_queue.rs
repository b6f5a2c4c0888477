//! Queues that stand on one queue of a channel: what its doorbell and its rings need is done here.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd};

use fipsee_ring::channel::ServerQueue;
use fipsee_ring::mapped::NextStamp;
use fipsee_ring::wait::Watch;

use crate::{Engine, Queue};

/// A queue of a service whose clients are at the other end of a channel. What is not said here, it does as every such [`Queue`].
pub trait ChannelQueue<E: Engine>: Any + Send {
    /// Our end of the channel's queue.
    fn end(&self) -> &ServerQueue;

    /// As [`end`](Self::end).
    fn end_mut(&mut self) -> &mut ServerQueue;

    /// As [`Queue::visit`].
    fn visit(&mut self, engine: &mut E, alone: bool) -> u32;

    /// As [`Queue::depth`].
    fn depth(&self) -> u32;

    /// As [`Queue::in_flight`].
    fn in_flight(&self) -> u32 {
        0
    }

    /// As [`Queue::has_work`].
    fn has_work(&self) -> bool {
        self.end().requests.has_message()
    }

    /// As [`Queue::finish`]; for queues that begin work with the engine.
    fn finish(&mut self, _ticket: E::Ticket, _status: E::Status) {}

    /// As [`Queue::flush`].
    fn flush(&mut self) {
        let end = self.end_mut();
        if end.completions.reader_needs_doorbell() {
            end.client_bell.ring();
        }
    }

    /// As [`Queue::arm_and_work_remains`].
    fn arm_and_work_remains(&mut self) -> bool {
        let requests = &mut self.end_mut().requests;
        !requests.is_armed() && requests.arm_and_work_remains() && self.has_work()
    }

    /// As [`Queue::moved`].
    fn moved(&mut self, _id: u32) {}

    /// As [`Queue::saved_state`].
    fn saved_state(&mut self) -> Option<Box<dyn Any + Send>>;
}

impl<E: Engine, T: ChannelQueue<E>> Queue<E> for T {
    #[inline(always)]
    fn visit(&mut self, engine: &mut E, alone: bool) -> u32 {
        ChannelQueue::visit(self, engine, alone)
    }

    fn in_flight(&self) -> u32 {
        ChannelQueue::in_flight(self)
    }

    fn depth(&self) -> u32 {
        ChannelQueue::depth(self)
    }

    fn has_work(&self) -> bool {
        ChannelQueue::has_work(self)
    }

    fn finish(&mut self, ticket: E::Ticket, status: E::Status) {
        ChannelQueue::finish(self, ticket, status);
    }

    fn flush(&mut self) {
        ChannelQueue::flush(self);
    }

    fn arm_and_work_remains(&mut self) -> bool {
        ChannelQueue::arm_and_work_remains(self)
    }

    fn bell_rang(&mut self) {
        self.end_mut().requests.disarm();
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.end().our_bell.as_fd()
    }

    fn next_stamp(&self) -> Option<NextStamp> {
        let requests = &self.end().requests;
        Some(requests.memory().next_stamp(requests.cursor()))
    }

    fn watch(&self) -> Option<Watch<'_>> {
        Some(self.end().requests.watch())
    }

    fn moved(&mut self, id: u32) {
        // Whether it rang meanwhile is not known: it is asked for again.
        self.end_mut().requests.disarm();
        ChannelQueue::moved(self, id);
    }

    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        ChannelQueue::saved_state(self)
    }
}
