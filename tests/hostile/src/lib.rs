//! Faulty peers: clients ([`faults`]), virtual machines ([`guests`]) and a daemon ([`faulty_daemon`]). [`baselines`] do as much
//! without a fault.

pub mod baselines;
pub mod fault;
pub mod faults;
pub mod faulty_daemon;
pub mod guests;
