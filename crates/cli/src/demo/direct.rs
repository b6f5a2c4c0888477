//! Disks called as functions: the cost of the work itself, in the comparison and behind the plain socket.

use std::time::{Duration, Instant};

use fipsee_block::disk::{Disk, Engine, direct};
use fipsee_block::request::Request;
use fipsee_block::stats::Histogram;
use fipsee_block::wire::{Operation, SECTOR_BYTES, Status};
use fipsee_ring::clock;

use super::{BLOCK_BYTES, Measured, Which};
use crate::error::Error;
use crate::units;

/// Calls between two readings of the clock.
const CALLS_PER_CLOCK_CHECK: u64 = 1024;
const BLOCK_SECTORS: u64 = BLOCK_BYTES as u64 / SECTOR_BYTES;

/// A disk that answers at once, with a buffer of one block.
pub(super) struct Direct<D> {
    disk: D,
    engine: Engine,
    buffer: Vec<u8>,
}

impl<D: Disk> Direct<D> {
    /// Take over `disk` and fill all of it, because memory that was never written would read faster.
    pub(super) fn new(disk: D, which: Which) -> Result<Self, Error> {
        let engine = Engine::new(1).map_err(|error| Error::io("prepare the disk", &error))?;
        let mut direct = Self { disk, engine, buffer: vec![0x5a; BLOCK_BYTES] };
        if which == Which::Memory {
            (0..which.block_count()).try_for_each(|block| direct.call(Operation::Write, block))?;
        }
        Ok(direct)
    }

    /// Read block number `block` into the buffer.
    #[inline(always)]
    pub(super) fn read(&mut self, block: u64) -> Result<&[u8], Error> {
        self.call(Operation::Read, block)?;
        Ok(&self.buffer)
    }

    #[inline(always)]
    fn call(&mut self, operation: Operation, block: u64) -> Result<(), Error> {
        let sector = block * BLOCK_SECTORS;
        // Opaque to the compiler, or a disk without work would be optimised away.
        let request = std::hint::black_box(Request {
            operation,
            tag: 0,
            fua: false,
            unmap: false,
            sector,
            length_sectors: BLOCK_SECTORS,
            aux: 0,
        });
        match direct::call(&self.disk, &request, &mut self.buffer, &mut self.engine) {
            Status::Ok => Ok(()),
            status => Err(status.text().into()),
        }
    }
}

/// Random numbers below a bound, the same in every run.
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    /// `bound` is at most 2^32.
    #[inline(always)]
    pub(super) const fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 32) * bound) >> 32
    }
}

/// Time single calls, then as many as there are in `duration`.
pub(super) fn measure<D: Disk>(disk: D, which: Which, duration: Duration) -> Result<Measured, Error> {
    let mut direct = Direct::new(disk, which)?;
    let (mut random, ticks) = (Random::new(), Histogram::default());
    let started = Instant::now();
    while started.elapsed() < duration {
        for _ in 0..CALLS_PER_CLOCK_CHECK {
            let block = random.below(which.block_count());
            let from = clock::ticks_fenced();
            std::hint::black_box(direct.read(block)?);
            ticks.record(clock::ticks_fenced() - from, 1);
        }
    }
    let (started, mut calls) = (Instant::now(), 0);
    while started.elapsed() < duration {
        for _ in 0..CALLS_PER_CLOCK_CHECK {
            std::hint::black_box(direct.read(random.below(which.block_count()))?);
        }
        calls += CALLS_PER_CLOCK_CHECK;
    }
    let iops = units::per_second(calls, started.elapsed().as_secs_f64());
    let quantile_ns = |percent| clock::ticks_to_ns(ticks.quantile(percent, 100));
    Ok(Measured { ns_p50: quantile_ns(50), ns_p99: quantile_ns(99), iops })
}
