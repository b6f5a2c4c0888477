//! Coming back after the daemon did.

use std::borrow::BorrowMut;
use std::time::{Duration, Instant};

use fipsee_ring::control::RefusalCode;

use super::connection::Disk;
use super::error::Error;
use super::queue::Queue;

/// What happens while reconnecting.
#[derive(Debug)]
pub enum ReconnectEvent<'a> {
    /// The connection was lost.
    Lost,
    /// An attempt failed; the next follows after the pause.
    AttemptFailed {
        /// Attempts so far.
        attempts: u32,
        /// Why.
        error: &'a Error,
    },
    /// Attached again, everything unanswered was submitted again.
    Resumed {
        /// Attempts it took.
        attempts: u32,
    },
}

/// How long and how often to try.
#[derive(Clone, Copy, Debug)]
pub struct ReconnectPolicy {
    /// Give up when so long has passed since the loss.
    pub give_up_after: Duration,
    /// Pause before the second attempt; doubles up to `pause_max`.
    pub pause_first: Duration,
    /// Longest pause.
    pub pause_max: Duration,
}

impl ReconnectPolicy {
    /// Never give up. (To fail at once, do not reconnect.)
    pub const FOR_EVER: Self =
        Self { give_up_after: Duration::MAX, pause_first: Duration::from_millis(5), pause_max: Duration::from_secs(1) };

    /// Give up when so long has passed since the loss.
    #[must_use]
    pub const fn within(give_up_after: Duration) -> Self {
        Self { give_up_after, ..Self::FOR_EVER }
    }
}

impl Default for ReconnectPolicy {
    fn default() -> Self {
        Self::within(Duration::from_secs(60))
    }
}

impl Disk {
    /// After [`Error::Disconnected`]: attach again as `policy` says, hand the same memory over, and submit every request
    /// without an answer again, on all `queues` of this disk. `hook` is told of each step.
    ///
    /// A write without an answer may have been done before; doing it again is harmless as long as the caller had no
    /// other request on the same blocks in flight, whose order was never promised.
    ///
    /// A flush without an answer covers what is on the disk below when it is carried out. All that was acknowledged is there,
    /// unless the disk keeps it in the daemon's own memory (docs/reliability.md).
    ///
    /// # Errors
    /// The last attempt's error when the time is up; at once when the daemon came back with a different disk or refuses
    /// for good.
    pub fn reconnect<Q: BorrowMut<Queue>>(
        &self,
        queues: &mut [Q],
        policy: &ReconnectPolicy,
        hook: &mut dyn FnMut(ReconnectEvent<'_>),
    ) -> Result<(), Error> {
        let lost = Instant::now();
        let mut pause = policy.pause_first;
        hook(ReconnectEvent::Lost);
        for attempts in 1.. {
            let error = match self.attach_again(queues) {
                Ok(()) => {
                    hook(ReconnectEvent::Resumed { attempts });
                    return Ok(());
                }
                Err(error) => error,
            };
            hook(ReconnectEvent::AttemptFailed { attempts, error: &error });
            let transient = match &error {
                // The old attachment may not be released yet, or the new daemon not complete.
                Error::Refused { code, .. } => {
                    !matches!(code, RefusalCode::Version | RefusalCode::Malformed | RefusalCode::NotAllowed)
                }
                Error::Connect { .. } | Error::Disconnected | Error::TimedOut(_) => true,
                _ => false,
            };
            if !transient || lost.elapsed() + pause > policy.give_up_after {
                return Err(error);
            }
            std::thread::sleep(pause); // tidy: allow sleep, the pause between attempts is what the caller asked for
            pause = (pause * 2).min(policy.pause_max);
        }
        Err(Error::Disconnected)
    }
}
