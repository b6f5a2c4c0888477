//! The device of a virtual machine is the sole writer of its disk, from its first queue to the last GET_VRING_BASE.

use std::time::{Duration, Instant};

use fipsee_block::client::{AttachOptions, Blocking, Claim};
use fipsee_block::wire::{Operation, Status};
use fipsee_ring::control::RefusalCode;
use fipsee_testkit::guest::device::{Guest, IN, OK, OUT, Options};
use fipsee_testkit::guest::machine::{Upgraded, socket_of, start_guest, start_with, transfer};
use fipsee_testkit::hypervisor::{GET_VRING_BASE, Hypervisor, OK as VM_OK, Queue, Ram, SET_VRING_ENABLE, Vm, u32s};
use fipsee_testkit::{Daemon, assert_says, eventually, finish_one, refusal_of, stamp};
use serde_json::json;

fn with(disk: &str, claim: Claim) -> AttachOptions {
    AttachOptions { claim, ..Daemon::options(disk) }
}

/// The reason why a disk can be neither written nor claimed; the clients that tried are gone on return.
#[track_caller]
fn is_held(daemon: &Daemon, disk: &str) -> String {
    refusal_of(daemon.attach(&with(disk, Claim::None)), RefusalCode::Busy);
    refusal_of(daemon.attach(&with(disk, Claim::SoleWriter)), RefusalCode::Busy)
}

/// The disk can be claimed, and is released again.
#[track_caller]
fn is_free(daemon: &Daemon, disk: &str) {
    let (attached, queues) = daemon.attach(&with(disk, Claim::SoleWriter)).expect("the disk is free");
    attached.detach(queues).expect("in order");
}

/// Wait until the daemon has taken a request from the only queue.
fn taken(daemon: &Daemon) {
    eventually("the daemon has taken the write", || {
        let stat = daemon.admin(&json!({ "method": "stat" }));
        stat["queues"][0]["visits"].as_u64().is_some_and(|visits| visits > 0)
    });
}

/// Wait until the daemon has noticed that the only client hung up.
fn noticed(daemon: &Daemon) {
    eventually("the daemon has noticed the hang-up", || {
        daemon.admin(&json!({ "method": "disk.info", "disk": "d" }))["clients"][0]["leaving"] == true
    });
}

#[track_caller]
fn stop(guest: &mut Guest, index: u32) {
    guest.frontend.stop_vring(index).expect("an answer");
}

/// checks: R-4.5-13
#[test]
fn a_device_claims_from_its_first_queue_to_the_last_get_vring_base() {
    let daemon = start_with(&["--disk", "d=memory:8M"]);
    let hypervisor = Hypervisor::connect(&socket_of(&daemon, "d"));
    let ram = Ram::new(2 << 20);
    let queues = [Queue::new(0), Queue::new(1)];
    hypervisor.negotiate(&ram);
    is_free(&daemon, "d");
    queues[0].start(&hypervisor, &ram);
    let text = is_held(&daemon, "d");
    assert_says(&text, &[&format!("process {} (a virtual machine) is its sole writer", std::process::id())]);
    let reader = AttachOptions { read_only: true, ..Daemon::options("d") };
    let mut reader = Blocking::attach(&daemon.socket(), &reader).expect("readers are admitted");
    reader.read_at(&mut [0; 512], 0).expect("read");
    queues[1].start(&hypervisor, &ram);
    queues[0].stop(&hypervisor);
    is_held(&daemon, "d");
    hypervisor.send(SET_VRING_ENABLE, &u32s(&[1, 0]), &[]);
    assert_says(&is_held(&daemon, "d"), &["sole writer"]);
    hypervisor.ask(GET_VRING_BASE, &u32s(&[1, 0]));
    is_free(&daemon, "d");
    // And again, as when a guest reboots; a hang-up ends it, too.
    Queue::new(0).start(&hypervisor, &ram);
    is_held(&daemon, "d");
    drop(hypervisor);
    eventually("only the reader is left", || daemon.attached_count("d") == 1);
    is_free(&daemon, "d");
}

#[test]
fn rings_in_guest_memory_are_the_devices_own() {
    let daemon = start_with(&["--disk", "d=memory:8M"]);
    let mut guest = start_guest(&daemon, "d", &Options { queues: 2, ..Options::default() });
    let mut up = Upgraded::attach(&mut guest, &[0, 1], 16);
    let data = guest.ram.allocate(4096, 4096);
    assert_eq!(transfer(&mut guest, &mut up, 1, Operation::Write, 0, (data, 4096)), Status::Ok);
    is_held(&daemon, "d");
    let clients = daemon.admin(&json!({ "method": "disk.info", "disk": "d" }))["clients"].clone();
    assert_eq!((clients[0]["sole_writer"].clone(), clients[1].is_null()), (json!(true), true), "one client: {clients}");
    stop(&mut guest, 0);
    is_held(&daemon, "d");
    stop(&mut guest, 1);
    is_free(&daemon, "d");
}

#[test]
fn a_device_does_not_start_beside_a_writer_and_the_log_says_why() {
    for claim in [Claim::None, Claim::SoleWriter] {
        let daemon = start_with(&["--disk", "d=memory:8M"]);
        let (attached, queues) = daemon.attach(&with("d", claim)).expect("attached");
        assert!(Guest::start(&socket_of(&daemon, "d"), &Options::default()).is_err(), "{claim:?}");
        let how = if claim == Claim::None { "may write it, too" } else { "is its sole writer" };
        let pid = std::process::id().to_string();
        eventually("a line in the log", || daemon.log().contains("a hypervisor is refused and detached"));
        assert_says(&daemon.log(), &["disk 'd' cannot be written safely", &pid, how, "shared = true"]);
        eventually("the hypervisor is gone", || daemon.attached_count("d") == 1);
        attached.detach(queues).expect("in order");
        let mut guest = start_guest(&daemon, "d", &Options::default());
        let data = guest.ram.allocate(4096, 4096);
        assert_eq!(guest.transfer(0, OUT, 0, (data, 4096)), OK, "the next guest is served");
    }
}

/// checks: R-4.5-14
#[test]
fn the_claim_of_a_hypervisor_that_is_gone_ends_with_its_last_request() {
    const DELAY: Duration = Duration::from_secs(2);
    let daemon = start_with(&["--disk", "d=delay:2s:file:{dir}/f,size=1M"]);
    let mut guest = start_guest(&daemon, "d", &Options::default());
    let data = guest.ram.allocate(4096, 4096);
    guest.ram.write(data, &stamp(4096, 6, 6));
    let began = Instant::now();
    guest.submit(0, OUT, 0, &[(data, 4096, false)]);
    taken(&daemon);
    drop(guest);
    noticed(&daemon);
    let (attached, queues) = daemon.attach(&with("d", Claim::SoleWriter)).expect("the claim ends while it waits");
    assert!(began.elapsed() >= DELAY, "its write was in flight when the claim ended");
    assert!(std::fs::read(daemon.dir.path("f")).expect("a file")[..4096] == stamp(4096, 6, 6), "it was finished");
    attached.detach(queues).expect("in order");
}

#[test]
fn a_device_waits_for_the_last_request_of_a_writer_that_is_gone() {
    const DELAY: Duration = Duration::from_secs(2);
    let daemon = start_with(&["--disk", "d=delay:2s:memory:1M"]);
    let (disk, mut queue) = daemon.client(&with("d", Claim::None));
    let buffer = disk.allocate(4096).expect("a pool");
    let began = Instant::now();
    queue.write(0, buffer.segment(0, 4096), false, 1).expect("room");
    queue.submit();
    taken(&daemon);
    drop((disk, queue, buffer));
    noticed(&daemon);
    let _guest = Guest::start(&socket_of(&daemon, "d"), &Options::default()).expect("it starts late");
    assert!(began.elapsed() >= DELAY, "a write was in flight when it started");
    is_held(&daemon, "d");
}

/// As hypervisors migrate: the destination connects and describes its device while the source runs, and starts it when the source
/// has stopped.
#[test]
fn the_destination_of_a_migration_connects_early_and_claims_when_the_source_has_stopped() {
    for disk in ["d=memory:8M", "d=file:{dir}/f,size=8M"] {
        let daemon = start_with(&["--disk", disk, "--vhost-user", "d={dir}/to"]);
        let mut source = start_guest(&daemon, "d", &Options { queues: 2, ..Options::default() });
        let mut up = Upgraded::attach(&mut source, &[1], 16);
        let data = source.ram.allocate(4096, 4096);
        let destination = Hypervisor::connect(&daemon.dir.path("to"));
        let (ram, mut queue) = (Ram::new(1 << 20), Queue::new(0));
        destination.negotiate(&ram);
        for block in 0..4 {
            source.ram.write(data, &stamp(4096, block, 1));
            let status = transfer(&mut source, &mut up, 0, Operation::Write, 8 * block, (data, 4096));
            assert_eq!(status, Status::Ok, "the destination is connected, and the source writes");
        }
        stop(&mut source, 1);
        stop(&mut source, 0);
        queue.start(&destination, &ram);
        (0..4).for_each(|block| queue.check_block(&ram, block, 1));
        queue.write_block(&ram, 0, 2);
        // If the destination fails to run, say, the source may go on when the destination has stopped, and not before.
        assert!(source.start_queue(0).is_err(), "two would write");
        queue.stop(&destination);
        source.reconnect().expect("the source is the only one again");
        assert_eq!(source.transfer(0, IN, 0, (data, 4096)), OK);
        assert!(source.ram.read(data, 4096) == stamp(4096, 0, 2), "what the destination wrote is on the disk");
    }
}

#[test]
fn a_destination_that_starts_too_early_is_refused_and_the_source_goes_on() {
    let daemon = start_with(&["--disk", "d=memory:8M", "--vhost-user", "d={dir}/to"]);
    let mut source = Vm::boot(&socket_of(&daemon, "d"));
    let early = Hypervisor::connect(&daemon.dir.path("to"));
    let (ram, queue) = (Ram::new(1 << 20), Queue::new(0));
    early.negotiate(&ram);
    let started = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| queue.start(&early, &ram)));
    assert!(started.is_err(), "the destination is served beside the source");
    early.assert_hung_up();
    source.check();
    source.queue.stop(&source.hypervisor);
    let mut late = Vm::boot(&daemon.dir.path("to"));
    late.check_block(3, 1);
    assert_eq!(late.queue.run(&late.ram, fipsee_testkit::hypervisor::FLUSH, 0), VM_OK);
}

#[test]
fn a_devices_claim_goes_over_to_the_daemon_that_takes_over_and_ends_there() {
    let mut daemon = start_with(&["--disk", "d=memory:8M", "--disk", "s=memory:8M,shared", "--workers", "2"]);
    let mut guests = [("d", true), ("s", false)].map(|(disk, claims)| {
        let mut guest = start_guest(&daemon, disk, &Options { queues: 2, ..Options::default() });
        let up = Upgraded::attach(&mut guest, &[1], 16);
        (disk, claims, guest, up)
    });
    for _ in 0..2 {
        daemon.take_over();
        is_held(&daemon, "d");
        drop(daemon.attach(&with("s", Claim::SoleWriter)).expect("the disk is shared"));
    }
    for (disk, claims, guest, up) in &mut guests {
        let data = guest.ram.allocate(4096, 4096);
        assert_eq!(transfer(guest, up, 0, Operation::Write, 0, (data, 4096)), Status::Ok);
        let client = daemon.admin(&json!({ "method": "disk.info", "disk": disk }))["clients"][0].clone();
        assert_eq!((&client["kind"], &client["sole_writer"]), (&json!("vhost-user"), &json!(*claims)), "{disk}");
        stop(guest, 1);
        stop(guest, 0);
    }
    is_free(&daemon, "d");
    guests[0].2.start_queue(0).expect("the device starts again");
    is_held(&daemon, "d");
}

#[test]
fn a_guest_claims_anew_when_its_daemon_is_back() {
    let mut daemon = start_with(&["--disk", "d=file:{dir}/f,size=8M"]);
    let mut guest = start_guest(&daemon, "d", &Options::default());
    daemon.kill_9();
    daemon.restart();
    guest.reconnect().expect("the daemon is back");
    is_held(&daemon, "d");
    // A client that ignores claims is admitted, and does not disturb.
    let (disk, mut queue) = daemon.client(&with("d", Claim::Ignore));
    let buffer = disk.allocate(4096).expect("a pool");
    queue.write(8, buffer.segment(0, 4096), false, 1).expect("room");
    assert_eq!(finish_one(&mut queue), Status::Ok);
    let data = guest.ram.allocate(4096, 4096);
    assert_eq!(guest.transfer(0, OUT, 0, (data, 4096)), OK);
}
