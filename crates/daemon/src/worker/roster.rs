//! The queues of a worker: hot ones, visited every pass, and cold ones, sampled.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use fipsee_block::disk::{AnyDisk, Engine};
use fipsee_ring::wait::Watch;
use fipsee_ring::{AtomicU32, Ordering};

use super::service::{Pending, Service};
use super::{Ack, QueueName};
use crate::export::Export;

/// Empty visits after which a queue is sampled instead of visited every pass.
const EMPTY_VISITS_BEFORE_COLD: u32 = 1000;
/// Cold queues looked at per pass.
const COLD_SAMPLES_PER_PASS: usize = 4;

/// Is a queue on its way out?
pub(super) enum Closing {
    No,
    /// Serve what was published, then go: at most so many requests, because a correct client has no more outstanding,
    /// and one that goes on publishing must not keep us.
    Finish {
        left: u32,
        _ack: Ack,
    },
    /// Go as soon as nothing is in flight.
    Now {
        _ack: Ack,
    },
}

/// One queue and what belongs to it.
pub(super) struct Slot {
    pub(super) service: Service,
    pub(super) export: Arc<Export>,
    pub(super) client: u64,
    /// Its number with the client.
    pub(super) index: u16,
    hot: bool,
    pub(super) empty_visits: u32,
    pub(super) closing: Closing,
    /// What waits until nothing is in flight: of a ring, memory to be removed.
    pub(super) removals: Vec<(u16, Ack)>,
}

impl Slot {
    pub(super) fn new(service: Service, export: Arc<Export>, QueueName { client, index }: QueueName) -> Self {
        Self { service, export, client, index, hot: false, empty_visits: 0, closing: Closing::No, removals: Vec::new() }
    }

    /// May requests be taken? Not while memory waits to be removed, nor when the client is gone.
    #[inline(always)]
    pub(super) fn takes_requests(&self) -> bool {
        self.removals.is_empty() && !matches!(self.closing, Closing::Now { .. } | Closing::Finish { left: 0, .. })
    }

    /// Nothing is in flight: do what waited for that. Who wants to know where a virtqueue stopped, which is to go now.
    #[cold]
    pub(super) fn apply_what_waited(&mut self) -> Option<Sender<u16>> {
        match &mut self.service {
            Service::Ring(server) => {
                for (region, _ack) in self.removals.drain(..) {
                    let _ = server.regions_mut().remove(region);
                }
                None
            }
            Service::Virtqueue(queue) => match queue.pending.take()? {
                Pending::Memory { memory, rings, reply } => {
                    let _ = reply.send(queue.server.set_memory(memory, rings.descriptor, rings.available, rings.used));
                    None
                }
                Pending::Stop { reply } => Some(reply),
            },
        }
    }

    /// `alone`: the worker has no other hot queue.
    #[inline(always)]
    fn visit(&mut self, engine: &mut Engine, alone: bool) -> u32 {
        let takes_requests = self.takes_requests();
        let taken = match &mut self.service {
            Service::Ring(server) => {
                server.hold(alone);
                if !takes_requests {
                    return 0;
                }
                match self.export.disk() {
                    AnyDisk::Null(disk) => server.visit(disk, engine),
                    AnyDisk::Memory(disk) => server.visit(disk, engine),
                    AnyDisk::File(disk) => server.visit(disk, engine),
                    other => server.visit(other, engine),
                }
            }
            Service::Virtqueue(queue) => {
                if !takes_requests || !queue.takes_requests() {
                    return 0;
                }
                queue.server.hold(alone);
                let taken = match self.export.disk() {
                    AnyDisk::Null(disk) => queue.server.visit(disk, engine),
                    AnyDisk::Memory(disk) => queue.server.visit(disk, engine),
                    AnyDisk::File(disk) => queue.server.visit(disk, engine),
                    other => queue.server.visit(other, engine),
                };
                queue.report_fault();
                return taken;
            }
        };
        if let Closing::Finish { left, .. } = &mut self.closing {
            *left = left.saturating_sub(taken);
        }
        taken
    }
}

/// What a poller needs of a cold queue.
#[derive(Clone, Copy)]
enum Poll {
    /// It is hot, or there is none.
    Nothing,
    /// Where the next stamp of a ring will stand, and what it will be.
    Stamp(*const AtomicU32, u32),
    /// A virtqueue knows itself where its guest will write.
    Virtqueue,
}

/// All queues of a worker, by their number.
#[derive(Default)]
pub(super) struct Roster {
    slots: Vec<Option<Slot>>,
    polls: Vec<Poll>,
    hot: Vec<u32>,
    cold_cursor: usize,
}

impl Roster {
    /// The number the next queue will get.
    pub(super) fn next_id(&self) -> usize {
        self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len())
    }

    /// Take a queue in, under [`next_id`](Self::next_id).
    pub(super) fn add(&mut self, slot: Slot) {
        let id = self.next_id();
        if id == self.slots.len() {
            self.slots.push(Some(slot));
            self.polls.push(Poll::Nothing);
        } else {
            self.slots[id] = Some(slot);
        }
        self.heat(id);
    }

    /// Let a queue go.
    pub(super) fn remove(&mut self, id: usize) -> Option<Slot> {
        let slot = self.slots.get_mut(id)?.take()?;
        self.polls[id] = Poll::Nothing;
        self.hot.retain(|hot| *hot as usize != id);
        while self.slots.last().is_some_and(Option::is_none) {
            self.slots.pop();
            self.polls.pop();
        }
        self.cold_cursor = 0;
        Some(slot)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, id: usize) -> Option<&mut Slot> {
        self.slots.get_mut(id).and_then(Option::as_mut)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Slot)> {
        self.slots.iter_mut().enumerate().filter_map(|(id, slot)| slot.as_mut().map(|slot| (id, slot)))
    }

    /// The one place where work can come, if there is one: watched, it is all that ends a wait early. The other queues must be
    /// so few that each is looked at in every pass.
    pub(super) fn watch(&self) -> Option<Watch<'_>> {
        let id = match (self.hot.as_slice(), self.slots.len()) {
            ([id], ..=COLD_SAMPLES_PER_PASS) => *id as usize,
            ([], 1) => 0,
            _ => return None,
        };
        let slot = self.slots.get(id)?.as_ref()?;
        match &slot.service {
            Service::Ring(server) => slot.takes_requests().then(|| server.watch()),
            // No stamp stands there: the guest counts.
            Service::Virtqueue(_) => None,
        }
    }

    /// Visit every hot queue once; returns how many requests were taken.
    #[inline(always)]
    pub(super) fn visit_hot(&mut self, engine: &mut Engine) -> u32 {
        let mut work = 0;
        let mut place = 0;
        let alone = self.hot.len() == 1;
        while let Some(&id) = self.hot.get(place) {
            let Some(slot) = self.slots.get_mut(id as usize).and_then(Option::as_mut) else {
                self.hot.swap_remove(place);
                continue;
            };
            let taken = slot.visit(engine, alone);
            work += taken;
            if taken > 0 {
                slot.empty_visits = 0;
            } else {
                slot.empty_visits += 1;
                if slot.empty_visits > EMPTY_VISITS_BEFORE_COLD {
                    self.cool(place);
                    continue;
                }
            }
            place += 1;
        }
        work
    }

    #[cold]
    fn cool(&mut self, place: usize) {
        // The last hot queue stays so: sampling would cost it nothing less.
        let id = self.hot[place] as usize;
        self.hot.swap_remove(place);
        if let Some(slot) = self.slots.get_mut(id).and_then(Option::as_mut) {
            slot.hot = false;
            self.polls[id] = match &slot.service {
                Service::Ring(server) => {
                    let (stamp, expected) = server.next_stamp();
                    Poll::Stamp(stamp, expected)
                }
                Service::Virtqueue(_) => Poll::Virtqueue,
            };
        }
    }

    /// Visit this queue every pass from now on.
    #[cold]
    pub(super) fn heat(&mut self, id: usize) {
        if let Some(slot) = self.slots.get_mut(id).and_then(Option::as_mut) {
            slot.empty_visits = 0;
            if !slot.hot {
                slot.hot = true;
                self.polls[id] = Poll::Nothing;
                self.hot.push(u32::try_from(id).unwrap_or(u32::MAX));
            }
        }
    }

    /// Look at a few cold queues; one that has a request becomes hot.
    #[inline(always)]
    pub(super) fn sample_cold(&mut self) -> u32 {
        if self.hot.len() == self.slots.len() {
            return 0;
        }
        let mut work = 0;
        for _ in 0..COLD_SAMPLES_PER_PASS.min(self.polls.len()) {
            let id = self.cold_cursor;
            self.cold_cursor = if id + 1 >= self.polls.len() { 0 } else { id + 1 };
            let has_work = match self.polls[id] {
                Poll::Nothing => continue,
                Poll::Stamp(stamp, expected) => {
                    // SAFETY: the address lies in the region of a queue that this worker holds: `polls[id]` is cleared when
                    // slot `id` is dropped or becomes hot. Every access to a stamp is atomic.
                    let stamp = unsafe { &*stamp };
                    stamp.load(Ordering::Acquire) == expected
                }
                Poll::Virtqueue => self.get_mut(id).is_some_and(|slot| slot.service.has_work()),
            };
            if has_work {
                self.heat(id);
                work += 1;
            }
        }
        work
    }
}
