//! What one user may hold of what all clients share: places, and descriptors of the daemon.

use super::{Attachment, FrontSettings, LocalFront, RESERVED_DESCRIPTORS, State};

/// Of what there is, a user who is neither root nor the daemon's own may hold three quarters, so that others can still come.
const fn share_of(all: u64) -> u64 {
    all - all / 4
}

fn is_limited(uid: u32) -> bool {
    uid != 0 && uid != rustix::process::geteuid().as_raw()
}

impl LocalFront {
    /// Whose every client is that holds a place, and the descriptors it holds.
    fn holders(&self) -> impl Iterator<Item = (u32, u64)> {
        let connected = self.sessions.values().map(|session| {
            let held = match &session.state {
                State::Attached(held) | State::Detaching(held) => held.descriptors,
                _ => 0,
            };
            (session.credentials.1, 1 + held)
        });
        connected.chain(self.leaving.values().map(|(uid, Attachment { descriptors, .. })| (*uid, *descriptors)))
    }

    /// Is there no place for one more client of this user? In words for it.
    pub(super) fn lacks_place(&self, uid: u32) -> Option<String> {
        let FrontSettings { max_clients, max_clients_per_user, .. } = self.live.now().settings;
        if self.sessions.len() + self.leaving.len() >= max_clients {
            return Some(format!("the daemon serves its limit of {max_clients} clients; raise max_clients"));
        }
        if !is_limited(uid) {
            return None;
        }
        let limit = max_clients_per_user.unwrap_or(usize::try_from(share_of(max_clients as u64)).unwrap_or(max_clients));
        let count = self.holders().filter(|(other, _)| *other == uid).count();
        (count >= limit).then(|| {
            format!(
                "user {uid} has {count} clients here, and one user may have {limit}; detach some, or raise max_clients_per_user"
            )
        })
    }

    /// Would `more` descriptors for this user exceed a limit? In words for the client.
    pub(super) fn lacks_descriptors(&self, uid: u32, more: u64) -> Option<String> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let held = self.descriptors + self.live.now().added_descriptors + self.live.device_descriptors();
        if held + more + RESERVED_DESCRIPTORS > limit {
            return Some(format!(
                "the daemon may open {limit} files and needs them all; raise its limit (ulimit -n, or LimitNOFILE= in the unit) or detach clients"
            ));
        }
        if !is_limited(uid) {
            return None;
        }
        let (mut of_clients, mut of_user) = (0, 0);
        for (other, descriptors) in self.holders() {
            of_clients += descriptors;
            of_user += if other == uid { descriptors } else { 0 };
        }
        let for_clients = limit.saturating_sub(RESERVED_DESCRIPTORS + held.saturating_sub(of_clients));
        let share = share_of(for_clients);
        (of_user + more > share).then(|| {
            format!(
                "the clients of user {uid} hold {of_user} of the daemon's {limit} files, and one user may hold {share}; detach some, register \
                 fewer memories, or raise the limit (ulimit -n, or LimitNOFILE= in the unit)"
            )
        })
    }
}
