//! Queues of virtual machines go from worker to worker under load: neither hypervisor nor guest sees an error, no request is lost, none is
//! done twice.

use fipsee_testkit::guest::device::Options;
use fipsee_testkit::guest::load::{GuestLoad, Way};
use fipsee_testkit::guest::machine::start_with;
use fipsee_testkit::{Daemon, eventually};
use serde_json::json;

/// Queues of each worker.
fn use_workers(daemon: &Daemon, count: &str) {
    let answer = daemon.admin(&json!({ "method": "workers.set", "workers": count }));
    assert_eq!(answer["mode"], count);
}

#[test]
fn guests_under_load_notice_nothing_of_moves() {
    let disks =
        ["v=memory:8M", "e=memory:8M", "r=memory:8M", "f=file:{dir}/f,size=8M,block=4096", "g=file:{dir}/g,size=8M,block=4096"];
    let arguments: Vec<&str> = disks.iter().flat_map(|disk| ["--disk", disk]).chain(["--workers", "2"]).collect();
    let mut daemon = start_with(&arguments);
    let options = Options { size: 256, ..Options::default() };
    let with_index = Options { event_index: true, ..options.clone() };
    let loads = [
        GuestLoad::start(&daemon, "v", &options, Way::Virtqueue, 64),
        GuestLoad::start(&daemon, "e", &with_index, Way::Virtqueue, 64),
        GuestLoad::start(&daemon, "r", &options, Way::Ring, 64),
        GuestLoad::start(&daemon, "f", &with_index, Way::Virtqueue, 8),
        GuestLoad::start(&daemon, "g", &options, Way::Ring, 8),
    ];
    for round in 0..6 {
        loads.iter().for_each(GuestLoad::await_progress);
        use_workers(&daemon, "1");
        eventually("one worker has all queues", || daemon.queue_counts() == [5, 0]);
        loads.iter().for_each(GuestLoad::await_progress);
        if round == 3 {
            daemon.take_over();
        }
        use_workers(&daemon, "2");
        eventually("the other has some of them", || daemon.queue_counts()[1] > 0);
    }
    loads.iter().for_each(GuestLoad::await_progress);
    let info = daemon.admin(&json!({ "method": "disk.info", "disk": "v" }));
    assert!(info["clients"][0]["worker_cpus"].as_array().is_some_and(|cpus| cpus.len() == 1), "{info}");
    loads.into_iter().for_each(|load| assert!(load.finish() > 0));
}
