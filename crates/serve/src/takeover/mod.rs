//! The protocol by which a new daemon takes over from another (docs/decisions/0015-takeover.md), as two state machines without
//! I/O: packets, timeouts and completed steps go in, the daemon's next step comes out. The daemon carries it out over a socket,
//! `tests/simulate` over queues with faults. The contents of packets are not known here, only their order.

mod giving;
mod taking;

use std::time::Duration;

pub use self::giving::{Giving, GivingStep};
pub use self::taking::{Taking, TakingStep};

/// How long the new daemon's part may take while clients are served, such as to lock memory. The admin socket waits for it.
pub const PREPARE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the new daemon may take while queues are quiesced: it needs milliseconds, unless it is hostile or the machine stalls.
pub const TAKE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineError {
    /// The other daemon is gone, or has closed its end.
    Ended,
    /// It did not do its part in time.
    TimedOut,
    /// The packet is invalid, or the machine lacks something; in words.
    Wrong(String),
}

impl LineError {
    /// As text; `what` was to be received, or sent.
    #[must_use]
    pub fn describe(self, what: &str) -> String {
        match self {
            Self::Ended => format!("the other daemon ended before {what}"),
            Self::TimedOut => {
                format!(
                    "in time the other daemon did not come to the point at which {what}; look whether it is stopped or the machine overloaded"
                )
            }
            Self::Wrong(text) => format!("{what}: {text}"),
        }
    }
}

/// The packets of the giving daemon, in this order, without their contents: greeting, what is shared, `Prepare`; clients of every
/// transport, each followed by its memories and then its records, and what else changes meanwhile; `End`. A refusal may come at any place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PacketKind {
    Greeting,
    /// Something that can be handed over while clients are served.
    Shared,
    /// That was all of it.
    Prepare,
    /// A client, and how many packets of each kind follow.
    Client {
        client: u64,
        /// Pieces of memory.
        memories: usize,
        /// Queues, or what a service says of them.
        records: usize,
    },
    /// A piece of memory of this client, which is the last one.
    Memory(u64),
    /// A record of this client, likewise.
    Record(u64),
    /// Something of no client that changes while clients are served.
    Late,
    End,
    /// It continues to serve, for this reason.
    Refused(String),
}

/// What the taking daemon answers. With braces: without them, a parser would accept fields that the packet does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To `Prepare`: continue.
    Prepared {},
    /// To `End`: it is done. The sender serves, and the receiver never does again.
    Taken {},
    Refused {
        reason: String,
    },
}
