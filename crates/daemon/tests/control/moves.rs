//! Queues move between workers when departed clients leave one of them with more than its share; no request is lost.

use fipsee_block::client::{AttachOptions, Disk};
use fipsee_block::wire::Status;
use fipsee_testkit::load::Load;
use fipsee_testkit::{Daemon, eventually, finish_one};
use serde_json::json;

/// The number of queues that each worker serves.
fn even(daemon: &Daemon, count: u64) {
    eventually("the workers serve equally many queues", || daemon.queue_counts() == [count, count]);
}

const DISKS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// A daemon with two workers, and loads on disks of their own. Their queues go to the workers in turn, and the second's leave.
fn leave_one_worker_idle(spec: &str) -> (Daemon, Vec<Load>) {
    let disks = DISKS.iter().flat_map(|name| ["--disk".to_owned(), spec.replace("NAME", name)]);
    let arguments: Vec<String> = ["--workers".to_owned(), "2".to_owned()].into_iter().chain(disks).collect();
    let daemon = Daemon::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let (mut staying, mut leaving) = (Vec::new(), Vec::new());
    for (index, disk) in DISKS.iter().enumerate() {
        let load = Load::start(&daemon, disk, 16);
        load.await_progress();
        if index % 2 == 0 { staying.push(load) } else { leaving.push(load) }
    }
    even(&daemon, 4);
    leaving.into_iter().for_each(|load| assert!(load.finish() > 0));
    (daemon, staying)
}

#[test]
fn queues_under_load_go_to_the_worker_whose_clients_have_left() {
    for spec in ["NAME=memory:1M", "NAME=file:{dir}/NAME,size=1M"] {
        let (mut daemon, loads) = leave_one_worker_idle(spec);
        even(&daemon, 2);
        loads.iter().for_each(Load::await_progress);
        // Another daemon takes over a queue that has moved.
        daemon.take_over();
        loads.iter().for_each(Load::await_progress);
        loads.into_iter().for_each(|load| assert!(load.finish() > 0));
        even(&daemon, 0);
    }
}

#[test]
fn takeovers_in_the_middle_of_moves_wait_for_them() {
    for round in 0..5 {
        let (mut daemon, loads) = leave_one_worker_idle("NAME=file:{dir}/NAME,size=1M");
        daemon.take_over();
        even(&daemon, 2);
        loads.iter().for_each(Load::await_progress);
        loads.into_iter().for_each(|load| assert!(load.finish() > 0, "round {round}"));
    }
}

#[test]
fn memory_resizes_and_departures_of_a_queue_that_moves_are_not_lost() {
    let daemon = Daemon::start(&["--disk", "m=memory:1M,max=64M", "--workers", "2"]);
    let attach = || {
        let options = AttachOptions { queue_count: 2, ..Daemon::options("m") };
        Disk::attach(&daemon.socket(), &options).expect("attached")
    };
    for round in 1..30_u64 {
        let size = (1 + round) << 20;
        let one = || daemon.client(&Daemon::options("m"));
        let (first, leaving, second, also_leaving) = (one(), one(), one(), one());
        let (disk, mut pair) = attach();
        drop((leaving, also_leaving));
        // This may come at any step of a move.
        let memory = disk.create_memory(1 << 16).expect("registered");
        let buffer = memory.buffer(0, 4096).expect("inside");
        let resized = daemon.admin(&json!({ "method": "disk.resize", "disk": "m", "size_bytes": size }));
        assert_eq!(resized["size_bytes"], size, "{resized}");
        for queue in &mut pair {
            eventually("the queue knows the new size", || {
                queue.write(size / 512 - 8, buffer.segment(0, 4096), false, 0).expect("room");
                finish_one(queue) == Status::Ok
            });
        }
        disk.unregister(&memory).expect("unregistered");
        for queue in &mut pair {
            queue.read(0, buffer.segment(0, 4096), 0).expect("room");
            assert_eq!(finish_one(queue), Status::BadMemory);
        }
        disk.detach(pair).expect("in order");
        for (disk, queue) in [first, second] {
            disk.detach(vec![queue]).expect("in order");
        }
        even(&daemon, 0);
    }
}
