//! Interrupts of guests under a policy: no more than its rate, and none lost, over virtqueues and over rings.

use std::time::Instant;

use fipsee_block::wire::Operation;
use fipsee_testkit::guest::device::Options;
use fipsee_testkit::guest::load::{GuestLoad, Way};
use fipsee_testkit::guest::machine::{Upgraded, start_guest, start_with};
use fipsee_testkit::guest::ring::{Incoming, Woken, segment};
use fipsee_testkit::{Daemon, eventually, wait_for};
use serde_json::json;

/// Notifications of all queues of machines, and those held back.
fn counts(daemon: &Daemon) -> (u64, u64) {
    let stat = daemon.admin(&json!({ "method": "stat" }));
    let queues = stat["queues"].as_array().expect("a list");
    let sum = |key: &str| queues.iter().map(|queue| queue[key].as_u64().expect("a count")).sum();
    (sum("doorbells"), sum("suppressed"))
}

fn set(daemon: &Daemon, disk: &str, mut params: serde_json::Value) {
    params["method"] = "notify.set".into();
    params["disk"] = disk.into();
    let answer = daemon.admin(&params);
    assert!(answer["error"].is_null(), "{answer}");
}

/// A guest with 32 requests in flight that sleeps whenever nothing is there.
fn is_kept(way: Way, event_index: bool) {
    const RATE: u64 = 300;
    let daemon = start_with(&["--disk", "d=memory:8M", "--workers", "1"]);
    let load = GuestLoad::start(&daemon, "d", &Options { event_index, ..Options::default() }, way, 32);
    load.await_progress();
    set(&daemon, "d", json!({ "max_rate": RATE }));
    let (started, before) = (Instant::now(), counts(&daemon));
    // A slow guest may need fewer interrupts for a while.
    let after = wait_for("some are held back", || {
        (0..3).for_each(|_| load.await_progress());
        Some(counts(&daemon)).filter(|after| after.1 > before.1)
    });
    let most = u64::try_from(started.elapsed().as_micros()).expect("short") * RATE / 1_000_000 + 1;
    // One of each policy object: the virtqueue's, and the ring's.
    assert!(after.0 - before.0 <= most + 1, "{} notifications, at most {most}", after.0 - before.0);
    for policy in [json!({ "min_completions": 8, "max_delay_us": 50 }), json!({ "auto": true }), json!({ "off": true })] {
        set(&daemon, "d", policy);
        load.await_progress();
    }
    assert!(load.finish() > 0);
}

#[test]
fn rate_is_kept_and_every_request_ends_over_virtqueues() {
    is_kept(Way::Virtqueue, true);
    is_kept(Way::Virtqueue, false);
}

/// checks: R-9.2-3
#[test]
fn rate_is_kept_and_every_request_ends_over_rings() {
    is_kept(Way::Ring, true);
}

#[test]
fn takeover_loses_no_interrupt_that_is_held_back() {
    let mut daemon = start_with(&["--disk", "d=memory:8M", "--disk", "e=memory:8M", "--workers", "1"]);
    let loads = [("d", Way::Virtqueue), ("e", Way::Ring)].map(|(disk, way)| {
        let load = GuestLoad::start(&daemon, disk, &Options::default(), way, 8);
        load.await_progress();
        // What is lost waits for ever.
        set(&daemon, disk, json!({ "max_rate": 200 }));
        load
    });
    for _ in 0..5 {
        let before = counts(&daemon).1;
        eventually("some are held back", || counts(&daemon).1 > before);
        daemon.take_over();
        loads.iter().for_each(GuestLoad::await_progress);
    }
    ["d", "e"].iter().for_each(|disk| set(&daemon, disk, json!({ "off": true })));
    loads.into_iter().for_each(|load| assert!(load.finish() > 0));
}

#[test]
fn takeover_leaves_a_guest_asleep_that_waits_at_its_ring_for_nothing() {
    let mut daemon = start_with(&["--disk", "d=memory:8M", "--workers", "1"]);
    set(&daemon, "d", json!({ "max_rate": 1000 }));
    let mut guest = start_guest(&daemon, "d", &Options::default());
    let mut up = Upgraded::attach(&mut guest, &[0], 16);
    let data = guest.ram.allocate(4096, 4096);
    for _ in 0..3 {
        assert!(up.rings[0].arm(up.attachment, &mut guest));
        daemon.take_over();
        assert!(!up.rings[0].doorbell_is_done(&mut guest), "it has nothing to look for");
        // It still counts on being rung.
        up.rings[0].submit_one(Operation::Read, 1, 0, segment(data, 512), &guest.queues[0]);
        assert_eq!(up.rings[0].wait_for_doorbell(&mut guest), Woken::Rung);
        assert!(!up.rings[0].disarm(&mut guest), "the attachment goes on");
        assert_eq!(up.rings[0].reap(), [Incoming::Answer(1, 0)]);
    }
}
