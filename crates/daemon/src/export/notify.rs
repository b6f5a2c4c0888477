//! Policies of notifications: the disk's, and those of single clients.

use std::sync::Arc;

use fipsee_ring::notify::SharedPolicy;

use super::Export;
use crate::notification::Notify;

impl Export {
    pub(crate) fn notify(&self) -> Notify {
        self.lock().notify
    }

    /// Of all clients, attached and future ones, whatever was set for one of them. Returns whether the disk's policy changed. The
    /// workers are to be [notified](crate::notification::changed).
    pub(crate) fn set_notify(&self, notify: Notify) -> bool {
        let mut users = self.lock();
        for client in &mut users.attached {
            client.notify.set(notify.0);
            client.notify_is_own = false;
        }
        std::mem::replace(&mut users.notify, notify) != notify
    }

    /// Of one client; false: it is not attached.
    pub(crate) fn set_notify_of(&self, client: u64, notify: Notify) -> bool {
        let mut users = self.lock();
        let Some(client) = users.of(client) else { return false };
        client.notify.set(notify.0);
        client.notify_is_own = true;
        true
    }

    /// The policy of a client's queues, which changes with what is set.
    pub(crate) fn policy_of(&self, client: u64) -> Arc<SharedPolicy> {
        self.lock().of(client).map(|client| Arc::clone(&client.notify)).unwrap_or_default()
    }

    /// What was set for this client alone.
    pub(crate) fn own_notify_of(&self, client: u64) -> Option<Notify> {
        self.lock().of(client).filter(|client| client.notify_is_own).map(|client| Notify(client.notify.get()))
    }
}
