//! A service on the runtime: it sends every message back. A new service needs only this much.

use std::any::Any;
use std::time::Duration;

use fipsee_ring::channel::ServerQueue;
use fipsee_ring::{Message, clock};
use fipsee_serve::{Added, Command, Queue, QueueName, Share, Taken, Turn};

/// Messages from here on are kept in flight until the service is to answer them.
pub(crate) const KEPT: u64 = 1 << 32;
/// Messages from here on are answered late, by a flush at a time.
pub(crate) const LATE: u64 = 1 << 48;
const LATE_BY: Duration = Duration::from_millis(2);

pub(crate) struct Echo {
    queue: ServerQueue,
    kept: Vec<Message>,
    /// What is kept is to be answered when the worker asks for what is deferred.
    has_deferred: bool,
    late: Option<(u64, Message)>,
}

impl Queue<()> for Echo {
    fn end(&self) -> Option<&ServerQueue> {
        Some(&self.queue)
    }

    fn end_mut(&mut self) -> Option<&mut ServerQueue> {
        Some(&mut self.queue)
    }

    fn visit(&mut self, (): &mut (), _turn: Turn) -> Taken {
        let (mut message, mut taken) = (Message::ZERO, 0);
        while taken < 8 && self.queue.requests.receive(&mut message) {
            taken += 1;
            self.queue.requests.disarm();
            if message.word(0) >= LATE {
                self.late = Some((clock::ticks() + clock::duration_to_ticks(LATE_BY), message));
            } else if message.word(0) >= KEPT {
                self.kept.push(message);
            } else {
                self.queue.completions.publish(&message);
            }
        }
        if taken > 0 {
            self.flush();
        }
        Taken::new(taken, 0)
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.kept.len()).unwrap_or(u32::MAX)
    }

    fn flush(&mut self) {
        if let Some((_, message)) = self.late.take_if(|(due, _)| *due <= clock::ticks()) {
            self.queue.completions.publish(&message);
        }
        if self.queue.completions.reader_needs_doorbell() {
            self.queue.client_doorbell.ring();
        }
    }

    fn due(&self) -> Option<u64> {
        self.late.map(|(due, _)| due)
    }

    fn may_hold_back(&self) -> bool {
        true
    }

    fn depth(&self) -> u32 {
        8
    }

    fn begin_deferred(&mut self, (): &mut ()) -> bool {
        let has_deferred = std::mem::take(&mut self.has_deferred);
        if has_deferred {
            self.answer_kept();
        }
        has_deferred
    }

    /// It begins no work under its number.
    fn moved(&mut self, _id: u32) {}

    fn saved_state(&mut self, _own: bool) -> Option<Box<dyn Any + Send>> {
        self.kept.is_empty().then(|| Box::new((self.queue.requests.cursor(), self.queue.completions.cursor())) as _)
    }
}

impl Echo {
    pub(crate) fn add(name: QueueName, queue: ServerQueue, added: Added<()>) -> Command<()> {
        let make =
            Box::new(|_| Ok(Box::new(Self { queue, kept: Vec::new(), has_deferred: false, late: None }) as Box<dyn Queue<()>>));
        Command::Add { name, share: Share::own("echo"), make, added }
    }

    pub(crate) fn keeps_nothing(&self) -> bool {
        self.kept.is_empty()
    }

    pub(crate) fn keep_deferred(&mut self) {
        self.kept.push(Message::ZERO);
        self.has_deferred = true;
    }

    pub(crate) fn answer_kept(&mut self) {
        std::mem::take(&mut self.kept).iter().for_each(|message| self.queue.completions.publish(message));
        self.flush();
    }
}
