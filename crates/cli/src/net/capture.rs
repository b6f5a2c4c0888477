//! `fipsee net capture`: the frames that come to a port, as a file for tcpdump or Wireshark.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use fipsee_net::{AttachOptions, Port};

use super::pcapng;
use crate::error::Error;
use crate::interrupt::Interrupt;

/// As many as most daemons grant: while a block of the file is written, frames wait here.
const DEPTH: u32 = 1024;
const WRITTEN_AT_ONCE_BYTES: usize = 1 << 18;

#[derive(Debug, clap::Args)]
pub(crate) struct CaptureArguments {
    /// The port, for example lan/m: with `mirror = true` in the configuration it gets a copy of every frame of its network
    port: String,
    /// The file to write, in the form of pcapng; - for standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    write: PathBuf,
    /// End after so many frames [default: when interrupted]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

fn open(path: &Path) -> Result<Box<dyn Write>, Error> {
    if path != "-" {
        let file = File::create(path).map_err(|error| Error::io_at("create", path, &error))?;
        return Ok(Box::new(file));
    }
    let out = io::stdout().lock();
    if out.is_terminal() {
        return Err("a capture is not text; write it to a file (-w FILE), or to a pipe: | tcpdump -r -".into());
    }
    Ok(Box::new(out))
}

pub(crate) fn capture(socket: &Path, arguments: &CaptureArguments) -> Result<(), Error> {
    let interrupt = Interrupt::watch(|| {}, || {})?;
    let mut port = Port::attach(socket, &AttachOptions { depth: DEPTH, ..AttachOptions::new(&arguments.port) })?;
    let mut out = BufWriter::with_capacity(WRITTEN_AT_ONCE_BYTES, open(&arguments.write)?);
    let most = arguments.count.unwrap_or(u64::MAX);
    let captured = frames(&mut port, &mut out, &interrupt, (&arguments.port, most))?;
    port.detach()?;
    eprintln!("{captured} frames of {}", arguments.port);
    Ok(())
}

/// Write until `most` came or a signal: how many did.
fn frames(port: &mut Port, out: &mut impl Write, interrupt: &Interrupt, (name, most): (&str, u64)) -> Result<u64, Error> {
    let (mut frame, mut block, mut captured) = (Vec::new(), pcapng::begin(name, port.mac().0), 0);
    written(out.write_all(&block))?;
    // What is there so far can be read while nothing comes.
    written(out.flush())?;
    while captured < most && interrupt.signal().is_none() {
        if port.receive(&mut frame)? {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            pcapng::frame(&mut block, now, &frame);
            written(out.write_all(&block))?;
            captured += 1;
            continue;
        }
        written(out.flush())?;
        if port.arm()? {
            port.woken()?;
            continue;
        }
        let descriptor = port.descriptor()?;
        let waited = interrupt.wait_to_read(&descriptor);
        waited.map_err(|error| Error::io("wait for frames", &error))?;
        port.woken()?;
    }
    written(out.flush())?;
    Ok(captured)
}

/// A reader that has seen enough (`| head`) ends the program without a word.
fn written(outcome: io::Result<()>) -> Result<(), Error> {
    match outcome {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Error::io("write the capture", &error)),
    }
}
