//! Where pollers and clients go, on recorded machines.

mod common;

use common::{ALL, machine, matrix, usual_matrix, usual_ticks};
use fipsee_topology::machine::Distance;
use fipsee_topology::plan::{Plan, clients_of};

fn pollers(plan: &Plan) -> Vec<usize> {
    plan.pollers.iter().map(|poller| poller.cpu).collect()
}

/// By the kernel alone.
fn by_kernel(name: &str, workers: usize) -> Plan {
    Plan::new(&machine(name), None, workers)
}

/// With the measurement that the kernel's words make one expect.
fn measured(name: &str, workers: usize) -> Plan {
    let machine = machine(name);
    Plan::new(&machine, Some(&usual_matrix(&machine)), workers)
}

#[test]
fn on_one_cpu_no_thread_is_bound_and_none_polls() {
    let plan = by_kernel("one-cpu", 2);
    assert_eq!((plan.pollers.len(), plan.unbound_count, plan.polls), (0, 2, false));
    assert!(plan.warnings[0].contains("one CPU"), "{:?}", plan.warnings);
}

#[test]
fn of_two_cpus_the_second_polls_and_the_first_is_the_clients() {
    for plan in [by_kernel("two-cpus", 1), measured("two-cpus", 1)] {
        assert_eq!(pollers(&plan), [1]);
        assert_eq!(plan.pollers[0].clients, [0]);
        assert!(plan.warnings.is_empty() && plan.polls, "{plan:?}");
    }
    let plan = by_kernel("two-cpus", 2);
    assert_eq!((pollers(&plan), plan.unbound_count), (vec![1], 1));
    assert!(plan.warnings[0].contains("2 workers are too many for 2 CPUs") && plan.warnings[0].ends_with("use at most 1"));
}

#[test]
fn pollers_take_cores_before_threads_and_cpu_0_last() {
    for plan in [by_kernel("desktop", 7), measured("desktop", 7)] {
        assert_eq!(pollers(&plan), [15, 14, 13, 12, 11, 10, 9]);
        assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
    }
    // An eighth core is free, but its thread 8 comes before CPU 0.
    assert_eq!(pollers(&by_kernel("desktop", 8)).last(), Some(&8));
    let plan = by_kernel("desktop", 15);
    assert_eq!(plan.pollers.len(), 15);
    assert!(!pollers(&plan).contains(&0), "one CPU is left to clients");
    assert!(plan.warnings.iter().any(|line| line.contains("on CPUs 1-7 share a core")), "{:?}", plan.warnings);
}

#[test]
fn sibling_of_a_poller_is_left_alone_until_it_was_measured_to_pay() {
    let plan = by_kernel("desktop", 1);
    assert_eq!(pollers(&plan), [15]);
    assert_eq!(plan.pollers[0].clients.first(), Some(&0));
    assert_eq!(plan.pollers[0].clients.last(), Some(&7), "the other thread of core 7 comes last");
    assert!(plan.pollers[0].reason.contains("CPU 7, is left alone"), "{}", plan.pollers[0].reason);
    let plan = measured("desktop", 1);
    assert_eq!(plan.pollers[0].clients.first(), Some(&7));
    assert!(plan.pollers[0].reason.contains("CPU 7, is for its client"), "{}", plan.pollers[0].reason);
    // Slow siblings (threads that slow each other down much) do not.
    let machine = machine("desktop");
    let slow = matrix(&machine, |a, b| if machine.distance(a, b) == Distance::SameCore { 90.0 } else { 160.0 });
    assert_eq!(Plan::new(&machine, Some(&slow), 1).pollers[0].clients.last(), Some(&7));
}

#[test]
fn pollers_are_spread_over_caches_and_keep_their_clients_near() {
    for plan in [by_kernel("epyc", 4), measured("epyc", 4)] {
        assert_eq!(pollers(&plan), [15, 11, 7, 3]);
        for poller in &plan.pollers {
            let complex = poller.cpu / 4;
            assert!(poller.clients[..3].iter().all(|client| client / 4 == complex), "{poller:?}");
        }
    }
}

#[test]
fn pollers_are_spread_over_sockets_and_nodes() {
    for name in ["two-sockets", "two-sockets-no-smt", "sub-numa"] {
        for plan in [by_kernel(name, 2), measured(name, 2)] {
            let machine = machine(name);
            let nodes: Vec<_> = pollers(&plan).iter().map(|cpu| machine.node_of(*cpu)).collect();
            assert_eq!(nodes.len(), 2, "{name}");
            assert_ne!(nodes[0], nodes[1], "{name}");
            for poller in &plan.pollers {
                assert_eq!(machine.node_of(poller.clients[0]), machine.node_of(poller.cpu), "{name}");
            }
        }
    }
    for plan in [by_kernel("four-sockets", 8), measured("four-sockets", 8)] {
        let machine = machine("four-sockets");
        for node in 0..4 {
            assert_eq!(pollers(&plan).iter().filter(|cpu| machine.node_of(**cpu) == Some(node)).count(), 2);
        }
    }
}

#[test]
fn a_cpuset_and_holes_are_kept_to() {
    for plan in [by_kernel("cpuset", 2), measured("cpuset", 2)] {
        // 3 and 11 are threads of one core.
        assert_eq!(pollers(&plan), [11, 7]);
        assert_eq!(plan.pollers[0].clients.len(), 2);
    }
    for plan in [by_kernel("holes", 3), measured("holes", 3)] {
        assert_eq!(pollers(&plan)[..2], [6, 3]);
        assert_eq!(plan.pollers.len(), 3);
    }
    assert_eq!(pollers(&by_kernel("huge", 1)), [1023]);
}

#[test]
fn pollers_get_fast_cores_and_clients_do_too_while_there_are_some() {
    for name in ["hybrid", "hybrid-old-kernel"] {
        let plan = by_kernel(name, 1);
        assert_eq!(pollers(&plan), [3], "{name}");
        assert_eq!(plan.pollers[0].clients, [0, 1, 4, 5, 6, 7, 2], "{name}: the thread beside the poller is left alone");
    }
    assert_eq!(pollers(&by_kernel("arm", 1)), [5]);
    assert_eq!(by_kernel("arm", 1).pollers[0].clients[0], 4);
}

#[test]
fn nothing_but_numbers_is_enough_for_a_plan() {
    let plan = by_kernel("bare-container", 2);
    assert_eq!(pollers(&plan), [3, 2]);
    assert_eq!(plan.pollers[0].clients, [0, 1]);
}

#[test]
fn measurement_beats_the_kernel_and_says_so() {
    let two = machine("two-sockets-no-smt");
    // A hypervisor that put CPUs 6 and 7 on one core, and does not report it.
    let hidden = matrix(&two, |a, b| if (a, b) == (6, 7) || (a, b) == (7, 6) { 28.0 } else { usual_ticks(two.distance(a, b)) });
    let plan = Plan::new(&two, Some(&hidden), 3);
    assert!(plan.warnings.iter().any(|line| line.contains("CPUs 6 and 7 on different cores")), "{:?}", plan.warnings);
    assert!(!(pollers(&plan).contains(&6) && pollers(&plan).contains(&7)), "{:?}", pollers(&plan));
    // One that calls threads of a core what are none.
    let eight = machine("desktop");
    let invented = matrix(&eight, |_, _| 160.0);
    let plan = Plan::new(&eight, Some(&invented), 9);
    assert!(plan.warnings.iter().any(|line| line.contains("threads of one core, yet lines move")), "{:?}", plan.warnings);
    assert!(!plan.warnings.iter().any(|line| line.contains("share a core")), "they are taken as cores: {:?}", plan.warnings);
    // Sockets that are nearer than what is called one cache.
    let inverted = matrix(&two, |a, b| if two.distance(a, b) == Distance::SameCache { 500.0 } else { 200.0 });
    let plan = Plan::new(&two, Some(&inverted), 1);
    assert!(plan.warnings.iter().any(|line| line.contains("the measurement decides")), "{:?}", plan.warnings);
    let poller = &plan.pollers[0];
    assert_eq!(two.distance(poller.cpu, poller.clients[0]), Distance::OtherSocket);
}

#[test]
fn the_poller_goes_where_its_link_is_cheapest() {
    let epyc = machine("epyc");
    let one_fast = matrix(&epyc, |a, b| if a / 4 == 1 && b / 4 == 1 { 100.0 } else { usual_ticks(epyc.distance(a, b)) });
    assert_eq!(pollers(&Plan::new(&epyc, Some(&one_fast), 1)), [7]);
    // Noise of a few percent is no reason to go elsewhere.
    let noisy = matrix(&epyc, |a, b| usual_ticks(epyc.distance(a, b)) + if a + b == 3 { -8.0 } else { 0.0 });
    assert_eq!(pollers(&Plan::new(&epyc, Some(&noisy), 1)), [15]);
}

#[test]
fn a_client_is_sent_near_its_worker_and_to_a_cpu_of_its_own() {
    let epyc = machine("epyc");
    let usual = usual_matrix(&epyc);
    assert_eq!(clients_of(&epyc, Some(&usual), 7, &[7, 15])[..3], [4, 5, 6]);
    assert_eq!(clients_of(&epyc, None, 7, &[4, 5])[0], 6);
    // All near ones taken: elsewhere. All taken: near, but never on the worker.
    assert!(clients_of(&epyc, None, 7, &[4, 5, 6])[0] / 4 != 1);
    let all: Vec<usize> = (0..16).collect();
    let crowded = clients_of(&epyc, None, 7, &all);
    assert_eq!((crowded[0], crowded.len()), (4, 15));
    // A worker in another cpuset, and one that is not online.
    assert_eq!(clients_of(&machine("cpuset"), None, 1, &[]), [3, 5, 7, 11]);
    assert_eq!(clients_of(&epyc, None, 99, &[]), [0; 0]);
    assert_eq!(clients_of(&machine("one-cpu"), None, 0, &[]), [0; 0]);
}

#[test]
fn every_recorded_machine_gets_a_reason_for_every_poller() {
    for name in ALL {
        let machine = machine(name);
        let usual = usual_matrix(&machine);
        for workers in 1..6 {
            for plan in [Plan::new(&machine, None, workers), Plan::new(&machine, Some(&usual), workers)] {
                assert!(plan.pollers.iter().all(|poller| !poller.reason.is_empty()), "{name}");
                assert_eq!(plan.pollers.len() + plan.unbound_count, workers, "{name}");
            }
        }
    }
}
