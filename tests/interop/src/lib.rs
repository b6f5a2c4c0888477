//! What the interop tests share: the C half, the peer process, and the examples and tables that both languages give.
//!
//! C and Rust meet here only. The C side is written against `include/` and `docs/protocol.md`, so a difference between
//! the two is a mistake in one of them.
#![allow(missing_docs, reason = "helpers of tests, whose names say what they do")]

pub mod control;
pub mod ffi;
pub mod golden;
pub mod layout;
pub mod messages;
mod net;
pub mod peer;
pub mod random;
pub mod requests;
pub mod vm;
