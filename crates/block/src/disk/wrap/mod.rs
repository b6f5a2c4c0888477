//! Disks that wrap another and misbehave on purpose: delays, errors, loss of unflushed data. For tests of programs
//! that use disks.
//!
//! `WRAPPER:OPTIONS:KIND:ARGS`, for example `delay:2ms:memory:1G`. Options are separated by commas. What follows the second
//! colon is any disk, a wrapped one, too.
//!
//! `delay:TIME[+RANDOM][,seed=N]:` delays a request before it starts. The delay comes first, so that the client's memory is used
//! at the very end: a client that releases that memory too early is detected. The engine waits; the worker continues.
//!
//! `error:[every=N][,after=N][,op=OP+OP][,sectors=A-B][,errno=NAME]:` fails chosen requests, which are not executed at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fipsee_ring::memory::Span;
use rustix::io::Errno;

use super::faults::{Awaited, OPERATIONS};
use super::file::job::status_of;
use super::{AnyDisk, Disk, Engine, Faults, Submitted, Ticket, engine};
use crate::request::Request;
use crate::wire::{BlockInfo, Operation, Status};

mod power_cut;

use power_cut::PowerCut;
pub use power_cut::PowerCutOptions;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrapper {
    /// `delay:`
    Delay(DelayOptions),
    /// `error:`
    Error(ErrorOptions),
    /// `powercut:`
    PowerCut(PowerCutOptions),
}

impl Wrapper {
    /// The wrapper of that name with its options; `None`: no wrapper has this name.
    pub fn parse(name: &str, options: &str) -> Option<Result<Self, String>> {
        let parsed = match name {
            "delay" => DelayOptions::parse(options).map(Self::Delay),
            "error" => ErrorOptions::parse(options).map(Self::Error),
            "powercut" => PowerCutOptions::parse(options).map(Self::PowerCut),
            _ => return None,
        };
        Some(parsed.map_err(|problem| format!("{name}: {problem}")))
    }
}

#[derive(Debug)]
pub struct WrappedDisk {
    inner: Arc<AnyDisk>,
    /// Those of the disk at the bottom; if it has none, the wrapper's own.
    faults: Arc<Faults>,
    manner: Manner,
    /// Requests that were delayed, or could have failed.
    numbered: AtomicU64,
}

#[derive(Debug)]
enum Manner {
    Delay(DelayOptions),
    Error(ErrorOptions),
    PowerCut(Arc<PowerCut>),
}

impl WrappedDisk {
    pub(super) fn new(inner: AnyDisk, wrapper: &Wrapper) -> Result<Self, String> {
        let (faults, inner) = (inner.faults().cloned().unwrap_or_default(), Arc::new(inner));
        if !matches!(wrapper, Wrapper::Error(_)) {
            Engine::check()?;
        }
        let manner = match wrapper {
            Wrapper::Delay(options) => Manner::Delay(options.clone()),
            Wrapper::Error(options) => Manner::Error(options.clone()),
            Wrapper::PowerCut(options) => Manner::PowerCut(PowerCut::new(Arc::clone(&inner), options)),
        };
        Ok(Self { inner, faults, manner, numbered: AtomicU64::new(0) })
    }

    fn next_number(&self) -> u64 {
        self.numbered.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn inner(&self) -> &AnyDisk {
        &self.inner
    }

    pub(super) const fn kind(&self) -> &'static str {
        match self.manner {
            Manner::Delay(_) => "delay",
            Manner::Error(_) => "error",
            Manner::PowerCut(_) => "powercut",
        }
    }
}

impl Disk for WrappedDisk {
    const ANSWERS_AT_ONCE: bool = false;

    fn info(&self) -> BlockInfo {
        let info = self.inner.info();
        match self.manner {
            Manner::PowerCut(_) => {
                BlockInfo { max_range_sectors: info.max_range_sectors.min(power_cut::MAX_RANGE_SECTORS), ..info }
            }
            _ => info,
        }
    }

    unsafe fn submit(&self, request: &Request, spans: &[Span], ticket: Ticket, engine: &mut Engine) -> Submitted {
        match &self.manner {
            // SAFETY: the contract is passed on.
            Manner::Delay(options) => unsafe { options.submit(self, request, spans, ticket, engine) },
            Manner::Error(options) => match options.fail(self, request) {
                Some(status) => Submitted::Done(status),
                // SAFETY: as above.
                None => unsafe { self.inner.submit(request, spans, ticket, engine) },
            },
            // SAFETY: as above.
            Manner::PowerCut(core) => unsafe { core.submit(request, spans, ticket, engine) },
        }
    }

    fn resize(&self, sector_count: u64) -> Result<(), String> {
        self.inner.resize(sector_count)?;
        if let Manner::PowerCut(core) = &self.manner {
            core.cut(sector_count);
        }
        Ok(())
    }

    fn faults(&self) -> Option<&Arc<Faults>> {
        if matches!(self.manner, Manner::PowerCut(_)) { self.inner.faults() } else { Some(&self.faults) }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DelayOptions {
    pub fixed: Duration,
    /// A random time below this is added.
    pub random: Duration,
    pub seed: u64,
}

impl DelayOptions {
    fn parse(text: &str) -> Result<Self, String> {
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
    unsafe fn submit(
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

const ERRORS: [(&str, Errno); 4] =
    [("EIO", Errno::IO), ("ENOSPC", Errno::NOSPC), ("EROFS", Errno::ROFS), ("EOPNOTSUPP", Errno::OPNOTSUPP)];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorOptions {
    /// One in this many of the requests that the other options choose; 1: all of them.
    pub every: u64,
    /// This many of those succeed first.
    pub after: u64,
    /// Only these operations; empty: all.
    pub operations: Vec<Operation>,
    /// Only requests that touch these sectors, both included; a flush touches none.
    pub sectors: Option<(u64, u64)>,
    pub errno: Errno,
}

impl ErrorOptions {
    fn parse(text: &str) -> Result<Self, String> {
        let mut options = Self { every: 1, after: 0, operations: Vec::new(), sectors: None, errno: Errno::IO };
        for (key, value) in pairs(text) {
            match key {
                "every" => options.every = number(key, value)?,
                "after" => options.after = number(key, value)?,
                "op" => options.operations = value.split('+').map(operation_of).collect::<Result<_, _>>()?,
                "sectors" => options.sectors = Some(sectors_of(value)?),
                "errno" => options.errno = errno_named(value)?,
                _ => return Err(format!("unknown option '{key}'; it takes every=, after=, op=, sectors= and errno=")),
            }
        }
        if options.every == 0 {
            return Err("every=0 is not possible; use 1 for all of them".into());
        }
        Ok(options)
    }

    /// The error of this request, which is then recorded; `None`: it does not fail.
    fn fail(&self, disk: &WrappedDisk, request: &Request) -> Option<Status> {
        let number = if self.chooses(request) { disk.next_number() } else { return None };
        let fails = number.checked_sub(self.after).is_some_and(|number| (number + 1).is_multiple_of(self.every));
        fails.then(|| {
            disk.faults.failed(request.operation, request.sector, Some(self.errno));
            status_of(self.errno)
        })
    }

    fn chooses(&self, request: &Request) -> bool {
        let touches = |(first, last)| {
            request.length_sectors > 0 && request.sector <= last && first < request.sector + request.length_sectors
        };
        (self.operations.is_empty() || self.operations.contains(&request.operation)) && self.sectors.is_none_or(touches)
    }
}

fn operation_of(name: &str) -> Result<Operation, String> {
    let found = OPERATIONS.iter().find(|(known, _)| *known == name).map(|(_, operation)| *operation);
    found.ok_or_else(|| format!("op={name} is no operation; use read, write, flush, discard or write-zeroes, several with +"))
}

fn sectors_of(text: &str) -> Result<(u64, u64), String> {
    let range = text.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    let range = range.filter(|(first, last)| first <= last);
    range.ok_or_else(|| format!("sectors={text} is no range; write sectors=FIRST-LAST, in sectors of 512 bytes"))
}

fn errno_named(name: &str) -> Result<Errno, String> {
    let found = ERRORS.iter().find(|(known, _)| *known == name).map(|(_, errno)| *errno);
    found.ok_or_else(|| format!("errno={name} is not possible; use EIO, ENOSPC, EROFS or EOPNOTSUPP"))
}

/// The options of a wrapper, as `key` and `value`.
fn pairs(options: &str) -> impl Iterator<Item = (&str, &str)> {
    options.split(',').filter(|piece| !piece.is_empty()).map(|piece| piece.split_once('=').unwrap_or((piece, "")))
}

fn number(key: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("{key}={value} is not possible; write {key}= and an integer, for example {key}=100"))
}

/// A duration: an integer with `us`, `ms` or `s`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = text.split_at(digits);
    let make = match unit {
        "us" => Some(Duration::from_micros as fn(u64) -> Duration),
        "ms" => Some(Duration::from_millis as _),
        "s" => Some(Duration::from_secs as _),
        _ => None,
    };
    let made = make.and_then(|make| count.parse().ok().map(make));
    made.ok_or_else(|| format!("'{text}' is not a time; write an integer with us, ms or s, for example 5ms"))
}

/// splitmix64: the same sequence for the same seed, everywhere.
const fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut value = *state;
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
