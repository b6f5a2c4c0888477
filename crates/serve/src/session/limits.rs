//! Limits of one client, and of one user's share of what all clients share: places, memory, and descriptors of the program.

use fipsee_ring::control::{Refusal, RefusalCode};
use fipsee_ring::handshake::refuse;

use super::{Host, Sessions};
use crate::Engine;

/// Descriptors kept back for the program's own files and for refusals that say that there are none left.
const RESERVED_DESCRIPTORS: u64 = 64;

/// Limits of one client (docs/threat-model.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    pub max_queues: u16,
    /// Requests outstanding per queue at most.
    pub max_depth: u32,
    pub max_pool_bytes: u64,
    /// Bytes of its own memory that it may register in all.
    pub max_memory_bytes: u64,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self { max_queues: 16, max_depth: 256, max_pool_bytes: 64 << 20, max_memory_bytes: 16 << 30 }
    }
}

/// Of each resource, a user who is neither root nor the program's own may hold three quarters, so that others can still connect.
const fn share_of(all: u64) -> u64 {
    all - all / 4
}

fn is_limited(uid: u32) -> bool {
    uid != 0 && uid != rustix::process::geteuid().as_raw()
}

impl<E: Engine, H: Host<E>> Sessions<E, H> {
    /// The user of every client that holds a place, and the descriptors held for it.
    fn holders(&self) -> impl Iterator<Item = (u32, u64)> {
        let connected = self.sessions.values().map(|session| {
            let held = session.held().map_or(0, |held| held.descriptors());
            (session.credentials.uid, 1 + held)
        });
        connected.chain(self.leaving.values().map(|(uid, held)| (*uid, held.descriptors())))
    }

    /// Is there a place for one more client of this user?
    pub(super) fn check_place(&self, uid: u32) -> Result<(), Refusal> {
        let (max_clients, max_clients_per_user) = self.host.max_clients();
        if self.sessions.len() + self.leaving.len() >= max_clients {
            let text = format!("the daemon serves its limit of {max_clients} clients; raise max_clients");
            return Err(refuse(RefusalCode::Limit, text));
        }
        let limit = max_clients_per_user.unwrap_or(usize::try_from(share_of(max_clients as u64)).unwrap_or(max_clients));
        let count = self.holders().filter(|(other, _)| *other == uid).count();
        if is_limited(uid) && count >= limit {
            let text = format!(
                "user {uid} has {count} clients here, and one user may have {limit}; detach some, or raise max_clients_per_user"
            );
            return Err(refuse(RefusalCode::Limit, text));
        }
        Ok(())
    }

    /// May there be `more_bytes` of memory for this user, registered or in a pool?
    pub(super) fn check_memory(&self, uid: u32, more_bytes: u64) -> Result<(), Refusal> {
        let limit_bytes = self.host.max_memory_bytes_per_user();
        if !is_limited(uid) || limit_bytes == u64::MAX {
            return Ok(());
        }
        let connected = self.sessions.values().filter_map(|session| Some((session.credentials.uid, session.held()?)));
        let all = connected.chain(self.leaving.values().map(|(uid, held)| (*uid, held)));
        let held_bytes = all.filter(|(other, _)| *other == uid).map(|(_, held)| held.memory_bytes()).sum();
        if more_bytes <= limit_bytes.saturating_sub(held_bytes) {
            return Ok(());
        }
        let text = format!(
            "the clients of user {uid} have {held_bytes} bytes of memory here, registered or in pools, and {more_bytes} more are asked \
             for; one user may have {limit_bytes}: register less, detach some, or raise max_memory_bytes_per_user"
        );
        Err(refuse(RefusalCode::Limit, text))
    }

    /// May there be `more` descriptors for this user?
    pub(super) fn check_descriptors(&self, uid: u32, more: u64) -> Result<(), Refusal> {
        let (limit, others) = self.host.descriptors();
        let (mut of_clients, mut of_user) = (0, 0);
        for (other, descriptors) in self.holders() {
            of_clients += descriptors;
            of_user += if other == uid { descriptors } else { 0 };
        }
        if (others + of_clients + more).saturating_add(RESERVED_DESCRIPTORS) > limit {
            let text = format!(
                "the daemon may open {limit} files and needs them all; raise its limit (ulimit -n, or LimitNOFILE= in the unit) or detach clients"
            );
            return Err(refuse(RefusalCode::Limit, text));
        }
        let share = share_of(limit.saturating_sub(RESERVED_DESCRIPTORS + others));
        if is_limited(uid) && of_user + more > share {
            let text = format!(
                "the clients of user {uid} hold {of_user} of the daemon's {limit} files, and one user may hold {share}; detach some, register \
                 fewer memories, or raise the limit (ulimit -n, or LimitNOFILE= in the unit)"
            );
            return Err(refuse(RefusalCode::Limit, text));
        }
        Ok(())
    }
}
