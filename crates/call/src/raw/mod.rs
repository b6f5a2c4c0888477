//! Calls as messages: what the typed interface and the C library are built on. Sizes are numbers here, not types.

mod client;
#[cfg(feature = "server")]
mod clients;
#[cfg(feature = "server")]
mod queue;
#[cfg(feature = "server")]
mod server;
#[cfg(feature = "server")]
mod worker;

pub use client::RawClient;
/// For programs that drive a server without sockets and threads, as tests/simulate does.
#[cfg(feature = "server")]
#[doc(hidden)]
pub use clients::{Ending, Serving};
#[cfg(feature = "server")]
#[doc(hidden)]
pub use queue::Turns;
#[cfg(feature = "server")]
pub use server::{RawServer, Stopper};
#[cfg(feature = "server")]
pub use worker::{RawWorker, Taken};
