//! `error:[every=N][,after=N][,op=OP+OP][,sectors=A-B][,errno=NAME]:`: a disk that fails chosen requests.
//!
//! A request that is chosen is not carried out at all.

use rustix::io::Errno;

use super::super::faults::OPERATIONS;
use super::super::file::job::status_of;
use super::{WrappedDisk, number, pairs};
use crate::request::Request;
use crate::wire::{Operation, Status};

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

    /// How this request fails, which is then recorded; `None`: it does not.
    pub(super) fn fail(&self, disk: &WrappedDisk, request: &Request) -> Option<Status> {
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
