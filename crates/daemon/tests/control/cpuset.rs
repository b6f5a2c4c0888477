//! The CPUs that a daemon may use change while it serves: its workers follow, and no request is lost.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering}; // tidy: allow atomic, the test's own, not shared memory

use fipsee_testkit::load::Load;
use fipsee_testkit::{Daemon, Scratch, assert_says, eventually, skip};
use fipsee_topology::{cpu_list, pin};
use serde_json::{Value, json};

use crate::placement::{affinities, threads, two_cpus};

/// Distinguishes the groups of this process.
static MADE: AtomicU32 = AtomicU32::new(0);

/// A control group with CPUs that a test may change; either version of cgroups has the same files.
struct Cpuset(PathBuf);

impl Cpuset {
    fn new(cpus: &[usize]) -> std::io::Result<Self> {
        let parents = ["/sys/fs/cgroup/cpuset", "/sys/fs/cgroup"].map(Path::new);
        let parent = parents.into_iter().find(|parent| parent.join("cgroup.procs").exists());
        let parent = parent.ok_or_else(|| std::io::Error::other("control groups are not mounted"))?;
        let group = parent.join(format!("fipsee-test-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir(&group)?;
        let cpuset = Self(group);
        // Version 1 takes no process before it has nodes; version 2 inherits them.
        if let Ok(nodes) = std::fs::read(parent.join("cpuset.mems")) {
            std::fs::write(cpuset.0.join("cpuset.mems"), nodes)?;
        }
        cpuset.set(cpus)?;
        Ok(cpuset)
    }

    fn set(&self, cpus: &[usize]) -> std::io::Result<()> {
        std::fs::write(self.0.join("cpuset.cpus"), cpu_list::format(cpus))
    }

    fn start(&self, arguments: &[&str]) -> Daemon {
        let enter = format!("echo $$ > '{}/cgroup.procs' && exec \"$0\" \"$@\"", self.0.display());
        Daemon::start_in(Scratch::new(), &["sh", "-c", &enter], arguments)
    }
}

impl Drop for Cpuset {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// CPU, state and queues of each worker.
fn workers(daemon: &Daemon) -> Vec<(Option<usize>, String, u64)> {
    let answer = daemon.admin(&json!({ "method": "workers" }));
    let fields = |worker: &Value| {
        let cpu = worker["cpu"].as_u64().and_then(|cpu| usize::try_from(cpu).ok());
        (cpu, worker["state"].as_str().expect("text").to_owned(), worker["queues"].as_u64().expect("a number"))
    };
    answer["workers"].as_array().expect("a list").iter().map(fields).collect()
}

/// Each thread runs where its worker is said to be; without a CPU of its own, on all of these.
fn are_bound(daemon: &Daemon, cpus: &[usize]) -> bool {
    let said = workers(daemon).into_iter().map(|(cpu, ..)| cpu.map_or_else(|| cpus.to_vec(), |cpu| vec![cpu]));
    affinities(daemon) == said.collect::<Vec<_>>()
}

/// Where clients are attached.
fn main_thread(daemon: &Daemon) -> Vec<usize> {
    threads(daemon).into_iter().find(|(name, _)| name == "fipseed").expect("a main thread").1
}

fn lose_each_in_turn(cpuset: &Cpuset, daemon: &Daemon, cpus: &[usize]) {
    let loads = ["a", "b"].map(|disk| Load::start(daemon, disk, 16));
    let serves_evenly = |worker: &(Option<usize>, String, u64)| worker.1 == "in use" && worker.2 == 1;
    eventually("each has a worker", || workers(daemon).iter().all(serves_evenly));
    let (first, attaches_at) = (workers(daemon), main_thread(daemon));
    for lost in cpus {
        let rest: Vec<usize> = cpus.iter().copied().filter(|cpu| cpu != lost).collect();
        cpuset.set(&rest).expect("changed");
        // One CPU is left to clients, and a worker there always is.
        eventually(&format!("one worker serves without CPU {lost}"), || {
            let now = workers(daemon);
            now.iter().all(|(cpu, ..)| *cpu != Some(*lost))
                && (now[0].1.as_str(), now[0].2) == ("in use", 2)
                && (now[1].1.as_str(), now[1].2) == ("unused", 0)
        });
        eventually("workers are bound anew", || are_bound(daemon, &rest));
        loads.iter().for_each(Load::await_progress);
        let pieces = ["may use have changed", &*format!("cpus=\"{}\"", cpu_list::format(&rest))];
        assert_says(&daemon.log(), &pieces);
        cpuset.set(cpus).expect("changed");
        eventually("both serve where they did", || workers(daemon) == first);
        eventually("workers are bound as before", || are_bound(daemon, cpus));
        eventually("clients are attached beside them", || main_thread(daemon) == attaches_at);
        loads.iter().for_each(Load::await_progress);
    }
    loads.into_iter().for_each(|load| assert!(load.finish() > 0));
}

/// Where the worker of an owner with a queue runs, if there is one: at most one CPU.
fn dedicated_cpu(daemon: &Daemon) -> Option<Option<usize>> {
    Some(workers(daemon).into_iter().find(|(_, state, queues)| state == "dedicated" && *queues == 1)?.0)
}

#[test]
fn a_dedicated_worker_stays_its_owners_while_its_cpu_is_gone() {
    let Some(allowed) = two_cpus() else { return };
    let cpus = &allowed[..2];
    let cpuset = match Cpuset::new(cpus) {
        Ok(cpuset) => cpuset,
        Err(error) => return skip("a dedicated worker without its CPU", &format!("no cpuset can be made here: {error}")),
    };
    let given = format!("{},{}", cpus[0], cpus[1]);
    let daemon = cpuset.start(&["--disk", "a=memory:1M", "--disk", "b=memory:1M", "--workers", "2", "--cpus", &given]);
    let loads = ["a", "b"].map(|disk| Load::start(&daemon, disk, 16));
    let dedicate = |disk: &str| daemon.admin(&json!({ "method": "disk.set", "disk": disk, "dedicated": true }));
    assert_eq!(dedicate("b")["dedicated"], true);
    let are = |count| move |worker: &(Option<usize>, String, u64)| worker.2 == count;
    eventually("each has a worker", || workers(&daemon).iter().all(are(1)) && dedicated_cpu(&daemon) == Some(Some(cpus[1])));
    cpuset.set(&cpus[..1]).expect("changed");
    eventually("its worker has no CPU", || dedicated_cpu(&daemon) == Some(None) && are_bound(&daemon, &cpus[..1]));
    assert!(workers(&daemon).iter().all(are(1)), "it is the owner's as before");
    loads.iter().for_each(Load::await_progress);
    // What has a worker keeps it; no other gets one.
    assert_eq!(dedicate("b")["dedicated"], true);
    assert_eq!(daemon.ask(&json!({ "method": "disk.set", "disk": "b", "dedicated": false }))["dedicated"], false);
    assert_says(dedicate("b")["error"].as_str().expect("refused"), &["disk 'b' is dedicated", "1 CPU, which is for all others"]);
    cpuset.set(cpus).expect("changed");
    eventually("it may have one again", || dedicate("b")["dedicated"] == true);
    eventually("with its CPU", || workers(&daemon).iter().all(are(1)) && dedicated_cpu(&daemon) == Some(Some(cpus[1])));
    loads.into_iter().for_each(|load| assert!(load.finish() > 0));
}

#[test]
fn workers_follow_the_cpus_that_the_daemon_may_use() {
    let Some(allowed) = two_cpus() else { return };
    let cpus = &allowed[..allowed.len().min(3)];
    let cpuset = match Cpuset::new(cpus) {
        Ok(cpuset) => cpuset,
        Err(error) => return skip("workers follow their CPUs", &format!("no cpuset can be made here: {error}")),
    };
    let given = format!("{},{}", cpus[0], cpus[1]);
    for placement in [&["--cpus", &*given][..], &[]] {
        let disks = ["--disk", "a=memory:1M", "--disk", "b=memory:1M", "--workers", "2"];
        let daemon = cpuset.start(&[&disks, placement].concat());
        lose_each_in_turn(&cpuset, &daemon, cpus);
    }
    assert_eq!(pin::allowed(), Some(allowed), "the test itself is not in the cpuset");
}
