//! Networks as workers serve them (docs/decisions/0037-network.md): queues of ports, and the service that clients attach to.
//!
//! A worker that visits a transmit queue takes the frames, asks the switch who gets them, and copies each into buffers that the
//! receivers have posted.

mod copy;
mod network;
mod queue;
mod receiver;
mod service;

pub use self::network::{Allow, NetworkSetup, PortSetup};
pub use self::service::{Assigned, Follow, Networks};
