//! CPUs for the threads of a client: given, or chosen near the daemon's workers.

use std::str::FromStr;

use fipsee_topology::machine::Machine;
use fipsee_topology::plan::Plan;
use fipsee_topology::{cpu_list, near};

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
                let (machine, matrix) = near::this_machine();
                near::of_queues(&machine, matrix.as_ref(), worker_cpus)
            }
        }
    }
}

/// The two CPUs, off the machine's interrupts, with the cheapest transfer between them: a client's and its poller's.
#[must_use]
pub fn best_pair() -> Option<[usize; 2]> {
    let (machine, matrix) = near::this_machine();
    let plan = Plan::new(&machine, matrix.as_ref(), 1);
    let poller = plan.pollers.first()?;
    Some([*poller.clients.first()?, poller.cpu])
}

#[cfg(test)]
mod tests {
    use super::*;

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
