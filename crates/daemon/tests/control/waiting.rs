//! Waiting: idle clients cost nothing and are woken, every mode works with every other, no client starves.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use fipsee_block::client::{AttachOptions, Disk, Error, Queue};
use fipsee_block::wire::{SECTOR_BYTES, Status};
use fipsee_ring::wait::WaitMode;
use fipsee_testkit::process::process_time;
use fipsee_testkit::{Daemon, alone, eventually, finish_all, stamp};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::CpuSet;
use serde_json::json;

const BLOCK_BYTES: u64 = 4096;

/// Write blocks with stamps and read them back, `depth` at a time; every byte is compared.
fn write_and_verify(disk: &Disk, queue: &mut Queue, first_block: u64, block_count: u64, version: u64) {
    let depth = queue.depth() as u64;
    let buffer = disk.allocate(depth * BLOCK_BYTES).expect("a pool");
    let place = |block: u64| (first_block + block) * BLOCK_BYTES / SECTOR_BYTES;
    for start in (0..block_count).step_by(queue.depth()) {
        let blocks = start..block_count.min(start + depth);
        for block in blocks.clone() {
            let offset = (block - start) * BLOCK_BYTES;
            buffer.fill(offset, &stamp(4096, first_block + block, version));
            queue.write(place(block), buffer.segment(offset, BLOCK_BYTES), false, block).expect("room");
        }
        finish(queue, blocks.clone());
        buffer.fill(0, &vec![0; usize::try_from(buffer.length_bytes()).expect("small")]);
        for block in blocks.clone() {
            queue.read(place(block), buffer.segment((block - start) * BLOCK_BYTES, BLOCK_BYTES), block).expect("room");
        }
        finish(queue, blocks.clone());
        let mut bytes = vec![0; 4096];
        for block in blocks {
            buffer.copy_to((block - start) * BLOCK_BYTES, &mut bytes);
            assert!(bytes == stamp(4096, first_block + block, version), "block {block} is not what was written");
        }
    }
}

/// Every request of `tokens` is answered once and with success.
fn finish(queue: &mut Queue, tokens: std::ops::Range<u64>) {
    let mut seen: Vec<u64> = Vec::new();
    for completion in finish_all(queue).expect("connected") {
        assert_eq!(completion.status, Status::Ok);
        seen.push(completion.token);
    }
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(tokens), "answered: {seen:?}");
}

fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).expect("up to the hard limit");
}

fn sleeps(daemon: &Daemon) -> u64 {
    let stat = daemon.admin(&json!({ "method": "stat" }));
    stat["workers"][0]["sleeps"].as_u64().unwrap_or_else(|| panic!("no count of sleeps in {stat}"))
}

#[test]
fn two_hundred_idle_clients_cost_nothing_and_are_served_when_they_come_back() {
    let _alone = alone();
    raise_descriptor_limit();
    let daemon = Daemon::start(&["--disk", "a=memory:64M", "--log-level", "warn"]);
    let options = AttachOptions { depth: 4, pool_bytes: 64 << 10, ..Daemon::options("a") };
    let mut clients: Vec<_> = (0..200).map(|_| daemon.client(&options)).collect();
    for round in 0..3 {
        for (index, (disk, queue)) in clients.iter_mut().enumerate() {
            write_and_verify(disk, queue, index as u64 * 8, 8, round);
        }
        // After a load the daemon asks its worker what queues took of its time, and looks for a better number of workers, for a few seconds.
        let run_time = || process_time(daemon.pid()).expect("a live daemon");
        let mut last = run_time();
        eventually("all of its threads sleep", || {
            std::thread::sleep(Duration::from_millis(600)); // tidy: allow sleep, a time is stable only over a time
            std::mem::replace(&mut last, run_time()) == last
        });
        // The count is asked for outside the time that is measured: its answer names all clients.
        let (sleeps_before, run_before) = (sleeps(&daemon), run_time());
        std::thread::sleep(Duration::from_secs(2)); // tidy: allow sleep, the time over which processor time is measured
        let (run_ms, sleeps_after) = ((run_time() - run_before).as_millis(), sleeps(&daemon));
        println!("round {round}: {run_ms} ms in 2 s, sleeps {sleeps_before} to {sleeps_after}");
        assert_eq!(sleeps_after, sleeps_before, "the worker was woken without a cause");
        // Processor time, not elapsed time: a busy machine hardly changes it, and one thread that polls uses 2000 ms.
        assert!(run_ms <= 5, "{run_ms} ms in 2 s: an idle daemon has nothing to do");
    }
}

#[test]
fn every_wait_mode_of_the_client_works_with_every_one_of_the_daemon() {
    let _alone = alone();
    let modes = || WaitMode::ALL.into_iter().filter(|mode| mode.available().is_ok());
    for mode in modes() {
        let daemon = Daemon::start(&["--disk", "a=memory:64M", "--disk", "f=file:{dir}/disk,size=64M", "--wait", mode.name()]);
        for wait in modes() {
            let options = AttachOptions { wait, depth: 16, ..Daemon::options("a") };
            let (disk, mut queue) = daemon.client(&options);
            write_and_verify(&disk, &mut queue, 0, 4000, 1);
            // Depth 1 sleeps and wakes for every request.
            let (disk, mut queue) = daemon.client(&AttachOptions { depth: 1, ..options.clone() });
            write_and_verify(&disk, &mut queue, 0, 200, 2);
            let (disk, mut queue) = daemon.client(&AttachOptions { name: "f".to_owned(), ..options });
            write_and_verify(&disk, &mut queue, 0, 200, 3);
        }
    }
}

#[test]
fn client_that_asks_for_a_wait_mode_the_cpu_lacks_gets_an_error_without_a_daemon() {
    for mode in WaitMode::ALL {
        let options = AttachOptions { wait: mode, ..AttachOptions::new("a") };
        let error = Disk::attach("/nowhere/at/all".as_ref(), &options).map(|_| ()).expect_err("there is no daemon");
        let is_named = matches!(&error, Error::Wait(_)) && error.to_string().contains("this CPU has no");
        assert_eq!(is_named, mode.available().is_err(), "{mode}: {error}");
    }
}

#[test]
fn sixteen_polling_clients_on_two_workers_all_finish() {
    let _alone = alone();
    for mode in ["poll", "adaptive"] {
        let daemon = Arc::new(Daemon::start(&["--disk", "a=memory:64M", "--workers", "2", "--wait", mode]));
        let client = |index: u64| {
            let daemon = Arc::clone(&daemon);
            std::thread::spawn(move || {
                let options = AttachOptions { wait: WaitMode::Pause, depth: 8, ..Daemon::options("a") };
                let (disk, mut queue) = daemon.client(&options);
                write_and_verify(&disk, &mut queue, index * 1000, 500, 1);
            })
        };
        let threads: Vec<_> = (0..16).map(client).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("finished"));
    }
}

/// Bind this thread to the first processor, when there are several: the daemon's workers take the last ones. A client on the
/// processor of a busy worker gets its share from the scheduler, which is not measured here.
fn leave_the_workers_alone() {
    let allowed = rustix::thread::sched_getaffinity(None).expect("affinity");
    if allowed.count() > 1 {
        let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).expect("one at least");
        let mut set = CpuSet::new();
        set.set(first);
        rustix::thread::sched_setaffinity(None, &set).expect("one of the allowed ones");
    }
}

/// Reads with 64 outstanding until all clients together have done `total`; the number that this client did.
fn share_of(daemon: &Daemon, start: &Barrier, done: &AtomicU64, total: u64) -> u64 {
    leave_the_workers_alone();
    let (disk, mut queue) = daemon.client(&Daemon::options("a"));
    let buffer = disk.allocate(BLOCK_BYTES).expect("a pool");
    let mut mine = 0;
    start.wait();
    while done.load(Ordering::Relaxed) < total {
        while queue.free() > 0 {
            queue.read(0, buffer.segment(0, BLOCK_BYTES), 0).expect("room");
        }
        let count = queue.wait(&mut |completion| assert_eq!(completion.status, Status::Ok)).expect("connected") as u64;
        mine += count;
        done.fetch_add(count, Ordering::Relaxed);
    }
    mine
}

#[test]
fn slowest_of_eight_clients_of_one_worker_gets_a_quarter_of_the_mean() {
    const CLIENTS: u64 = 8;
    // Long enough that each client gets many turns on the shared processor from the scheduler, whatever else runs.
    const TOTAL: u64 = 16_000_000;
    let _alone = alone();
    let daemon = Arc::new(Daemon::start(&["--disk", "a=null:1G"]));
    let (start, done) = (Arc::new(Barrier::new(8)), Arc::new(AtomicU64::new(0)));
    let client = |_| {
        let (daemon, start, done) = (Arc::clone(&daemon), Arc::clone(&start), Arc::clone(&done));
        std::thread::spawn(move || share_of(&daemon, &start, &done, TOTAL))
    };
    let threads: Vec<_> = (0..CLIENTS).map(client).collect();
    let shares: Vec<u64> = threads.into_iter().map(|thread| thread.join().expect("finished")).collect();
    let (slowest, mean) = (shares.iter().min().copied().unwrap_or(0), shares.iter().sum::<u64>() / CLIENTS);
    println!("shares {shares:?}: slowest {slowest}, mean {mean}");
    assert!(slowest * 4 >= mean, "the slowest client got {slowest}, the mean is {mean}");
}
