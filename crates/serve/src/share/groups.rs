//! Which clients have one share together.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fipsee_ring::{AtomicU32, Ordering, clock};

use super::{Taken, Turn};
use crate::limit::Limiter;

/// Weight of a group unless it is set.
pub const DEFAULT_WEIGHT: u32 = 100;

/// Its owner's share is to the others' as this is to theirs.
#[derive(Debug)]
pub struct Weight(AtomicU32);

impl Default for Weight {
    fn default() -> Self {
        Self(AtomicU32::new(DEFAULT_WEIGHT))
    }
}

impl Weight {
    #[inline(always)]
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// From the next round on.
    pub fn set(&self, weight: u32) {
        self.0.store(weight.max(1), Ordering::Relaxed);
    }
}

/// Clients that have one share together.
#[derive(Debug)]
pub struct Group {
    key: String,
    /// Among the groups.
    pub weight: Weight,
    /// Of all its clients together.
    pub limiter: Limiter,
}

impl Group {
    pub fn new(key: &str) -> Self {
        Self { key: key.to_owned(), weight: Weight::default(), limiter: Limiter::default() }
    }

    pub fn key(&self) -> &str {
        &self.key
    }
}

/// The groups that have clients, by their keys, and those with a limit of which something is used: otherwise a client that connects again
/// would have all of it again.
#[derive(Debug, Default)]
pub struct Groups(Mutex<BTreeMap<String, Arc<Group>>>);

impl Groups {
    /// The group of this key, which is made if no client has it.
    pub fn get(&self, key: &str) -> Arc<Group> {
        self.get_at(key, clock::ticks())
    }

    fn get_at(&self, key: &str, now: u64) -> Arc<Group> {
        let mut groups = self.lock();
        // Here, so that there are never more than had clients at one time, and those for which a limit is set.
        groups.retain(|_, group| has_clients(group) || !group.limiter.is_as_new(now));
        Arc::clone(groups.entry(key.to_owned()).or_insert_with(|| Arc::new(Group::new(key))))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Group>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a client that has just connected.
    pub fn of_user(&self, uid: u32) -> Share {
        Share::of(self.get(&format!("user:{uid}")))
    }

    /// Those that clients have.
    pub fn present(&self) -> Vec<Arc<Group>> {
        self.lock().values().filter(|group| has_clients(group)).cloned().collect()
    }

    /// Also those whose clients have gone.
    pub fn for_each(&self, change: impl FnMut(&Group)) {
        self.lock().values().map(|group| &**group).for_each(change);
    }
}

fn has_clients(group: &Arc<Group>) -> bool {
    Arc::strong_count(group) > 1
}

/// What a queue's part of its worker depends on. Every queue of a connection has the same.
#[derive(Clone, Debug)]
pub struct Share {
    pub group: Arc<Group>,
    /// Of the connection, among those of the group.
    pub weight: Arc<Weight>,
    /// Of the connection.
    pub limiter: Arc<Limiter>,
    /// Others that it is subject to: that of the disk.
    pub more: Vec<Arc<Limiter>>,
}

impl Share {
    /// Of a connection of the group.
    pub fn of(group: Arc<Group>) -> Self {
        Self { group, weight: Arc::default(), limiter: Arc::default(), more: Vec::new() }
    }

    /// Subject to this limit, too.
    #[must_use]
    pub fn with(&self, limiter: &Arc<Limiter>) -> Self {
        let mut share = self.clone();
        share.more.push(Arc::clone(limiter));
        share
    }

    fn limiters(&self) -> impl Iterator<Item = &Limiter> {
        [&self.group.limiter, &*self.limiter].into_iter().chain(self.more.iter().map(|limiter| &**limiter))
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.limiters().any(Limiter::is_limited)
    }

    /// The turn, or what is left of it; or from when on there is one.
    pub(crate) fn limit(&self, now: u64, worker: u32, mut turn: Turn) -> Result<Turn, u64> {
        let mut later = None;
        for limiter in self.limiters() {
            match limiter.yields(now, worker).and_then(|()| limiter.allows(now)) {
                Ok((requests, units)) => (turn.requests, turn.units) = (turn.requests.min(requests), turn.units.min(units)),
                Err(time) => later = later.max(Some(time)),
            }
        }
        later.map_or(Ok(turn), Err)
    }

    /// A queue with a request waits for those limits that permit nothing now.
    #[cold]
    pub(crate) fn count_throttled(&self, now: u64) {
        self.limiters().for_each(|limiter| limiter.count_if_used_up(now));
    }

    /// A queue of this worker has a request, and no turn.
    #[cold]
    pub(crate) fn waits(&self, now: u64, worker: u32) {
        self.limiters().for_each(|limiter| limiter.waits(now, worker));
    }

    pub(crate) fn served(&self, now: u64, worker: u32, taken: Taken) {
        self.limiters().for_each(|limiter| limiter.served(now, worker, taken));
    }

    /// In a group of its own.
    pub fn own(key: &str) -> Self {
        Self::of(Arc::new(Group::new(key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Rates;

    #[test]
    fn group_is_one_as_long_as_a_client_has_it_and_forgotten_afterwards() {
        let groups = Groups::default();
        let (first, other) = (groups.get("user:1"), groups.get("user:2"));
        first.weight.set(300);
        assert!(Arc::ptr_eq(&first, &groups.get("user:1")));
        assert!(!Arc::ptr_eq(&first, &other));
        drop((first, other));
        for number in 0..1000 {
            assert_eq!(groups.get(&format!("user:{number}")).weight.get(), DEFAULT_WEIGHT, "no client has it any more");
            assert!(groups.0.lock().expect("one thread").len() <= 1);
        }
        assert!(groups.present().is_empty());
    }

    #[test]
    fn what_a_group_has_used_of_its_limit_is_not_given_again_to_a_client_that_connects_again() {
        let (groups, second) = (Groups::default(), clock::ticks_per_second());
        let limited = |key: &str, now| {
            let group = groups.get_at(key, now);
            group.limiter.set(Rates::new(Some(10), None, None).expect("a limit"));
            group
        };
        let begin = clock::ticks();
        limited("user:1", begin);
        let now = clock::ticks();
        limited("user:1", now).limiter.served(now, 0, Taken::new(1000, 0));
        for number in 2..1000 {
            limited(&format!("user:{number}"), now + 50 * second);
            assert_eq!(groups.lock().len(), 2, "of the others nothing is used");
        }
        assert!(limited("user:1", now + 90 * second).limiter.allows(now + 90 * second).is_err(), "100 s are owed");
        assert!(groups.present().is_empty());
        let mut kept = Vec::new();
        groups.for_each(|group| kept.push(group.key().to_owned()));
        assert_eq!(kept, ["user:1"]);
        groups.get_at("user:2", now + 101 * second);
        assert_eq!(groups.lock().keys().collect::<Vec<_>>(), ["user:2"], "it is full again");
        // Without a limit there is nothing to keep.
        limited("user:1", now).limiter.served(now, 0, Taken::new(1000, 0));
        groups.for_each(|group| group.limiter.set(Rates::UNLIMITED));
        groups.get_at("user:2", now);
        assert_eq!(groups.lock().len(), 1);
    }

    #[test]
    fn weight_of_zero_would_never_be_served_and_is_one() {
        let group = Group::new("a");
        group.weight.set(0);
        assert_eq!(group.weight.get(), 1);
    }
}
