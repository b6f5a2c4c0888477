//! What is read from the files of recorded machines, and of damaged ones.

mod common;

use common::{ALL, Scratch, expand, machine, recorded};
use fipsee_topology::machine::{Distance, Machine};
use std::path::Path;

fn group_lists(machine: &Machine, key: fn(&fipsee_topology::machine::Cpu) -> Option<usize>) -> Vec<Vec<usize>> {
    machine.groups(key).into_values().collect()
}

#[test]
fn threads_sockets_caches_and_nodes_are_those_recorded() {
    let two = machine("two-sockets");
    assert_eq!(two.model, "Intel(R) Xeon(R) Gold 5122 CPU @ 3.60GHz");
    assert_eq!(group_lists(&two, |cpu| Some(cpu.core)), (0..8).map(|core| vec![core, core + 8]).collect::<Vec<_>>());
    let halves = vec![(0..16).step_by(2).collect::<Vec<_>>(), (1..16).step_by(2).collect()];
    assert_eq!(group_lists(&two, |cpu| cpu.socket), halves);
    assert_eq!(group_lists(&two, |cpu| cpu.cache), halves);
    assert_eq!(group_lists(&two, |cpu| cpu.node), halves);
    assert_eq!(two.unknown, [""; 0]);
    assert_eq!(two.distance(0, 8), Distance::SameCore);
    assert_eq!(two.distance(0, 2), Distance::SameCache);
    assert_eq!(two.distance(0, 1), Distance::OtherSocket);
    let epyc = machine("epyc");
    assert_eq!((epyc.distance(0, 3), epyc.distance(3, 4)), (Distance::SameCache, Distance::SameSocket));
    assert_eq!(group_lists(&epyc, |cpu| cpu.cache).len(), 4);
    assert_eq!(epyc.node_of(3), None, "with one node there is nothing to choose");
    let sub = machine("sub-numa");
    assert_eq!((sub.node_of(3), sub.node_of(4), sub.distance(3, 4)), (Some(0), Some(1), Distance::SameSocket));
}

#[test]
fn only_what_is_online_and_allowed_is_usable() {
    let usable = |name| machine(name).usable;
    assert_eq!(usable("cpuset"), [3, 5, 7, 11]);
    assert_eq!(usable("holes"), [0, 2, 3, 6]);
    assert_eq!(usable("two-sockets-no-smt"), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(machine("two-sockets-no-smt").offline, [8, 9, 10, 11, 12, 13, 14, 15]);
    assert_eq!(machine("holes").offline, [1, 4, 5, 7]);
    let holes = machine("holes");
    assert_eq!(holes.distance(2, 6), Distance::SameCore);
    assert_eq!(holes.cpu(1), None);
}

#[test]
fn cpus_beyond_the_mask_are_seen_reported_and_not_used() {
    let huge = machine("huge");
    assert_eq!(huge.cpus.len(), 6);
    assert_eq!(huge.usable, [0, 1, 1022, 1023]);
    assert!(huge.unknown.iter().any(|line| line.contains("from 1024 on")), "{:?}", huge.unknown);
}

#[test]
fn slow_cores_are_distinguished_from_fast_ones_and_favourites_are_not_slow_ones() {
    for (name, slow) in
        [("hybrid", vec![4, 5, 6, 7]), ("hybrid-old-kernel", vec![4, 5, 6, 7]), ("arm", vec![0, 1, 2, 3]), ("desktop", vec![])]
    {
        let small: Vec<usize> = machine(name).cpus.iter().filter(|cpu| cpu.is_small).map(|cpu| cpu.number).collect();
        assert_eq!(small, slow, "{name}");
    }
    let arm = machine("arm");
    assert_eq!(arm.model, "implementer 0x41 part 0xd08");
    assert_eq!(arm.cpus[0].socket, None);
    assert_eq!((arm.distance(0, 1), arm.distance(0, 4)), (Distance::SameCache, Distance::SameSocket));
}

#[test]
fn what_a_container_hides_is_unknown_and_reported() {
    let bare = machine("bare-container");
    assert_eq!(bare.usable, [0, 1, 2, 3]);
    assert!(bare.cpus.iter().all(|cpu| cpu.core == cpu.number && (cpu.socket, cpu.cache, cpu.node) == (None, None, None)));
    for part in ["the core of CPUs 0-3", "the socket of CPUs 0-3", "the last-level cache of CPUs 0-3", "NUMA nodes"] {
        assert!(bare.unknown.iter().any(|line| line.contains(part)), "{part}: {:?}", bare.unknown);
    }
    let nothing = Machine::read(&Scratch::new().0);
    assert_eq!((nothing.cpus.len(), nothing.usable.as_slice()), (1, &[0][..]));
    assert!(nothing.unknown.len() >= 4, "{:?}", nothing.unknown);
}

#[test]
fn files_with_nonsense_are_as_good_as_missing() {
    let odd = ["", "x", "-1", "3-1", "0-4294967295", "99999999999999999999999", "\u{0}\u{0}", "1", "7-9"];
    for name in ["two-sockets", "hybrid"] {
        let scratch = recorded(name);
        let mut files = Vec::new();
        collect(&scratch.0, &mut files);
        assert!(files.len() > 50);
        for (index, file) in files.iter().enumerate() {
            let before = std::fs::read(file).expect("a file");
            std::fs::write(file, odd[index % odd.len()]).expect("written");
            let machine = Machine::read(&scratch.0);
            assert!(
                !machine.cpus.is_empty() && machine.usable.iter().all(|cpu| machine.cpu(*cpu).is_some()),
                "{}",
                file.display()
            );
            std::fs::write(file, b"\xff\xfe").expect("written");
            let _ = Machine::read(&scratch.0).fingerprint();
            std::fs::write(file, before).expect("written");
        }
    }
}

fn collect(folder: &Path, files: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        if entry.path().is_dir() { collect(&entry.path(), files) } else { files.push(entry.path()) }
    }
}

#[test]
fn every_change_of_the_machine_is_another_fingerprint() {
    let mut prints: Vec<String> = ALL.iter().map(|name| machine(name).fingerprint()).collect();
    // A cpuset is no part of the machine, and slow cores change no distance.
    let same = |a: &str, b: &str| assert_eq!(machine(a).fingerprint(), machine(b).fingerprint());
    same("cpuset", "two-sockets");
    same("hybrid", "hybrid-old-kernel");
    prints.sort_unstable();
    prints.dedup();
    assert_eq!(prints.len(), ALL.len() - 2);
    let text = "model m\nonline 0-1\nallowed 0-1\ncore 0 socket 0 cache 0-1\ncore 1 socket 0 cache 0-1\n";
    let print = |text: &str| {
        let scratch = Scratch::new();
        expand(text, &scratch.0);
        Machine::read(&scratch.0).fingerprint()
    };
    let boot = format!("{text}file proc/sys/kernel/random/boot_id 1-2-3\n");
    assert_ne!(print(text), print(&boot), "another start of the machine");
    assert_eq!(print(text), print(text));
}

#[test]
fn every_usable_cpu_of_this_machine_is_described() {
    let machine = Machine::this();
    assert!(!machine.usable.is_empty());
    assert!(machine.usable.iter().all(|cpu| machine.cpu(*cpu).is_some()));
}
