//! A faulty daemon and the Rust client: each fault is found, named, and ends the channel. The same faults are injected into the
//! fio engine in `tests/acceptance`.

use fipsee_block::client::{AttachOptions, Disk, Error};
use fipsee_ring::PeerFault;
use fipsee_ring::control::{Control, Page, Refusal, RefusalCode};
use fipsee_testkit::Scratch;
use fipsee_testkit::faulty::daemon::{DAEMON_FAULTS, DaemonFault, EVENT_FAULTS, FaultyDaemon, Others};

/// Attach, register memory, read four times: what went wrong first.
fn converse(scratch: &Scratch) -> Result<(), Error> {
    converse_at(scratch, 8, 4)
}

/// With so many requests, at most `depth` at a time.
fn converse_at(scratch: &Scratch, depth: u32, requests: usize) -> Result<(), Error> {
    let mut options = AttachOptions::new("a");
    // As the fio engine, for which the faults were made: it offers no feature.
    options.ask_worker_cpu = false;
    options.depth = depth;
    let (disk, mut queues) = Disk::attach(&scratch.path("s"), &options)?;
    let memory = disk.create_memory(1 << 16)?;
    let buffer = memory.buffer(0, 4096)?;
    let queue = &mut queues[0];
    let (mut begun, mut finished) = (0, 0);
    while finished < requests {
        while begun < requests && queue.read(0, buffer.segment(0, 4096), 0).is_ok() {
            begun += 1;
        }
        finished += queue.wait(&mut |_| {})?;
    }
    disk.detach(queues)
}

fn is_a_fault(outcome: &Result<(), Error>) -> bool {
    matches!(outcome, Err(Error::Fault(_) | Error::Malformed(_)))
}

#[test]
fn every_fault_of_a_daemon_is_found() {
    let scratch = Scratch::new();
    for (name, fault) in DAEMON_FAULTS.iter().chain(&EVENT_FAULTS) {
        let _faulty = FaultyDaemon::start(&scratch.path("s"), *fault);
        let outcome = converse(&scratch);
        assert!(is_a_fault(&outcome), "'{name}' ({fault:?}) ends with {outcome:?}");
        if name.contains("seals") {
            let is_named = matches!(outcome, Err(Error::Fault(PeerFault::UnsafeMemory { .. })));
            assert!(is_named, "memory that can be cut under us was mapped, and then: {outcome:?}");
        }
    }
}

#[test]
fn answers_of_a_correct_daemon_are_taken() {
    let scratch = Scratch::new();
    let _faulty = FaultyDaemon::start(&scratch.path("s"), DaemonFault::None);
    let outcome = converse(&scratch);
    assert!(outcome.is_ok(), "{outcome:?}");
}

/// Several conversations: a race is not won every time.
fn converse_often(scratch: &Scratch) -> Vec<Result<(), Error>> {
    (0..20).map(|_| converse(scratch)).collect()
}

/// checks: R-4.5-7
#[test]
fn doorbells_without_end_and_flags_that_flicker_keep_no_client_from_its_answers() {
    let scratch = Scratch::new();
    let _faulty = FaultyDaemon::start(&scratch.path("s"), DaemonFault::Ringing);
    for outcome in converse_often(&scratch) {
        assert!(outcome.is_ok(), "{outcome:?}");
    }
}

#[test]
fn completions_with_stamps_of_other_laps_are_none() {
    let scratch = Scratch::new();
    let _faulty = FaultyDaemon::start(&scratch.path("s"), DaemonFault::Stamps);
    for outcome in converse_often(&scratch) {
        assert!(outcome.is_ok(), "{outcome:?}");
    }
}

/// A client finds no fault in a daemon that loses requests of its own: those that it takes are answered.
#[test]
fn touches_that_come_late_disturb_no_client() {
    let scratch = Scratch::new();
    let _faulty = FaultyDaemon::start(&scratch.path("s"), DaemonFault::Touching);
    for depth in [1, 2, 8] {
        let outcome = converse_at(&scratch, depth, 1000);
        assert!(outcome.is_ok(), "depth {depth}: {outcome:?}");
    }
}

/// What the client copied is right, or is reported as a fault.
#[test]
fn completions_rewritten_while_they_are_read_are_taken_or_found() {
    let scratch = Scratch::new();
    let _faulty = FaultyDaemon::start(&scratch.path("s"), DaemonFault::Rewriting);
    for outcome in converse_often(&scratch) {
        assert!(outcome.is_ok() || is_a_fault(&outcome), "{outcome:?}");
    }
}

/// Every message that a daemon can send, where another is due.
/// checks: R-6-8
#[test]
fn answers_to_other_requests_are_faults() {
    const OTHERS: [(u8, Others); 9] = [
        (2, || Control::Welcome { version: 1, max_queues: 16, max_depth: 256, features: 0, max_pool_bytes: 1 << 20 }),
        (4, || Control::Attached { queue_count: 1, region_bytes: 1 << 20, service_info: [0; 64] }),
        (7, || Control::Registered { region: 1 }),
        (9, || Control::Unregistered { region: 1 }),
        (1, || Control::Hello { version_min: 1, version_max: 1, features: 0 }),
        (6, || Control::Register { region: 1, access: 3, length_bytes: 4096 }),
        (10, || Control::Detach),
        (12, || Control::List { service: 1, after: String::new() }),
        (13, || Control::Listed(Page::default())),
    ];
    let scratch = Scratch::new();
    for request in [1, 3, 6] {
        for (kind, other) in OTHERS.iter().filter(|(kind, _)| *kind != request + 1) {
            let _faulty = FaultyDaemon::start(&scratch.path("s"), DaemonFault::Instead(request, *other));
            let outcome = converse(&scratch);
            assert!(is_a_fault(&outcome), "{kind} as the answer to {request} ends with {outcome:?}");
        }
        // These two end a connection at any time, and say so.
        let _faulty = FaultyDaemon::start(&scratch.path("s"), DaemonFault::Instead(request, || Control::Detached));
        assert!(matches!(converse(&scratch), Err(Error::Disconnected)), "DETACHED as the answer to {request}");
        let refusal: Others = || Control::Refused(Refusal { code: RefusalCode::Busy, text: "no".to_owned() });
        let _faulty = FaultyDaemon::start(&scratch.path("s"), DaemonFault::Instead(request, refusal));
        let outcome = converse(&scratch);
        assert!(matches!(&outcome, Err(Error::Refused { text, .. }) if text == "no"), "{outcome:?}");
    }
}
