//! Live upgrade: a new daemon takes over from a running one (docs/decisions/0015-takeover.md).
//!
//! The new one connects to the admin socket and gets a connection of its own, the [`line`]. Over it the old one hands over
//! ([`give`]) and the new one takes ([`take`]): first what can go while clients are served (listening sockets, disks), then, with
//! every queue quiesced, the clients. The order of steps, and which daemon serves, is decided by `fipsee_serve::takeover`; here
//! it is carried out.

pub(crate) mod give;
pub(crate) mod line;
pub(crate) mod take;
pub(crate) mod wire;

use std::time::Duration;

/// Longest wait for requests in flight, whatever the new daemon requests.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(60);

/// The clock that both daemons share.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
