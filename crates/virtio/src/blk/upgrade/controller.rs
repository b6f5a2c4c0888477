//! How a device handles upgrade requests: which attachment is in force, and whether one is allowed.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fipsee_ring::channel::MAX_DEPTH;
use fipsee_ring::control::MAX_QUEUES;
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::tuning::Choices;

use super::rings;
use super::wire::{DONE, Entry, FEATURE_CHOICES, FEATURES, INVALID, NO_ATTACHMENT, NOT_NOW, Operation, Reply, UpgradeRequest};
use crate::core::memory::GuestMemory;

/// A ring that is about to be served, by the server of its doorbell virtqueue.
#[derive(Debug)]
pub struct Grant {
    pub attachment: u64,
    /// Number of the queue in the attachment.
    pub queue: u16,
    pub entry: Entry,
    pub requests: MappedRing,
    pub completions: MappedRing,
    pub choices: Choices,
}

#[derive(Debug)]
pub enum Decision {
    Answer(Reply),
    /// Let the virtqueues' servers serve these rings, then reply.
    Attach(Vec<Grant>, Reply),
    /// Let the virtqueues' servers release the rings ([`UpgradeController::virtqueues`]), take [`UpgradeController::in_force`]
    /// away, then reply.
    Detach(Reply),
}

#[derive(Debug, Default)]
pub struct UpgradeController {
    /// Number and queues of the attachment in force; to be taken once the servers have released the rings.
    pub in_force: Option<(u64, Vec<Entry>)>,
    /// Writes to guest memory are being logged: no attach.
    pub migrating: bool,
    /// Most requests outstanding in a ring, if fewer than rings can have.
    pub max_depth: Option<NonZeroU32>,
}

impl UpgradeController {
    /// Decide about `upgrade_request`, copied from a guest with `memory`. `runs` says whether a virtqueue exists and is started;
    /// there are `virtqueues` of them. The rings are served by the choices of `advice`, and a guest that wants it is sent it.
    /// Doorbell requests are not handled here: the server of a ring does that.
    pub fn decide(
        &mut self,
        upgrade_request: &UpgradeRequest,
        memory: &Arc<GuestMemory>,
        virtqueues: u16,
        advice: Choices,
        runs: impl Fn(u32) -> bool,
    ) -> Decision {
        let max_queues = virtqueues.min(MAX_QUEUES);
        let current = self.in_force.as_ref().map_or(0, |(id, _)| *id);
        match upgrade_request.operation {
            Operation::Query => {
                let gone = upgrade_request.attachment != 0 && upgrade_request.attachment != current;
                let result = if gone { NO_ATTACHMENT } else { DONE };
                let offer = Reply { max_queues, features: FEATURES, max_depth: self.max_depth(), ..Reply::of(result) };
                Decision::Answer(Reply { attachment: current, ..offer })
            }
            Operation::Attach => match self.attach(&upgrade_request.entries, memory, max_queues, advice, runs) {
                Ok((grants, attachment)) => {
                    let features = upgrade_request.features;
                    let choices = if features & FEATURE_CHOICES == 0 { 0 } else { advice.word() };
                    Decision::Attach(grants, Reply { max_queues, attachment, features, choices, ..Reply::of(DONE) })
                }
                Err(refused) => Decision::Answer(Reply { max_queues, ..refused }),
            },
            Operation::Detach if current != 0 && upgrade_request.attachment == current => Decision::Detach(Reply::of(DONE)),
            Operation::Detach | Operation::Doorbell => Decision::Answer(Reply::of(NO_ATTACHMENT)),
        }
    }

    fn attach(
        &mut self,
        entries: &[Entry],
        memory: &Arc<GuestMemory>,
        max_queues: u16,
        choices: Choices,
        runs: impl Fn(u32) -> bool,
    ) -> Result<(Vec<Grant>, u64), Reply> {
        if entries.len() > usize::from(max_queues) {
            return Err(Reply::of(INVALID));
        }
        for (place, entry) in entries.iter().enumerate() {
            let again = entries[..place].iter().any(|other| other.virtqueue == entry.virtqueue);
            if again || entry.depth > self.max_depth() || !runs(entry.virtqueue) || rings::open(memory, entry).is_none() {
                return Err(Reply { queue: u32::try_from(place).unwrap_or(0), ..Reply::of(INVALID) });
            }
        }
        if self.in_force.is_some() || self.migrating {
            return Err(Reply::of(NOT_NOW));
        }
        let id = next_id();
        let grants = self.resume(id, entries.to_vec(), memory, choices).ok_or_else(|| Reply::of(INVALID))?;
        Ok((grants, id))
    }

    /// Continue an attachment that another process has made, by `choices` of our own. `None`: its rings are not in `memory`.
    pub fn resume(&mut self, id: u64, entries: Vec<Entry>, memory: &Arc<GuestMemory>, choices: Choices) -> Option<Vec<Grant>> {
        let grant = |(entry, queue): (&Entry, u16)| {
            let (requests, completions) = rings::open(memory, entry)?;
            Some(Grant { attachment: id, queue, entry: *entry, requests, completions, choices })
        };
        let grants = entries.iter().zip(0..).map(grant).collect::<Option<Vec<_>>>()?;
        self.in_force = Some((id, entries));
        Some(grants)
    }

    fn max_depth(&self) -> u32 {
        self.max_depth.map_or(MAX_DEPTH, |limit| limit.get().min(MAX_DEPTH))
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.in_force.iter().flat_map(|(_, entries)| entries)
    }

    /// The virtqueues that are doorbells of the attachment in force.
    pub fn virtqueues(&self) -> impl Iterator<Item = u32> + '_ {
        self.entries().map(|entry| entry.virtqueue)
    }

    /// Is every ring also in `memory`?
    pub fn fits(&self, memory: &Arc<GuestMemory>) -> bool {
        self.entries().all(|entry| rings::open(memory, entry).is_some())
    }
}

/// A number that no attachment had before in this process, nor, except by rare chance, in an earlier process of the same guest.
fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    if NEXT.load(Ordering::Relaxed) == 0 {
        let mut random = [0; 4];
        // Without random numbers the process id must do.
        if rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).is_err() {
            random = std::process::id().to_le_bytes();
        }
        let first = u64::from(u32::from_le_bytes(random)) << 32 | 1;
        let _ = NEXT.compare_exchange(0, first, Ordering::Relaxed, Ordering::Relaxed);
    }
    NEXT.fetch_add(1, Ordering::Relaxed)
}
