//! What the back end serves, so that a machine does not fail at its start.

use std::path::Path;

use fipsee_block::client;
use fipsee_ring::control::{Control, VERSION};
use fipsee_ring::handshake;
use fipsee_ring::seqpacket::Seqpacket;

use super::{Arguments, Vmm};
use crate::error::Error;

/// The longest virtqueue that hypervisors make; the daemon takes up to 32768.
const MAX_QUEUE_SIZE: u16 = 1024;

pub(super) fn parse_queue_size(text: &str) -> Result<u16, String> {
    let size = text.parse().ok().filter(|size: &u16| size.is_power_of_two() && (2..=MAX_QUEUE_SIZE).contains(size));
    size.ok_or_else(|| format!("write a power of two from 2 to {MAX_QUEUE_SIZE}, for example 256"))
}

/// The daemon refuses a machine that starts more queues.
pub(super) fn check_queues(daemon: &Path, queues: u16) -> Result<(), Error> {
    let most = max_queues(daemon)?;
    if queues > most {
        let text = format!(
            "a device has at most {most} queues here (max_queues of the daemon), and the machine would not start with {queues}; \
             use --queues {most}, or raise max_queues"
        );
        return Err(text.into());
    }
    Ok(())
}

/// As the daemon announces it to each client that connects.
fn max_queues(daemon: &Path) -> Result<u16, client::Error> {
    let control = Seqpacket::connect(daemon);
    let control = control.map_err(|source| client::Error::Connect { path: daemon.to_owned(), source })?;
    let hello = Control::Hello { version_min: VERSION, version_max: VERSION, features: 0 };
    match handshake::ask(&control, &hello, &[], "the greeting")?.0 {
        Control::Welcome { max_queues, .. } => Ok(max_queues),
        _ => Err(client::Error::Disconnected),
    }
}

/// Not every hypervisor has the options.
pub(super) fn check_options(arguments: &Arguments) -> Result<(), Error> {
    if arguments.queue_size.is_some() && matches!(arguments.vmm, Vmm::Crosvm | Vmm::Firecracker) {
        return Err("this hypervisor chooses the size of queues itself; leave --queue-size out".into());
    }
    match arguments.vmm {
        Vmm::Firecracker if arguments.queues > 1 => Err("Firecracker has one queue for a disk; leave --queues out".into()),
        Vmm::Crosvm if arguments.queues > 1 => Err("crosvm chooses the number of queues itself; leave --queues out".into()),
        _ => Ok(()),
    }
}
