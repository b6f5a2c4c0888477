//! Fronts: ways in for clients. One file per kind.

pub mod inherited;
pub mod local;
pub mod session;
