//! Peers that lie. [`lies`] are told to a daemon by a client; [`liar`] is a daemon that tells them to its clients;
//! [`twins`] do as much and tell the truth.

pub mod liar;
pub mod lies;
pub mod twins;
