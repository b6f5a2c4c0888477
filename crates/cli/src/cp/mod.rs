//! `fipsee cp SRC DST`: between files and disks, several large requests in flight, durable when it returns.

mod check;
mod endpoint;
mod file;
mod session;
mod sink;
mod source;

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use fipsee::claim;
use fipsee_block::client::Claim;
use fipsee_block::disk::spec::parse_size;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use self::check::Digests;
use self::endpoint::Endpoint;
use self::sink::Sink;
use self::source::{Piece, Source};
use crate::error::Error;
use crate::units;

/// One request, unless --block-size says otherwise: large enough that its cost vanishes, small enough that eight of
/// them stay in the cache.
const DEFAULT_REQUEST_BYTES: usize = 1 << 20;
/// Requests start and end at multiples of this on every disk and file system.
const ALIGN_BYTES: usize = 4096;
/// Shorter runs of zeroes are written as data: they save less than a request costs.
const ZERO_RUN_BYTES: usize = 64 << 10;
/// To compare with and to write: comparing slices is many times faster than testing each byte.
static ZEROES: [u8; ZERO_RUN_BYTES] = [0; ZERO_RUN_BYTES];

#[derive(Debug, clap::Args)]
#[command(
    after_help = "A disk is written fip:NAME, or fip:NAME@SOCKET to reach another daemon than --connect does; - is standard \
                        input or output; everything else is a file (./fip:x is a file, too)."
)]
pub(crate) struct Arguments {
    /// What to copy: a file, fip:NAME, or -
    #[arg(value_name = "SRC")]
    source: String,
    /// Where to: a file, fip:NAME, or -
    #[arg(value_name = "DST")]
    destination: String,
    /// Read everything back from the destination and compare
    #[arg(long)]
    verify: bool,
    /// No progress bar, even on a terminal
    #[arg(long)]
    no_progress: bool,
    /// Bytes of one request, a multiple of 4096 [default: 1M]
    #[arg(long, value_name = "SIZE", value_parser = parse_request_bytes)]
    block_size: Option<usize>,
    /// When the daemon goes away, wait so long for it to come back [default: fail at once]
    #[arg(long, value_name = "SECONDS", default_value = "0", hide_default_value = true)]
    reconnect: u64,
    /// Write even while another client may, or is the disk's sole writer
    #[arg(long)]
    force: bool,
}

fn parse_request_bytes(text: &str) -> Result<usize, String> {
    let bytes = usize::try_from(parse_size(text)?).ok().filter(|bytes| *bytes > 0 && bytes.is_multiple_of(ALIGN_BYTES));
    bytes.ok_or_else(|| format!("{text} is no multiple of {ALIGN_BYTES}; write for example 64K or 1M"))
}

/// Options for moving data, for every endpoint.
#[derive(Clone, Copy, Debug)]
struct Manner {
    request_bytes: usize,
    reconnect: Duration,
    /// Of a destination disk.
    claim: Claim,
}

struct Copied {
    /// Bytes of the source.
    total_bytes: u64,
    /// Bytes of them that were not moved because they are zero.
    zero_bytes: u64,
    /// Of a source that cannot be read twice.
    digests: Option<Digests>,
}

pub(crate) fn run(socket: &Path, arguments: &Arguments) -> Result<(), Error> {
    let source_endpoint = Endpoint::parse(&arguments.source, socket)?;
    let destination_endpoint = Endpoint::parse(&arguments.destination, socket)?;
    endpoint::check_pair(&source_endpoint, &destination_endpoint, arguments.verify)?;
    let manner = Manner {
        request_bytes: arguments.block_size.unwrap_or(DEFAULT_REQUEST_BYTES),
        reconnect: Duration::from_secs(arguments.reconnect),
        claim: claim::of(arguments.force),
    };
    let started = Instant::now();
    let mut source = Source::open(&source_endpoint, manner)?;
    let mut sink = sink::open(&destination_endpoint, manner, &source_endpoint, source.size_bytes())?;
    let bar = progress_bar(arguments, source.size_bytes());
    let digests = (arguments.verify && !source.can_be_read_again()).then(|| Digests::new(manner.request_bytes));
    let copied = copy(&mut source, sink.as_mut(), digests, &bar)?;
    sink.finish(copied.total_bytes)?;
    drop(source);
    let elapsed = started.elapsed();
    if arguments.verify {
        bar.set_message("verifying");
        bar.set_position(0);
        check::verify(&source_endpoint, &destination_endpoint, manner, &copied, &bar)?;
    }
    bar.finish_and_clear();
    let rate = units::count(units::per_second(copied.total_bytes, elapsed.as_secs_f64()));
    let verified = if arguments.verify { ", verified" } else { "" };
    eprintln!(
        "copied {} bytes ({} as zeroes) from {source_endpoint} to {destination_endpoint} in {:.2} s, {rate}B/s{verified}",
        copied.total_bytes,
        copied.zero_bytes,
        elapsed.as_secs_f64()
    );
    Ok(())
}

fn progress_bar(arguments: &Arguments, size_bytes: Option<u64>) -> ProgressBar {
    if arguments.no_progress || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(size_bytes, ProgressDrawTarget::stderr());
    let template = match size_bytes {
        Some(_) => "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        None => "{msg} {bytes} {bytes_per_sec}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message("copying");
    bar
}

fn copy(source: &mut Source, sink: &mut dyn Sink, mut digests: Option<Digests>, bar: &ProgressBar) -> Result<Copied, Error> {
    let mut data = Vec::new();
    let (mut offset_bytes, mut zero_bytes) = (0, 0);
    while let Some(piece) = source.next(&mut data)? {
        let length_bytes = match piece {
            Piece::Zeroes(length_bytes) => {
                sink.zeroes(offset_bytes, length_bytes)?;
                zero_bytes += length_bytes;
                length_bytes
            }
            Piece::Data => {
                if let Some(digests) = &mut digests {
                    digests.add(&data);
                }
                zero_bytes += write_runs(sink, offset_bytes, &data)?;
                data.len() as u64
            }
        };
        offset_bytes += length_bytes;
        bar.set_position(offset_bytes);
    }
    Ok(Copied { total_bytes: offset_bytes, zero_bytes, digests })
}

/// Write data, except for its long runs of zeroes; returns how many bytes those had.
fn write_runs(sink: &mut dyn Sink, offset_bytes: u64, data: &[u8]) -> Result<u64, Error> {
    let (mut done, mut zero_bytes) = (0, 0);
    while done < data.len() {
        let is_zero = |part: &[u8]| *part == ZEROES[..part.len()];
        let mut parts = data[done..].chunks(ZERO_RUN_BYTES);
        let zero = parts.next().is_some_and(is_zero);
        let more: usize = parts.take_while(|part| is_zero(part) == zero).map(<[u8]>::len).sum();
        let run = ZERO_RUN_BYTES.min(data.len() - done) + more;
        let (place, run_bytes) = (offset_bytes + done as u64, run as u64);
        if zero {
            sink.zeroes(place, run_bytes)?;
            zero_bytes += run_bytes;
        } else {
            sink.data(place, &data[done..done + run])?;
        }
        done += run;
    }
    Ok(zero_bytes)
}
