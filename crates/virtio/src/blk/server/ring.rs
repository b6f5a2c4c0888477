//! The ring in guest memory beside a virtqueue, which is its doorbell; and upgrade requests (docs/protocol.md section 9.1): a
//! request, and a reply that may come later.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use fipsee_block::disk::Ticket;
use fipsee_block::server::{QueueServer, QueueSetup};
use fipsee_block::wire::Status;
use fipsee_ring::channel::ServerQueue;
use fipsee_ring::doorbell::ClientDoorbell;
use fipsee_ring::ring::{Cursor, Reader, Writer};
use fipsee_ring::tuning::Tuning;

use super::rare::used_bytes;
use super::serve::Header;
use super::{GuestRingState, StatusAddress, VirtqueueServer};
use crate::blk::upgrade::controller::Grant;
use crate::blk::upgrade::rings::GuestView;
use crate::blk::upgrade::wire::{
    COLD_PAIR_BYTES, Entry, INVALID, MAX_UPGRADE_REQUEST_BYTES, NO_ATTACHMENT, Operation, PART_BYTES, RUNG, Reply, UpgradeRequest,
};
use crate::core::memory::DirtyLog;
use crate::core::queue::chain::total_bytes;

/// The guest's doorbell, as its ring sees it: it also tracks work for the server of the virtqueue.
#[derive(Debug, Default)]
pub(super) struct DeferredDoorbell {
    rung: bool,
}

impl ClientDoorbell for DeferredDoorbell {
    fn ring(&mut self) {
        self.rung = true;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpgradeToken {
    head: u16,
    number: u32,
}

#[derive(Debug)]
pub(super) struct Ring {
    pub(super) server: QueueServer<GuestView, DeferredDoorbell, ()>,
    pub(super) attachment: u64,
    pub(super) number: u16,
    pub(super) entry: Entry,
    pub(super) pending: Option<UpgradeToken>,
    /// Rung while none was pending.
    pub(super) kept: bool,
    /// Notified when nothing is in flight.
    waiting: Vec<Sender<()>>,
    /// No more requests are taken.
    pub(super) ending: bool,
    pub(super) log: Option<Arc<DirtyLog>>,
}

impl Ring {
    /// Its state; `None` while requests are in flight, or the device is about to end the attachment.
    pub(super) fn state(&self) -> Option<GuestRingState> {
        let state = self.server.state().filter(|_| !self.ending)?;
        Some(GuestRingState { queue: self.number, kept: self.kept, state })
    }

    /// Log the ring's memory, which may have been written since the last time.
    pub(super) fn mark(&self) {
        let Some(log) = &self.log else { return };
        log.mark(self.entry.completion_address, self.entry.completion_bytes());
        log.mark(self.entry.cold_address, COLD_PAIR_BYTES);
    }
}

impl VirtqueueServer {
    /// Also serve a ring. A ring that was served before is dropped: the device ends an attachment before it begins the next.
    pub fn attach(&mut self, grant: Grant) {
        let starts = (Cursor::at_start(grant.entry.request_start), Cursor::at_start(grant.entry.completion_start));
        self.attach_at(grant, starts);
    }

    pub(super) fn attach_at(&mut self, grant: Grant, (request, completion): (Cursor, Cursor)) {
        let Grant { attachment, queue, entry, requests, completions, choices } = grant;
        let (tuning, policy) = (Tuning::default().with_choices(choices), self.policy());
        let server_queue = ServerQueue {
            requests: Reader::new(requests, request, &tuning),
            completions: Writer::new(completions.with_store(tuning.store), completion, &tuning),
            our_doorbell: (),
            client_doorbell: DeferredDoorbell::default(),
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
            Ring { server, attachment, number: queue, entry, pending: None, kept: false, waiting, ending: false, log: None };
        self.ring.insert(ring).server.set_policy(policy);
    }

    /// Take nothing more from the ring, publish what is in flight, and release it; then notify `done`. At once if there is no
    /// ring.
    pub fn end(&mut self, done: Sender<()>) {
        self.stop_ring(done, |ring| ring.ending = true);
    }

    /// Send the guest back to the virtqueue: requests taken from now on are not executed. `done` is notified when those
    /// taken before are finished.
    pub fn leave(&mut self, done: Sender<()>) {
        self.stop_ring(done, |ring| ring.server.announce_detach());
    }

    fn stop_ring(&mut self, done: Sender<()>, stop: impl FnOnce(&mut Ring)) {
        match &mut self.ring {
            Some(ring) => {
                stop(ring);
                ring.waiting.push(done);
                self.tend();
            }
            None => drop(done.send(())),
        }
    }

    /// Completions may have been published, and the guest's doorbell rung.
    #[inline(always)]
    pub(super) fn ring_was_served(&mut self) {
        if let Some(ring) = &mut self.ring
            && (ring.server.queue.client_doorbell.rung || ring.log.is_some() || !ring.waiting.is_empty())
        {
            self.tend();
        }
    }

    /// Do the ring's work other than requests.
    #[cold]
    fn tend(&mut self) {
        let Some(ring) = &mut self.ring else { return };
        let idle = ring.server.in_flight() == 0;
        let ends = idle && ring.ending;
        if ends {
            ring.server.flush();
        }
        ring.mark();
        let is_rung = std::mem::take(&mut ring.server.queue.client_doorbell.rung);
        let pending = if is_rung || ends { ring.pending.take() } else { None };
        ring.kept |= is_rung && pending.is_none();
        let waiting = if idle { std::mem::take(&mut ring.waiting) } else { Vec::new() };
        if ends {
            self.ring = None;
        }
        if let Some(token) = pending {
            self.answer_upgrade_request(token, &Reply::of(if is_rung { RUNG } else { NO_ATTACHMENT }));
            // The ring's server has counted it.
            self.publish_at_once();
        }
        for done in waiting {
            // A closed receiver does not wait.
            let _ = done.send(());
        }
    }
    #[cold]
    pub(super) fn serve_upgrade_request(&mut self, header: &Header, at: &StatusAddress) {
        if self.device.is_none() {
            return self.answer(at, Status::Unsupported);
        }
        let upgrade_request = self.queue.read(MAX_UPGRADE_REQUEST_BYTES);
        let room_bytes = total_bytes(self.queue.chain.writable());
        let Some(bytes) = upgrade_request.filter(|_| room_bytes >= PART_BYTES as u64) else {
            return self.answer(at, Status::Invalid);
        };
        self.upgrade_requests = self.upgrade_requests.wrapping_add(1);
        let token = UpgradeToken { head: at.head, number: self.upgrade_requests };
        let job = &mut self.jobs[usize::from(at.head)];
        job.place = *at;
        job.place.used_bytes = used_bytes(room_bytes, PART_BYTES);
        job.written.clear();
        job.written.extend_from_slice(self.queue.chain.writable());
        job.upgrade_request = Some(token.number);
        self.queue.hold(at.head);
        self.unanswered += 1;
        let is_plain = header.io_priority == 0 && header.sector == 0;
        let reply = match UpgradeRequest::parse(&bytes) {
            Err(refused) => Some(refused),
            Ok(_) if !is_plain => Some(Reply::of(INVALID)),
            Ok(doorbell) if doorbell.operation == Operation::Doorbell => self.hold_pending(token, &doorbell).map(Reply::of),
            Ok(upgrade_request) => {
                return if let Some(device) = &mut self.device {
                    device.asked(token, upgrade_request);
                };
            }
        };
        if let Some(reply) = reply {
            self.answer_upgrade_request(token, &reply);
        }
    }

    /// The result of a doorbell request; none: it stays pending.
    fn hold_pending(&mut self, token: UpgradeToken, doorbell: &UpgradeRequest) -> Option<u32> {
        let Some(ring) = self.ring.as_mut().filter(|ring| ring.attachment == doorbell.attachment && !ring.ending) else {
            return Some(NO_ATTACHMENT);
        };
        if ring.number != doorbell.queue || ring.pending.is_some() {
            return Some(INVALID);
        }
        if std::mem::take(&mut ring.kept) {
            return Some(RUNG);
        }
        ring.pending = Some(token);
        None
    }

    /// Reply to an upgrade request that a [`Device`](super::Device) received; [`flush`](Self::flush) publishes it. False if it is
    /// not pending.
    pub fn answer_upgrade_request(&mut self, token: UpgradeToken, reply: &Reply) -> bool {
        let Some(job) = self.jobs.get_mut(usize::from(token.head)).filter(|job| job.upgrade_request == Some(token.number)) else {
            return false;
        };
        if self.queue.is_over() {
            return false;
        }
        job.upgrade_request = None;
        let mut at = job.place;
        let pieces = std::mem::take(&mut job.written);
        self.queue.release(token.head);
        self.unanswered -= 1;
        // The memory may have changed since the request was received.
        let Some(place) = self.queue.host(at.address, 1) else {
            self.queue.break_down(format!("the status byte of an upgrade request is no longer memory (chain {})", token.head));
            return false;
        };
        at.place = place;
        let put = self.queue.write(&pieces, &reply.to_bytes());
        self.answer(&at, if put { Status::Ok } else { Status::BadMemory });
        true
    }
}
