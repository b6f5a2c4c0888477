//! `delay:TIME[+RANDOM][,seed=N]:`: a disk that takes its time before it begins.
//!
//! The delay comes first, so that the client's memory is used at its very end: whoever lets go of that memory too early is
//! found out. Waiting is the engine's; the worker goes on.

use fipsee_ring::memory::Span;
use std::sync::Arc;
use std::time::Duration;

use super::super::engine;
use super::super::faults::Awaited;
use super::super::{Disk, Engine, Submitted, Ticket};
use super::{WrappedDisk, duration, next_random, number, pairs};
use crate::request::Request;
use crate::wire::Status;

/// How long each request waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DelayOptions {
    /// At least.
    pub fixed: Duration,
    /// A random time below this is added.
    pub random: Duration,
    /// The random sequence.
    pub seed: u64,
}

impl DelayOptions {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut options = Self::default();
        let mut times = None;
        for (key, value) in pairs(text) {
            match (key, value) {
                ("seed", _) => options.seed = number(key, value)?,
                (_, "") if times.is_none() => times = Some(key),
                _ => return Err(format!("unknown option '{key}'; write TIME, TIME+RANDOM or seed=N")),
            }
        }
        let times = times.ok_or("the time is missing; write delay:TIME:KIND:ARGS, for example delay:5ms:memory:1G")?;
        let (fixed, random) = times.split_once('+').unwrap_or((times, "0s"));
        (options.fixed, options.random) = (duration(fixed)?, duration(random)?);
        Ok(options)
    }

    /// Requests may overtake each other when part of the delay is random.
    fn pick(&self, number: u64) -> Duration {
        let range_ns = u64::try_from(self.random.as_nanos()).unwrap_or(u64::MAX);
        if range_ns == 0 {
            return self.fixed;
        }
        let mut state = self.seed.wrapping_add(number);
        self.fixed.saturating_add(Duration::from_nanos(next_random(&mut state) % range_ns))
    }

    /// # Safety
    /// As [`Disk::submit`].
    pub(super) unsafe fn submit(
        &self,
        disk: &WrappedDisk,
        request: &Request,
        spans: &[Span],
        ticket: Ticket,
        engine: &mut Engine,
    ) -> Submitted {
        let (inner, request, spans) = (Arc::clone(&disk.inner), *request, spans.to_vec());
        let awaited = Awaited { faults: Arc::clone(&disk.faults), operation: request.operation, sector: request.sector };
        let begin = move |status, engine: &mut Engine| match status {
            // SAFETY: the spans stay valid until the ticket is reported, which has not happened: the engine runs this before.
            Status::Ok => unsafe { inner.submit(&request, &spans, ticket, engine) },
            _ => Submitted::Done(status),
        };
        engine::wait(engine, self.pick(disk.next_number()), Some(awaited), ticket, begin)
    }
}
