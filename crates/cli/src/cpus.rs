//! CPUs for the threads of a client: given, or chosen near the daemon's workers.

use std::str::FromStr;

use fipsee_topology::machine::Machine;
use fipsee_topology::matrix::Matrix;
use fipsee_topology::plan::{Plan, clients_of};
use fipsee_topology::{cache, cpu_list};

/// The value of `--cpus`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CpuChoice {
    /// Chosen from the machine's topology and the daemon's workers.
    Auto,
    /// These, in turn; none: the scheduler decides.
    List(Vec<usize>),
}

impl FromStr for CpuChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        // The given order is kept: threads take the CPUs in turn.
        let numbers = |part: &str| cpu_list::parse(part).filter(|numbers| !numbers.is_empty());
        let parts: Option<Vec<Vec<usize>>> = text.split(',').map(numbers).collect();
        let parts = parts.ok_or_else(|| format!("'{text}' is neither auto nor a list of CPUs; write for example 0,2 or 0-3"))?;
        Ok(Self::List(parts.concat()))
    }
}

impl CpuChoice {
    /// Check that this process may run on the CPUs of a list.
    ///
    /// # Errors
    /// The CPU that it may not run on, and those that it may.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Auto => Ok(()),
            Self::List(list) => Machine::this().check_usable(list),
        }
    }

    /// A CPU for the thread of each queue, given the CPUs of their workers.
    #[must_use]
    pub fn for_queues(&self, worker_cpus: &[Option<usize>]) -> Vec<Option<usize>> {
        match self {
            Self::List(list) => (0..worker_cpus.len()).map(|index| list.get(index % list.len().max(1)).copied()).collect(),
            Self::Auto => {
                let (machine, matrix) = this_machine();
                near(&machine, matrix.as_ref(), worker_cpus)
            }
        }
    }
}

/// This machine, and its measurement.
#[must_use]
pub fn this_machine() -> (Machine, Option<Matrix>) {
    let machine = Machine::this();
    let matrix = cache::load(&machine).ok().map(|(_, kept)| kept.matrix);
    (machine, matrix)
}

/// The two CPUs, off the machine's interrupts, with the cheapest transfer between them: a client's and its poller's.
#[must_use]
pub fn best_pair() -> Option<[usize; 2]> {
    let (machine, matrix) = this_machine();
    let plan = Plan::new(&machine, matrix.as_ref(), 1);
    let poller = plan.pollers.first()?;
    Some([*poller.clients.first()?, poller.cpu])
}

/// For each queue a CPU near its worker's that no worker or other queue has, while there are such; `None` where
/// there is one CPU for everything.
fn near(machine: &Machine, matrix: Option<&Matrix>, worker_cpus: &[Option<usize>]) -> Vec<Option<usize>> {
    if machine.usable.len() < 2 {
        return vec![None; worker_cpus.len()];
    }
    // A daemon that does not report its CPUs is taken to have placed its workers as we would.
    let guess = Plan::new(machine, matrix, 1).pollers.first().map(|poller| poller.cpu);
    let workers: Vec<usize> = worker_cpus.iter().filter_map(|cpu| cpu.or(guess)).collect();
    let mut taken = workers.clone();
    let mut choose = |(index, worker): (usize, &usize)| {
        let clients = clients_of(machine, matrix, *worker, &taken);
        let free = clients.iter().find(|cpu| !taken.contains(cpu));
        let chosen = free.or_else(|| clients.get(index % clients.len().max(1))).copied();
        taken.extend(chosen);
        chosen
    };
    workers.iter().enumerate().map(&mut choose).collect()
}

#[cfg(test)]
mod tests {
    use fipsee_topology::machine::Cpu;

    use super::*;

    /// Two sockets of four cores.
    fn machine() -> Machine {
        let cpu = |number: usize| Cpu {
            number,
            core: number,
            socket: Some(number / 4),
            cache: Some(number / 4),
            node: Some(number / 4),
            is_small: false,
        };
        let mut machine = Machine::default();
        machine.cpus = (0..8).map(cpu).collect();
        machine.usable = (0..8).collect();
        machine
    }

    #[test]
    fn each_queue_gets_a_cpu_of_its_own_near_its_worker() {
        let cpus = near(&machine(), None, &[Some(7), Some(3), Some(7)]);
        assert_eq!(cpus, [Some(4), Some(0), Some(5)]);
        assert_eq!(near(&machine(), None, &[None]), [Some(4)], "a daemon that does not report its CPUs");
    }

    #[test]
    fn more_queues_than_cpus_share_them_and_stay_off_the_workers() {
        let cpus = near(&machine(), None, &[Some(7); 20]);
        assert_eq!(cpus.len(), 20);
        assert!(cpus.iter().all(|cpu| cpu.is_some_and(|cpu| cpu != 7)), "{cpus:?}");
        let mut used: Vec<_> = cpus[..7].to_vec();
        used.sort_unstable();
        used.dedup();
        assert_eq!(used.len(), 7, "{cpus:?}");
    }

    #[test]
    fn one_cpu_is_for_everything_and_no_thread_is_bound() {
        let mut machine = machine();
        machine.usable = vec![2];
        assert_eq!(near(&machine, None, &[Some(2), None]), [None, None]);
    }

    #[test]
    fn lists_keep_their_order_and_go_round() {
        let list: CpuChoice = "3,0-1".parse().expect("a list");
        assert_eq!(list.for_queues(&[None; 4]), [Some(3), Some(0), Some(1), Some(3)]);
        assert_eq!(CpuChoice::List(Vec::new()).for_queues(&[Some(1)]), [None]);
        assert_eq!("auto".parse(), Ok(CpuChoice::Auto));
        for text in ["", "x", "Auto", "1,,2", "3-1", "-1", "70000"] {
            let error = text.parse::<CpuChoice>().expect_err(text);
            assert!(error.contains("neither auto nor a list"), "{error}");
        }
    }
}
