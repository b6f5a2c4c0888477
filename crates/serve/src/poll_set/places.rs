//! Places among what the worker's engine has in flight, divided between groups as its time is. A group may take all that are free. One
//! with less than its share gets places even if none is free: what others have too many of they lose as it ends. At most twice as much is
//! in flight as there are places, however many groups come one after the other.

use std::sync::Arc;

use crate::share::Group;

/// What a group has in flight at this worker.
#[derive(Debug)]
struct Held {
    /// None: no queue has this entry.
    group: Option<Arc<Group>>,
    queues: usize,
    in_flight: u32,
}

#[derive(Debug, Default)]
pub(super) struct Places {
    groups: Vec<Held>,
    /// Weights of the groups that had something in flight when the pass began.
    weights: u64,
}

impl Places {
    /// A queue of the group is added: which entry counts what it has in flight.
    pub(super) fn join(&mut self, group: &Arc<Group>) -> usize {
        let is_it = |held: &Held| held.group.as_ref().is_some_and(|other| Arc::ptr_eq(other, group));
        let place = self.groups.iter().position(is_it).or_else(|| self.groups.iter().position(|held| held.group.is_none()));
        let place = place.unwrap_or_else(|| {
            self.groups.push(Held { group: None, queues: 0, in_flight: 0 });
            self.groups.len() - 1
        });
        self.groups[place].group.get_or_insert_with(|| Arc::clone(group));
        self.groups[place].queues += 1;
        place
    }

    /// A queue is gone, with what it has in flight.
    pub(super) fn leave(&mut self, entry: usize, in_flight: u32) {
        self.count(entry, in_flight, 0);
        let held = &mut self.groups[entry];
        held.queues -= 1;
        if held.queues == 0 {
            held.group = None;
        }
    }

    /// A queue that had so much in flight has this much now.
    pub(super) const fn count(&mut self, entry: usize, before: u32, now: u32) {
        let held = &mut self.groups.as_mut_slice()[entry];
        held.in_flight = (held.in_flight - before) + now;
    }

    /// `is_crowded`: in this pass there may be too few places.
    pub(super) fn begin_pass(&mut self, is_crowded: bool) {
        if is_crowded {
            let weight =
                |held: &Held| held.group.as_ref().filter(|_| held.in_flight > 0).map_or(0, |group| group.weight.get().into());
            self.weights = self.groups.iter().map(weight).sum();
        }
    }

    fn share(&self, entry: usize, all: u32) -> u32 {
        let held = &self.groups[entry];
        let weight: u64 = held.group.as_ref().map_or(1, |group| group.weight.get().into());
        let weights = self.weights + if held.in_flight == 0 { weight } else { 0 };
        u32::try_from(u64::from(all) * weight / weights.max(weight)).unwrap_or(all).max(1)
    }

    /// How many places a queue may take, of `all`, of which so many are taken.
    pub(super) fn allows(&self, entry: usize, taken: u32, all: u32) -> u32 {
        let lacks = self.share(entry, all).saturating_sub(self.groups[entry].in_flight);
        all.saturating_sub(taken).max(lacks.min((2 * all).saturating_sub(taken)))
    }
}
