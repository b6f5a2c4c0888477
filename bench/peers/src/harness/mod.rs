//! What every mechanism has in common: two processes on two CPUs, messages that are checked byte for byte, time.

pub mod job;
pub mod process;
pub mod shared;
pub mod spin_backoff;

use fipsee_ring::Message;

/// Messages in a burst, and slots of the rings that carry calls and answers.
pub const BURST: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Sends calls, receives answers; sends the stream. Runs on the first CPU.
    Client,
    /// Receives calls, sends answers; receives the stream. Runs on the second CPU.
    Server,
}

/// What is measured of a mechanism this time.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// CPUs of client and server.
    pub cpus: [usize; 2],
    /// Messages that a ring holds, where a mechanism lets us choose.
    pub slots: u32,
    /// Messages that are sent at a time: 1 or [`BURST`].
    pub burst: usize,
    /// Exchanges before those that are measured: they map pages, fill caches, calibrate.
    pub warm_up: u64,
    /// Exchanges of `burst` messages that are measured.
    pub exchanges: u64,
}

/// A way to carry messages between two processes.
///
/// What goes wrong while messages are carried is a panic with a reason: it ends the process, and the row of the table says
/// why. A mechanism never retries what should not fail.
pub trait Mechanism: Sized {
    type End: End;

    /// What both processes inherit, made by the client's process before it forks the server's.
    fn share(plan: &Plan) -> Result<Self, String>;

    /// One side's end, made in its own process on its own CPU while the other side makes the other end.
    fn open(self, side: Side, plan: &Plan) -> Result<Self::End, String>;
}

/// One endpoint of a mechanism, both directions.
pub trait End {
    /// Send all of `messages` in order, in the way the mechanism has for several at once; wait where there is no room.
    fn send(&mut self, messages: &[Message]);

    /// Wait for the next message and take it, and what else has come with it, at most `into.len()`; how many.
    fn receive(&mut self, into: &mut [Message]) -> usize;
}

/// Ticks of the time-stamp counter per message (per message and its answer where calls are answered).
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Outcome {
    /// Half of the exchanges took at most this.
    pub p50: f64,
    /// 99 of 100 exchanges took at most this.
    pub p99: f64,
    /// The fastest exchange.
    pub min: f64,
    pub mean: f64,
}
