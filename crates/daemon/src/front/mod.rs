//! Fronts: ways in for clients. One file or folder per kind.

mod groups;
pub mod inherited;
pub mod local;
mod quota;
pub mod session;
pub mod vhost_user;
