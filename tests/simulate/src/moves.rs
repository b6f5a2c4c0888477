//! How far the move of a queue between workers is, and how many were made and interrupted.

use fipsee_serve::QueueName;

/// How far a move is. A virtqueue has no step of its own between being taken from the one worker and being given to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The worker that has the queue is asked for it.
    Ordered,
    /// That worker waits until nothing of the queue is in flight.
    Draining,
    /// No worker has it, and that was not taken note of.
    Lifted,
    /// The other worker is asked to serve it.
    Handed,
    /// It does, and that was not taken note of.
    Added,
    /// It was.
    Moved,
    /// The other worker cannot serve it, and that was not taken note of.
    Refused,
}

impl Step {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Ordered, "ordered"),
        (Self::Draining, "draining"),
        (Self::Lifted, "lifted"),
        (Self::Handed, "handed"),
        (Self::Added, "added"),
        (Self::Moved, "moved"),
        (Self::Refused, "refused"),
    ];
}

/// What came of moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The other worker serves the queue.
    pub moves: u64,
    /// It could not.
    pub refused: u64,
    /// What was interrupted at each step, in the order of [`Step::ALL`].
    pub kills: [u64; Step::ALL.len()],
}

impl Tally {
    /// With those of another lifetime.
    pub fn add(&mut self, other: &Self) {
        self.moves += other.moves;
        self.refused += other.refused;
        self.kills.iter_mut().zip(other.kills).for_each(|(kills, more)| *kills += more);
    }

    /// Something is killed at this step.
    pub(crate) fn kill(&mut self, step: Step) {
        self.kills[step as usize] += 1;
    }
}

#[derive(Clone, Copy, Debug)]
struct Moving {
    queue: QueueName,
    from: usize,
    step: Step,
}

/// The move that is under way, as the commands to workers and their results show it.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    current: Option<Moving>,
    /// The next queue that is handed to its other worker is refused there.
    pub(crate) refuses_next: bool,
    pub(crate) tally: Tally,
}

impl Moves {
    /// A worker is asked for a queue.
    pub(crate) fn ordered(&mut self, queue: QueueName, from: usize) {
        self.settle(false);
        self.current = Some(Moving { queue, from, step: Step::Ordered });
    }

    /// A worker has made a pass: a queue that it was asked for and still has is waited for.
    pub(crate) fn passed(&mut self, worker: usize) {
        let taken = self.current.iter_mut().filter(|moving| moving.from == worker && moving.step == Step::Ordered);
        taken.for_each(|moving| moving.step = Step::Draining);
    }

    /// It is so far.
    pub(crate) fn reached(&mut self, queue: QueueName, step: Step) {
        self.current.iter_mut().filter(|moving| moving.queue == queue).for_each(|moving| moving.step = step);
    }

    /// A worker is asked to serve a queue. Is it one that moves, and is it to be refused?
    pub(crate) fn handed(&mut self, queue: QueueName) -> Option<bool> {
        let moving = self.current.as_mut().filter(|moving| moving.queue == queue && moving.step == Step::Lifted)?;
        moving.step = Step::Handed;
        Some(std::mem::take(&mut self.refuses_next))
    }

    /// Is the queue being taken from its worker?
    pub(crate) fn takes(&self, queue: QueueName) -> bool {
        let is_before = |step| matches!(step, Step::Ordered | Step::Draining);
        self.current.is_some_and(|moving| moving.queue == queue && is_before(moving.step))
    }

    /// Has this client lost a queue that could not move, and with it its attachment?
    pub(crate) fn has_lost(&self, client: u64) -> bool {
        self.current.is_some_and(|moving| moving.queue.client == client && moving.step == Step::Refused)
    }

    /// After a step of an actor: how far which queue is. `is_moving`: according to the sessions.
    pub(crate) fn settle(&mut self, is_moving: bool) -> Option<(Step, QueueName)> {
        if !is_moving {
            match &mut self.current {
                Some(moving) if moving.step == Step::Added => {
                    self.tally.moves += 1;
                    moving.step = Step::Moved;
                }
                Some(Moving { step: Step::Refused, .. }) => {
                    self.tally.refused += 1;
                    self.current = None;
                }
                current => *current = None,
            }
        }
        self.current.map(|moving| (moving.step, moving.queue))
    }

    /// The daemon is gone.
    pub(crate) fn forget(&mut self) {
        (self.current, self.refuses_next) = (None, false);
    }
}
