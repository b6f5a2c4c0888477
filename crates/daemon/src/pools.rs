//! Whose queues are served by a worker that is for them alone.

use std::sync::{Mutex, MutexGuard, PoisonError};

use fipsee_serve::{Group, Pool};

use crate::shares::{client_key, disk_key};

/// The pools of those that have a worker to themselves, by their keys: `disk:a`, `user:1000`, `group:batch`, `machine:42`, `client:7`.
#[derive(Default)]
pub(crate) struct Pools(Mutex<Vec<(String, u64)>>);

impl Pools {
    fn lock(&self) -> MutexGuard<'_, Vec<(String, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, pools: Vec<(String, u64)>) {
        *self.lock() = pools;
    }

    /// Of a client's queues: its own pool, or its disk's, or its share's, or otherwise that of all.
    pub(crate) fn of(&self, client: u64, disk: &str, share: Option<&Group>) -> u64 {
        let pools = self.lock();
        if pools.is_empty() {
            return Pool::SHARED;
        }
        let owners = [Some(client_key(client)), Some(disk_key(disk)), share.map(|group| group.key().to_owned())];
        let pool = |owner: String| pools.iter().find(|(other, _)| *other == owner).map(|(_, pool)| *pool);
        owners.into_iter().flatten().find_map(pool).unwrap_or(Pool::SHARED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_its_own_pool_or_its_disks_or_its_shares() {
        let (pools, user) = (Pools::default(), Group::new("user:1"));
        let of = |client, disk| pools.of(client, disk, Some(&user));
        assert_eq!(of(7, "a"), Pool::SHARED);
        pools.set(vec![("user:1".into(), 3), ("disk:a".into(), 2), ("client:7".into(), 1)]);
        assert_eq!([of(7, "a"), of(8, "a"), of(8, "b"), of(7, "b")], [1, 2, 3, 1]);
        assert_eq!(pools.of(8, "b", Some(&Group::new("user:2"))), Pool::SHARED);
        assert_eq!((pools.of(8, "b", None), pools.of(8, "a", None)), (Pool::SHARED, 2));
    }
}
