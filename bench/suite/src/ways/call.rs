//! A disk called as a function: the work itself, with nothing in between.

use std::time::{Duration, Instant};

use fipsee::load::count_f64;
use fipsee_block::disk::{Disk, Engine, MemoryDisk, MemoryOptions, NullDisk, NullOptions, direct};
use fipsee_block::request::Request;
use fipsee_block::stats::Histogram;
use fipsee_block::wire::{Operation, SECTOR_BYTES, Status};
use fipsee_ring::clock;

use super::{Measured, Site, Way};
use crate::generator::Random;
use crate::matrix::Cell;
use crate::place;

/// Calls between two looks at the clock.
const CALLS_PER_LOOK: u64 = 1024;

struct Call<D> {
    disk: D,
    disk_bytes: u64,
    cpu: usize,
}

pub(super) fn open(site: &Site, memory: bool) -> Result<Box<dyn Way>, String> {
    let cpu = site.cpus.client;
    if !memory {
        let options = NullOptions { size_bytes: site.null_bytes, ..NullOptions::default() };
        return Ok(Box::new(Call { disk: NullDisk::new("n", &options)?, disk_bytes: site.null_bytes, cpu }));
    }
    let disk = MemoryDisk::new(&MemoryOptions { size_bytes: site.memory_bytes, ..MemoryOptions::default() })?;
    let mut call = Call { disk, disk_bytes: site.memory_bytes, cpu };
    // Memory that was never written reads faster.
    call.fill()?;
    Ok(Box::new(call))
}

impl<D: Disk> Way for Call<D> {
    fn measure(&mut self, cell: Cell, seconds: f64) -> Result<Measured, String> {
        place::on(self.cpu, || self.run(cell, Duration::from_secs_f64(seconds / 2.0)))
    }

    fn servers(&self) -> Vec<u32> {
        Vec::new()
    }
}

impl<D: Disk> Call<D> {
    fn fill(&mut self) -> Result<(), String> {
        let mut caller = Caller::new(&self.disk, Cell { block_bytes: 1 << 20, write: true, depth: 1 })?;
        (0..self.disk_bytes >> 20).try_for_each(|block| caller.call(block))
    }

    /// Calls by the dozen for the rate, then calls between two looks at the clock for the latency.
    fn run(&self, cell: Cell, half: Duration) -> Result<Measured, String> {
        let mut caller = Caller::new(&self.disk, cell)?;
        let blocks = self.disk_bytes / cell.block_bytes;
        let mut random = Random::default();
        let (started, mut calls) = (Instant::now(), 0);
        while started.elapsed() < half {
            for _ in 0..CALLS_PER_LOOK {
                caller.call(random.below(blocks))?;
            }
            calls += CALLS_PER_LOOK;
        }
        let iops = count_f64(calls) / started.elapsed().as_secs_f64();
        let ticks = Histogram::default();
        let started = Instant::now();
        while started.elapsed() < half {
            for _ in 0..CALLS_PER_LOOK {
                let (block, from) = (random.below(blocks), clock::ticks_fenced());
                caller.call(block)?;
                ticks.record(clock::ticks_fenced() - from, 1);
            }
        }
        let quantile_ns = |percent| count_f64(clock::ticks_to_ns(ticks.quantile(percent, 100)));
        // The clock is read between the calls, so the processor time of all of it is not that of the calls.
        Ok(Measured { iops: Some(iops), latency_ns: Some((quantile_ns(50), quantile_ns(99))), requests: None })
    }
}

struct Caller<'a, D> {
    disk: &'a D,
    engine: Engine,
    buffer: Vec<u8>,
    cell: Cell,
}

impl<'a, D: Disk> Caller<'a, D> {
    fn new(disk: &'a D, cell: Cell) -> Result<Self, String> {
        let engine = Engine::new(1).map_err(|error| format!("cannot prepare the disk: {error}"))?;
        let bytes = usize::try_from(cell.block_bytes).map_err(|error| error.to_string())?;
        Ok(Self { disk, engine, buffer: vec![0x5a; bytes], cell })
    }

    #[inline(always)]
    fn call(&mut self, block: u64) -> Result<(), String> {
        let length_sectors = self.cell.block_bytes / SECTOR_BYTES;
        // Not known to the compiler, or it would measure nothing on a disk that does nothing.
        let request = std::hint::black_box(Request {
            operation: if self.cell.write { Operation::Write } else { Operation::Read },
            tag: 0,
            fua: false,
            unmap: false,
            sector: block * length_sectors,
            length_sectors,
            aux: 0,
        });
        let status = direct::call(self.disk, &request, &mut self.buffer, &mut self.engine);
        std::hint::black_box(&self.buffer);
        if status == Status::Ok { Ok(()) } else { Err(status.text().to_owned()) }
    }
}
