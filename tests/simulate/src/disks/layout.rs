//! What is drawn of a disk's lifetime.

use super::claims::Terms;
use super::client::ClientParameters;
use super::second_client::Visit;
use crate::course::Outcome;
use crate::disk::SECTORS;
use crate::lan::PortParameters;
use crate::lan::port::Misuse;
use crate::link::Damaged;
use crate::moves::Step;
use crate::rng::Rng;
use crate::script::{Kind, Script};
use crate::variant::Variant;

/// What goes wrong, or happens beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The client's process ends, and another goes on.
    ClientGone,
    /// The client sends a packet that no correct one sends.
    PacketDamaged(Damaged),
    /// A worker does nothing for so many steps.
    WorkerSlow(u32),
    /// The disk does nothing for so many steps.
    DiskSlow(u32),
    /// So many requests fail at the disk.
    DiskErrors(u32),
    /// The disk gets another size, and then one more.
    Resized([usize; 2]),
    /// Another daemon takes over; does it wait for requests in flight?
    Replaced(bool),
    /// The daemon is killed and started again.
    Killed,
    /// Likewise, and what is not durable may be lost.
    PowerCut,
    /// The daemon asks all clients to finish and detach, as before it ends.
    Drained,
    /// One more client comes.
    SecondClient(Visit),
    /// The client takes memory back that its requests name.
    Unregister,
    /// One of the client's queues, of this number if there are so many, goes to the next worker.
    Moved(u16),
    /// The next time a queue that moves is so far.
    InMove(Step, InMove),
    /// The client of a port is faulty.
    Port(Misuse),
}

/// What happens in the middle of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InMove {
    /// The client's process ends, and another goes on.
    ClientGone,
    /// The daemon is killed and started again.
    Killed,
    /// Likewise, and what is not durable may be lost.
    PowerCut,
    /// Another daemon wants to take over.
    Replaced,
    /// The daemon asks all clients to finish and detach.
    Drained,
}

/// Clients, workers, and the disk.
#[derive(Clone, Debug)]
pub struct Disks {
    /// Workers of the daemon.
    pub workers: usize,
    /// Empty passes before a worker arms its doorbells.
    pub idle_passes: u32,
    /// May several write at a time, whatever they claim?
    pub shared: bool,
    /// Are requests on the same sectors in flight together?
    pub overlaps: bool,
    /// Is a service of calls and streams served, too, to one client?
    pub adds: bool,
    /// Do queues go from worker to worker all the time?
    pub is_restless: bool,
    /// What each client does.
    pub clients: Vec<ClientParameters>,
    /// Ports of a network beside it.
    pub ports: Vec<PortParameters>,
}

impl Kind for Disks {
    type Fault = Fault;

    const NAME: &'static str = "disks";

    fn draw(rng: &mut Rng) -> Self {
        let count = if rng.percent(40) { 1 } else { 2 + rng.below(3) };
        // All may write; claims of all kinds; claims without effect.
        let scheme = if count == 1 { 3 } else { rng.below(3) };
        let clients = (0..count).map(|_| {
            let terms = draw_terms(rng, scheme);
            ClientParameters::draw(rng, terms)
        });
        let clients = clients.collect();
        let (workers, idle_passes) = (1 + rng.below(2), rng.small(3));
        let (overlaps, adds) = (rng.percent(50), rng.percent(20));
        Self { workers, idle_passes, shared: scheme == 2, overlaps, adds, is_restless: false, clients, ports: Vec::new() }
    }

    fn draw_fault(&self, rng: &mut Rng) -> Fault {
        let registers = self.clients.iter().any(|parameters| parameters.registers);
        match rng.below(18) {
            0 | 1 => Fault::ClientGone,
            2 => Fault::PacketDamaged(Damaged::draw(rng)),
            3 => Fault::WorkerSlow(10 + rng.small(100)),
            4 => Fault::DiskSlow(10 + rng.small(100)),
            5 => Fault::DiskErrors(1 + rng.small(4)),
            6 | 7 => Fault::Replaced(rng.percent(80)),
            8 => Fault::Killed,
            9 => Fault::PowerCut,
            10 => Fault::Drained,
            11 if registers => Fault::Unregister,
            12..=14 => {
                let [first, second] = [(); 2].map(|()| SECTORS / 2 + rng.below(SECTORS / 2 + 1));
                Fault::Resized([first, if rng.percent(50) { first } else { second }])
            }
            15 | 16 => Fault::Moved(u16::from(rng.percent(50))),
            _ => Fault::SecondClient(match rng.below(3) {
                0 => Visit::Attach,
                1 => Visit::Silent,
                _ => Visit::HangUp,
            }),
        }
    }

    fn simpler(&self) -> Vec<Self> {
        let without = |index: usize| {
            let mut clients = self.clients.clone();
            clients.remove(index);
            Self { clients, ..self.clone() }
        };
        let mut simpler = Vec::new();
        if self.clients.len() > 1 {
            simpler.extend((0..self.clients.len()).map(without));
        }
        if self.adds {
            simpler.push(Self { adds: false, ..self.clone() });
        }
        if self.workers > 1 {
            simpler.push(Self { workers: 1, ..self.clone() });
        }
        simpler
    }

    fn play(script: &Script<Self>, variant: Option<Variant>, keeps: bool) -> Outcome {
        super::play(script, variant, keeps)
    }
}

fn draw_terms(rng: &mut Rng, scheme: usize) -> Terms {
    let reads_only = rng.percent(20);
    match scheme {
        // Alone: for itself, or as the sole writer.
        3 if rng.percent(50) => Terms { exclusive: true, ..Terms::default() },
        3 => Terms { claims: true, ..Terms::default() },
        _ if reads_only => Terms { reads_only, ..Terms::default() },
        0 => Terms::default(),
        _ => match rng.below(8) {
            0..=2 => Terms { claims: true, ..Terms::default() },
            3 => Terms { forces: true, ..Terms::default() },
            4 => Terms { exclusive: true, claims: rng.percent(50), ..Terms::default() },
            _ => Terms::default(),
        },
    }
}
