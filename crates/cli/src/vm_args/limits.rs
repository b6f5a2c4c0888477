//! What the back end serves, so that a machine does not fail at its start.

use std::path::Path;

use fipsee_block::client;
use fipsee_ring::handshake;

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
    let most = handshake::greet(daemon, 0).map_err(|error: client::Error| error)?.max_queues;
    if queues > most {
        let text = format!(
            "a device has at most {most} queues here (max_queues of the daemon), and the machine would not start with {queues}; \
             use --queues {most}, or raise max_queues"
        );
        return Err(text.into());
    }
    Ok(())
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
