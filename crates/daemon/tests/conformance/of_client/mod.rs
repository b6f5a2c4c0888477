//! The Rust client: what it sends is what the document allows, and what a daemon must not send is a fault. The fio engine, the
//! client in C, gets the faults of `fipsee_testkit::faulty::daemon` in `tests/acceptance`.

mod faults;
pub(crate) mod sent;
