//! A queue in an event loop: its descriptor in poll(2) and epoll(7).

use std::time::Instant;

use fipsee_block::client::{Buffer, Queue};
use fipsee_block::wire::Status;
use fipsee_testkit::{Daemon, TIMEOUT};
use rustix::event::{PollFd, PollFlags, Timespec, epoll};

const REQUESTS: u64 = 100_000;
/// No completion for this long, with requests outstanding, is a lost wake-up.
const WAKE_UP_TIMEOUT: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// Sleep on the descriptor for every completion, with a changing number of requests outstanding.
fn run_loop(queue: &mut Queue, buffer: &Buffer, mut sleep: impl FnMut(&Queue)) {
    let (mut staged, mut finished, mut sleeps) = (0, 0, 0_u64);
    let mut outstanding_limit = 1;
    while finished < REQUESTS {
        while staged < REQUESTS && queue.outstanding() < outstanding_limit {
            queue.read(staged % 1000, buffer.segment(0, 512), staged).expect("room");
            staged += 1;
        }
        // Publishes what is staged, too.
        if !queue.arm_and_work_remains() {
            sleep(queue);
            sleeps += 1;
        }
        queue.woken().expect("connected");
        let mut count = 0;
        queue
            .reap(&mut |completion| {
                assert_eq!(completion.status, Status::Ok);
                count += 1;
            })
            .expect("a correct daemon");
        finished += count;
        outstanding_limit = 1 + usize::try_from(finished % 64).expect("small");
    }
    assert_eq!(queue.outstanding(), 0);
    println!("{sleeps} sleeps for {REQUESTS} requests");
    assert!(sleeps > 0, "it never had to wait");
}

#[test]
fn hundred_thousand_requests_through_poll_lose_no_wake_up() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M"]);
    let (disk, mut queue) = daemon.client(&Daemon::options("a"));
    let buffer = disk.allocate(512).expect("a pool");
    run_loop(&mut queue, &buffer, |queue| {
        let mut fds = [PollFd::new(queue, PollFlags::IN)];
        let ready = rustix::event::poll(&mut fds, Some(&WAKE_UP_TIMEOUT)).expect("poll");
        assert_eq!(ready, 1, "a wake-up was lost");
    });
}

#[test]
fn hundred_thousand_requests_through_epoll_lose_no_wake_up() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M", "--wait", "sleep"]);
    let (disk, mut queue) = daemon.client(&Daemon::options("a"));
    let buffer = disk.allocate(512).expect("a pool");
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
    epoll::add(&set, &queue, epoll::EventData::new_u64(1), epoll::EventFlags::IN).expect("epoll");
    run_loop(&mut queue, &buffer, |_| {
        let mut events = Vec::with_capacity(4);
        let ready = epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), Some(&WAKE_UP_TIMEOUT));
        assert_eq!(ready.expect("epoll"), 1, "a wake-up was lost");
    });
}

/// The time of publishing sweeps over the moment at which the worker decides to sleep.
#[test]
fn sleeping_worker_is_woken_for_every_request_of_a_client_that_never_sleeps() {
    let daemon = Daemon::start(&["--disk", "a=null:1M", "--wait", "sleep"]);
    let (disk, mut queue) = daemon.client(&Daemon::options("a"));
    let buffer = disk.allocate(512).expect("a pool");
    for request in 0..2 * REQUESTS {
        // A delay from zero to about a microsecond.
        (0..request % 64).for_each(|_| std::hint::spin_loop());
        queue.read(0, buffer.segment(0, 512), request).expect("room");
        queue.submit();
        let asked = Instant::now();
        let mut looks = 0_u32;
        while queue.reap(&mut |_| {}).expect("a correct daemon") == 0 {
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(1024) {
                assert!(asked.elapsed() < TIMEOUT, "request {request} woke no worker");
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn descriptor_of_an_idle_queue_becomes_readable_when_the_daemon_dies() {
    let mut daemon = Daemon::start(&["--disk", "a=memory:1M"]);
    let (_disk, mut queue) = daemon.client(&Daemon::options("a"));
    assert!(!queue.arm_and_work_remains(), "nothing is outstanding");
    daemon.kill_9();
    let ready = rustix::event::poll(&mut [PollFd::new(&queue, PollFlags::IN)], Some(&WAKE_UP_TIMEOUT)).expect("poll");
    assert_eq!(ready, 1);
    assert!(matches!(queue.woken(), Err(fipsee_block::client::Error::Disconnected)));
}
