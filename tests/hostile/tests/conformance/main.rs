//! The Rust client against docs/protocol.md, by a daemon of bytes: what it sends is what the document allows, and what a daemon
//! must not send is a fault. Each test names the requirements that it checks; `crates/daemon/tests/conformance` has those of the
//! daemon, and sees that all have a test. The fio engine, the client in C, gets the faults of `fipsee_hostile::faulty_daemon` in
//! `tests/acceptance`.

#[path = "../../../../crates/daemon/tests/common/mod.rs"]
mod common;
#[path = "../../../../crates/daemon/tests/conformance/raw.rs"]
mod raw;

mod faults;
mod mock;
mod sent;
