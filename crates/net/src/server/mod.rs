//! Networks as workers serve them (docs/decisions/0037-network.md): queues of ports, and the service that clients attach to.
//!
//! A worker that visits a transmit queue takes the frames, asks the switch who gets them, and copies each into buffers that the
//! receivers have posted.

mod compressed;
mod copy;
mod endpoint;
mod events;
mod flow;
mod network;
mod outputs;
mod packed;
mod port;
mod queue;
mod receiver;
mod service;
mod software;
pub mod stages;
mod steering;
mod switches;
pub mod tap;

pub use self::copy::copy_frame;
pub use self::endpoint::{Delivered, Frame, Receive};
pub use self::network::{Allow, Holder, MAX_PORTS, NetworkSetup, Outcome, PortSetup, Reservation};
pub use self::port::{Held, Sending, ServedPort};
pub use self::queue::now_ns;
pub use self::service::{Assigned, Follow, Networks};
pub use self::switches::Switches;
