//! Lifetimes of a virtual machine: a hypervisor and a driver written from the specifications, against the product's vhost-user state
//! machine and its servers of virtqueues. Guest memory and the inflight area outlive daemons, which are killed between two stores, too.

mod driver;
mod hypervisor;
mod oracle;
mod world;

use std::cell::RefCell;

pub use self::world::play;
use crate::rng::Rng;

/// What is broken on purpose, which must be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A request leaves the inflight area before the used index is published.
    InflightClearedEarly,
    /// The used index is published before the elements.
    UsedIndexFirst,
    /// GET_VRING_BASE is answered while requests are in flight.
    StoppedInFlight,
    /// A worker that arms does not look once more.
    SleepsWithoutLook,
    /// A daemon that comes after a killed one does not look at the inflight area.
    InflightIgnored,
}

impl Broken {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::InflightClearedEarly, "inflight-cleared-early"),
        (Self::UsedIndexFirst, "used-index-first"),
        (Self::StoppedInFlight, "stopped-in-flight"),
        (Self::SleepsWithoutLook, "virtqueue-sleeps-without-look"),
        (Self::InflightIgnored, "inflight-ignored"),
    ];
}

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
    /// The hypervisor hands over its memory once more.
    Memory,
    /// The hypervisor hands over other interrupts.
    Call,
    /// The driver makes a chain available that no correct one makes.
    BadChain,
}

/// A lifetime: all that is drawn from its seed, and what shrinking leaves of it.
#[derive(Clone, Debug)]
pub struct Script {
    /// What all numbers are drawn from.
    pub seed: u64,
    /// Requests in all.
    pub requests: u32,
    /// Queues of the device.
    pub queues: u16,
    /// Descriptors of a queue.
    pub size: u16,
    /// Event index and indirect descriptors, if the driver uses them.
    pub features: u64,
    /// What goes wrong, each after so many answered requests and so many steps more.
    pub faults: Vec<(u32, u32, Fault)>,
}

impl Script {
    /// The lifetime of a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed, 11);
        let features = [(driver::F_EVENT_INDEX, 60), (driver::F_INDIRECT, 60)];
        let features = features.into_iter().filter(|(_, percent)| rng.percent(*percent)).map(|(feature, _)| feature).sum();
        let (requests, queues, size) = (100 + small(&mut rng, 20), if rng.percent(30) { 2 } else { 1 }, 8 << rng.below(3));
        let count = 1 + rng.below(4);
        let mut faults: Vec<_> =
            (0..count).map(|_| (small(&mut rng, 95), small(&mut rng, 30), Self::draw_fault(&mut rng))).collect();
        faults.sort_by_key(|(answered, ..)| *answered);
        Self { seed, requests, queues, size, features, faults }
    }

    fn draw_fault(rng: &mut Rng) -> Fault {
        match rng.below(13) {
            0 => Fault::WorkerSlow(10 + small(rng, 100)),
            1 => Fault::DiskSlow(10 + small(rng, 200)),
            2 => Fault::DiskErrors(1 + small(rng, 3)),
            3..=5 => Fault::Killed,
            6 => Fault::HungUp,
            7 | 8 => Fault::Reset,
            9 => Fault::Paused,
            10 => Fault::Memory,
            11 => Fault::Call,
            _ => Fault::BadChain,
        }
    }

    /// The shortest found that fails, too: without faults that do not matter, with fewer requests.
    #[must_use]
    pub fn shrink(mut self, broken: Option<Broken>) -> Self {
        let fails = |script: &Self| play(script, broken, false).failure.is_some();
        let mut place = 0;
        while place < self.faults.len() {
            let mut fewer = self.clone();
            fewer.faults.remove(place);
            if fails(&fewer) {
                self = fewer;
            } else {
                place += 1;
            }
        }
        let sooner = |script: &Self| Self { requests: script.requests / 2, ..script.clone() };
        while self.requests > 1 && fails(&sooner(&self)) {
            self = sooner(&self);
        }
        self
    }
}

/// Play the lifetime of a seed; `false`: it fails, and the shortest found that fails, too, is shown.
#[must_use]
pub fn check(seed: u64) -> bool {
    let script = Script::draw(seed);
    let Some(failure) = play(&script, None, false).failure else { return true };
    let shortest = script.shrink(None);
    println!("seed {seed} fails as a virtual machine: {failure}; the shortest that fails is {shortest:?}:");
    play(&shortest, None, true).trace.iter().for_each(|line| println!("  {line}"));
    false
}

/// Is each known-bad variant found by one of these seeds?
#[must_use]
pub fn find_variants(seeds: std::ops::Range<u64>) -> bool {
    let find = |(broken, name): &(Broken, &str)| {
        let failure = |seed| Some((seed, play(&Script::draw(seed), Some(*broken), false).failure?));
        let found = seeds.clone().find_map(failure);
        match &found {
            Some((seed, failure)) => println!("variant {name}: found by seed {seed} of a virtual machine: {failure}"),
            None => println!("variant {name}: NOT FOUND"),
        }
        found.is_some()
    };
    Broken::ALL.iter().filter(|variant| !find(variant)).count() == 0
}

fn small(rng: &mut Rng, limit: usize) -> u32 {
    u32::try_from(rng.below(limit)).unwrap_or(0)
}

/// The verdict on a lifetime, and a line for each of its steps.
pub(crate) struct Trace {
    verdict: RefCell<Option<String>>,
    lines: Option<RefCell<Vec<String>>>,
}

impl Trace {
    fn new(keeps: bool) -> Self {
        Self { verdict: RefCell::default(), lines: keeps.then(RefCell::default) }
    }

    fn say(&self, line: impl FnOnce() -> String) {
        if let Some(lines) = &self.lines {
            lines.borrow_mut().push(line());
        }
    }

    /// Something must never be so, and is. The first is kept.
    fn violated(&self, what: impl FnOnce() -> String) {
        if !self.has_failed() {
            let text = what();
            self.say(|| format!("VIOLATED: {text}"));
            *self.verdict.borrow_mut() = Some(text);
        }
    }

    fn has_failed(&self) -> bool {
        self.verdict.borrow().is_some()
    }
}
