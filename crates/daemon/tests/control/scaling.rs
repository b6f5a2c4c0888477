//! Workers follow the load, and what is asked of them at run time.

use fipsee_testkit::load::Load;
use fipsee_testkit::{Daemon, assert_says, eventually, skip, wait_for};
use serde_json::{Value, json};

const DISKS: [&str; 6] = ["--disk", "a=memory:1M", "--disk", "b=memory:1M", "--disk", "c=memory:1M"];

fn start(options: &[&str]) -> Daemon {
    Daemon::start(&[&DISKS[..], options].concat())
}

fn states(daemon: &Daemon) -> Vec<String> {
    let workers = daemon.admin(&json!({ "method": "workers" }));
    let states = workers["workers"].as_array().expect("a list").iter();
    states.map(|worker| worker["state"].as_str().expect("text").to_owned()).collect()
}

fn set(daemon: &Daemon, workers: &str) -> Value {
    daemon.admin(&json!({ "method": "workers.set", "workers": workers }))
}

#[test]
fn a_second_worker_serves_while_two_clients_keep_one_busy() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return skip("a second worker that the load needs", "a worker that shares its CPU with clients is never busy enough");
    }
    let daemon = start(&["--workers", "1..2"]);
    assert_eq!(states(&daemon), ["in use", "unused"]);
    let first = Load::start(&daemon, "a", 64);
    first.await_progress();
    let second = Load::start(&daemon, "b", 64);
    eventually("each has a worker", || daemon.queue_counts() == [1, 1] && states(&daemon) == ["in use", "in use"]);
    first.await_progress();
    second.await_progress();
    assert!(first.finish() > 0);
    let is_one = || daemon.queue_counts() == [1, 0] && states(&daemon) == ["in use", "unused"];
    eventually("one worker has room for what is left", is_one);
    second.await_progress();
    assert!(second.finish() > 0);
}

#[test]
fn the_number_in_use_is_set_at_run_time_within_what_was_started() {
    let mut daemon = start(&["--workers", "1..3"]);
    let loads = ["a", "b"].map(|disk| Load::start(&daemon, disk, 4));
    assert_eq!(set(&daemon, "3")["mode"], "3");
    eventually("all three are in use", || states(&daemon) == ["in use"; 3]);
    for (text, pieces) in [
        ("4", ["4 workers; this daemon has started 3", "use 1 to 3"]),
        ("0", ["0 workers", "use 1 to 3"]),
        ("2..4", ["2..4 workers", "--workers"]),
        ("many", ["'many' is not a number of workers", "1..4"]),
        ("4..1", ["'4..1' is not a number of workers", "a range from the least to the most, for example 1..4"]),
    ] {
        assert_says(set(&daemon, text)["error"].as_str().expect("refused"), &pieces);
    }
    assert_eq!(set(&daemon, "1")["mode"], "1");
    let is_one = || daemon.queue_counts() == [2, 0, 0] && states(&daemon) == ["in use", "unused", "unused"];
    eventually("no queue is left at the others", is_one);
    loads.iter().for_each(Load::await_progress);
    // What was set is kept by the daemon that takes over.
    set(&daemon, "2..3");
    daemon.take_over();
    assert_eq!(daemon.admin(&json!({ "method": "workers" }))["mode"], "2..3");
    let dump = daemon.admin(&json!({ "method": "config.dump" }));
    assert_says(dump["toml"].as_str().expect("text"), &["workers = \"1..3\"\n# in use now: workers = \"2..3\"\n"]);
    loads.into_iter().for_each(|load| assert!(load.finish() > 0));
}

#[test]
fn each_queue_has_its_part_of_its_workers_time() {
    for workers in ["1", "2"] {
        let mut daemon = start(&["--workers", workers]);
        let loads = ["a", "b"].map(|disk| Load::start(&daemon, disk, 16));
        let queues = |daemon: &Daemon| daemon.ask(&json!({ "method": "stat" }))["queues"].as_array().expect("a list").clone();
        let idle = daemon.client(&Daemon::options("c"));
        let time = |queue: &Value| queue["busy_ns"].as_u64().expect("a number");
        for when in ["at first", "after a takeover"] {
            let is_measured = |queue: &Value| time(queue) > 1_000_000 && queue["worker"].is_u64();
            eventually(&format!("both are measured {when}"), || {
                queues(&daemon).iter().filter(|queue| is_measured(queue)).count() == 2
            });
            let stat = daemon.ask(&json!({ "method": "stat" }));
            let of_workers = stat["workers"].as_array().expect("a list").iter();
            let busy_ns: u64 = of_workers.clone().map(|worker| worker["busy_ns"].as_u64().expect("a number")).sum();
            let of_queues = queues(&daemon);
            assert_eq!(of_queues.iter().filter(|queue| queue["disk"] == "c").map(time).sum::<u64>(), 0, "it did nothing");
            // What comes between the two answers, and what the measurement of short waits corrects later.
            let all_ns: u64 = stat["queues"].as_array().expect("a list").iter().map(time).sum();
            assert!(all_ns <= busy_ns + busy_ns / 5 + 50_000_000, "{all_ns} of {busy_ns}");
            for worker in of_workers {
                let measured = |key: &str| worker[key].as_u64().expect("a number");
                assert!(measured("queues_measured_ns") <= measured("measured_ns"), "{worker}");
            }
            let info = daemon.ask(&json!({ "method": "disk.info", "disk": "a" }));
            assert!(time(&info["clients"][0]) > 0, "{info}");
            if when == "at first" {
                daemon.take_over();
            }
        }
        drop(idle);
        loads.into_iter().for_each(|load| assert!(load.finish() > 0));
    }
}

#[test]
fn unused_workers_sleep_whatever_the_way_to_wait() {
    let daemon = start(&["--workers", "1..3", "--wait", "pause"]);
    let workers = || daemon.ask(&json!({ "method": "workers" }))["workers"].as_array().expect("a list").clone();
    let of =
        |workers: &[Value], key: &str| workers.iter().map(|worker| worker[key].as_u64().expect("a number")).collect::<Vec<_>>();
    // They may take their time to begin sleeping.
    let first = wait_for("the others sleep from one look to the next", || {
        let (one, other) = (workers(), workers());
        let has_slept = of(&one, "sleeps")[1..].iter().all(|sleeps| *sleeps > 0);
        (has_slept && of(&one, "cpu_time_ns")[1..] == of(&other, "cpu_time_ns")[1..]).then_some(other)
    });
    let polled_until = of(&first, "cpu_time_ns")[0] + 100_000_000;
    eventually("the first one polls for a while", || of(&workers(), "cpu_time_ns")[0] > polled_until);
    let later = workers();
    // Each may have looked at its CPUs or its mailbox.
    let times = of(&later, "cpu_time_ns").into_iter().zip(of(&first, "cpu_time_ns")).skip(1);
    times.for_each(|(later, first)| assert!(later - first < 10_000_000, "{first} and then {later} ns"));
}
