//! `libfipsee`: the client for C. `include/fipsee_client.h`, `fipsee_doorbells.h` and `fipsee_port.h` document every function; the comments here say
//! what its caller's promises mean for Rust.
//!
//! Every function that can fail runs in `failure::guarded`, so no panic leaves the library: it becomes an error.
//! Handles are raw pointers whose validity is the caller's promise; null pointers and handles inherited by fork() are
//! detected.

mod blocking;
mod call_options;
mod caller;
mod disk;
mod doorbells;
mod failure;
mod fork;
mod function;
mod list;
mod memory;
mod options;
mod port;
mod queue;
mod reap;
mod service;
mod stage;
