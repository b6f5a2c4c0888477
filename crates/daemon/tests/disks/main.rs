//! What clients of a disk can rely on: its semantics, claims, errors, resizing, and what becomes of requests and memory when a
//! client or the daemon ends.

mod bad_requests;
mod claims;
mod death;
mod disk_errors;
mod disk_full;
mod kill_points;
mod reclaim;
mod reconnect;
mod resize_and_drain;
mod restart;
mod semantics;

fipsee_testkit::children! {
    "client_that_claims_and_writes" => claims::client_that_claims_and_writes,
    "client_with_64_writes_in_flight" => death::client_with_64_writes_in_flight,
    "client_that_runs_until_a_step" => kill_points::client_that_runs_until_a_step,
    "ten_thousand_clients" => reclaim::ten_thousand_clients,
}
