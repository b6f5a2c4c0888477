//! Ways to wait for a message: one interface, chosen by configuration and by what the CPU has.
//!
//! [`WaitMode`] names the strategy, [`Backoff`] carries it out between two empty looks, and [`Watch`] says which word of
//! memory is looked at, for the strategies that have the CPU watch it (docs/decisions/0012-wait-strategies.md).

mod backoff;
pub mod instructions;
mod mode;
mod watch;

pub use backoff::{Backoff, DEFAULT_LOOK, EXPECTED_LOOK_FACTOR, Next, has_woken_thread};
pub use mode::{Unavailable, WaitMode};
pub use watch::Watch;
