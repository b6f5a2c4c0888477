//! `fipsee net ping` and `echo`: frames of a type that is for experiments, with a number and so many bytes.

use std::path::Path;
use std::time::{Duration, Instant};

use fipsee_net::frame::Mac;
use fipsee_net::{AttachOptions, Port, list};
use fipsee_ring::clock;

use crate::error::Error;
use crate::{output, units};

/// IEEE 802 "local experimental".
const ETHER_TYPE: [u8; 2] = [0x88, 0xb5];
const HEADER_BYTES: usize = 14;
/// Header, number.
const LEAST_BYTES: usize = HEADER_BYTES + 8;
/// After so many frames without any answer there will be none.
const MOST_UNANSWERED: u64 = 5;

#[derive(Debug, clap::Args)]
pub(crate) struct PingArguments {
    /// The port to send from, for example lan/a
    port: String,
    /// The port to send to, for example lan/b, or a MAC address
    #[arg(long, value_name = "PORT|MAC")]
    to: String,
    /// How many frames, one after the other
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Bytes of a frame, with its Ethernet header
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    length: usize,
    /// How long an answer may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = units::parse_seconds)]
    timeout: Duration,
}

#[derive(Debug, clap::Args)]
pub(crate) struct EchoArguments {
    /// The port, for example lan/b
    port: String,
    /// End after so many frames [default: never]
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

/// The address of a port that may be attached to, or an address as such.
fn address(socket: &Path, to: &str) -> Result<Mac, Error> {
    if !to.contains('/') {
        return to.parse().map_err(|problem: String| format!("--to {problem}, or a port, for example lan/b").into());
    }
    let ports = list(socket)?;
    let found = ports.iter().find(|port| port.name == to);
    found.map(|port| port.mac).ok_or_else(|| format!("no port '{to}' that you may use; `fipsee net ls` lists those").into())
}

fn received(port: &mut Port, until: Option<Instant>, frame: &mut Vec<u8>) -> Result<bool, Error> {
    let left = |until: Instant| clock::ticks() + clock::duration_to_ticks(until.saturating_duration_since(Instant::now()));
    Ok(port.wait(until.map(left), frame)?)
}

pub(crate) fn ping(socket: &Path, arguments: &PingArguments) -> Result<(), Error> {
    let to = address(socket, &arguments.to)?;
    let mut port = Port::attach(socket, &AttachOptions::new(&arguments.port))?;
    let longest = port.info().max_frame_bytes as usize;
    if !(LEAST_BYTES..=longest).contains(&arguments.length) {
        return Err(format!("--length {}: write {LEAST_BYTES} to {longest}", arguments.length).into());
    }
    let mut sent = [&to.0[..], &port.mac().0, &ETHER_TYPE].concat();
    sent.resize(arguments.length, 0);
    let (mut frame, mut times_ns) = (Vec::new(), Vec::new());
    for number in 0..arguments.count {
        sent[HEADER_BYTES..LEAST_BYTES].copy_from_slice(&number.to_le_bytes());
        let begun = Instant::now();
        port.send(&sent)?;
        // Late answers to earlier ones, and frames of others, are passed over.
        while received(&mut port, Some(begun + arguments.timeout), &mut frame)? {
            let is_it = frame.len() == sent.len() && frame[6..12] == to.0 && frame[HEADER_BYTES..] == sent[HEADER_BYTES..];
            if is_it {
                times_ns.push(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
                break;
            }
        }
        port.reap()?;
        if let (0, (1.., Some(status))) = (times_ns.len(), port.refused()) {
            return Err(format!("the daemon did not take the frame: {}", status.text()).into());
        }
        let sent = number + 1;
        if times_ns.is_empty() && sent == MOST_UNANSWERED.min(arguments.count) {
            // In order, so that all of them were sent.
            port.detach()?;
            return Err(format!(
                "no answer to {sent} frames from {to}; does `fipsee net echo` run there, are both ports in one VLAN, and not both isolated? \
                 `fipsee net info` shows that"
            )
            .into());
        }
    }
    let (count, answered) = (arguments.count, times_ns.len());
    times_ns.sort_unstable();
    let at = |share: usize| units::nanoseconds(times_ns[(answered - 1) * share / 100]);
    output::print(&format!(
        "{count} frames of {} bytes to {to}, {answered} came back; there and back p50 {}, p99 {}\n",
        arguments.length,
        at(50),
        at(99)
    ))
}

pub(crate) fn echo(socket: &Path, arguments: &EchoArguments) -> Result<(), Error> {
    let mut port = Port::attach(socket, &AttachOptions::new(&arguments.port))?;
    output::print(&format!("{} answers at {}\n", arguments.port, port.mac()))?;
    let (mut frame, mut left) = (Vec::new(), arguments.count.unwrap_or(u64::MAX));
    while left > 0 {
        received(&mut port, None, &mut frame)?;
        if frame.len() < LEAST_BYTES || frame[12..14] != ETHER_TYPE || frame[..6] != port.mac().0 {
            continue;
        }
        frame.copy_within(6..12, 0);
        frame[6..12].copy_from_slice(&port.mac().0);
        match port.send(&frame) {
            // They are sent faster than the daemon gives back: as on any network, some are lost.
            Ok(()) | Err(fipsee_net::Error::Full) => left -= 1,
            Err(error) => return Err(error.into()),
        }
    }
    port.detach().map_err(Error::from)
}
