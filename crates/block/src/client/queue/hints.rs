//! What the daemon hinted at when the queue's channel was made.

use fipsee_ring::tuning::Choices;

use super::Queue;

impl Queue {
    /// The CPU that the daemon's worker for this queue is bound to, as far as is known: see
    /// [`Placement`](crate::client::Placement).
    #[must_use]
    pub fn worker_cpu(&self) -> Option<usize> {
        self.channel.worker_cpu.and_then(|cpu| usize::try_from(cpu).ok())
    }

    /// How the queue's rings go about their work: as the daemon advises, else as this CPU's family likes.
    #[must_use]
    pub fn choices(&self) -> Choices {
        self.channel.tuning.to_choices()
    }
}
