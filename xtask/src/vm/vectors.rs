//! Devices of a machine are taken out and put in by number, and what the back end holds of them meanwhile.

use std::fs;
use std::path::Path;

use super::back_end::{BackEnd, ask_until};
use super::qemu;

/// Of a queue: one for the guest's kicks and one for its interrupt.
const EVENTS_PER_QUEUE: usize = 2;

/// What the guest asks for: `unplug N` or `plug N`.
pub(super) fn act(event: &str, monitor: &Path, back_end: &BackEnd, queues: u16) -> Result<(), String> {
    let (verb, number) = event.split_once(' ').unwrap_or((event, ""));
    let number: usize = number.parse().map_err(|_| format!("'{event}' names no device by its number"))?;
    let socket = number.checked_sub(1).and_then(|index| back_end.further_sockets().into_iter().nth(index));
    let socket = socket.ok_or_else(|| format!("there is no device {number} that can be taken out"))?;
    match verb {
        "unplug" => unplug(number, monitor, back_end.id()?, EVENTS_PER_QUEUE * usize::from(queues)),
        "plug" => qemu::connect(monitor, number, &socket).and_then(|()| qemu::plug(monitor, number, queues)),
        _ => Err("this scenario does not expect it".to_owned()),
    }
}

/// The daemon must close `events` descriptors.
fn unplug(number: usize, monitor: &Path, daemon: u32, events: usize) -> Result<(), String> {
    let before = event_descriptors(daemon)?;
    qemu::unplug(monitor, number)?;
    qemu::disconnect(monitor, number)?;
    let mut now = before;
    let closed = ask_until(|| {
        now = event_descriptors(daemon).unwrap_or(before);
        (now + events <= before).then_some(())
    });
    closed.ok_or_else(|| format!("of device {number} the daemon was to close {events} eventfds; it has {now} of {before}"))
}

fn event_descriptors(process: u32) -> Result<usize, String> {
    let folder = format!("/proc/{process}/fd");
    let entries = fs::read_dir(&folder).map_err(|error| format!("cannot read {folder}: {error}"))?;
    let links = entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    Ok(links.filter(|link| link.to_string_lossy().contains("[eventfd]")).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_of_this_process_are_counted() {
        assert!(event_descriptors(std::process::id()).is_ok());
        assert!(event_descriptors(0).is_err_and(|error| error.contains("/proc/0/fd")));
    }
}
