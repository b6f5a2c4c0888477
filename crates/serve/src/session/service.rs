//! What the sessions ask of a service, and of the program that serves it.

use std::any::Any;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use fipsee_ring::control::{Control, Page, Refusal, RefusalCode, Wanted};
use fipsee_ring::handshake::{Grant, refuse};
use fipsee_ring::region::Region;

use super::{ClientLimits, Sessions};
use crate::{Assignment, Command, Engine, Metric, QueueName, Quiesced, Share, WorkerPlacement};

/// A client's identity, from the kernel when it connected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
    pub more_gids: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    /// Its number; no other client of the program ever has the same.
    pub id: u64,
    pub credentials: &'a Credentials,
    pub limits: ClientLimits,
    /// Agreed in the greeting.
    pub features: u64,
    /// Of its queues.
    pub share: &'a Share,
}

/// Something that clients attach to. What it needs of a program that confines itself is declared before it is made:
/// [`Needs`](crate::Needs).
pub trait Service<E: Engine>: Send + Sync {
    fn number(&self) -> u16;

    /// Feature bits that it knows, offered in the greeting.
    fn features(&self) -> u64 {
        0
    }

    /// Its counters, for administrators, under names that no other service has. Called on a thread that serves no queue.
    fn metrics(&self) -> Vec<(&'static str, Metric)> {
        Vec::new()
    }

    /// LIST: what the client may attach to, of the names after this one in the order of their bytes. `None`: it does not list.
    fn list(&self, _client: &Client<'_>, _after: &str) -> Option<Page> {
        None
    }

    /// ATTACH. When this fails, nothing is held for the client.
    fn attach(&self, client: &Client<'_>, wanted: &Wanted) -> Result<Granted<E>, Denial>;

    /// Continue with a client of another process, which [saved](Attachment::save) these parts.
    fn adopt(&self, _client: &Client<'_>, _parts: Vec<Part<OwnedFd>>) -> Result<Adopted<E>, String> {
        Err("its service cannot be taken over".to_owned())
    }
}

pub trait Attachment<E: Engine>: Any + Send {
    fn name(&self) -> &str;

    /// [Number](Service::number) of the service.
    fn service(&self) -> u16;

    /// What another process needs to continue with the client. Its queues are quiesced. Memory of the client is sent separately.
    fn save(&self, _client: u64, _quiesced: &Quiesced) -> Result<Vec<Part<BorrowedFd<'_>>>, String> {
        Err("its service cannot be handed over".to_owned())
    }

    /// How the service takes memory of its clients. `None`: it takes none.
    fn memory(&self) -> Option<&dyn TakesMemory<E>> {
        None
    }

    /// Bytes of the program's memory that the client was given for its data.
    fn pool_bytes(&self) -> u64 {
        0
    }

    fn moved(&self, _client: u64, _index: u16, _place: WorkerPlacement) {}

    /// The connection is closed; requests in flight go on.
    fn leave(&self, _client: u64) {}

    /// No request is in flight any more, and no queue is served.
    fn release(&self, _client: u64) {}
}

/// A service with requests that may name memory of the client.
pub trait TakesMemory<E: Engine> {
    /// Let the client's queues on a worker use memory under this id; `access`: `ACCESS_*` bits.
    fn add_region(&self, client: u64, id: u16, region: &Arc<Region>, access: u16, ack: Ack) -> Command<E>;

    /// Take that memory away once nothing of the client is in flight.
    fn remove_region(&self, client: u64, id: u16, ack: Ack) -> Command<E>;
}

pub struct Granted<E: Engine> {
    pub attachment: Box<dyn Attachment<E>>,
    pub assignments: Vec<Assignment>,
    pub reply: Control,
    pub grant: Grant,
    pub commands: Vec<(usize, Command<E>)>,
}

/// A part of what another process needs to continue: at most 60 KB that only the service understands, and at most
/// [`MAX_PART_FILES`] descriptors.
#[derive(Debug)]
pub struct Part<F> {
    /// JSON or other text.
    pub state: String,
    pub files: Vec<F>,
}

/// Most descriptors of one [`Part`].
pub const MAX_PART_FILES: usize = 4;

/// A client of another process that a service continues to serve.
pub struct Adopted<E: Engine> {
    /// As in [`Granted`].
    pub attachment: Box<dyn Attachment<E>>,
    pub assignments: Vec<Assignment>,
    pub commands: Vec<(usize, Command<E>)>,
    /// Whether the workers, quiesced after that, have each queue where the other process left it.
    pub is_same: Box<dyn Fn(&Quiesced) -> bool>,
}

pub enum Denial {
    Refused(Refusal),
    /// It may be granted when the clients that have hung up are gone.
    Later(Refusal),
    /// The reason is for the administrator alone.
    Concealed {
        refusal: Refusal,
        reason: String,
    },
}

impl From<Refusal> for Denial {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// The program around the services: limits, numbers, log.
pub trait Host<E: Engine> {
    fn next_client(&mut self) -> u64;

    /// What one client may have that connects now.
    fn limits(&self) -> ClientLimits;

    /// Clients at a time: in all, and of one user if that is configured.
    fn max_clients(&self) -> (usize, Option<usize>);

    /// Bytes of memory that all clients of one user may hold, registered or in pools. The default sets no limit.
    fn max_memory_bytes_per_user(&self) -> u64 {
        u64::MAX
    }

    /// The share of the workers of a client that connects now. The default: one of its own.
    fn share(&self, credentials: &Credentials) -> Share {
        Share::own(&format!("process:{}", credentials.pid))
    }

    /// Descriptors that the program may open, and those that it holds beside its clients'. The default sets no limit.
    fn descriptors(&self) -> (u64, u64) {
        (u64::MAX, 0)
    }

    fn features(&self) -> u64;

    /// LIST, of the service with this number. The default has none that lists.
    fn list(&self, _client: &Client<'_>, _service: u16, _after: &str) -> Result<Page, Refusal> {
        Err(refuse(RefusalCode::Malformed, "LIST asks for an unknown service; upgrade the daemon or fix the client"))
    }

    fn attach(&mut self, client: &Client<'_>, wanted: &Wanted) -> Result<Granted<E>, Denial>;

    fn command(&mut self, worker: usize, command: Command<E>);

    /// Called before acknowledgements of workers are taken: what they sent before has to come first.
    fn catch_up(_sessions: &mut Sessions<E, Self>)
    where
        Self: Sized,
    {
    }

    /// A queue that is to go to another worker, whatever else is moved. Asked while none is on its way; one that is not here is
    /// left where it is.
    fn wanted_move(&mut self) -> Option<(QueueName, Assignment)> {
        None
    }

    /// Where a queue is to go, if the workers are unbalanced: from this worker, to that place. If none of the first may go, the next
    /// is asked for, from 0 on. The default moves none.
    fn uneven(&self, _nth: usize) -> Option<(usize, Assignment)> {
        None
    }

    /// No queue may go anywhere that was asked for. To look at all queues takes time: until there is news, none need be named again.
    fn stays_uneven(&mut self) {}

    /// May this queue be the one that goes, from the one worker to the other, if the workers are unbalanced?
    fn may_balance(&self, _queue: QueueName, _from: usize, _to: usize) -> bool {
        true
    }

    /// How often a client has left: a pending ATTACH that waits for that is looked at again when this changes.
    fn departures(&self) -> u64 {
        0
    }

    fn event(&mut self, _event: Event<'_>) {}
}

#[derive(Debug)]
pub enum Event<'a> {
    Attached { client: &'a Client<'a>, name: &'a str, queues: usize },
    Gone { client: u64, name: &'a str },
    Refused { client: u64, credentials: &'a Credentials, reason: &'a str },
}

/// What workers have finished for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    Registered(u16),
    Unregistered(u16),
    Finished,
    Gone,
    /// One of them has released the queue that is to move.
    Lifted,
    Moved,
    /// The other cannot serve it, and has released it.
    NotMoved,
}

/// Reports when its last clone is dropped: the last worker concerned has done its part.
pub type Ack = Arc<dyn Send + Sync>;

pub(super) struct Reporter {
    pub(super) report: Arc<dyn Fn(u64, Done) + Send + Sync>,
    pub(super) client: u64,
    pub(super) done: Done,
}

impl Drop for Reporter {
    fn drop(&mut self) {
        (self.report)(self.client, self.done);
    }
}
