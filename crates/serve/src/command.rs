//! What a worker is asked for. A worker carries out what it finds in its mailbox in order, with no queue visited in between.

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::mpsc::Sender;

use crate::{Engine, Queue, QueueName, Quiesce, Share};

/// Makes a queue, which begins its asynchronous work under this number.
pub type Make<E> = Box<dyn FnOnce(u32) -> Result<Box<dyn Queue<E>>, String> + Send>;
/// Called with the result of [`Command::Add`].
pub type Added<E> = Box<dyn FnOnce(Result<(), NotAdded<E>>) + Send>;
/// Called for each queue that is to change, between two visits; dropped after the last.
pub type Change<E> = Box<dyn FnMut(&mut dyn Queue<E>) + Send>;
/// Called with what each queue that worked was served since the last report, in cost units.
pub type Report = Box<dyn FnOnce(Vec<(QueueName, u64)>) + Send>;
/// Called with each queue that is removed, which is served no more, and its share; dropped after the last.
pub type Removed<E> = Box<dyn FnMut(Box<dyn Queue<E>>, Share) + Send>;

pub enum Command<E: Engine> {
    Add {
        name: QueueName,
        share: Share,
        /// Makes it, on the worker's thread.
        make: Make<E>,
        added: Added<E>,
    },
    /// Change queues. Without one that is meant, the change is dropped.
    Change {
        which: Which,
        when: When,
        change: Change<E>,
    },
    /// Let go of queues once nothing of theirs is in flight. Without one that is meant, the callback is dropped.
    Remove {
        which: Which,
        /// First serve what was published?
        finish: bool,
        /// Called with each.
        removed: Removed<E>,
    },
    /// Report what each queue that worked was served since this was asked last: its cost.
    Loads(Report),
    /// Run on these CPUs from now on.
    Bind(Vec<usize>),
    /// Call [`Engine::start`]: dropping the sender says that it is done.
    StartEngine(Sender<()>),
    Quiesce(Quiesce),
    /// A [`Limiter`](crate::limit::Limiter) was set: queues that wait for it may go on.
    LimitsChanged,
    /// The program ends: what queues that are closing have left, which is bounded, is served without limits from now on.
    LiftLimits,
    /// Stop when every queue is gone.
    Stop,
}

impl<E: Engine> Command<E> {
    /// Serve what `make` makes on the worker's thread, given its number; `added` is called with the result.
    pub fn add<Q: Queue<E>>(
        name: QueueName,
        share: Share,
        make: impl FnOnce(u32) -> Result<Q, String> + Send + 'static,
        added: impl FnOnce(Result<(), NotAdded<E>>) + Send + 'static,
    ) -> Self {
        let make = move |id| make(id).map(|queue| Box::new(queue) as Box<dyn Queue<E>>);
        Self::Add { name, share, make: Box::new(make), added: Box::new(added) }
    }

    /// Change those of the queues that are of the kind `Q`.
    pub fn change<Q: Queue<E>>(which: Which, when: When, mut change: impl FnMut(&mut Q) + Send + 'static) -> Self {
        let change = move |queue: &mut dyn Queue<E>| {
            if let Some(queue) = (queue as &mut dyn Any).downcast_mut() {
                change(queue);
            }
        };
        Self::Change { which, when, change: Box::new(change) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Queue(QueueName),
    Client(u64),
    All,
}

impl Which {
    pub(crate) fn is_meant(self, name: QueueName) -> bool {
        match self {
            Self::Queue(queue) => queue == name,
            Self::Client(client) => client == name.client,
            Self::All => true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Now,
    /// When nothing of the queue is in flight; it takes no requests before that.
    Idle,
}

pub enum NotAdded<E: Engine> {
    /// It could not be made, in words.
    NotMade(String),
    /// Its doorbell cannot be watched; the queue, unchanged, and its share.
    Doorbell(io::Error, Box<dyn Queue<E>>, Share),
}

impl<E: Engine> fmt::Debug for NotAdded<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMade(reason) => f.debug_tuple("NotMade").field(reason).finish(),
            Self::Doorbell(error, ..) => f.debug_tuple("Doorbell").field(error).finish_non_exhaustive(),
        }
    }
}
