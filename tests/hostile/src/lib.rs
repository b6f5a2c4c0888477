//! Peers that lie. [`lies`] are told to a daemon by a client; [`liar`] is a daemon that tells them to its clients.

pub mod liar;
pub mod lies;
