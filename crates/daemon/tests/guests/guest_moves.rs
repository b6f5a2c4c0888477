//! Queues of virtual machines go from worker to worker under load: neither hypervisor nor guest sees an error, no request is lost, none is
//! done twice.

use fipsee_testkit::guest::load::{GuestLoad, start_every_way};
use fipsee_testkit::{Daemon, eventually};
use serde_json::json;

fn use_workers(daemon: &Daemon, count: &str) {
    let answer = daemon.admin(&json!({ "method": "workers.set", "workers": count }));
    assert_eq!(answer["mode"], count);
}

#[test]
fn guests_under_load_notice_nothing_of_moves() {
    let (mut daemon, loads) = start_every_way();
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
