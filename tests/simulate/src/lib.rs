//! Plays lifetimes: the control plane's state machine, workers, queue servers and the client's queue, as they are in the product, in one
//! thread, under a scheduler, a clock, a disk and faults that a seed determines; a referee compares what happens with what was promised.

mod client;
mod context;
mod daemon;
mod disk;
mod queue;
mod referee;
mod rng;
pub mod script;
mod service;
pub mod shrink;
mod takeover;
pub mod variant;
mod visitor;
mod world;

pub use self::client::Habits;
pub use self::visitor::Visit;
pub use self::world::{Outcome, play};
