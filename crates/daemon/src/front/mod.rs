//! Fronts: ways in for clients. One file per kind.

pub mod local;
mod session;
pub mod socket;
