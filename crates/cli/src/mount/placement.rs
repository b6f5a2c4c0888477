//! The CPUs of the threads that serve the kernel: near the daemon's workers and not on their CPUs.
//!
//! On a machine with two CPUs three threads compete: the program's, this one, and the daemon's worker, which polls on one.
//!
//! A program that waits for each request is served fastest on its own CPU: no wake-up crosses CPUs. One with many requests
//! outstanding needs its CPU for itself: then this thread runs beside the worker, and takes turns with it, a batch of requests at
//! a time. The measured break-even is between 8 and 16 outstanding requests.
//!
//! Beside the program the number outstanding is invisible, for the program runs, and submits the next, whenever one is answered.
//! Beside the worker it shows: with many outstanding, the kernel nearly always has another. So the thread probes there from time
//! to time. With a CPU for each of the three there is nothing to choose.

use std::cell::RefCell;
use std::time::Duration;

use fipsee::cpus::CpuChoice;
use fipsee_ring::clock;
use fipsee_topology::machine::{Distance, Machine};

use crate::process;

/// Load must last this long before the first probe, and again after idling.
const FIRST_LOOK: Duration = Duration::from_millis(50);
/// After each failed probe the interval doubles, up to this.
const LOOKS_APART: Duration = Duration::from_secs(2);
/// After this long without a request, the load is over.
const IDLE: Duration = Duration::from_millis(10);
/// The first requests after a move are not counted.
const SETTLING: u32 = 8;
/// Requests of a probe: at worst, each takes a wake-up from another CPU.
const LOOK_REQUESTS: u32 = 32;
/// Requests between decisions to stay.
const STAY_REQUESTS: u32 = 256;
/// Stay beside the worker if this many of a hundred requests had another behind them.
const MANY_PERCENT: u32 = 92;

/// The CPUs for the threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// On these CPUs.
    Fixed(Vec<usize>),
    /// On either of two.
    ByLoad { with_program: usize, with_worker: usize },
}

impl Placement {
    /// The user's choice, or the usable CPUs near those of the workers.
    pub(super) fn choose(wanted: &CpuChoice, machine: &Machine, worker_cpus: &[Option<usize>]) -> Self {
        if let CpuChoice::List(wanted) = wanted {
            return Self::Fixed(wanted.clone());
        }
        let usable = machine.usable.as_slice();
        let known: Vec<usize> = worker_cpus.iter().flatten().copied().collect();
        // A daemon that does not report its CPUs leaves the first ones to others.
        let workers = if known.is_empty() { usable.last().copied().into_iter().collect() } else { known };
        let rest: Vec<usize> = usable.iter().copied().filter(|cpu| !workers.contains(cpu)).collect();
        match (usable, rest.as_slice(), worker_cpus.len()) {
            ([a, b], [with_program], 1) => {
                Self::ByLoad { with_program: *with_program, with_worker: if with_program == a { *b } else { *a } }
            }
            (_, [], _) => Self::Fixed(usable.to_vec()),
            _ => {
                let is_near = |cpu: &usize| workers.iter().any(|worker| machine.distance(*cpu, *worker) <= Distance::SameCache);
                let near: Vec<usize> = rest.iter().copied().filter(is_near).collect();
                Self::Fixed(if near.len() < worker_cpus.len() { rest } else { near })
            }
        }
    }

    /// The initial CPUs.
    pub(super) fn first_cpus(&self) -> Vec<usize> {
        match self {
            Self::Fixed(cpus) => cpus.clone(),
            Self::ByLoad { with_program, .. } => vec![*with_program],
        }
    }

    /// Count a served request, and move if it is time to. `has_more`: does the kernel have another already?
    pub(super) fn after_request(&self, has_more: impl FnOnce() -> bool) {
        let Self::ByLoad { with_program, with_worker } = self else { return };
        let moved = PACE.with_borrow_mut(|pace| pace.count(clock::ticks(), has_more));
        if let Some(beside) = moved {
            let cpu = if beside == Beside::Worker { *with_worker } else { *with_program };
            // A thread that may not move stays where it is.
            let _ = process::bind_to_cpu(cpu);
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Beside {
    #[default]
    Program,
    Worker,
}

/// The measured load of this thread.
#[derive(Debug, Default)]
struct Pace {
    beside: Beside,
    last_ticks: u64,
    /// The time of the next probe, and the interval after it.
    look_at_ticks: u64,
    apart_ticks: u64,
    /// Beside the worker: requests of this window, and those with another behind them.
    total: u32,
    followed: u32,
    window: u32,
}

thread_local! {
    static PACE: RefCell<Pace> = RefCell::default();
}

impl Pace {
    /// Count a request that was served at `now`; returns the CPU to move to.
    fn count(&mut self, now: u64, has_more: impl FnOnce() -> bool) -> Option<Beside> {
        if now.saturating_sub(self.last_ticks) > clock::duration_to_ticks(IDLE) {
            self.apart_ticks = clock::duration_to_ticks(FIRST_LOOK);
            self.look_at_ticks = now + self.apart_ticks;
        }
        self.last_ticks = now;
        if self.beside == Beside::Program {
            if now < self.look_at_ticks {
                return None;
            }
            (self.beside, self.total, self.followed, self.window) = (Beside::Worker, 0, 0, SETTLING + LOOK_REQUESTS);
            return Some(Beside::Worker);
        }
        self.total += 1;
        if self.total <= SETTLING && self.window == SETTLING + LOOK_REQUESTS {
            return None;
        }
        self.followed += u32::from(has_more());
        if self.total < self.window {
            return None;
        }
        let was_look = self.window == SETTLING + LOOK_REQUESTS;
        let counted = if was_look { LOOK_REQUESTS } else { STAY_REQUESTS };
        let is_much = self.followed * 100 >= counted * MANY_PERCENT;
        (self.total, self.followed, self.window) = (0, 0, STAY_REQUESTS);
        if is_much {
            return None;
        }
        let longest_ticks = clock::duration_to_ticks(LOOKS_APART);
        self.apart_ticks =
            if was_look { (self.apart_ticks * 2).min(longest_ticks) } else { clock::duration_to_ticks(FIRST_LOOK) };
        self.look_at_ticks = now + self.apart_ticks;
        self.beside = Beside::Program;
        Some(Beside::Program)
    }
}

#[cfg(test)]
mod tests {
    use fipsee_topology::machine::Cpu;

    use super::*;

    #[test]
    fn only_three_threads_on_two_cpus_need_a_choice() {
        let by_load = |with_program, with_worker| Placement::ByLoad { with_program, with_worker };
        assert_eq!(auto(&[0, 1], &[Some(1)]), by_load(0, 1));
        assert_eq!(auto(&[0, 1], &[Some(0)]), by_load(1, 0), "wherever the worker is");
        assert_eq!(auto(&[0, 1], &[None]), by_load(0, 1));
        assert_eq!(auto(&[0, 1], &[Some(1), Some(1)]), Placement::Fixed(vec![0]));
        assert_eq!(auto(&[4], &[Some(4)]), Placement::Fixed(vec![4]));
        assert_eq!(auto(&[0, 1], &[Some(0), Some(1)]), Placement::Fixed(vec![0, 1]), "workers are everywhere");
        let wanted = CpuChoice::List(vec![1]);
        assert_eq!(Placement::choose(&wanted, &machine(&[0, 1]), &[Some(1)]), Placement::Fixed(vec![1]));
    }

    #[test]
    fn threads_stay_near_the_workers_and_off_their_cpus_while_there_is_room() {
        assert_eq!(auto(&[0, 1, 2, 3, 4, 5, 6, 7], &[Some(5)]), Placement::Fixed(vec![4, 6, 7]));
        assert_eq!(auto(&[0, 1, 2, 3, 4, 5, 6, 7], &[Some(5), Some(1)]), Placement::Fixed(vec![0, 2, 3, 4, 6, 7]));
        assert_eq!(auto(&[0, 1, 2, 3, 5], &[Some(5)]), Placement::Fixed(vec![0, 1, 2, 3]), "no room near it");
        assert_eq!(auto(&[2, 3, 5], &[None]), Placement::Fixed(vec![2, 3]));
    }

    /// CPUs of which four share a cache.
    fn machine(usable: &[usize]) -> Machine {
        let cpu = |number: &usize| Cpu {
            number: *number,
            core: *number,
            socket: Some(number / 4),
            cache: Some(number / 4),
            node: None,
            is_small: false,
        };
        let mut machine = Machine::default();
        machine.cpus = usable.iter().map(cpu).collect();
        machine.usable = usable.to_vec();
        machine
    }

    fn auto(usable: &[usize], worker_cpus: &[Option<usize>]) -> Placement {
        Placement::choose(&CpuChoice::Auto, &machine(usable), worker_cpus)
    }

    /// Requests a microsecond apart from `now` on, each with another behind it or not; the move, and the requests before it.
    fn first_move(pace: &mut Pace, now: &mut u64, has_more: bool) -> (Option<Beside>, u32) {
        let step = clock::duration_to_ticks(Duration::from_micros(1));
        for requests in 1..3_000_000 {
            *now += step;
            if let Some(beside) = pace.count(*now, || has_more) {
                return (Some(beside), requests);
            }
        }
        (None, 0)
    }

    #[test]
    fn goes_to_the_worker_for_long_only_when_there_is_always_more() {
        let (mut pace, mut now) = (Pace::default(), clock::duration_to_ticks(Duration::from_secs(100)));
        let (beside, requests) = first_move(&mut pace, &mut now, false);
        assert_eq!(beside, Some(Beside::Worker));
        assert!(requests > 40_000, "probes only under lasting load: {requests}");
        assert_eq!(first_move(&mut pace, &mut now, false), (Some(Beside::Program), SETTLING + LOOK_REQUESTS));
        let (beside, later) = first_move(&mut pace, &mut now, true);
        assert_eq!(beside, Some(Beside::Worker));
        assert!(later > requests * 3 / 2, "probes less often after a failed one: {later}");
        assert_eq!(first_move(&mut pace, &mut now, true).0, None, "stays");
        let (beside, requests) = first_move(&mut pace, &mut now, false);
        assert_eq!(beside, Some(Beside::Program));
        assert!(requests <= 2 * STAY_REQUESTS);
    }
}
