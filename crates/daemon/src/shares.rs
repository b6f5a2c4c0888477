//! Which group's share a client has, and the weights and rates that are in force.
//!
//! A client belongs to a group from its connection to its end. What is configured or set for that group changes at any time.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fipsee_serve::session::Credentials;
use fipsee_serve::{Group, Groups, Share};

use crate::config::{ShareConfig, user_key};
use crate::rates::ShareSettings;

#[derive(Default)]
pub(crate) struct Shares {
    groups: Groups,
    policy: Mutex<Policy>,
}

#[derive(Default)]
struct Policy {
    configured: Vec<ShareConfig>,
    /// At run time, by key; takes precedence.
    set: BTreeMap<String, ShareSettings>,
}

impl Policy {
    fn settings(&self, key: &str) -> ShareSettings {
        let configured = || self.configured.iter().find(|share| share.key() == key).map(|share| share.settings);
        self.set.get(key).copied().or_else(configured).unwrap_or_default()
    }

    /// Of those that name the user, or otherwise its own if anything is set for it at run time, or otherwise of those that have one of its
    /// Unix groups, in the order of the file.
    fn key_of(&self, Credentials { uid, gid, more_gids, .. }: &Credentials) -> Option<String> {
        let by_user = self.configured.iter().find(|share| share.uids.contains(uid));
        let has = |of: &u32| of == gid || more_gids.contains(of);
        let by_group = || self.configured.iter().find(|share| share.gids.iter().any(has));
        let own = || Some(user_key(*uid)).filter(|key| self.set.get(key).is_some_and(|set| *set != ShareSettings::default()));
        by_user.map(ShareConfig::key).or_else(own).or_else(|| by_group().map(ShareConfig::key))
    }

    fn key_of_machine(&self, disk: &str) -> Option<String> {
        self.configured.iter().find(|share| share.machines.iter().any(|other| other == disk)).map(ShareConfig::key)
    }
}

fn apply(settings: ShareSettings, to: &Group) {
    to.weight.set(settings.weight_in_force());
    to.limiter.set(settings.rates.in_force());
}

/// Of one connection, within its group.
pub(crate) fn apply_to_client(settings: ShareSettings, to: &Share) {
    to.weight.set(settings.weight_in_force());
    to.limiter.set(settings.rates.in_force());
}

impl Shares {
    fn policy(&self) -> MutexGuard<'_, Policy> {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, policy: &Policy, key: &str) -> Share {
        let group = self.groups.get(key);
        apply(policy.settings(key), &group);
        Share::of(group)
    }

    /// Of a client that has just connected.
    pub(crate) fn of_client(&self, credentials: &Credentials) -> Share {
        let policy = self.policy();
        let key = policy.key_of(credentials).unwrap_or_else(|| user_key(credentials.uid));
        self.get(&policy, &key)
    }

    /// All disks of a virtual machine have one share: its hypervisor is one process. One that cannot be seen from here, in another
    /// namespace, is known by the socket.
    pub(crate) fn of_machine(&self, disk: &str, credentials: &Credentials, socket: &Path) -> Share {
        let policy = self.policy();
        let own = || match credentials.pid {
            pid @ 1.. => machine_key(pid),
            _ => machine_key(socket.display()),
        };
        let key = policy.key_of_machine(disk).or_else(|| policy.key_of(credentials)).unwrap_or_else(own);
        self.get(&policy, &key)
    }

    /// A device of the host: what the host's stack sends there has a share of its own.
    pub(crate) fn of_device(&self, device: &str) -> Share {
        self.get(&self.policy(), &format!("device:{device}"))
    }

    /// A client has attached: what was set for it alone, also by the daemon before this one.
    pub(crate) fn attached(&self, client: u64, share: &Share) {
        apply_to_client(self.settings(&client_key(client)), share);
    }

    /// From now on, also for clients that are there. The workers are to be notified.
    pub(crate) fn replace(&self, configured: &[ShareConfig], set: &BTreeMap<String, ShareSettings>) {
        let mut policy = self.policy();
        *policy = Policy { configured: configured.to_vec(), set: set.clone() };
        self.groups.for_each(|group| apply(policy.settings(group.key()), group));
    }

    pub(crate) fn settings(&self, key: &str) -> ShareSettings {
        self.policy().settings(key)
    }

    /// Those that clients have now.
    pub(crate) fn present(&self) -> Vec<Arc<Group>> {
        self.groups.present()
    }
}

pub(crate) fn disk_key(disk: &str) -> String {
    format!("disk:{disk}")
}

/// `process`: of its hypervisor.
pub(crate) fn machine_key(process: impl Display) -> String {
    format!("machine:{process}")
}

pub(crate) fn client_key(client: impl Display) -> String {
    format!("client:{client}")
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;

    fn settings(weight: u16) -> ShareSettings {
        ShareSettings { weight: NonZeroU16::new(weight), ..ShareSettings::default() }
    }

    fn group(name: &str, (uids, gids): (&[u32], &[u32]), machines: &[&str], weight: u16) -> ShareConfig {
        ShareConfig {
            group: Some(name.to_owned()),
            uids: uids.to_vec(),
            gids: gids.to_vec(),
            machines: machines.iter().map(|name| (*name).to_owned()).collect(),
            settings: settings(weight),
        }
    }

    fn of(uid: u32, gid: u32, more_gids: &[u32]) -> Credentials {
        Credentials { uid, gid, more_gids: more_gids.to_vec(), pid: 42 }
    }

    #[test]
    fn a_client_belongs_to_the_group_that_names_it_and_otherwise_its_user() {
        let shares = Shares::default();
        let configured = [group("a", (&[1, 2], &[]), &["x"], 50), group("b", (&[3], &[7]), &[], 200)];
        shares.replace(&configured, &BTreeMap::new());
        for (credentials, key, weight) in [
            (of(1, 0, &[7]), "group:a", 50),
            (of(3, 0, &[]), "group:b", 200),
            (of(9, 7, &[]), "group:b", 200),
            (of(9, 0, &[5, 7]), "group:b", 200),
            (of(9, 0, &[5]), "user:9", 100),
        ] {
            let share = shares.of_client(&credentials);
            assert_eq!((share.group.key(), share.group.weight.get()), (key, weight));
        }
        let machine =
            |disk: &str, credentials: Credentials| shares.of_machine(disk, &credentials, Path::new("/v")).group.key().to_owned();
        assert_eq!(machine("x", of(3, 0, &[])), "group:a");
        assert_eq!(machine("y", of(3, 0, &[])), "group:b");
        assert_eq!(machine("y", of(9, 0, &[])), "machine:42");
        assert_eq!(machine("y", Credentials { pid: 0, ..of(9, 0, &[]) }), "machine:/v");
    }

    #[test]
    fn what_is_set_for_a_member_by_unix_group_takes_it_out_of_the_group() {
        let shares = Shares::default();
        let configured = [group("a", (&[1], &[7]), &["x"], 50)];
        let machine = |disk: &str, uid| shares.of_machine(disk, &of(uid, 7, &[]), Path::new("/v")).group.key().to_owned();
        let set = |uid: u32, weight| {
            let mut settings = settings(1);
            settings.weight = NonZeroU16::new(weight);
            shares.replace(&configured, &BTreeMap::from([(user_key(uid), settings)]));
        };
        set(9, 5);
        let share = shares.of_client(&of(9, 7, &[]));
        assert_eq!((share.group.key(), share.group.weight.get()), ("user:9", 5));
        assert_eq!((machine("y", 9), machine("x", 9), machine("y", 8)), ("user:9".into(), "group:a".into(), "group:a".into()));
        // As before, once it is off again.
        set(9, 0);
        assert_eq!((shares.of_client(&of(9, 7, &[])).group.key(), &*machine("y", 9)), ("group:a", "group:a"));
        set(1, 5);
        assert_eq!(shares.of_client(&of(1, 0, &[])).group.key(), "group:a", "its group names it, and the admin socket refuses");
    }

    #[test]
    fn limit_is_the_same_for_a_user_that_connects_again() {
        let shares = Shares::default();
        let rates = crate::rates::RateLimits { iops: std::num::NonZeroU64::new(10), ..Default::default() };
        let limited = ShareSettings { rates, ..ShareSettings::default() };
        shares.replace(&[], &BTreeMap::from([("user:9".to_owned(), limited)]));
        let first = Arc::downgrade(&shares.of_client(&of(9, 0, &[])).group);
        // Nothing of it was used.
        drop(shares.of_client(&of(8, 0, &[])));
        assert!(first.upgrade().is_none() && shares.present().is_empty());
    }

    #[test]
    fn changes_reach_those_that_are_there_and_what_is_set_takes_precedence() {
        let shares = Shares::default();
        let (user, member) = (shares.of_client(&of(9, 0, &[])), shares.of_client(&of(1, 0, &[])));
        let configured = [ShareConfig { group: None, ..group("", (&[9], &[]), &[], 300) }, group("a", (&[2], &[]), &[], 7)];
        shares.replace(&configured, &BTreeMap::new());
        assert_eq!((user.group.weight.get(), member.group.weight.get()), (300, 100));
        shares.replace(&configured, &BTreeMap::from([("user:9".to_owned(), settings(5)), ("user:1".to_owned(), settings(6))]));
        assert_eq!((user.group.weight.get(), member.group.weight.get()), (5, 6));
        shares.replace(&[], &BTreeMap::new());
        assert_eq!((user.group.weight.get(), member.group.weight.get()), (100, 100));
    }
}
