//! Fair shares of a worker, in cost units (docs/decisions/0033-fair-shares.md): between groups, which are users, virtual machines or
//! what an administrator calls one; within a group between connections; within a connection between queues.

mod groups;
mod schedule;

pub use self::groups::{DEFAULT_WEIGHT, Group, Groups, Share, Weight};
pub(crate) use self::schedule::{Schedule, Visited};

/// A request costs as much as moving 4 KiB, and 512 bytes cost 1: finding, checking and answering it takes about as long.
pub const UNITS_PER_REQUEST: u32 = 8;
/// What a group of the usual weight gets in a round, in cost units: 1 MiB of data. A visit ends after as much.
pub const QUANTUM: u32 = 2048;

/// What a visit may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The worker has no other active queue.
    pub alone: bool,
    /// Most requests, at least 1.
    pub requests: u32,
    /// Most cost units, at least 1: no request is begun once so many are spent.
    pub units: u32,
}

impl Turn {
    /// As much as one visit takes at most.
    #[inline(always)]
    pub const fn whole(alone: bool) -> Self {
        Self { alone, requests: u32::MAX, units: QUANTUM }
    }

    /// For a second part of a queue after the first has taken `taken`. It gets a request in any case: otherwise a limited queue
    /// would never come to it.
    #[inline(always)]
    pub fn after(self, taken: Taken) -> Self {
        let left = |most: u32, taken: u32| most.saturating_sub(taken).max(1);
        Self { alone: self.alone, requests: left(self.requests, taken.requests), units: left(self.units, taken.units) }
    }
}

/// Bytes in blocks of 512, for [`Taken::new`], of requests that may be shorter: what is less than a block counts with those that follow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Blocks {
    left_bytes: u64,
}

impl Blocks {
    const BLOCK_BYTES: u64 = 512;

    /// Those that are complete with so many bytes more.
    #[inline(always)]
    pub const fn complete(&mut self, bytes: u64) -> u64 {
        let all = self.left_bytes.saturating_add(bytes);
        self.left_bytes = all % Self::BLOCK_BYTES;
        all / Self::BLOCK_BYTES
    }
}

/// What a visit has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    pub requests: u32,
    pub units: u32,
    /// Those of the units that are neither for requests nor for bytes: limits do not count them.
    pub work_units: u32,
}

impl Taken {
    pub const NOTHING: Self = Self { requests: 0, units: 0, work_units: 0 };

    /// Requests that move `blocks` of 512 bytes together.
    #[inline(always)]
    pub fn new(requests: u32, blocks: u64) -> Self {
        let units = u64::from(requests) * u64::from(UNITS_PER_REQUEST) + blocks;
        Self { requests, units: u32::try_from(units).unwrap_or(u32::MAX), work_units: 0 }
    }

    /// And so many times as much work as a request costs.
    #[inline(always)]
    pub fn with_more_work(self, times: u64) -> Self {
        let more = u32::try_from(times.saturating_mul(UNITS_PER_REQUEST.into())).unwrap_or(u32::MAX);
        let (units, work_units) = (self.units.saturating_add(more), self.work_units.saturating_add(more));
        Self { units, work_units, ..self }
    }

    /// Both together.
    #[inline(always)]
    pub const fn and(self, other: Self) -> Self {
        let Self { requests, units, work_units } = self;
        Self {
            requests: requests.saturating_add(other.requests),
            units: units.saturating_add(other.units),
            work_units: work_units.saturating_add(other.work_units),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_short_requests_are_counted_once_and_all_of_them() {
        let mut blocks = Blocks::default();
        let of_frames: u64 = (0..800).map(|_| blocks.complete(64)).sum();
        assert_eq!(of_frames, 100);
        assert_eq!([blocks.complete(1500), blocks.complete(35), blocks.complete(1), blocks.complete(0)], [2, 0, 1, 0]);
    }
}
