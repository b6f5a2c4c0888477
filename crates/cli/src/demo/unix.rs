//! The same work over an efficient plain Unix socket: all requests that have arrived are answered with one write, and the client
//! keeps its full depth in flight.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use fipsee_block::disk::{MemoryDisk, NullDisk};
use fipsee_block::stats::Histogram;
use fipsee_ring::clock;

use super::direct::{Direct, Random};
use super::{BLOCK_BYTES, DEPTH, Measured, Which, memory_disk, null_disk};
use crate::error::Error;
use crate::units;

/// A request: number of the disk, number of the block, 8 bytes each.
const REQUEST_BYTES: usize = 16;
/// An answer: number of the block, then its data.
const ANSWER_BYTES: usize = 8 + BLOCK_BYTES;

/// Listen at `path`, and answer on a thread of its own until the process ends.
pub(super) fn serve(path: &Path) -> Result<(), Error> {
    let listener = UnixListener::bind(path).map_err(|error| Error::io(format_args!("listen at {}", path.display()), &error))?;
    let run = move || {
        let disks =
            || -> Result<_, Error> { Ok((Direct::new(null_disk()?, Which::Null)?, Direct::new(memory_disk()?, Which::Memory)?)) };
        let answered = disks().map(|(mut null, mut memory)| {
            for stream in listener.incoming().flatten() {
                // The client closes when it has measured enough.
                let _ = answer_all(stream, &mut null, &mut memory);
            }
        });
        if let Err(error) = answered {
            eprintln!("error: {error}");
        }
    };
    std::thread::Builder::new()
        .name("plain-socket".to_owned())
        .spawn(run)
        .map_err(|error| Error::io("start a thread", &error))?;
    Ok(())
}

fn answer_all(mut stream: UnixStream, null: &mut Direct<NullDisk>, memory: &mut Direct<MemoryDisk>) -> Result<(), Error> {
    let stopped = |error: io::Error| Error::io("answer over the plain socket", &error);
    let mut requests = [0; REQUEST_BYTES * DEPTH as usize];
    let (mut filled, mut answers) = (0, Vec::with_capacity(ANSWER_BYTES * DEPTH as usize));
    loop {
        let count = stream.read(&mut requests[filled..]).map_err(stopped)?;
        if count == 0 {
            return Ok(());
        }
        filled += count;
        answers.clear();
        let (whole, _) = requests[..filled].as_chunks::<REQUEST_BYTES>();
        for request in whole {
            let [disk, block] =
                [0, 8].map(|start| request[start..start + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
            let data = if disk == 0 { null.read(block)? } else { memory.read(block)? };
            answers.extend_from_slice(&block.to_le_bytes());
            answers.extend_from_slice(data);
        }
        let done = whole.len() * REQUEST_BYTES;
        stream.write_all(&answers).map_err(stopped)?;
        requests.copy_within(done..filled, 0);
        filled -= done;
    }
}

/// Time single requests, then keep the depth of them in flight.
pub(super) fn measure(path: &Path, which: Which, duration: Duration) -> Result<Measured, Error> {
    let broken = |error: io::Error| Error::io("use the plain socket", &error);
    let mut stream = UnixStream::connect(path).map_err(broken)?;
    let mut random = Random::new();
    let mut request = || {
        let disk = if which == Which::Null { 0_u64 } else { 1 };
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..8].copy_from_slice(&disk.to_le_bytes());
        bytes[8..].copy_from_slice(&random.below(which.block_count()).to_le_bytes());
        bytes
    };
    let mut answers = vec![0; ANSWER_BYTES * DEPTH as usize];
    let ticks = Histogram::default();
    let started = Instant::now();
    while started.elapsed() < duration {
        let from = clock::ticks_fenced();
        stream.write_all(&request()).map_err(broken)?;
        stream.read_exact(&mut answers[..ANSWER_BYTES]).map_err(broken)?;
        ticks.record(clock::ticks_fenced() - from, 1);
    }
    let mut burst: Vec<u8> = (0..DEPTH).flat_map(|_| request()).collect();
    let (started, mut finished, mut filled) = (Instant::now(), 0, 0);
    while started.elapsed() < duration {
        stream.write_all(&burst).map_err(broken)?;
        filled += match stream.read(&mut answers[filled..]).map_err(broken)? {
            0 => return Err("the plain socket's server is gone; see its message above".into()),
            count => count,
        };
        let whole = filled / ANSWER_BYTES;
        filled -= whole * ANSWER_BYTES;
        finished += whole as u64;
        burst.clear();
        (0..whole).for_each(|_| burst.extend(request()));
    }
    let iops = units::per_second(finished, started.elapsed().as_secs_f64());
    let quantile_ns = |percent| clock::ticks_to_ns(ticks.quantile(percent, 100));
    Ok(Measured { ns_p50: quantile_ns(50), ns_p99: quantile_ns(99), iops })
}
