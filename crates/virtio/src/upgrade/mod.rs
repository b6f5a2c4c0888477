//! The in-band upgrade (docs/protocol.md section 9).

pub mod wire;
