//! Another daemon takes over, with clients and virtual machines under load; and it is killed, refused or withdrawn at each step.

mod guest_takeover;
mod guest_takeover_death;
mod guest_takeover_messages;
mod takeover;
mod takeover_death;
mod takeover_messages;
mod takeover_refusals;
mod takeover_withdrawn;
mod totals;
