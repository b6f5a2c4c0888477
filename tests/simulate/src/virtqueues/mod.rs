//! Lifetimes of a virtual machine: a hypervisor and a driver written from the specifications, against the product's vhost-user state
//! machine and its servers of virtqueues. Guest memory and the inflight area outlive daemons, which are killed between two stores, too.

mod driver;
mod hypervisor;
mod oracle;
mod world;

use crate::Outcome;
use crate::moves::Step;
use crate::rng::Rng;
use crate::script::{Kind, Script};
use crate::variant::Variant;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The workers do nothing for so many steps.
    WorkerSlow(u32),
    /// The disk does nothing for so many steps.
    DiskSlow(u32),
    /// So many requests fail at the disk.
    DiskErrors(u32),
    /// The daemon is killed, perhaps between two stores of a publishing, and started again.
    Killed,
    /// The hypervisor hangs up and connects again.
    HungUp,
    /// The guest resets its device with requests in flight.
    Reset,
    /// The hypervisor stops the queues and starts them again, as for a pause.
    Paused,
    /// A queue goes to another worker.
    Transfer,
    /// The daemon is killed the next time a queue that moves is so far, and started again.
    InMove(Step),
    /// The hypervisor hands over its memory once more.
    Memory,
    /// The hypervisor hands over other interrupts.
    Call,
    /// The driver makes a chain available that no correct one makes.
    BadChain,
}

/// A device and how its driver uses it.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Queues of the device.
    queues: u16,
    /// Descriptors of a queue.
    size: u16,
    /// Event index and indirect descriptors, if the driver uses them.
    features: u64,
    /// Do its queues go from worker to worker all the time?
    is_restless: bool,
}

impl Kind for Machine {
    type Fault = Fault;

    const NAME: &'static str = "machine";

    fn draw(rng: &mut Rng) -> Self {
        let features = [(driver::F_EVENT_INDEX, 60), (driver::F_INDIRECT, 60)];
        let features = features.into_iter().filter(|(_, percent)| rng.percent(*percent)).map(|(feature, _)| feature).sum();
        let queues = if rng.percent(30) { 2 } else { 1 };
        Self { queues, size: 8 << rng.below(3), features, is_restless: rng.percent(30) }
    }

    fn draw_fault(&self, rng: &mut Rng) -> Fault {
        if self.is_restless && rng.percent(70) {
            return Fault::InMove([Step::Ordered, Step::Draining, Step::Lifted, Step::Moved, Step::Refused][rng.below(5)]);
        }
        match rng.below(15) {
            0 => Fault::WorkerSlow(10 + rng.small(100)),
            1 => Fault::DiskSlow(10 + rng.small(200)),
            2 => Fault::DiskErrors(1 + rng.small(3)),
            3..=5 => Fault::Killed,
            6 => Fault::HungUp,
            7 | 8 => Fault::Reset,
            9 => Fault::Paused,
            10 => Fault::Memory,
            11 => Fault::Call,
            12 | 13 => Fault::Transfer,
            _ => Fault::BadChain,
        }
    }

    fn simpler(&self) -> Vec<Self> {
        let one_queue = (self.queues > 1).then(|| Self { queues: 1, ..self.clone() });
        let plain = (self.features > 0).then(|| Self { features: 0, ..self.clone() });
        let rests = self.is_restless.then(|| Self { is_restless: false, ..self.clone() });
        one_queue.into_iter().chain(plain).chain(rests).collect()
    }

    fn play(script: &Script<Self>, variant: Option<Variant>, keeps: bool) -> Outcome {
        world::play(script, variant, keeps)
    }
}
