//! Messages of 60 bytes between two sides on two CPUs: what is sent, by which design, checked byte for byte and timed.
//!
//! [`Partner`] is the second side, a process or a thread, and measures one [`Spec`] after another; [`rounds`] does so in turn. Other
//! ways to carry messages than the [`Design`]s drive their ends by [`drive`].

mod bare;
mod changes;
mod channel;
mod classic;
pub mod drive;
mod endpoints;
mod floor;
mod partner;
mod plan;
pub mod rounds;
mod spin;
mod visits;

pub use self::changes::{CHANGES, Change};
pub use self::drive::{Amount, RunLength, Sample};
pub use self::partner::{Partner, serve};
pub use self::plan::{Design, HotPathOptions, PROFILE, Spec, Task};
