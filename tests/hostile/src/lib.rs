//! Peers that lie. [`lies`] are told to a daemon by a client, [`guests`] by a virtual machine; [`liar`] is a daemon that tells them to its
//! clients; [`twins`] do as much and tell the truth.

pub mod baselines;
pub mod fault;
pub mod faults;
pub mod faulty_daemon;
pub mod guests;
