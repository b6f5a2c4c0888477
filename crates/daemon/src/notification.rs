//! Policies of notifications (docs/decisions/0036-notification-control.md) in JSON: of the admin socket, of what it has changed, and
//! of a takeover.

use fipsee_block::server::DiskQueue;
use fipsee_ring::notify::{Policy, Wanted};
use fipsee_serve::{When, Which};
use fipsee_virtio::blk::server::GuestDiskQueue;
use serde::{Deserialize, Deserializer, Serialize};

use crate::worker::Command;

/// A policy, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Option<PolicyRecord>", into = "Option<PolicyRecord>")]
pub struct Notify(pub Option<Policy>);

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PolicyRecord {
    max_rate: Option<u64>,
    min_completions: Option<u64>,
    max_delay_us: Option<u64>,
    auto: bool,
}

impl TryFrom<Option<PolicyRecord>> for Notify {
    type Error = String;

    fn try_from(record: Option<PolicyRecord>) -> Result<Self, String> {
        let wanted = record.map(|PolicyRecord { max_rate, min_completions, max_delay_us, auto }| Wanted {
            max_rate,
            min_completions,
            max_delay_us,
            auto,
        });
        wanted.map(|wanted| Policy::new(&wanted)).transpose().map(Self)
    }
}

impl From<Notify> for Option<PolicyRecord> {
    fn from(Notify(policy): Notify) -> Self {
        let Wanted { max_rate, min_completions, max_delay_us, auto } = policy?.wanted();
        Some(PolicyRecord { max_rate, min_completions, max_delay_us, auto })
    }
}

/// Of a record, where a policy that is not there is "as configured", and `null` is "none".
pub(crate) fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Notify>, D::Error> {
    Notify::deserialize(deserializer).map(Some)
}

/// The policies of these queues have changed: each reads its own.
pub(crate) fn changed(which: Which) -> [Command; 2] {
    [
        Command::change(which, When::Now, DiskQueue::policy_changed),
        Command::change(which, When::Now, GuestDiskQueue::policy_changed),
    ]
}
