//! The in-band upgrade of a device (docs/protocol.md section 9): what concerns several queues, and so several workers.
//!
//! Questions come from the workers as notices and are answered here, one after the other and between the hypervisor's requests: so
//! no attachment begins or ends while queues are stopped or memory changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use fipsee_ring::mailbox::Mailbox;
use fipsee_ring::tuning::{Choices, Tuning};
use fipsee_virtio::blk::server::QuestionToken;
use fipsee_virtio::blk::upgrade::GuestQueue;
use fipsee_virtio::blk::upgrade::desk::Decision;
use fipsee_virtio::blk::upgrade::wire::{Question, Reply};
use fipsee_virtio::core::memory::GuestMemory;

use super::Notice;
use super::device::{Device, LOG_ALL};

/// A question of a guest, to its device.
#[derive(Debug)]
pub struct Asked {
    queue: u16,
    start: u64,
    token: QuestionToken,
    question: Question,
}

/// Sends the questions of a queue to the thread of its device.
#[derive(Debug)]
pub(super) struct Asker {
    queue: u16,
    /// Tells this run of the queue from others: a token means nothing to another.
    pub(super) start: u64,
    notices: Arc<Mailbox<Notice>>,
}

impl Asker {
    pub(super) fn new(queue: u16, notices: &Arc<Mailbox<Notice>>) -> Self {
        static STARTS: AtomicU64 = AtomicU64::new(1);
        Self { queue, start: STARTS.fetch_add(1, Ordering::Relaxed), notices: Arc::clone(notices) }
    }
}

impl fipsee_virtio::blk::upgrade::Device for Asker {
    fn asked(&mut self, token: QuestionToken, question: Question) {
        self.notices.send(Notice::Asked(Asked { queue: self.queue, start: self.start, token, question }));
    }

    fn broke(&mut self, reason: &str) {
        self.notices.send(Notice::Fault { queue: self.queue, reason: reason.to_owned() });
    }
}

impl Device {
    /// How a guest is best to go about its rings' work: as the worker of its first virtqueue does.
    pub(super) fn advice(&self) -> Choices {
        let worker = self.queues.iter().find_map(super::queue::Queue::worker);
        worker.map_or_else(|| Tuning::default().to_choices(), |worker| self.serving.workers[worker].place.choices)
    }

    /// Answer a question, unless the queue it came from was stopped meanwhile: then it comes again.
    pub(super) fn asked(&mut self, asked: &Asked) {
        let Asked { queue, start, token, question } = asked;
        let is_current = |index: u16| self.queues.get(usize::from(index)).is_some_and(|queue| queue.is_current(*start));
        if !is_current(*queue) {
            return;
        }
        let advice = self.advice();
        let served = |index: u32| {
            self.queues.get(usize::try_from(index).unwrap_or(usize::MAX)).is_some_and(super::queue::Queue::is_served)
        };
        let reply = match self.desk.decide(question, &self.memory, self.queue_count(), advice, served) {
            Decision::Answer(reply) => reply,
            Decision::Attach(grants, reply) => {
                tracing::debug!(disk = self.serving.export.name(), rings = grants.len(), "a guest goes over to rings");
                for grant in grants {
                    self.set(grant.entry.virtqueue, move |server| server.attach(grant));
                }
                reply
            }
            Decision::Detach(reply) => {
                self.end_attachment();
                reply
            }
        };
        self.answer(*queue, *token, reply);
    }

    fn answer(&self, queue: u16, token: QuestionToken, reply: Reply) {
        self.set(queue.into(), move |server| {
            server.answer_question(token, &reply);
            server.flush();
        });
    }

    fn set(&self, virtqueue: u32, set: impl FnOnce(&mut GuestQueue) + Send + 'static) {
        let found = u16::try_from(virtqueue).ok().and_then(|index| Some((index, self.queues.get(usize::from(index))?)));
        if let Some((index, queue)) = found {
            queue.set(index, &self.serving, set);
        }
    }

    /// The rings are touched no more when this returns, and what was taken from them is finished.
    pub(super) fn end_attachment(&mut self) {
        if self.desk.is_attached() {
            self.on_rings(GuestQueue::end);
            self.desk.ended();
            tracing::debug!(disk = self.serving.export.name(), "a guest's attachment ended");
        }
    }

    /// The guest is to go back to virtqueues by itself: nothing is in flight on its rings when this returns, and no more is carried out.
    pub(super) fn call_back(&self) {
        self.on_rings(GuestQueue::leave);
    }

    fn on_rings(&self, ask: fn(&mut GuestQueue, Sender<()>)) {
        let asked: Vec<Receiver<()>> = self
            .desk
            .virtqueues()
            .map(|virtqueue| {
                let (done, waiting) = channel();
                self.set(virtqueue, move |server| ask(server, done));
                waiting
            })
            .collect();
        for waiting in asked {
            // A queue that is gone has let go of its ring.
            let _ = waiting.recv();
        }
    }

    /// A queue is about to be stopped: if it is a doorbell, the attachment ends.
    pub(super) fn doorbell_stops(&mut self, virtqueue: u32) {
        if self.desk.virtqueues().any(|doorbell| doorbell == virtqueue) {
            self.end_attachment();
        }
    }

    /// Other memory is about to be put in place: the attachment goes on if its rings are there, too.
    pub(super) fn memory_changes(&mut self, memory: &Arc<GuestMemory>) {
        if !self.desk.fits(memory) {
            self.end_attachment();
        }
    }

    /// Features are in force: while writes are logged nobody attaches, and who is attached is called back before the first is.
    pub(super) fn logging_changes(&mut self, features: u64) {
        let logs = features & LOG_ALL != 0;
        if logs {
            self.call_back();
        }
        self.desk.set_migrating(logs);
    }
}
