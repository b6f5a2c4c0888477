//! One client: its state, and what it holds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use fipsee_ring::control::{Control, Refusal, RefusalCode, VERSION, Wanted};
use fipsee_ring::handshake::refuse;
use fipsee_ring::region::Region;

use super::moves::Move;
use super::{Attachment, ClientLimits, Credentials};
use crate::{Assignment, Engine, Share};

pub enum State<E: Engine> {
    /// Connected; has sent nothing yet.
    Silent {
        since: Instant,
    },
    Greeted {
        since: Instant,
    },
    Attached(Held<E>),
    /// Asked to detach; the workers are finishing.
    Detaching(Held<E>),
    /// It holds nothing but its connection.
    Done,
}

pub struct Held<E: Engine> {
    pub attachment: Box<dyn Attachment<E>>,
    pub(super) assignments: Vec<Assignment>,
    /// Memory of its own that it registered, by id.
    pub memory: BTreeMap<u16, Registered>,
    /// The one of its queues that is on its way between workers.
    pub(super) moving: Option<Move<E>>,
}

impl<E: Engine> Held<E> {
    /// What a client holds that has just been attached.
    pub const fn new(attachment: Box<dyn Attachment<E>>, assignments: Vec<Assignment>) -> Self {
        Self { attachment, assignments, memory: BTreeMap::new(), moving: None }
    }

    /// Descriptors held for it: of the channel's memory, of both doorbells of each queue, of its own memory.
    pub fn descriptors(&self) -> u64 {
        1 + 2 * self.assignments.len() as u64 + self.memory.len() as u64
    }

    /// Memory held for it: its pool, and what it registered.
    pub fn memory_bytes(&self) -> u64 {
        self.registered_bytes() + self.attachment.pool_bytes()
    }

    pub fn registered_bytes(&self) -> u64 {
        self.memory.values().map(|held| held.region.length_bytes()).sum()
    }

    pub fn worker(&self, index: u16) -> Option<usize> {
        self.assignments.get(usize::from(index)).map(|assignment| assignment.worker)
    }

    pub fn workers(&self) -> Vec<usize> {
        let mut workers: Vec<usize> = self.assignments.iter().map(|assignment| assignment.worker).collect();
        workers.sort_unstable();
        workers.dedup();
        workers
    }
}

pub struct Registered {
    pub region: Arc<Region>,
    /// `ACCESS_*` bits.
    pub access: u16,
    /// It is to go, and the workers have not confirmed that.
    pub is_going: bool,
}

pub struct Session<E: Engine> {
    pub credentials: Credentials,
    /// Those in force when it connected.
    pub limits: ClientLimits,
    /// Agreed in the greeting.
    pub features: u64,
    /// Of its queues.
    pub share: Share,
    pub state: State<E>,
    /// Its ATTACH, while it waits for the last requests of clients that are gone; and the answer if that takes too long.
    pub(super) pending_attach: Option<(Wanted, Refusal)>,
}

impl<E: Engine> Session<E> {
    /// A client that has just connected, or one that another process admitted.
    pub const fn new(credentials: Credentials, limits: ClientLimits, features: u64, share: Share, state: State<E>) -> Self {
        Self { credentials, limits, features, share, state, pending_attach: None }
    }

    pub const fn held(&self) -> Option<&Held<E>> {
        match &self.state {
            State::Attached(held) | State::Detaching(held) => Some(held),
            _ => None,
        }
    }

    /// HELLO: agree on a version and on features.
    pub(super) fn greet(
        &mut self,
        (version_min, version_max): (u16, u16),
        features: u64,
        now: Instant,
    ) -> Result<Control, Refusal> {
        if !matches!(self.state, State::Silent { .. }) {
            return Err(refuse(RefusalCode::Malformed, "HELLO came twice; it is the first message and the only one of its kind"));
        }
        if !(version_min..=version_max).contains(&VERSION) {
            let text = format!(
                "the client speaks protocol versions {version_min} to {version_max}, this daemon speaks {VERSION}; upgrade the older of the two"
            );
            return Err(refuse(RefusalCode::Version, text));
        }
        self.features = features;
        self.state = State::Greeted { since: now };
        let ClientLimits { max_queues, max_depth, max_pool_bytes, .. } = self.limits;
        Ok(Control::Welcome { version: VERSION, max_queues, max_depth, features, max_pool_bytes })
    }

    /// Since when the next step of its handshake is waited for.
    pub(super) const fn waits_since(&self) -> Option<Instant> {
        match self.state {
            State::Silent { since } | State::Greeted { since } => Some(since),
            _ => None,
        }
    }
}
