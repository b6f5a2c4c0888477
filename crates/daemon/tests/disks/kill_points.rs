//! A client is killed at every step of its life: the daemon releases everything it held, and its memory only when no
//! disk works on it any more.

use std::path::Path;
use std::time::Instant;

use fipsee_block::wire::{Operation, Segment, Status, request_flush, request_one_segment};
use fipsee_ring::Message;
use fipsee_ring::control::Control;
use fipsee_ring::region::{Access, Region};
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_testkit::raw::{BOTH, HELLO, RawClient, attach_message, receive, say, sealed_memory};
use fipsee_testkit::{CorrectClient, Daemon, await_word, child, eventually, finish_all, mapping_count, stamp};
use rustix::fs::SealFlags;

/// The steps at which a client may be killed, in their order.
const STEPS: [&str; 20] = [
    "connected",
    "hello sent",
    "welcome received",
    "attach sent",
    "attached received",
    "region mapped",
    "register sent",
    "registered received",
    "second register sent",
    "payload written",
    "slot half written",
    "request staged in the ring without a doorbell",
    "asleep flag set",
    "doorbell rung",
    "all in flight",
    "completion taken",
    "another request in flight",
    "unregister sent",
    "detach sent with requests in flight",
    "detached received",
];

const STEP_VARIABLE: &str = "FIPSEED_TEST_STEP";
const BLOCK_BYTES: u64 = 4096;
/// Bytes of each region that the client registers.
const MEMORY_BYTES: u64 = 16 * BLOCK_BYTES;

/// If this is the step, print it and wait to be killed.
fn here(step: &str) {
    assert!(STEPS.contains(&step), "{step} is listed");
    if std::env::var(STEP_VARIABLE).is_ok_and(|wanted| wanted == step) {
        println!("here");
        loop {
            std::thread::park();
        }
    }
}

fn write_of(tag: u16, region: u16) -> Message {
    let segment = Segment { offset_sectors: 8 * u32::from(tag), length_sectors: 8, region };
    request_one_segment(Operation::Write, 0, tag, 8 * u64::from(tag), segment)
}

/// As a process of its own: run until the step.
pub(crate) fn client_that_runs_until_a_step() {
    let control = Seqpacket::connect(&child::socket()).expect("the daemon listens");
    here("connected");
    say(&control, &HELLO, &[]);
    here("hello sent");
    assert!(matches!(receive(&control).0, Control::Welcome { .. }));
    here("welcome received");
    say(&control, &attach_message("d", 2, 64, 0), &[]);
    here("attach sent");
    let (answer, descriptors) = receive(&control);
    here("attached received");
    let mut client = RawClient::attached(control, &answer, descriptors);
    here("region mapped");
    register_twice(&client);
    issue(&mut client);
    say(&client.control, &Control::Unregister { region: 1 }, &[]);
    here("unregister sent");
    assert_eq!(receive(&client.control).0, Control::Unregistered { region: 1 });
    client.publish(&request_flush(9));
    say(&client.control, &Control::Detach, &[]);
    here("detach sent with requests in flight");
    assert_eq!(receive(&client.control).0, Control::Detached);
    here("detached received");
    panic!("no such step");
}

fn register_twice(client: &RawClient) {
    for (id, sent) in [(1, "register sent"), (2, "second register sent")] {
        let file = sealed_memory(MEMORY_BYTES, SealFlags::SHRINK);
        say(&client.control, &Control::Register { region: id, access: BOTH, length_bytes: MEMORY_BYTES }, &[fd(&file)]);
        here(sent);
        assert_eq!(receive(&client.control).0, Control::Registered { region: id });
        if id == 1 {
            here("registered received");
        }
        let memory = Region::from_peer(file, MEMORY_BYTES, Access::ReadWrite).expect("our own memory");
        for block in 0..16 {
            memory.write(block * BLOCK_BYTES, &stamp(4096, block, 1)).expect("inside");
        }
    }
}

fn fd(file: &std::os::fd::OwnedFd) -> std::os::fd::BorrowedFd<'_> {
    std::os::fd::AsFd::as_fd(file)
}

fn issue(client: &mut RawClient) {
    client.fill_pool(0, &stamp(4096, 0, 1));
    here("payload written");
    let ring = &client.layout.queues[0];
    let slot = ring.request_offset_bytes + 64 * u64::from(ring.request_start);
    client.region.write(slot, &[2, 1, 0, 0, 7, 0]).expect("inside");
    here("slot half written");
    client.queues[0].requests.publish(&write_of(0, 0)).expect("room");
    here("request staged in the ring without a doorbell");
    let _ = client.queues[0].completions.arm_and_work_remains();
    here("asleep flag set");
    client.queues[0].daemon_doorbell.ring();
    here("doorbell rung");
    for tag in 1..16 {
        client.publish(&write_of(tag, 1));
    }
    here("all in flight");
    let mut answered = 0;
    while answered < 16 {
        answered += client.next_completion().word(0) & 0xff;
        here("completion taken");
    }
    for _ in 0..16 {
        client.queues[0].requests.answered();
    }
    client.publish(&write_of(8, 2));
    here("another request in flight");
    let mut answered = 0;
    while answered < 1 {
        answered += client.next_completion().word(0) & 0xff;
    }
    client.queues[0].requests.answered();
}

/// The daemon's mappings of shared memory.
fn shared_mappings(pid: u32) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("a live process");
    maps.lines().filter(|line| line.contains("/memfd:")).count()
}

/// Descriptors now; [`Daemon::fd_count`] waits until they are stable, which would distort the time.
fn descriptors_now(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a live process").count()
}

/// Requests for data that the daemon has taken from its present queues.
fn taken(daemon: &Daemon) -> u64 {
    let stat = daemon.admin(&serde_json::json!({ "method": "stat" }));
    let queues = stat["queues"].as_array().expect("queues");
    queues.iter().map(|queue| queue["writes"].as_u64().expect("a count")).sum()
}

/// Kill a client at a step, once `condition` holds.
fn kill_at(step: &str, socket: &Path, mut condition: impl FnMut() -> bool) -> Instant {
    let mut child = child::command_at("client_that_runs_until_a_step", socket);
    let mut child = child.env(STEP_VARIABLE, step).spawn().expect("a process");
    await_word(&mut child, "here");
    eventually("it is time to kill", &mut condition);
    let killed = Instant::now();
    child.kill().expect("killed");
    child.wait().expect("gone");
    killed
}

#[test]
fn everything_of_a_client_killed_at_any_step_is_released() {
    let disks = ["--disk", "d=file:{dir}/disk,size=1M", "--disk", "w=memory:1M", "--workers", "2"];
    let daemon = Daemon::start(&disks);
    let mut correct_client = CorrectClient::new(&daemon, "w");
    // The first use of the disk may open descriptors that stay.
    kill_at("another request in flight", &daemon.socket(), || true);
    eventually("no client is attached", || daemon.attached_count("d") == 0);
    let (fds, shared, mappings) = (daemon.fd_count(), shared_mappings(daemon.pid()), mapping_count(daemon.pid()));
    for step in STEPS {
        let killed = kill_at(step, &daemon.socket(), || true);
        eventually("descriptors and memory are given back", || {
            descriptors_now(daemon.pid()) <= fds && shared_mappings(daemon.pid()) == shared
        });
        println!("killed when '{step}': released after {:?}", killed.elapsed());
        eventually("no client is attached", || daemon.attached_count("d") == 0);
        assert_eq!(daemon.fd_count(), fds, "{step}");
        correct_client.check();
    }
    // An allocator may map a heap of its own, but not one for each client.
    assert!(mapping_count(daemon.pid()) <= mappings + 4, "{mappings} mappings became {}", mapping_count(daemon.pid()));
}

/// checks: R-4.3-18
#[test]
fn memory_of_a_killed_client_stays_until_the_disk_is_done_with_it() {
    for wrapper in ["delay:1s:", "delay:1ms+1s:"] {
        let daemon = Daemon::start(&["--disk", &format!("d={wrapper}file:{{dir}}/disk,size=1M"), "--disk", "w=memory:1M"]);
        let mut correct_client = CorrectClient::new(&daemon, "w");
        let shared = shared_mappings(daemon.pid());
        let before = taken(&daemon);
        // Requests not taken before their client dies are never carried out.
        kill_at("all in flight", &daemon.socket(), || taken(&daemon) == before + 16);
        correct_client.check();
        eventually("its memory is given back", || shared_mappings(daemon.pid()) == shared);
        // Each write took its data from that memory, so once it is gone the writes are done.
        let file = std::fs::read(daemon.dir.path("disk")).expect("the file");
        for block in 0..16 {
            let start = 4096 * usize::try_from(block).expect("small");
            assert!(file[start..start + 4096] == stamp(4096, block, 1), "{wrapper} block {block} was not finished");
        }
        correct_client.check();
        assert_eq!(daemon.blocking("d").info().size_bytes(), 1 << 20, "the daemon serves");
    }
}

#[test]
fn failing_disk_answers_each_request_once_and_the_client_goes_on() {
    let daemon = Daemon::start(&["--disk", "d=delay:1us+2ms:error:every=3,op=write,errno=ENOSPC:memory:1M"]);
    let (disk, mut queue) = daemon.client(&Daemon::options("d"));
    let buffer = disk.allocate(64 * BLOCK_BYTES).expect("a pool");
    for round in 0..10 {
        for token in 0..64 {
            queue.write(8 * token, buffer.segment(token * BLOCK_BYTES, BLOCK_BYTES), false, token).expect("room");
        }
        let mut completions = finish_all(&mut queue).expect("connected");
        completions.sort_by_key(|completion| completion.token);
        assert!(completions.iter().map(|completion| completion.token).eq(0..64), "{round}: {completions:?}");
        let failed = completions.iter().filter(|completion| completion.status == Status::NoSpace).count();
        assert!((21..=22).contains(&failed), "{failed} of 64 in round {round}");
    }
}
