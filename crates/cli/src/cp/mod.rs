//! `fipsee cp SRC DST`: between files and disks, several large requests in flight, durable when it returns.

mod check;
mod endpoint;
mod file;
mod session;
mod sink;
mod source;

use std::fmt::Display;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
use crate::interrupt::Interrupt;
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
    #[arg(long, value_name = "SECONDS", default_value = "0", hide_default_value = true, value_parser = units::parse_whole_seconds)]
    reconnect: u64,
    /// Write even while another client may, or is the disk's sole writer
    #[arg(long)]
    force: bool,
}

fn parse_request_bytes(text: &str) -> Result<usize, String> {
    let bytes = usize::try_from(parse_size(text)?).ok().filter(|bytes| *bytes > 0 && bytes.is_multiple_of(ALIGN_BYTES));
    bytes.ok_or_else(|| format!("{text} is no multiple of {ALIGN_BYTES}; write for example 64K or 1M"))
}

/// How data is moved, for every endpoint.
#[derive(Clone)]
struct Manner {
    request_bytes: usize,
    reconnect: Duration,
    /// Of a destination disk.
    claim: Claim,
    bar: ProgressBar,
    interrupt: Arc<Interrupt>,
}

impl Manner {
    /// A line beside the progress bar.
    fn note(&self, text: impl Display) {
        self.bar.suspend(|| eprintln!("note: {text}"));
    }
}

struct Copied {
    /// Bytes that the destination has.
    total_bytes: u64,
    /// Bytes of them that were not moved because they are zero.
    zero_bytes: u64,
    /// Of a source that cannot be read twice.
    digests: Option<Digests>,
    /// Everything, or what a signal left.
    is_whole: bool,
}

pub(crate) fn run(socket: &Path, arguments: &Arguments) -> Result<(), Error> {
    let source = Endpoint::parse(&arguments.source, socket)?;
    let destination = Endpoint::parse(&arguments.destination, socket)?;
    endpoint::check_pair(&source, &destination, arguments.verify)?;
    let bar = ProgressBar::hidden();
    let progress = Arc::new(Progress::default());
    let manner = Manner {
        request_bytes: arguments.block_size.unwrap_or(DEFAULT_REQUEST_BYTES),
        reconnect: Duration::from_secs(arguments.reconnect),
        claim: claim::of(arguments.force),
        bar: bar.clone(),
        interrupt: progress.watch(&bar, &destination)?,
    };
    let summary = copy_and_verify(&source, &destination, arguments, &manner, &progress);
    bar.finish_and_clear();
    eprintln!("{}", summary?);
    Ok(())
}

fn copy_and_verify(
    from: &Endpoint,
    to: &Endpoint,
    arguments: &Arguments,
    manner: &Manner,
    progress: &Progress,
) -> Result<String, Error> {
    let started = Instant::now();
    let mut source = Source::open(from, manner)?;
    let mut sink = sink::open(to, manner, from, source.size_bytes())?;
    show(&manner.bar, arguments, source.size_bytes());
    let digests = (arguments.verify && !source.can_be_read_again()).then(|| Digests::new(manner.request_bytes));
    let copied = copy(&mut source, sink.as_mut(), digests, manner, progress).map_err(|error| {
        progress.look_at(sink.as_ref());
        progress.add_to(error, to)
    })?;
    if let Some(signal) = manner.interrupt.signal().filter(|_| !copied.is_whole) {
        let durable = sink.make_durable(copied.total_bytes);
        durable.map_err(|error| progress.add_to(Error::at("interrupted", error), to))?;
        return Err(Error::interrupted(
            signal,
            format_args!("{}; repeat the command for all of it", sink.remains(copied.total_bytes)),
        ));
    }
    sink.finish(copied.total_bytes).map_err(|error| progress.add_to(error, to))?;
    progress.is_flushed.store(true, Ordering::Relaxed);
    drop(source);
    let elapsed = started.elapsed();
    if arguments.verify {
        manner.bar.set_message("verifying");
        manner.bar.set_position(0);
        check::verify(from, to, manner, &copied)?;
    }
    let rate = units::byte_rate(units::per_second(copied.total_bytes, elapsed.as_secs_f64()));
    let verified = if arguments.verify { ", verified" } else { "" };
    Ok(format!(
        "copied {}, {} of them as zeroes, from {from} to {to} in {:.2} s, {rate}{verified}",
        units::exact_bytes(copied.total_bytes),
        units::bytes(copied.zero_bytes),
        elapsed.as_secs_f64()
    ))
}

/// Show the bar, unless it is unwanted.
fn show(bar: &ProgressBar, arguments: &Arguments, size_bytes: Option<u64>) {
    if arguments.no_progress || !std::io::stderr().is_terminal() {
        return;
    }
    let template = match size_bytes {
        Some(_) => "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        None => "{msg} {bytes} {bytes_per_sec}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    size_bytes.into_iter().for_each(|size_bytes| bar.set_length(size_bytes));
    bar.set_message("copying");
    bar.reset();
    bar.set_draw_target(ProgressDrawTarget::stderr());
}

/// What the destination has, for the last words of a process that a second signal ends.
#[derive(Default)]
struct Progress {
    /// Given to it.
    handed_bytes: AtomicU64,
    /// Written for certain.
    complete_bytes: AtomicU64,
    is_flushed: AtomicBool,
}

impl Progress {
    fn watch(self: &Arc<Self>, bar: &ProgressBar, destination: &Endpoint) -> Result<Arc<Interrupt>, Error> {
        let (progress, shown) = (Arc::clone(self), destination.to_string());
        let (at_first, at_second) = (bar.clone(), bar.clone());
        let note = || eprintln!("note: interrupted; finishing what is in flight. A second signal ends it at once");
        let last_words = move || {
            at_second.finish_and_clear();
            let bytes = units::exact_bytes(progress.complete_bytes.load(Ordering::Relaxed));
            if progress.is_flushed.load(Ordering::Relaxed) {
                eprintln!("error: interrupted: {shown} has all {bytes}, flushed; they were not all compared");
            } else {
                eprintln!(
                    "error: interrupted: {shown} has at least the first {bytes}, not flushed; repeat the command for all of it"
                );
            }
        };
        Interrupt::watch(move || at_first.suspend(note), last_words)
    }

    /// See how much of what it was given the destination has.
    fn look_at(&self, sink: &dyn Sink) {
        let complete_bytes = sink.complete_bytes(self.handed_bytes.load(Ordering::Relaxed));
        self.complete_bytes.store(complete_bytes, Ordering::Relaxed);
    }

    /// The error of a copy that ended early, and what it has left in the destination.
    fn add_to(&self, error: Error, destination: &Endpoint) -> Error {
        match self.complete_bytes.load(Ordering::Relaxed) {
            bytes if bytes > 0 && *destination != Endpoint::Standard => {
                let bytes = units::exact_bytes(bytes);
                format!("{error}; at least the first {bytes} were written to {destination}, not flushed").into()
            }
            _ => error,
        }
    }
}

fn copy(
    source: &mut Source,
    sink: &mut dyn Sink,
    mut digests: Option<Digests>,
    manner: &Manner,
    progress: &Progress,
) -> Result<Copied, Error> {
    let mut data = Vec::new();
    let (mut offset_bytes, mut zero_bytes) = (0, 0);
    let is_interrupted = || manner.interrupt.signal().is_some();
    while !is_interrupted()
        && let Some(piece) = source.next(&mut data)?
    {
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
        manner.bar.set_position(offset_bytes);
        progress.handed_bytes.store(offset_bytes, Ordering::Relaxed);
        progress.look_at(sink);
    }
    sink.settle()?;
    progress.look_at(sink);
    let is_whole = source.size_bytes().map_or_else(|| !is_interrupted(), |size_bytes| offset_bytes == size_bytes);
    Ok(Copied { total_bytes: offset_bytes, zero_bytes, digests, is_whole })
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
