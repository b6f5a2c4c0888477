//! What tests and benchmarks share, once: the launcher of a daemon ([`daemon`]), a virtual machine in user space ([`guest`]) with
//! its driver of virtqueues, a client that handles its own rings ([`raw`]) and one in bytes ([`bytes`]), peers with faults to
//! inject ([`faulty`]), takeovers with a test in the middle ([`takeover`]), child processes ([`child`]), and waiting.
#![allow(missing_docs, reason = "helpers of tests, whose names say what they do")]

#[cfg(feature = "daemon")]
pub mod bytes;
pub mod child;
#[cfg(feature = "daemon")]
pub mod client;
#[cfg(feature = "daemon")]
pub mod daemon;
#[cfg(feature = "daemon")]
pub mod faulty;
#[cfg(feature = "daemon")]
pub mod guest;
#[cfg(feature = "daemon")]
pub mod hypervisor;
#[cfg(feature = "daemon")]
pub mod load;
mod machine;
pub mod netns;
#[cfg(feature = "networks")]
pub mod networks;
pub mod packets;
pub mod process;
pub mod random;
#[cfg(feature = "daemon")]
pub mod rates;
#[cfg(feature = "daemon")]
pub mod raw;
mod scratch;
pub mod stack;
pub mod system;
#[cfg(feature = "daemon")]
pub mod takeover;
pub mod virtqueue;
#[cfg(feature = "disks")]
pub mod worker;

use std::io::Write;
use std::time::{Duration, Instant};

#[cfg(feature = "daemon")]
pub use client::{CorrectClient, bytes_of, finish_all, finish_one, refusal_of, stamp};
#[cfg(feature = "daemon")]
pub use daemon::{Daemon, refused, refused_in};
pub use machine::{Alone, Share, alone, share};
pub use process::{Guard, as_user, as_user_of_group, await_word, fd_count, mapping_count, resident_bytes};
pub use random::Random;
pub use scratch::Scratch;
#[cfg(feature = "disks")]
pub use worker::{Worker, request};

/// The longest wait for anything. A bound against hanging, not a claim about speed.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Report to `cargo xtask test`, past libtest's capture, that a check could not run here.
pub fn skip(what: &str, reason: &str) {
    report(&format!("fipsee-skip: {what}: {}", reason.trim().replace('\n', "; ")));
}

/// A line past libtest's capture.
pub(crate) fn report(line: &str) {
    // In one piece: other tests write, too.
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).expect("standard error is open");
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Poll until `condition` holds.
#[track_caller]
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(TIMEOUT, condition), "not within {TIMEOUT:?}: {what}");
}

/// Poll until `look` finds something.
#[track_caller]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    eventually(what, || {
        found = look();
        found.is_some()
    });
    found.expect("just found")
}

/// Poll until `condition` holds; false if that takes longer.
pub fn holds_within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while !condition() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1)); // tidy: allow sleep, the one poll of what does not notify
    }
    true
}

/// `text` contains each of `pieces`.
#[track_caller]
pub fn assert_says(text: &str, pieces: &[&str]) {
    for piece in pieces {
        assert!(text.contains(piece), "'{piece}' is not in: {text}");
    }
}
