//! Limits that a disk has of its own, beside those of the daemon.

use std::num::{NonZeroU16, NonZeroU32};

use fipsee_serve::session::ClientLimits;
use serde::{Deserialize, Serialize};

use crate::transport::unix::ClientSettings;

/// `None`: the daemon's alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DiskLimits {
    /// Clients and virtual machines attached at once.
    pub max_clients: Option<NonZeroU32>,
    /// Of one of them.
    pub max_queues: Option<NonZeroU16>,
    /// Requests outstanding per queue.
    pub max_depth: Option<NonZeroU32>,
}

impl DiskLimits {
    /// What a client of the disk may have that attaches now. A limit of the daemon may have been lowered below the disk's.
    pub(crate) fn of_client(&self, daemon: ClientLimits) -> ClientLimits {
        ClientLimits {
            max_queues: self.max_queues.map_or(daemon.max_queues, |own| own.get().min(daemon.max_queues)),
            max_depth: self.max_depth.map_or(daemon.max_depth, |own| own.get().min(daemon.max_depth)),
            ..daemon
        }
    }

    /// Are they within those of the daemon?
    ///
    /// # Errors
    /// The limit that is not, and what to do.
    pub(crate) fn check(&self, daemon: &ClientSettings) -> Result<(), String> {
        let limits = &daemon.limits;
        let max_clients = u32::try_from(daemon.max_clients).unwrap_or(u32::MAX);
        let pairs = [
            ("max_clients", self.max_clients.map(NonZeroU32::get), max_clients),
            ("max_queues", self.max_queues.map(|own| own.get().into()), limits.max_queues.into()),
            ("max_depth", self.max_depth.map(NonZeroU32::get), limits.max_depth),
        ];
        for (name, own, of_daemon) in pairs {
            if let Some(own) = own.filter(|own| *own > of_daemon) {
                return Err(format!(
                    "{name} {own} of a disk is above {of_daemon}, which is the daemon's; lower it, or raise {name} of the daemon \
                     (above the first [[disk]])"
                ));
            }
        }
        Ok(())
    }

    /// Those of a disk that are in force beside the daemon's.
    pub(crate) fn within(&self, daemon: &ClientSettings) -> Self {
        let (queues, depth) = (NonZeroU16::new(daemon.limits.max_queues), NonZeroU32::new(daemon.limits.max_depth));
        let clients = u32::try_from(daemon.max_clients).ok().and_then(NonZeroU32::new);
        Self {
            max_clients: self.max_clients.map(|own| own.min(clients.unwrap_or(own))),
            max_queues: self.max_queues.map(|own| own.min(queues.unwrap_or(own))),
            max_depth: self.max_depth.map(|own| own.min(depth.unwrap_or(own))),
        }
    }

    /// As keys of a `[[disk]]`.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&'static str, u32)> {
        let queues = self.max_queues.map(|own| own.get().into());
        let (clients, depth) = (self.max_clients.map(NonZeroU32::get), self.max_depth.map(NonZeroU32::get));
        let keys = [("max_clients", clients), ("max_queues", queues), ("max_depth", depth)];
        keys.into_iter().filter_map(|(key, own)| Some((key, own?)))
    }
}

/// What a request makes of a limit.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "a limit is a number above 0, or \"off\"")]
pub(crate) enum Limit<T> {
    To(T),
    Off(Off),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(crate) enum Off {
    Off,
}

impl<T> Limit<T> {
    /// Change `to`; `None` leaves it.
    pub(crate) fn apply(change: Option<Self>, to: &mut Option<T>) {
        match change {
            None => {}
            Some(Self::To(value)) => *to = Some(value),
            Some(Self::Off(Off::Off)) => *to = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAEMON: ClientSettings = ClientSettings {
        max_clients: 8,
        max_clients_per_user: None,
        max_memory_bytes_per_user: None,
        limits: ClientLimits { max_queues: 4, max_depth: 64, max_pool_bytes: 1, max_memory_bytes: 1 },
    };

    fn limits(max_clients: u32, max_queues: u16, max_depth: u32) -> DiskLimits {
        let (max_clients, max_depth) = (NonZeroU32::new(max_clients), NonZeroU32::new(max_depth));
        DiskLimits { max_clients, max_queues: NonZeroU16::new(max_queues), max_depth }
    }

    #[test]
    fn the_lower_of_two_limits_is_in_force() {
        for (own, in_force) in
            [((8, 4, 64), (8, 4, 64)), ((2, 1, 32), (2, 1, 32)), ((9, 5, 65), (8, 4, 64)), ((0, 0, 0), (0, 0, 0))]
        {
            let of_disk = limits(own.0, own.1, own.2);
            assert_eq!(of_disk.within(&DAEMON), limits(in_force.0, in_force.1, in_force.2));
            let of_client = of_disk.of_client(DAEMON.limits);
            let expected = if own.1 == 0 { (4, 64) } else { (in_force.1, in_force.2) };
            assert_eq!((of_client.max_queues, of_client.max_depth), expected);
        }
    }

    #[test]
    fn limits_above_the_daemon_are_named() {
        assert_eq!(limits(8, 4, 64).check(&DAEMON), Ok(()));
        for (own, piece) in [((9, 0, 0), "max_clients 9"), ((0, 5, 0), "max_queues 5"), ((0, 0, 65), "max_depth 65")] {
            let text = limits(own.0, own.1, own.2).check(&DAEMON).expect_err(piece);
            assert!(text.starts_with(piece) && text.contains("raise max_"), "{text}");
        }
    }

    #[test]
    fn a_change_is_a_number_above_0_or_off() {
        let parse = serde_json::from_str::<Limit<NonZeroU16>>;
        let mut own = NonZeroU16::new(3);
        Limit::apply(None, &mut own);
        assert_eq!(own, NonZeroU16::new(3));
        Limit::apply(parse("7").ok(), &mut own);
        assert_eq!(own, NonZeroU16::new(7));
        Limit::apply(parse("\"off\"").ok(), &mut own);
        assert_eq!(own, None);
        for wrong in ["0", "-1", "65536", "\"none\"", "1.5"] {
            let text = parse(wrong).expect_err(wrong).to_string();
            assert!(text.contains("a number above 0, or \"off\""), "{text}");
        }
    }
}
