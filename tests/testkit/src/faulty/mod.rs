//! Faulty peers: clients ([`faults`]), virtual machines ([`guests`]) and a daemon ([`daemon`]). [`baselines`] do as much without a
//! fault.

pub mod baselines;
pub mod daemon;
pub mod fault;
pub mod faults;
pub mod guests;
