//! Daemon and Rust client against docs/protocol.md: each test names the requirements that it checks (`checks: R-...`), and
//! `requirements` fails if a requirement has no test. The other end speaks in bytes, by `fipsee_testkit::bytes`, which shares no
//! code with either: `client` is that of the daemon, `of_client` has a daemon.

mod client;
mod control;
mod document;
mod endings;
mod events;
mod frames;
mod listing;
mod of_client;
mod region;
mod requests;
mod requirements;
mod rings;
mod session;
mod takeover;

fipsee_testkit::children! {
    "print_the_default_socket" => of_client::sent::print_the_default_socket,
}
