//! The answering side.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use fipsee_ring::Message;
use fipsee_ring::region::{Access, Region};
use fipsee_ring::seqpacket::Seqpacket;
use rustix::process::Signal;

use super::exchange::{Ends, REGION_BYTES, STOP, Spin, answer_to, open_ends, receive};
use crate::error::Error;
use crate::process;

/// How long the memory may take to arrive; it is sent at once.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(10);

/// The command line that `ping` gives to its second process, whose standard input is a socket to the first.
#[derive(Debug, clap::Args)]
pub(crate) struct PeerArguments {
    #[arg(long)]
    parent: i32,
    #[arg(long)]
    cpu: Option<usize>,
    #[arg(long, value_enum)]
    spin: Spin,
}

/// When to give up.
pub(super) enum Life<'a> {
    /// The asking side is a thread of this process, which always says when to stop.
    Forever,
    /// It is a process, which may die.
    AsLongAs(&'a Seqpacket),
}

pub(crate) fn run_peer(arguments: &PeerArguments) -> Result<(), Error> {
    process::die_with_parent(arguments.parent, Signal::KILL)?;
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(|error| Error::io("take over the socket", &error))?;
    let socket = Seqpacket::from_fd(socket);
    let packet = socket.receive(MEMORY_TIMEOUT).map_err(|error| Error::io("receive the shared memory", &error))?;
    let [file] = <[_; 1]>::try_from(packet.descriptors)
        .map_err(|_| "no memory came with the message; this subcommand is not for people")?;
    let region = Region::from_peer(file, REGION_BYTES, Access::ReadWrite).map_err(|error| error.to_string())?;
    let ends = open_ends(&Arc::new(region), false).map_err(|fault| fault.to_string())?;
    if let Some(cpu) = arguments.cpu {
        process::bind_to_cpu(cpu)?;
    }
    answer_all(ends, arguments.spin, &Life::AsLongAs(&socket));
    Ok(())
}

/// Answer until told to stop, or until the other side is gone.
pub(super) fn answer_all(mut ends: Ends, spin: Spin, life: &Life<'_>) {
    let is_alive = || match life {
        Life::Forever => true,
        Life::AsLongAs(socket) => !socket.is_hung_up(),
    };
    let mut message = Message::ZERO;
    while receive(&mut ends.reader, &mut message, spin, &is_alive) && message.word(1) != STOP {
        ends.writer.publish(&answer_to(&message));
        ends.writer.prefetch_ahead();
    }
}
