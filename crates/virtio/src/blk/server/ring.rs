//! The ring in guest memory beside a virtqueue, which is its doorbell.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use fipsee_block::disk::Ticket;
use fipsee_block::server::{QueueServer, QueueSetup};
use fipsee_ring::channel::ServerQueue;
use fipsee_ring::doorbell::ClientBell;
use fipsee_ring::ring::{Cursor, Reader, Writer};
use fipsee_ring::tuning::Tuning;

use super::{QuestionToken, RingStanding, VirtqueueServer};
use crate::blk::upgrade::controller::Grant;
use crate::blk::upgrade::rings::GuestView;
use crate::blk::upgrade::wire::{COLD_PAIR_BYTES, Entry, NO_ATTACHMENT, RUNG, Reply};
use crate::core::memory::DirtyLog;

/// The guest's doorbell, as its ring sees it: what is to be done is for whoever holds the virtqueue, too.
#[derive(Debug, Default)]
pub(super) struct DeferredDoorbell {
    rung: bool,
}

impl ClientBell for DeferredDoorbell {
    fn ring(&mut self) {
        self.rung = true;
    }
}

#[derive(Debug)]
pub(super) struct Ring {
    pub(super) server: QueueServer<GuestView, DeferredDoorbell, ()>,
    pub(super) attachment: u64,
    pub(super) number: u16,
    pub(super) entry: Entry,
    /// The bell request that waits to be completed.
    pub(super) parked: Option<QuestionToken>,
    /// Rung while none was parked.
    pub(super) kept: bool,
    /// Told when nothing is in flight.
    waiting: Vec<Sender<()>>,
    /// No more is taken.
    pub(super) ending: bool,
    pub(super) log: Option<Arc<DirtyLog>>,
}

impl Ring {
    /// Where it stands; `None` while requests are in flight, or the device is about to end the attachment.
    pub(super) fn standing(&self) -> Option<RingStanding> {
        let standing = self.server.standing().filter(|_| !self.ending)?;
        Some(RingStanding { queue: self.number, kept: self.kept, standing })
    }

    /// Go on as another server left off.
    pub(super) fn resume(&mut self, ring: &RingStanding, log: Option<Arc<DirtyLog>>) {
        self.server.take_stand(&ring.standing);
        (self.kept, self.log) = (ring.kept, log);
    }

    /// Whatever was written to the ring since the last time, it lies here.
    pub(super) fn mark(&self) {
        let Some(log) = &self.log else { return };
        log.mark(self.entry.completion_address, self.entry.completion_bytes());
        log.mark(self.entry.cold_address, COLD_PAIR_BYTES);
    }
}

impl VirtqueueServer {
    /// Serve a ring, too. One that was served before is dropped: the device ends an attachment before it begins the next.
    pub fn attach(&mut self, grant: Grant) {
        let starts = (Cursor::at_start(grant.entry.request_start), Cursor::at_start(grant.entry.completion_start));
        self.attach_at(grant, starts);
    }

    pub(super) fn attach_at(&mut self, grant: Grant, (request, completion): (Cursor, Cursor)) {
        let Grant { attachment, queue, entry, requests, completions, choices } = grant;
        let tuning = Tuning::default().with_choices(choices);
        let server_queue = ServerQueue {
            requests: Reader::new(requests, request, &tuning),
            completions: Writer::new(completions.with_store(tuning.store), completion, &tuning),
            our_bell: (),
            client_bell: DeferredDoorbell::default(),
        };
        let setup = QueueSetup {
            depth: entry.depth,
            info: self.info,
            read_only: self.read_only,
            memory: GuestView::new(self.queue.memory()),
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

    /// Completions may have been published, with them the guest's doorbell rung.
    #[inline(always)]
    pub(super) fn ring_was_served(&mut self) {
        if let Some(ring) = &mut self.ring
            && (ring.server.queue.client_bell.rung || ring.log.is_some() || !ring.waiting.is_empty())
        {
            self.tend();
        }
    }

    /// Do what the ring wants done beside its requests.
    #[cold]
    fn tend(&mut self) {
        let Some(ring) = &mut self.ring else { return };
        let idle = ring.server.in_flight() == 0;
        let ends = idle && ring.ending;
        if ends {
            ring.server.flush();
        }
        ring.mark();
        let is_rung = std::mem::take(&mut ring.server.queue.client_bell.rung);
        let parked = if is_rung || ends { ring.parked.take() } else { None };
        ring.kept |= is_rung && parked.is_none();
        let waiting = if idle { std::mem::take(&mut ring.waiting) } else { Vec::new() };
        if ends {
            self.ring = None;
        }
        if let Some(token) = parked {
            self.answer_question(token, &Reply::of(if is_rung { RUNG } else { NO_ATTACHMENT }));
            self.publish();
        }
        for done in waiting {
            // A receiver that has gone does not wait.
            let _ = done.send(());
        }
    }
}
