//! CPUs for the threads of a client, near the workers of its queues.

use std::io;

use crate::machine::Machine;
use crate::matrix::Matrix;
use crate::plan::{Plan, clients_of};
use crate::{cache, pin};

/// The queues of a client, and where its threads may be.
#[derive(Debug)]
pub struct Near {
    worker_cpus: Vec<Option<usize>>,
    /// `None`: that cannot be found out.
    allowed: Option<Vec<usize>>,
}

impl Near {
    /// The CPU of each queue's worker, as far as it is known. Threads are placed on the CPUs that this one may use now: one that was
    /// placed, and those that it starts, may use a single one.
    pub fn new(worker_cpus: Vec<Option<usize>>) -> Self {
        Self { worker_cpus, allowed: pin::allowed() }
    }

    pub const fn queue_count(&self) -> usize {
        self.worker_cpus.len()
    }

    /// Bind the calling thread to the CPU for this queue. `None`: there is one CPU for everything, or no such queue, and nothing has
    /// changed. This reads what the kernel says of the machine: once for a thread, not for a
    /// request.
    ///
    /// # Errors
    /// The CPU cannot be used any more.
    pub fn place_thread(&self, queue: usize) -> io::Result<Option<usize>> {
        let (mut machine, matrix) = this_machine();
        if let Some(allowed) = &self.allowed {
            let is_possible = |cpu: &usize| *cpu < pin::FIRST_UNBINDABLE && machine.cpu(*cpu).is_some();
            machine.usable = allowed.iter().copied().filter(is_possible).collect();
        }
        let cpu = of_queues(&machine, matrix.as_ref(), &self.worker_cpus).get(queue).copied().flatten();
        cpu.map(|cpu| pin::bind(cpu).map(|()| cpu)).transpose()
    }
}

/// This machine, and its measurement.
pub fn this_machine() -> (Machine, Option<Matrix>) {
    let machine = Machine::this();
    let matrix = cache::load(&machine).ok().map(|(_, kept)| kept.matrix);
    (machine, matrix)
}

/// For each queue a CPU near its worker's that no worker or other queue has, while there are such; `None` where
/// there is one CPU for everything.
pub fn of_queues(machine: &Machine, matrix: Option<&Matrix>, worker_cpus: &[Option<usize>]) -> Vec<Option<usize>> {
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
    use super::*;
    use crate::machine::Cpu;

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
        let cpus = of_queues(&machine(), None, &[Some(7), Some(3), Some(7)]);
        assert_eq!(cpus, [Some(4), Some(0), Some(5)]);
        assert_eq!(of_queues(&machine(), None, &[None]), [Some(4)], "a daemon that does not report its CPUs");
    }

    #[test]
    fn more_queues_than_cpus_share_them_and_stay_off_the_workers() {
        let cpus = of_queues(&machine(), None, &[Some(7); 20]);
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
        assert_eq!(of_queues(&machine, None, &[Some(2), None]), [None, None]);
    }

    #[test]
    fn threads_are_placed_off_the_worker_also_by_a_thread_that_was() {
        let all = pin::allowed().expect("this thread runs somewhere");
        let worker = *all.last().expect("somewhere");
        let near = Near::new(vec![Some(worker); 2]);
        let place = || {
            let chosen = near.place_thread(1).expect("one of ours");
            (chosen, pin::allowed().expect("somewhere"))
        };
        let in_turn = || {
            let first = place();
            let second = std::thread::scope(|scope| scope.spawn(place).join().expect("no panic"));
            (first, second)
        };
        let (first, second) = std::thread::scope(|scope| scope.spawn(in_turn).join().expect("no panic"));
        assert_eq!(first, second, "the second thread began on the CPU of the first");
        match first {
            (Some(cpu), now) => assert!(cpu != worker && now == [cpu], "{cpu} of {now:?}"),
            (None, now) => assert!(all.len() == 1 && now == all, "{now:?}"),
        }
        assert_eq!(near.place_thread(2).expect("nothing to do"), None, "no such queue");
        assert_eq!(pin::allowed(), Some(all));
    }
}
