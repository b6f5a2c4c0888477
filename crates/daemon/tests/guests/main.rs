//! Virtual machines: vhost-user, virtqueues, and rings in guest memory.

mod guest_blkio;
mod guest_c;
mod guest_claims;
mod guest_death;
mod guest_migration;
mod guest_model;
mod guest_moves;
mod guest_notify;
mod guest_sleep;
mod guest_totals;
mod guest_upgrade;
mod vhost_user;
mod vhost_user_recovery;
mod vhost_user_refusals;
mod vhost_user_sockets;

fipsee_testkit::children! {
    "guest_that_loads_its_rings" => guest_death::guest_that_loads_its_rings,
    "hypervisor_with_writes_in_flight" => vhost_user_recovery::hypervisor_with_writes_in_flight,
}
