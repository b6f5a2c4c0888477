//! The runtime's io_uring engine, as disks use it.

use std::sync::OnceLock;
use std::time::Duration;

use fipsee_serve::uring::{self, Needs};
use io_uring::opcode;
use rustix::time::{ClockId, clock_gettime};

use super::Ticket;
use super::faults::Awaited;
use super::file::job::Job;
use crate::wire::Status;

/// Carries the requests of a worker's file disks, through one io_uring.
pub type Engine = uring::Engine<Job>;
pub type Submitted = uring::Submitted<Status>;

pub(super) static NEEDS: Needs = Needs {
    users: "file disks",
    operations: &[
        ("nop", opcode::Nop::CODE),
        ("read", opcode::Read::CODE),
        ("write", opcode::Write::CODE),
        ("readv", opcode::Readv::CODE),
        ("writev", opcode::Writev::CODE),
        ("fsync", opcode::Fsync::CODE),
        ("fallocate", opcode::Fallocate::CODE),
        ("timeout", opcode::Timeout::CODE),
    ],
    is_there: OnceLock::new(),
};

/// Wait `duration` as a step of the request `ticket`, for `awaited`; then run `then`.
pub(super) fn wait(
    engine: &mut Engine,
    duration: Duration,
    awaited: Option<Awaited>,
    ticket: Ticket,
    then: impl FnOnce(Status, &mut Engine) -> Submitted + 'static,
) -> Submitted {
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    let link = engine.link(ticket);
    // SAFETY: a timer names no memory but its own.
    let begun = unsafe { engine.begin(link, |job| job.set_up_timer(now.saturating_add(duration), awaited)) };
    match begun {
        Submitted::Pending => engine.follow(link, Box::new(then)),
        Submitted::Done(_) => engine.unlink(link),
    }
    begun
}

#[cfg(test)]
mod tests {
    use fipsee_serve::Engine as _;

    use super::*;

    #[test]
    fn engine_of_zero_or_too_many_entries_is_refused() {
        for entries in [0, 32769] {
            let text = Engine::new(entries).map(|_| ()).expect_err("refused").to_string();
            assert!(text.contains(&entries.to_string()) && text.contains("1 to 32768"), "{text}");
        }
    }

    #[test]
    fn engine_without_file_disks_makes_no_ring() {
        let mut engine = Engine::new(8).expect("engine");
        engine.flush();
        assert_eq!(engine.poll(usize::MAX, &mut |_, _| {}), 0);
        assert!(engine.as_fd().is_none());
        assert!(!engine.has_unsent());
        engine.start().expect("this machine has io_uring");
        assert!(engine.as_fd().is_some());
    }
}
