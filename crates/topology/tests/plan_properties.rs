//! What holds of every plan, on thousands of random machines.

use std::collections::BTreeMap;

use fipsee_topology::machine::{Cpu, Machine};
use fipsee_topology::matrix::{Cost, Matrix};
use fipsee_topology::plan::{Plan, clients_of};

/// Marsaglia's xorshift: the same machines every time.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).expect("below a usize")
    }
}

/// Sockets of caches of cores of threads, with CPUs offline, CPUs forbidden, and CPU numbers shuffled.
fn random_machine(random: &mut Random) -> Machine {
    let (sockets, caches, cores, threads) = (1 + random.below(3), 1 + random.below(2), 1 + random.below(3), 1 + random.below(2));
    let count = sockets * caches * cores * threads;
    let mut numbers: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        numbers.swap(last, random.below(last + 1));
    }
    let mut machine = Machine::default();
    for (place, number) in numbers.into_iter().enumerate() {
        let core = place / threads;
        let (cache, socket) = (core / cores, core / cores / caches);
        machine.cpus.push(Cpu {
            number,
            core,
            socket: Some(socket),
            cache: Some(cache),
            node: Some(socket),
            is_small: core % 5 == 4,
        });
    }
    machine.cpus.sort_by_key(|cpu| cpu.number);
    let first = machine.cpus[0];
    machine.cpus.retain(|_| random.below(6) != 0);
    if machine.cpus.is_empty() {
        machine.cpus.push(first);
    }
    machine.usable = machine.cpus.iter().map(|cpu| cpu.number).filter(|_| random.below(4) != 0).collect();
    machine
}

fn random_matrix(random: &mut Random, machine: &Machine) -> Matrix {
    let mut costs = Vec::new();
    for (index, a) in machine.usable.iter().enumerate() {
        for b in &machine.usable[index + 1..] {
            // Some pairs are missing, as in a sample.
            if random.below(8) != 0 {
                for direction in [(*a, *b), (*b, *a)] {
                    let ticks = f64::from(u32::try_from(20 + random.below(800)).expect("small"));
                    costs.push((direction, Cost { median_ticks: ticks, least_ticks: ticks }));
                }
            }
        }
    }
    Matrix::new(1_000_000_000, Some(20.0), costs)
}

/// What the rules promise whatever was measured.
fn check(machine: &Machine, plan: &Plan, workers: usize) {
    let pollers: Vec<usize> = plan.pollers.iter().map(|poller| poller.cpu).collect();
    let mut once = pollers.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), pollers.len(), "a CPU has one poller");
    assert!(pollers.iter().all(|cpu| machine.usable.contains(cpu)), "a CPU that is offline or not allowed");
    assert_eq!(pollers.len() + plan.unbound_count, workers);
    assert!(pollers.len() < machine.usable.len().max(1), "none is left for clients");
    assert!(pollers.len() == workers || pollers.len() + 1 >= machine.usable.len(), "fewer than there is room for");
    assert!(pollers.len() == workers || !plan.warnings.is_empty(), "and no warning");
    assert_eq!(plan.polls, machine.cpus.len() > 1);
    for poller in &plan.pollers {
        let mut clients = poller.clients.clone();
        clients.sort_unstable();
        let expected: Vec<usize> = machine.usable.iter().copied().filter(|cpu| !pollers.contains(cpu)).collect();
        assert_eq!(clients, expected, "clients get every usable CPU without a poller");
    }
}

/// By the kernel's description no core has two pollers while another could have one.
fn check_cores(machine: &Machine, plan: &Plan) {
    let core = |cpu: usize| machine.cpu(cpu).expect("online").core;
    let mut per_core = BTreeMap::<usize, usize>::new();
    plan.pollers.iter().for_each(|poller| *per_core.entry(core(poller.cpu)).or_default() += 1);
    let has_two = per_core.values().any(|count| *count > 1);
    let is_free = |cpu: &&usize| !per_core.contains_key(&core(**cpu));
    let free: Vec<&usize> = machine.usable.iter().filter(is_free).collect();
    assert!(!has_two || free.is_empty(), "two pollers on a core, while {free:?} are free: {plan:?}");
    let polls_on_0 = plan.pollers.iter().any(|poller| poller.cpu == 0);
    assert!(!polls_on_0 || free.is_empty(), "CPU 0 polls, while {free:?} are free: {plan:?}");
}

#[test]
fn rules_hold_on_random_machines_with_any_measurement_and_the_same_is_planned_twice() {
    let mut random = Random(0x5eed_7070_1064);
    for _ in 0..3000 {
        let machine = random_machine(&mut random);
        let workers = 1 + random.below(machine.cpus.len() + 2);
        let plan = Plan::new(&machine, None, workers);
        check(&machine, &plan, workers);
        check_cores(&machine, &plan);
        let matrix = random_matrix(&mut random, &machine);
        let measured = Plan::new(&machine, Some(&matrix), workers);
        check(&machine, &measured, workers);
        assert_eq!(measured, Plan::new(&machine.clone(), Some(&matrix.clone()), workers));
        for worker in &machine.cpus {
            let clients = clients_of(&machine, Some(&matrix), worker.number, &[]);
            assert!(clients.iter().all(|cpu| machine.usable.contains(cpu) && *cpu != worker.number));
            assert_eq!(clients.is_empty(), machine.usable.iter().all(|cpu| *cpu == worker.number));
        }
    }
}
