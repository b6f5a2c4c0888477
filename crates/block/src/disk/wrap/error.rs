//! `error:[every=N][,after=N][,op=OP+OP][,sectors=A-B][,errno=NAME]:`: a disk that fails chosen requests.
//!
//! A request that is chosen is not carried out at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fipsee_ring::memory::Span;
use rustix::io::Errno;

use super::super::faults::OPERATIONS;
use super::super::file::job::status_of;
use super::super::{AnyDisk, Disk, Engine, Faults, Submitted, Ticket};
use super::{faults_of, number, pairs};
use crate::request::Request;
use crate::wire::{BlockInfo, Operation};

const ERRORS: [(&str, Errno); 4] =
    [("EIO", Errno::IO), ("ENOSPC", Errno::NOSPC), ("EROFS", Errno::ROFS), ("EOPNOTSUPP", Errno::OPNOTSUPP)];

/// Which requests fail, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorOptions {
    /// Of the requests that the other options choose, every so many; 1: all of them.
    pub every: u64,
    /// So many of those succeed first.
    pub after: u64,
    /// Only these operations; empty: all.
    pub operations: Vec<Operation>,
    /// Only requests that touch these sectors, both included; a flush touches none.
    pub sectors: Option<(u64, u64)>,
    /// The error.
    pub errno: Errno,
}

impl ErrorOptions {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
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

/// A disk that fails at times.
#[derive(Debug)]
pub struct ErrorDisk {
    inner: Arc<AnyDisk>,
    options: ErrorOptions,
    chosen: AtomicU64,
    faults: Arc<Faults>,
}

impl ErrorDisk {
    /// Have requests to `inner` fail.
    #[must_use]
    pub fn new(inner: AnyDisk, options: &ErrorOptions) -> Self {
        let faults = faults_of(&inner);
        Self { inner: Arc::new(inner), options: options.clone(), chosen: AtomicU64::new(0), faults }
    }

    pub(in crate::disk) fn inner(&self) -> &AnyDisk {
        &self.inner
    }

    fn fails(&self, request: &Request) -> bool {
        if !self.options.chooses(request) {
            return false;
        }
        let number = self.chosen.fetch_add(1, Ordering::Relaxed);
        number.checked_sub(self.options.after).is_some_and(|number| (number + 1).is_multiple_of(self.options.every))
    }
}

impl Disk for ErrorDisk {
    const ANSWERS_AT_ONCE: bool = false;

    fn info(&self) -> BlockInfo {
        self.inner.info()
    }

    unsafe fn submit(&self, request: &Request, spans: &[Span], ticket: Ticket, engine: &mut Engine) -> Submitted {
        if self.fails(request) {
            self.faults.failed(request.operation, request.sector, Some(self.options.errno));
            return Submitted::Done(status_of(self.options.errno));
        }
        // SAFETY: the contract is passed on.
        unsafe { self.inner.submit(request, spans, ticket, engine) }
    }

    fn resize(&self, sector_count: u64) -> Result<(), String> {
        self.inner.resize(sector_count)
    }

    fn faults(&self) -> Option<&Arc<Faults>> {
        Some(&self.faults)
    }
}
