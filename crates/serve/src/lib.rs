//! The runtime of every service: threads that poll queues, whatever these carry.
//!
//! A service makes objects that are a [`Queue`] and hands them to workers by [`Command`]s; a worker polls them, wakes up for them, and
//! carries out changes when nothing is in flight. What a request is, and where queues come from, is not known here.

#![allow(missing_docs, reason = "a comment is where a name and a type do not say it")]

mod assignment;
mod command;
mod declaration;
mod due;
mod engine;
pub mod governor;
pub mod limit;
mod meter;
mod poll_set;
pub mod probes;
mod queue;
mod quiesce;
pub mod session;
pub mod share;
pub mod takeover;
mod turns;
pub mod unix;
#[cfg(feature = "uring")]
pub mod uring;
mod worker;

pub use self::assignment::{Assignment, Pool};
pub use self::command::{Added, Change, Command, Make, NotAdded, Removed, Report, When, Which};
pub use self::declaration::{Argument, FileUse, Metric, Needs};
pub use self::engine::{Engine, Ticket};
pub use self::meter::{IdleTime, WakeUp, WakesUp};
pub use self::queue::{Queue, QueueName};
pub use self::quiesce::{AskedToQuiesce, IfAbandoned, NotQuiesced, Quiesce, Quiesced};
pub use self::share::{Blocks, Group, Groups, Share, Taken, Turn};
pub use self::worker::{AbortOnPanic, Pass, Worker, WorkerCounters, WorkerHandle, WorkerPlacement, spawn};
