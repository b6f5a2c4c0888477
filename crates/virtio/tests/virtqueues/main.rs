//! Virtqueues and virtio-blk, served from guest memory without vhost-user.

mod common;
mod config_space;
mod dirty_log;
mod guest_memory;
mod inflight;
mod malformed;
mod model;
mod notifications;
mod packed_parts;
mod requests;
mod sleeping;
mod upgrade_requests;

fipsee_testkit::children! {
    "fault_outside_guest_memory" => guest_memory::fault_outside_guest_memory,
}
