//! The ring and what is around it: messages and memory that both sides share, doorbells, waiting, the control plane's packets.
#![cfg(not(any(loom, miri)))]

mod backoff;
mod choices;
mod common;
mod control_messages;
mod control_socket;
#[cfg(target_arch = "x86_64")]
mod copy_in_assembly;
#[cfg(target_arch = "x86_64")]
mod emulator;
mod gather;
mod geometry;
#[cfg(target_arch = "x86_64")]
mod machine_code;
mod memory;
mod notify;
mod peer_memory;
mod port;
mod sleeping;
mod torn_messages;
#[cfg(target_arch = "x86_64")]
mod wait_conformance;
#[cfg(target_arch = "x86_64")]
mod wait_encodings;
