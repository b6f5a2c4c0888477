//! What a lifetime does: all that is drawn from its seed, and what shrinking leaves of it.

use crate::client::Habits;
use crate::rng::Rng;
use crate::visitor::Visit;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The client's process ends, and another goes on.
    ClientGone,
    /// Half a packet of the client.
    PacketCut,
    /// A worker does nothing for so many steps.
    WorkerSlow(u32),
    /// The disk does nothing for so many steps.
    DiskSlow(u32),
    /// So many requests fail at the disk.
    DiskErrors(u32),
    /// Another daemon takes over; does it wait for requests in flight?
    Replaced(bool),
    /// The daemon is killed and started again.
    Killed,
    /// Likewise, and what is not durable may be lost.
    PowerCut,
    /// A second client comes.
    Visitor(Visit),
    /// The client takes memory back that its requests name.
    Unregister,
}

/// When something goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// After so many answered requests,
    pub answered: u32,
    /// and so many steps more.
    pub steps: u32,
    /// This.
    pub fault: Fault,
}

/// A lifetime.
#[derive(Clone, Debug)]
pub struct Script {
    /// What all numbers are drawn from.
    pub seed: u64,
    /// Workers of the daemon.
    pub workers: usize,
    /// Empty passes before a worker arms its doorbells.
    pub idle_passes: u32,
    /// What the client does.
    pub habits: Habits,
    /// What goes wrong, one after the other.
    pub faults: Vec<Planned>,
    /// The scheduler's choices, if they are not to be drawn; after the last, everybody has its turn.
    pub choices: Option<Vec<u8>>,
}

impl Script {
    /// The lifetime of a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed, 1);
        let habits = Habits::draw(&mut rng);
        let count = 1 + rng.below(3);
        let mut faults: Vec<Planned> = (0..count).map(|_| Self::draw_fault(&mut rng, &habits)).collect();
        faults.sort_by_key(|planned| planned.answered);
        let (workers, idle_passes) = (1 + rng.below(2), u32::try_from(rng.below(3)).unwrap_or(0));
        Self { seed, workers, idle_passes, habits, faults, choices: None }
    }

    fn draw_fault(rng: &mut Rng, habits: &Habits) -> Planned {
        let small = |rng: &mut Rng, limit| u32::try_from(rng.below(limit)).unwrap_or(0);
        let fault = match rng.below(12) {
            0 | 1 => Fault::ClientGone,
            2 => Fault::PacketCut,
            3 => Fault::WorkerSlow(10 + small(rng, 100)),
            4 => Fault::DiskSlow(10 + small(rng, 100)),
            5 => Fault::DiskErrors(1 + small(rng, 4)),
            6 | 7 => Fault::Replaced(rng.percent(80)),
            8 => Fault::Killed,
            9 => Fault::PowerCut,
            10 if habits.registers => Fault::Unregister,
            _ => Fault::Visitor(match rng.below(3) {
                0 => Visit::Attach,
                1 => Visit::Silent,
                _ => Visit::HangUp,
            }),
        };
        Planned { answered: small(rng, 90), steps: small(rng, 12), fault }
    }
}
