//! Either process dies: the other notices, and everything of the dead one is released. `cargo xtask bench notice` measures how soon.

use std::sync::mpsc;

use fipsee_block::client::{AttachOptions, Disk, Error, Queue};
use fipsee_block::wire::{SECTOR_BYTES, Status};
use fipsee_ring::wait::WaitMode;
use fipsee_testkit::{Daemon, await_word, child, eventually, finish_all, stamp};
use rustix::process::Pid;

const TRIES: usize = 20;

/// Keep 64 writes of 16 KiB in flight, for `rounds` rounds.
fn write_with_depth_64(queue: &mut Queue, disk: &Disk, rounds: u64) -> Result<(), Error> {
    let buffer = disk.allocate(16 << 10)?;
    buffer.fill(0, &stamp(16 << 10, 0, 0));
    let mut next = 0;
    while next < 64 * rounds || queue.outstanding() > 0 {
        while queue.free() > 0 && next < 64 * rounds {
            queue.write(next % 64 * (16 << 10) / SECTOR_BYTES, buffer.segment(0, 16 << 10), false, next).expect("room");
            next += 1;
        }
        queue.wait(&mut |completion| assert_eq!(completion.status, Status::Ok))?;
    }
    Ok(())
}

/// As a process of its own: an endless load.
pub(crate) fn client_with_64_writes_in_flight() {
    let (disk, mut queues) = Disk::attach(&child::socket(), &Daemon::options("f")).expect("attached");
    let _memory = disk.create_memory(1 << 20).expect("registered");
    write_with_depth_64(&mut queues[0], &disk, 1).expect("written");
    println!("writing");
    write_with_depth_64(&mut queues[0], &disk, u64::MAX / 64).expect("until killed");
}

#[test]
fn place_of_a_client_killed_in_the_middle_of_io_is_freed() {
    let daemon = Daemon::start(&["--disk", "f=file:{dir}/disk,size=1M,exclusive"]);
    let mut fd_count = None;
    for _ in 0..TRIES {
        let mut child = child::command_at("client_with_64_writes_in_flight", &daemon.socket()).spawn().expect("a process");
        await_word(&mut child, "writing");
        child.kill().expect("killed");
        let mut client = None;
        eventually("exclusive use is free", || {
            client = daemon.attach(&Daemon::options("f")).ok();
            client.is_some()
        });
        child.wait().expect("gone");
        let (disk, mut queues) = client.take().expect("attached");
        write_with_depth_64(&mut queues[0], &disk, 2).expect("the disk works");
        disk.detach(queues).expect("detached");
        eventually("no client is attached", || daemon.attached_count("f") == 0);
        let now = daemon.fd_count();
        // The first use of the disk may have opened descriptors that stay.
        assert_eq!(now, *fd_count.get_or_insert(now), "descriptors of a dead client are still open");
    }
}

/// The state letter of one of our threads.
fn thread_state(thread: Pid) -> char {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", thread.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?')
}

/// A client in `wait` mode notices that the daemon was killed with its request in flight.
fn notices_death(wait: WaitMode) {
    let mut daemon = Daemon::start(&["--disk", "a=memory:1M"]);
    let (disk, mut queue) = daemon.client(&AttachOptions { wait, ..Daemon::options("a") });
    // A daemon that is stopped answers nothing, so the client waits.
    daemon.freeze();
    let (send, receive) = mpsc::channel();
    let client = std::thread::spawn(move || {
        queue.flush(1).expect("room");
        queue.submit();
        send.send(rustix::thread::gettid()).expect("received");
        let ended = queue.wait(&mut |_| {});
        drop(disk);
        ended
    });
    let thread = receive.recv().expect("a thread");
    if matches!(wait, WaitMode::Adaptive | WaitMode::Sleep) {
        eventually("the client sleeps", || thread_state(thread) == 'S');
    }
    daemon.kill_9();
    let ended = client.join().expect("no panic");
    assert!(matches!(ended, Err(Error::Disconnected)), "{wait:?}: {ended:?}");
}

#[test]
fn death_of_the_daemon_is_noticed_by_a_client_that_waits_in_any_way() {
    for mode in WaitMode::ALL.into_iter().filter(|mode| mode.available().is_ok()) {
        (0..TRIES).for_each(|_| notices_death(mode));
    }
}

#[test]
fn answers_published_before_the_daemon_died_still_count() {
    let mut daemon = Daemon::start(&["--disk", "a=memory:1M"]);
    let (_disk, mut queue) = daemon.client(&Daemon::options("a"));
    for token in 0..64 {
        queue.flush(token).expect("room");
    }
    queue.submit();
    let others = daemon.admin(&serde_json::json!({ "method": "stat" }));
    assert!(others["queues"].is_array());
    eventually("all are answered", || {
        let stat = daemon.admin(&serde_json::json!({ "method": "stat" }));
        stat["queues"][0]["others"].as_u64() == Some(64)
    });
    daemon.kill_9();
    assert_eq!(finish_all(&mut queue).expect("all answers are in the ring").len(), 64);
    queue.flush(1).expect("room");
    assert!(matches!(finish_all(&mut queue), Err(Error::Disconnected)));
}
