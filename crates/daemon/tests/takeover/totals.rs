//! Totals of disks, users and clients are handed over with the disks.

use fipsee_testkit::guest::machine::workers_sleep;
use fipsee_testkit::{Daemon, eventually};
use serde_json::{Value, json};

fn stat_of(daemon: &Daemon, disk: &str) -> Value {
    let stat = daemon.admin(&json!({ "method": "stat" }));
    let disks = stat["disks"].as_array().expect("a list");
    disks.iter().find(|described| described["disk"] == disk).expect("the disk").clone()
}

/// Only then has the daemon seen every doorbell that has rung.
fn await_sleep(daemon: &Daemon) {
    eventually("the worker sleeps", || workers_sleep(daemon));
}

#[test]
fn totals_survive_takeovers_and_count_on() {
    let mut daemon = Daemon::start(&["--disk", "a=memory:1M", "--disk", "b=memory:1M"]);
    let mut gone = daemon.blocking("a");
    (0..3).for_each(|_| gone.write_at(&[1; 512], 0).expect("written"));
    drop(gone);
    eventually("it is gone", || daemon.attached_count("a") == 0);
    let mut stays = daemon.blocking("a");
    for round in 0..3 {
        stays.read_at(&mut [0; 512], 0).expect("read");
        await_sleep(&daemon);
        let before = stat_of(&daemon, "a");
        assert_eq!((&before["totals"]["writes"], &before["totals"]["reads"]), (&json!(3), &json!(round + 1)));
        daemon.take_over();
        await_sleep(&daemon);
        let after = stat_of(&daemon, "a");
        for part in ["totals", "users", "other_users"] {
            assert_eq!(after[part], before[part], "{part}, round {round}");
        }
        let states =
            |stat: &Value| stat["clients"].as_array().expect("a list").iter().map(|of| of["state"].clone()).collect::<Vec<_>>();
        assert_eq!(states(&after), [json!("attached"), json!("gone")]);
        assert_eq!(after["clients"][1], before["clients"][1], "the client that is gone");
    }
    drop(stays);
    eventually("it is gone, too", || daemon.attached_count("a") == 0);
    let totals = stat_of(&daemon, "a")["totals"].clone();
    assert_eq!((&totals["clients"], &totals["writes"], &totals["reads"]), (&json!(2), &json!(3), &json!(3)));
    assert_eq!(stat_of(&daemon, "b")["totals"]["clients"], json!(0));
    daemon.kill_9();
    daemon.restart();
    assert_eq!(stat_of(&daemon, "a")["totals"]["clients"], json!(0), "not over a restart");
}
