//! A virtqueue with the ring whose doorbell it is.
//!
//! One thread serves both, woken by one eventfd (docs/decisions/0014-in-band-upgrade.md). Without a ring this is the virtqueue's
//! server and nothing else.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use fipsee_block::disk::{Disk, Engine, Ticket};
use fipsee_block::server::{QueueServer, QueueSetup};
use fipsee_block::stats::QueueCounters;
use fipsee_block::wire::BlockInfo;
use fipsee_ring::channel::ServerQueue;
use fipsee_ring::doorbell::ClientBell;
use fipsee_ring::ring::{Cursor, Reader, Writer};
use fipsee_ring::tuning::Tuning;

use super::desk::Grant;
use super::rings::{self, GuestView};
use super::wire::{COLD_PAIR_BYTES, DONE, Entry, INVALID, NO_ATTACHMENT, Operation, Question, RUNG, Reply};
use crate::blk::server::{QuestionToken, TakenQuestion, VirtqueueServer, VirtqueueSetup};
use crate::core::memory::{DirtyLog, GuestMemory};

/// A ring that is never empty must not keep its virtqueue waiting: one visit in so many looks at both.
const VISITS_PER_LOOK_AT_VIRTQUEUE: u32 = 8;

/// Answers the questions that concern a device as a whole.
pub trait Device: Debug + Send {
    /// Answer later, by [`GuestQueue::answer_question`] of the queue that this belongs to.
    fn asked(&mut self, token: QuestionToken, question: Question);

    /// The queue is served no more, for this reason; once.
    fn broke(&mut self, reason: &str);
}

/// The guest's doorbell, as its ring sees it: what is to be done is for whoever holds the virtqueue, too.
#[derive(Debug, Default)]
pub(super) struct Latch {
    rung: bool,
}

impl ClientBell for Latch {
    fn ring(&mut self) {
        self.rung = true;
    }
}

#[derive(Debug)]
pub(super) struct Ring {
    pub(super) server: QueueServer<GuestView, Latch, ()>,
    attachment: u64,
    pub(super) number: u16,
    entry: Entry,
    /// The bell request that waits to be completed.
    parked: Option<QuestionToken>,
    /// Rung while none was parked.
    pub(super) kept: bool,
    /// Told when nothing is in flight.
    waiting: Vec<Sender<()>>,
    /// No more is taken.
    pub(super) ending: bool,
    pub(super) log: Option<Arc<DirtyLog>>,
}

/// A virtqueue and, while its guest is attached, a ring.
#[derive(Debug)]
pub struct GuestQueue {
    pub(super) virtqueue: VirtqueueServer,
    pub(super) ring: Option<Ring>,
    device: Box<dyn Device>,
    visits: u32,
    id: u32,
    memory: Arc<GuestMemory>,
    info: BlockInfo,
    read_only: bool,
    counters: Arc<QueueCounters>,
}

impl GuestQueue {
    /// Serve a virtqueue, whose requests the worker knows as `id`. Questions that concern more than this queue go to `device`.
    ///
    /// # Errors
    /// As [`VirtqueueServer::new`].
    pub fn new(id: u32, setup: VirtqueueSetup, device: Box<dyn Device>) -> Result<Self, String> {
        Self::over(id, setup, device, VirtqueueServer::new)
    }

    pub(super) fn over(
        id: u32,
        mut setup: VirtqueueSetup,
        device: Box<dyn Device>,
        serve: impl FnOnce(u32, VirtqueueSetup) -> Result<VirtqueueServer, String>,
    ) -> Result<Self, String> {
        setup.takes_questions = true;
        let (memory, counters) = (Arc::clone(&setup.queue.memory), Arc::clone(&setup.counters));
        let (info, read_only) = (setup.info, setup.read_only);
        let virtqueue = serve(id, setup)?;
        Ok(Self { virtqueue, ring: None, device, visits: 0, id, memory, info, read_only, counters })
    }

    /// Serve a ring, too. One that was served before is dropped: the device ends an attachment before it begins the next.
    pub fn attach(&mut self, grant: Grant) {
        let starts = (Cursor::at_start(grant.entry.request_start), Cursor::at_start(grant.entry.completion_start));
        self.attach_at(grant, starts);
    }

    pub(super) fn attach_at(&mut self, grant: Grant, (request, completion): (Cursor, Cursor)) {
        let Grant { attachment, queue, entry, requests, completions, choices } = grant;
        let tuning = Tuning::default().with_choices(choices);
        let server_queue = ServerQueue {
            requests: Reader::with_tuning(requests, request, &tuning),
            completions: Writer::with_tuning(completions.with_store(tuning.store), completion, &tuning),
            our_bell: (),
            client_bell: Latch::default(),
        };
        let setup = QueueSetup {
            depth: entry.depth,
            info: self.info,
            read_only: self.read_only,
            memory: GuestView::new(&self.memory),
            counters: Arc::clone(&self.counters),
        };
        let server = QueueServer::new(server_queue, self.id | Ticket::PART, setup);
        let waiting = Vec::new();
        let ring =
            Ring { server, attachment, number: queue, entry, parked: None, kept: false, waiting, ending: false, log: None };
        self.ring = Some(ring);
    }

    /// Take nothing more from the ring, publish what is in flight, and let go of it; then tell `done`. At once if there is none.
    pub fn end(&mut self, done: Sender<()>) {
        match &mut self.ring {
            Some(ring) => {
                ring.ending = true;
                ring.waiting.push(done);
                self.tend();
            }
            None => drop(done.send(())),
        }
    }

    /// Tell the guest that it has to go back to the virtqueue: requests taken from now on are not carried out. `done` is told when those
    /// taken before are finished.
    pub fn leave(&mut self, done: Sender<()>) {
        match &mut self.ring {
            Some(ring) => {
                ring.server.announce_detach();
                ring.waiting.push(done);
                self.tend();
            }
            None => drop(done.send(())),
        }
    }

    /// Answer what [`Device::asked`] was given. [`flush`](Self::flush) publishes it.
    pub fn answer_question(&mut self, token: QuestionToken, reply: &Reply) {
        self.virtqueue.answer_question(token, &reply.to_bytes());
    }

    /// Take up to a budget of requests; answer what `disk` finishes at once. How many were taken.
    #[inline(always)]
    pub(super) fn visit<D: Disk>(&mut self, disk: &D, engine: &mut Engine) -> u32 {
        let mut taken = 0;
        if let Some(ring) = &mut self.ring {
            self.virtqueue.check_memory();
            if !ring.ending && self.virtqueue.fault().is_none() {
                taken = ring.server.visit(disk, engine);
                if taken > 0 {
                    self.ring_was_served();
                }
            }
            self.visits = self.visits.wrapping_add(1);
            if taken > 0 && !self.visits.is_multiple_of(VISITS_PER_LOOK_AT_VIRTQUEUE) {
                return taken;
            }
        }
        taken += self.virtqueue.visit(disk, engine);
        if self.virtqueue.has_question() {
            self.take_questions();
        }
        taken
    }

    /// Publish what is finished, and wake the guest if it wants that.
    pub fn flush(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.server.flush();
            self.ring_was_served();
        }
        self.virtqueue.flush();
    }

    pub(super) fn report_fault(&mut self) {
        if let Some(reason) = self.virtqueue.fault() {
            self.device.broke(reason);
        }
    }

    /// Completions may have been published, with them the guest's doorbell rung.
    #[inline(always)]
    fn ring_was_served(&mut self) {
        if let Some(ring) = &mut self.ring
            && (ring.server.client_bell_mut().rung || ring.log.is_some() || !ring.waiting.is_empty())
        {
            self.tend();
        }
    }

    /// Do what the ring wants done beside its requests.
    #[cold]
    fn tend(&mut self) {
        let Some(ring) = &mut self.ring else { return };
        let idle = ring.server.in_flight() == 0;
        if idle && ring.ending {
            ring.server.flush();
        }
        ring.mark();
        if std::mem::take(&mut ring.server.client_bell_mut().rung) {
            match ring.parked.take() {
                Some(token) => complete(&mut self.virtqueue, token, RUNG),
                None => ring.kept = true,
            }
        }
        if !idle {
            return;
        }
        let waiting = std::mem::take(&mut ring.waiting);
        if ring.ending {
            if let Some(token) = ring.parked.take() {
                complete(&mut self.virtqueue, token, NO_ATTACHMENT);
            }
            self.ring = None;
        }
        for done in waiting {
            // Who has gone does not wait.
            let _ = done.send(());
        }
    }

    /// Bells stay here, other questions go to the device.
    #[cold]
    fn take_questions(&mut self) {
        while let Some(TakenQuestion { token, is_plain, bytes }) = self.virtqueue.next_question() {
            let reply = match Question::parse(&bytes) {
                Ok(_) if !is_plain => Some(Reply::of(INVALID)),
                Err(refused) => Some(Reply::from(refused)),
                Ok(bell) if bell.operation == Operation::Bell => self.park(token, &bell).map(Reply::of),
                Ok(question) => {
                    self.device.asked(token, question);
                    None
                }
            };
            if let Some(reply) = reply {
                self.answer_question(token, &reply);
            }
        }
        self.virtqueue.flush();
    }

    /// What to answer to a bell, or none: it is parked.
    fn park(&mut self, token: QuestionToken, bell: &Question) -> Option<u32> {
        let Some(ring) = self.ring.as_mut().filter(|ring| ring.attachment == bell.attachment && !ring.ending) else {
            return Some(NO_ATTACHMENT);
        };
        if ring.number != bell.queue || ring.parked.is_some() {
            return Some(INVALID);
        }
        if std::mem::take(&mut ring.kept) {
            return Some(RUNG);
        }
        ring.parked = Some(token);
        None
    }

    /// The disk's size changed: requests are checked against the new one, and an attached guest is sent an event.
    pub fn set_info(&mut self, info: &BlockInfo) {
        let is_resized = std::mem::replace(&mut self.info, *info).sector_count != info.sector_count;
        self.virtqueue.set_info(info);
        if let Some(ring) = self.ring.as_mut().filter(|_| is_resized) {
            ring.server.announce_resize(info);
            self.ring_was_served();
        }
    }

    /// As [`VirtqueueServer::set_call`].
    ///
    /// # Errors
    /// The descriptor is no eventfd.
    pub fn set_call(&mut self, call: Option<OwnedFd>) -> Result<(), String> {
        self.virtqueue.set_call(call)
    }

    /// Log what is written to guest memory from now on. The ring has to have been [left](Self::leave): nothing is written but itself.
    pub fn set_log(&mut self, log: Option<Arc<DirtyLog>>, used_log_address: Option<u64>) {
        if let Some(ring) = &mut self.ring {
            ring.log.clone_from(&log);
            ring.mark();
        }
        self.virtqueue.set_log(log, used_log_address);
    }

    /// Go on in other memory; nothing is in flight. A ring that is not there ends: the device has seen to it before.
    ///
    /// # Errors
    /// As [`VirtqueueServer::set_memory`].
    pub fn set_memory(
        &mut self,
        memory: Arc<GuestMemory>,
        descriptor_address: u64,
        available_address: u64,
        used_address: u64,
    ) -> Result<(), String> {
        if let Some(ring) = &mut self.ring {
            match rings::open(&memory, &ring.entry) {
                Some((requests, completions)) => {
                    ring.server.move_to(requests, completions, GuestView::new(&memory));
                }
                None => self.ring = None,
            }
        }
        self.memory = Arc::clone(&memory);
        self.virtqueue.set_memory(memory, descriptor_address, available_address, used_address)
    }

    /// The queue is idle and goes, with its ring: the index of the next available entry, for GET_VRING_BASE.
    #[must_use]
    pub fn stop(self) -> u16 {
        self.virtqueue.stop()
    }
}

impl Ring {
    /// Whatever was written to the ring since the last time, it lies here.
    pub(super) fn mark(&self) {
        let Some(log) = &self.log else { return };
        log.mark(self.entry.completion_address, self.entry.completion_bytes());
        log.mark(self.entry.cold_address, COLD_PAIR_BYTES);
    }
}

fn complete(virtqueue: &mut VirtqueueServer, token: QuestionToken, result: u32) {
    debug_assert!(result != DONE, "bells are rung, or there is none");
    virtqueue.answer_question(token, &Reply::of(result).to_bytes());
    virtqueue.flush();
}
