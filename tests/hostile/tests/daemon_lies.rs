//! A daemon that lies to the Rust client: each lie is found, named as what it is, and ends the channel. The same lies are told to the fio
//! engine in `tests/doors`.

#[path = "../../../crates/daemon/tests/common/mod.rs"]
mod common;

use common::Scratch;
use fipsee_block::client::{AttachOptions, Disk, Error};
use fipsee_hostile::liar::{EVENT_LIES, LIES, Liar, Lie};

/// Attach, register memory, read: what went wrong first.
fn converse(scratch: &Scratch) -> Result<(), Error> {
    let mut options = AttachOptions::new("a");
    // As the fio engine, whose lies these are, which offers no feature.
    options.placement = fipsee_block::client::Placement::Off;
    options.depth = 8;
    let (disk, mut queues) = Disk::attach(&scratch.path("s"), &options)?;
    let memory = disk.create_memory(1 << 16)?;
    let buffer = memory.buffer(0, 4096)?;
    let queue = &mut queues[0];
    let mut finished = 0;
    for token in 0..4 {
        queue.read(0, buffer.segment(0, 4096), token).expect("room");
    }
    while finished < 4 {
        finished += queue.wait(&mut |_| {})?;
    }
    disk.detach(queues)
}

fn is_a_lie(outcome: &Result<(), Error>) -> bool {
    matches!(outcome, Err(Error::Fault(_) | Error::Malformed(_)))
}

#[test]
fn every_lie_of_a_daemon_is_found() {
    let scratch = Scratch::new();
    for (name, lie) in LIES.iter().chain(&EVENT_LIES) {
        let _liar = Liar::start(&scratch.path("s"), *lie);
        let outcome = converse(&scratch);
        assert!(is_a_lie(&outcome), "'{name}' ({lie:?}) ends with {outcome:?}");
    }
}

#[test]
fn a_daemon_that_does_not_lie_is_believed() {
    let scratch = Scratch::new();
    let _liar = Liar::start(&scratch.path("s"), Lie::None);
    let outcome = converse(&scratch);
    assert!(outcome.is_ok(), "{outcome:?}");
}
