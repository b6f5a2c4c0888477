//! Calls as messages: what the typed interface and the C library are built on. Sizes are numbers here, not types.

mod client;
mod front;
mod server;
mod worker;

pub use client::RawClient;
pub use server::{RawServer, Stopper};
pub use worker::{RawWorker, Taken};
