//! Faulty peers: clients ([`faults`]; of networks, [`ports`]), virtual machines ([`guests`]) and a daemon, with one fault ([`daemon`])
//! or any ([`script`]). [`baselines`] do as much without a fault.

pub mod baselines;
pub mod daemon;
pub mod fault;
pub mod faults;
pub mod guests;
pub mod ports;
pub mod script;
