//! `delay:TIME[+RANDOM][,seed=N]:`: a disk that takes its time before it begins.
//!
//! The delay comes first, so that the client's memory is used at its very end: whoever lets go of that memory too early is
//! found out. Waiting is the engine's; the worker goes on.

use fipsee_ring::memory::Span;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::super::engine;
use super::super::faults::Awaited;
use super::super::{AnyDisk, Disk, Engine, Faults, Submitted, Ticket};
use super::{duration, faults_of, next_random, number, pairs};
use crate::request::Request;
use crate::wire::{BlockInfo, Status};

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
}

/// A disk that is slow. Requests may overtake each other when part of the delay is random.
#[derive(Debug)]
pub struct DelayDisk {
    inner: Arc<AnyDisk>,
    options: DelayOptions,
    random: AtomicU64,
    faults: Arc<Faults>,
}

impl DelayDisk {
    /// Slow `inner` down.
    ///
    /// # Errors
    /// This machine has no io_uring, whose timers are used.
    pub fn new(inner: AnyDisk, options: &DelayOptions) -> Result<Self, String> {
        Engine::check()?;
        let faults = faults_of(&inner);
        Ok(Self { inner: Arc::new(inner), options: options.clone(), random: AtomicU64::new(options.seed), faults })
    }

    pub(in crate::disk) fn inner(&self) -> &AnyDisk {
        &self.inner
    }

    fn pick(&self) -> Duration {
        let range_ns = u64::try_from(self.options.random.as_nanos()).unwrap_or(u64::MAX);
        if range_ns == 0 {
            return self.options.fixed;
        }
        let mut state = self.random.fetch_add(1, Ordering::Relaxed);
        self.options.fixed.saturating_add(Duration::from_nanos(next_random(&mut state) % range_ns))
    }
}

impl Disk for DelayDisk {
    const ANSWERS_AT_ONCE: bool = false;

    fn info(&self) -> BlockInfo {
        self.inner.info()
    }

    unsafe fn submit(&self, request: &Request, spans: &[Span], ticket: Ticket, engine: &mut Engine) -> Submitted {
        let (inner, request, spans) = (Arc::clone(&self.inner), *request, spans.to_vec());
        let awaited = Awaited { faults: Arc::clone(&self.faults), operation: request.operation, sector: request.sector };
        let begin = move |status, engine: &mut Engine| match status {
            // SAFETY: the spans stay valid until the ticket is reported, which has not happened: the engine runs this before.
            Status::Ok => unsafe { inner.submit(&request, &spans, ticket, engine) },
            _ => Submitted::Done(status),
        };
        engine::wait(engine, self.pick(), Some(awaited), ticket, begin)
    }

    fn resize(&self, sector_count: u64) -> Result<(), String> {
        self.inner.resize(sector_count)
    }

    fn faults(&self) -> Option<&Arc<Faults>> {
        Some(&self.faults)
    }
}
