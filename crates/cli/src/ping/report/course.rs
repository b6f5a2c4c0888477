//! The measurements for the tables, and the division of the time.

use std::time::Duration;

use fipsee_measure::harness::{Design, Spec, Task};
use fipsee_ring::wait::WaitMode;
use fipsee_topology::machine::{Distance, Machine};

use crate::ping::{base_spec, measured_choices};

/// Sizes of tables 1, 5 and 6.
pub(super) const QUEUES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Sizes measured for each pair of CPUs: the round trip, and messages whose transfers overlap.
const PAIR_QUEUES: [u32; 2] = [1, 64];
/// Most pairs measured, both directions of each.
const MOST_PAIRS: usize = 12;

/// The part of the page that a row belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Tables 1, 5 and 6.
    Sizes,
    /// Tables 3, 4 and 7.
    Waits,
    /// Beside figure 6.
    Pairs,
}

/// A row of a table: the floor, the channel and the report's ring, measured one after the other in each round.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) part: Part,
    /// The calling side's CPU and the answering side's; none where there is one CPU for both.
    pub(super) cpus: Option<[usize; 2]>,
    /// The options of every design; the design named here is the channel.
    pub(super) spec: Spec,
    /// The first is [`Design::OneLine`]; none if nothing can be measured.
    pub(super) designs: Vec<Design>,
    /// The reason for missing designs.
    pub(super) missing: Option<&'static str>,
}

const ALL: [Design; 3] = [Design::OneLine, Design::Channel, Design::Classic];

/// The two sides of a row that waits in ways of its own.
impl Row {
    pub(super) fn answerer_wait(&self) -> &str {
        self.spec.answerer_wait.as_deref().unwrap_or(&self.spec.wait)
    }

    pub(super) fn queue(&self) -> u32 {
        match self.spec.task {
            Task::Queue(queue) => queue,
            Task::Stream(_) => 0,
        }
    }
}

/// All rows. `cpus`: of all rows but the pairs of CPUs.
pub(super) fn rows(machine: &Machine, cpus: Option<[usize; 2]>) -> Vec<Row> {
    let base = base_spec(cpus);
    let sizes = [true, false].into_iter().flat_map(|pause| QUEUES.map(|queue| (pause, queue)));
    let sizes = sizes.map(|(pause, queue)| Row {
        part: Part::Sizes,
        cpus,
        spec: Spec { task: Task::Queue(queue), pause, ..base.clone() },
        designs: ALL.to_vec(),
        missing: None,
    });
    let waits = WaitMode::ALL.into_iter().flat_map(|caller| WaitMode::ALL.map(|answerer| (caller, answerer)));
    let waits = waits.map(|(caller, answerer)| waits_row(&base, cpus, caller, answerer));
    let mut rows: Vec<Row> = sizes.chain(waits).collect();
    if cpus.is_some() {
        let directions = pairs(machine).into_iter().flat_map(|[a, b]| [[a, b], [b, a]]);
        let measured = directions.flat_map(|cpus| PAIR_QUEUES.map(|queue| (cpus, queue)));
        rows.extend(measured.map(|(cpus, queue)| Row {
            part: Part::Pairs,
            cpus: Some(cpus),
            spec: Spec { task: Task::Queue(queue), measured: measured_choices(Some(cpus)).word(), ..base.clone() },
            designs: ALL.to_vec(),
            missing: None,
        }));
    }
    rows
}

fn waits_row(base: &Spec, cpus: Option<[usize; 2]>, caller: WaitMode, answerer: WaitMode) -> Row {
    let spec = Spec { wait: caller.name().to_owned(), answerer_wait: Some(answerer.name().to_owned()), ..base.clone() };
    let unavailable = [caller, answerer].into_iter().find_map(|mode| mode.available().err());
    let sleeps = [caller, answerer].into_iter().any(|mode| matches!(mode, WaitMode::Sleep | WaitMode::Adaptive));
    let (designs, missing) = match unavailable {
        Some(unavailable) => (Vec::new(), Some(unavailable.missing())),
        None if sleeps => {
            (vec![Design::OneLine, Design::Channel], Some("the report's ring has no doorbell: no side can sleep there"))
        }
        None => (ALL.to_vec(), None),
    };
    Row { part: Part::Waits, cpus, spec, designs, missing }
}

/// Pairs of usable CPUs, some of each distance: neighbours first, as many of each as fit.
fn pairs(machine: &Machine) -> Vec<[usize; 2]> {
    let cpus = &machine.usable;
    let all = || cpus.iter().enumerate().flat_map(|(index, a)| cpus.iter().skip(index + 1).map(move |b| [*a, *b]));
    let of = |distance| all().filter(move |[a, b]| machine.distance(*a, *b) == distance).collect::<Vec<_>>();
    let classes: Vec<Vec<[usize; 2]>> = Distance::ALL.into_iter().map(of).filter(|class| !class.is_empty()).collect();
    if all().count() <= MOST_PAIRS {
        return classes.concat();
    }
    let room = MOST_PAIRS / classes.len().max(1);
    // Spread over the class: its first pairs all share a CPU.
    let some = |class: &Vec<[usize; 2]>| {
        let count = class.len().min(room);
        (0..count).filter_map(|index| class.get(index * class.len() / count).copied()).collect::<Vec<_>>()
    };
    classes.iter().flat_map(some).collect()
}

/// CPUs for the other rows: two cores, if there are two.
pub(super) fn two_cores(machine: &Machine) -> Option<[usize; 2]> {
    let cpus = &machine.usable;
    let pairs = || cpus.first().into_iter().flat_map(|a| cpus.iter().skip(1).map(move |b| [*a, *b]));
    pairs().find(|[a, b]| machine.distance(*a, *b) != Distance::SameCore).or_else(|| pairs().next())
}

/// The number of rounds, and the length of each measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) rounds: u32,
    /// Of the channel and the report's ring.
    pub(super) measured: Duration,
    /// Before it, not counted.
    pub(super) warm_up: Duration,
    /// Of the floor, which needs no warming up: there is a line and no more.
    pub(super) floor: Duration,
}

/// Pages are mapped, and the delay of the first look is found, within 20 ms.
const WARM_UP: Duration = Duration::from_millis(30);
/// The length of a measurement if there is time: more rounds are better than longer measurements.
const SLOT: Duration = Duration::from_millis(130);
/// Setting up memory and doorbells, and the other side's verdict, take about so long.
const SET_UP: Duration = Duration::from_millis(2);
/// More rounds add nothing.
const MOST_ROUNDS: u32 = 25;
/// Fewer are too few.
pub(super) const LEAST_ROUNDS: u32 = 3;
/// The floor's part of a measurement's time: one in so many.
const FLOOR_ONE_IN: u32 = 10;

impl Pace {
    /// Divide `time` over the measurements of all `rows`.
    pub(super) fn divide(time: Duration, rows: &[Row]) -> Self {
        let count = |is_floor: bool| {
            let designs = rows.iter().flat_map(|row| &row.designs).filter(|design| (**design == Design::OneLine) == is_floor);
            u32::try_from(designs.count()).unwrap_or(u32::MAX)
        };
        let (floors, others) = (count(true), count(false).max(1));
        let set_up = SET_UP.saturating_mul(floors + others);
        // In tenths of a measurement.
        let parts = others.saturating_mul(FLOOR_ONE_IN).saturating_add(floors);
        let one_round = set_up + SLOT.saturating_mul(parts) / FLOOR_ONE_IN;
        let rounds = u32::try_from(time.as_nanos() / one_round.as_nanos().max(1)).unwrap_or(MOST_ROUNDS).clamp(1, MOST_ROUNDS);
        let slot = (time / rounds).saturating_sub(set_up).saturating_mul(FLOOR_ONE_IN) / parts;
        let warm_up = WARM_UP.min(slot / 3);
        Self { rounds, measured: slot - warm_up, warm_up, floor: slot / FLOOR_ONE_IN }
    }

    /// Too short for figures to be quoted?
    pub(super) fn is_hasty(self) -> bool {
        self.warm_up < WARM_UP || self.rounds < LEAST_ROUNDS
    }
}

#[cfg(test)]
mod tests {
    use fipsee_topology::machine::Cpu;

    use super::*;

    /// So many sockets of four cores of two threads.
    fn machine(sockets: usize) -> Machine {
        let cpu = |number: usize| Cpu {
            number,
            core: number / 2 * 2,
            socket: Some(number / 8),
            cache: Some(number / 8),
            node: None,
            is_small: false,
        };
        let mut machine = Machine::default();
        machine.cpus = (0..8 * sockets).map(cpu).collect();
        machine.usable = (0..8 * sockets).collect();
        machine
    }

    #[test]
    fn large_machines_are_sampled_and_every_distance_is_in_the_sample() {
        let machine = machine(4);
        let pairs = pairs(&machine);
        assert!(pairs.len() <= MOST_PAIRS && pairs.len() > MOST_PAIRS / 2, "{pairs:?}");
        for distance in [Distance::SameCore, Distance::SameCache, Distance::OtherSocket] {
            let count = pairs.iter().filter(|[a, b]| machine.distance(*a, *b) == distance).count();
            assert_eq!(count, 4, "{distance:?} in {pairs:?}");
        }
        let rows = rows(&machine, two_cores(&machine));
        assert_eq!(rows.iter().filter(|row| row.part == Part::Pairs).count(), 4 * pairs.len(), "both ways, both sizes");
    }

    #[test]
    fn the_two_sides_run_on_two_cores_where_there_are_two() {
        assert_eq!(two_cores(&machine(1)), Some([0, 2]));
        let mut threads = machine(1);
        threads.usable = vec![4, 5];
        assert_eq!(two_cores(&threads), Some([4, 5]));
        threads.usable = vec![4];
        assert_eq!(two_cores(&threads), None);
    }

    #[test]
    fn every_pair_of_ways_to_wait_is_there_measured_or_with_a_reason() {
        let rows = rows(&machine(1), None);
        let waits: Vec<&Row> = rows.iter().filter(|row| row.part == Part::Waits).collect();
        assert_eq!(waits.len(), 64);
        assert!(waits.iter().all(|row| row.designs.len() == 3 || row.missing.is_some()));
        assert!(waits.iter().any(|row| row.designs.len() == 3 && row.spec.wait != row.answerer_wait()));
        assert!(rows.iter().all(|row| row.part != Part::Pairs && row.spec.one_cpu), "one CPU has no pairs");
    }

    #[test]
    fn the_time_is_divided_over_all_measurements_and_never_exceeded() {
        let rows = rows(&machine(1), Some([0, 2]));
        let count = |is_floor: bool| {
            let designs = rows.iter().flat_map(|row| &row.designs).filter(|design| (**design == Design::OneLine) == is_floor);
            u32::try_from(designs.count()).expect("few")
        };
        for seconds in [1, 5, 60, 500, 3000] {
            let time = Duration::from_secs(seconds);
            let pace = Pace::divide(time, &rows);
            let round = (pace.measured + pace.warm_up) * count(false) + pace.floor * count(true);
            assert!(round * pace.rounds <= time, "{seconds}: {pace:?}");
            assert!(round * pace.rounds > time / 2, "{seconds}: {pace:?}");
            assert_eq!(pace.is_hasty(), seconds < 60, "{seconds}: {pace:?}");
        }
    }
}
