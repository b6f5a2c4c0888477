//! Plays lifetimes: the control plane's state machine, workers, queue servers and the client's queue, as they are in the product, in one
//! thread, under a scheduler, a clock, a disk and faults that a seed determines; an oracle compares what happens with what was promised.

mod calls;
mod context;
mod conversation;
mod course;
mod daemon;
mod disk;
mod disks;
mod governed;
pub mod kinds;
mod lan;
mod link;
pub mod moves;
mod oracle;
mod queue;
mod rng;
pub mod script;
mod service;
pub mod shrink;
mod takeover;
pub mod variant;
mod virtqueues;

pub use self::calls::{Calls, Fault as CallFault};
pub use self::course::Outcome;
pub use self::disks::{Disks, Fault, InMove, Moves, Ports};
pub use self::governed::{Summary, follow};
pub use self::lan::port::Misuse;
pub use self::virtqueues::{Fault as MachineFault, Machine};
