//! Every parser that reads a peer's bytes, as a function of bytes.
//!
//! [`one`] panics when a parser does what it must not: it panics itself, it takes what it wrote to be something else, it leaves the
//! memory it was given, or Rust and C disagree about the same bytes. `cargo xtask fuzz` calls it with inputs that a coverage-guided
//! fuzzer makes up (`fuzz/`); `tests/replay.rs` calls it with those that were worth keeping (`corpus/`).

mod channel;
mod control;
pub mod corpus;
mod fio;
mod frames;
mod guest;
mod inspected;
mod ips;
mod lan;
mod port_virtqueues;
mod reap;
mod received;
mod received_by_c;
mod region;
mod request;
mod serve;
mod service;
mod sessions;
mod switch;
mod tap;
mod text;
mod upgrade_request;
mod vhost_user;
mod virtqueue;

/// A parser: its name, and what must hold of it for any bytes.
pub struct Target {
    /// As `cargo xtask fuzz` calls it, and the file of its corpus.
    pub name: &'static str,
    one: fn(&[u8]),
    /// Inputs a fuzzer starts from when there is no corpus: each is well-formed.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "control", one: control::one, seeds: control::seeds },
    Target { name: "region", one: region::one, seeds: region::seeds },
    Target { name: "info", one: region::one_info, seeds: region::info_seeds },
    Target { name: "request", one: request::one, seeds: request::seeds },
    Target { name: "serve", one: serve::one, seeds: serve::seeds },
    Target { name: "reap", one: reap::one, seeds: reap::seeds },
    Target { name: "frames", one: frames::one, seeds: frames::seeds },
    Target { name: "received", one: received::one, seeds: received::seeds },
    Target { name: "received_by_c", one: received_by_c::one, seeds: received::seeds },
    Target { name: "port_info", one: received::one_info, seeds: received::info_seeds },
    Target { name: "switch", one: switch::one, seeds: switch::seeds },
    Target { name: "inspected", one: inspected::one, seeds: inspected::seeds },
    Target { name: "tap", one: tap::one, seeds: tap::seeds },
    Target { name: "virtqueue", one: virtqueue::one, seeds: virtqueue::seeds },
    Target { name: "port_virtqueues", one: port_virtqueues::one, seeds: port_virtqueues::seeds },
    Target { name: "upgrade_request", one: upgrade_request::one, seeds: upgrade_request::seeds },
    Target { name: "service", one: service::one, seeds: service::seeds },
    Target { name: "sessions", one: sessions::one, seeds: sessions::seeds },
    Target { name: "vhost_user", one: vhost_user::one, seeds: vhost_user::seeds },
    Target { name: "vhost_user_port", one: vhost_user::one_port, seeds: vhost_user::port_seeds },
    Target { name: "admin", one: text::one_admin, seeds: text::admin_seeds },
    Target { name: "config", one: text::one_config, seeds: text::config_seeds },
    Target { name: "spec", one: text::one_spec, seeds: text::spec_seeds },
];

/// The target of that name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Run one input.
pub fn one(target: &Target, bytes: &[u8]) {
    (target.one)(bytes);
}

/// So many bytes from the front of `bytes`, with zeroes where there are none; what is left stays.
fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let count = bytes.len().min(N);
    let (front, rest) = bytes.split_at(count);
    *bytes = rest;
    let mut taken = [0; N];
    taken[..count].copy_from_slice(front);
    taken
}
