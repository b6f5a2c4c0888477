//! Rings of 64-byte messages in shared memory, and the channel built from them.
//!
//! One writer and one reader share a [`ring`]; the peer at the other end is never trusted. What each part does
//! and does not know is in `ARCHITECTURE.md`; the bytes are in `docs/protocol.md`; the memory-ordering argument,
//! with the letters used in comments here, is in `docs/memory-order.md`.
//!
//! This crate knows no service: it moves 60-byte payloads and file descriptors. What a service adds to the rules of
//! channels it says in a `channel::Profile`.

#![allow(missing_docs, reason = "a comment is where a name and a type do not say it")]
#![cfg_attr(
    not(all(target_arch = "x86_64", not(miri))),
    allow(unused_variables, dead_code, reason = "for instructions that only x86-64 has")
)]

#[cfg(target_endian = "big")]
compile_error!("the wire is little-endian and messages are moved unchanged: Fip-see needs a little-endian machine");

#[cfg(not(loom))]
pub mod channel;
pub mod clock;
pub mod control;
pub mod cpu;
pub mod doorbell;
pub mod error;
pub mod fault;
#[cfg(not(loom))]
pub mod handshake;
pub mod held;
pub mod layout;
pub mod mailbox;
#[cfg(not(loom))]
pub mod mapped;
pub mod memory;
pub mod message;
pub mod notify;
#[cfg(not(loom))]
pub mod pace;
#[cfg(not(loom))]
pub mod port;
pub mod process;
pub mod region;
pub mod ring;
pub mod seqpacket;
mod sync;
pub mod tuning;
pub mod wait;
pub mod wire;

pub use fault::PeerFault;
pub use message::Message;
pub use sync::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, full_fence};
