//! Both sides sleep whenever there is no work, on two threads: no kick and no interrupt is lost.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence}; // tidy: allow atomic, the test's own, not shared memory

use crate::common::driver::DATA;
use crate::common::{F_EVENT_IDX, F_INDIRECT, Fixture, IN, OK, Options, Random, memory_disk, writable};
use fipsee_serve::Turn;
use rustix::event::{PollFd, PollFlags, poll};

const ROUNDS: u32 = 30_000;
const RACES: u32 = 50_000;

/// Wait until it is written to, and empty it.
fn wait(fd: &OwnedFd) {
    poll(&mut [PollFd::new(fd, PollFlags::IN)], None).expect("poll");
    let mut count = [0; 8];
    rustix::io::read(fd, &mut count).expect("it was readable");
}

fn ring(fd: &OwnedFd) {
    rustix::io::write(fd, &1_u64.to_ne_bytes()).expect("an eventfd");
}

/// A lost kick or interrupt leaves both threads asleep, and the test hangs.
fn sleep_and_wake(features: u64) {
    let kick = crate::common::eventfd();
    let ours = kick.try_clone().expect("a descriptor");
    let fixture = Fixture::with(memory_disk(), &Options { features, ..Options::default() }, crate::common::Ram::new(), |setup| {
        setup.queue.kick = ours
    });
    let Fixture { mut driver, mut server, disk, call, .. } = fixture;
    let stopping = Arc::new(AtomicBool::new(false));
    let (doorbell, stop) = (kick.try_clone().expect("a descriptor"), Arc::clone(&stopping));
    std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let mut engine = fipsee_block::disk::Engine::new(1).expect("engine");
            let mut sleeps = 0_u32;
            while !stop.load(Ordering::Acquire) {
                if server.visit(&disk, &mut engine, Turn::whole(false)).requests == 0 && !server.arm_and_work_remains() {
                    wait(&doorbell);
                    server.doorbell_rang();
                    sleeps += 1;
                }
            }
            sleeps
        });
        let mut random = Random(features);
        for _ in 0..ROUNDS {
            let batch = 1 + random.below(3);
            for _ in 0..batch {
                driver.stage_request(IN, 0, &[writable(DATA, 512)]);
            }
            for _ in 0..random.below(200) {
                std::hint::spin_loop();
            }
            driver.publish();
            fence(Ordering::SeqCst);
            if driver.must_kick() {
                ring(&kick);
            }
            let mut timeout = if random.below(4) == 0 { 1 } else { 20_000_u32 };
            for _ in 0..batch {
                let head = loop {
                    if let Some((head, _)) = driver.take_used() {
                        break head;
                    }
                    // Sometimes it polls before it sleeps, so that its next request coincides with the other side's arming.
                    timeout = timeout.saturating_sub(1);
                    if timeout > 0 {
                        std::hint::spin_loop();
                        continue;
                    }
                    driver.ask_interrupt();
                    fence(Ordering::SeqCst);
                    if driver.used_index() == driver.next_used {
                        wait(&call);
                    }
                };
                assert_eq!(driver.status(head), OK);
            }
        }
        stopping.store(true, Ordering::Release);
        ring(&kick);
        assert!(worker.join().expect("it ends") > 0, "it slept at least at the end");
    });
}

#[test]
fn neither_side_sleeps_for_ever_with_the_event_index() {
    sleep_and_wake(F_EVENT_IDX | F_INDIRECT);
}

#[test]
fn neither_side_sleeps_for_ever_with_flags() {
    sleep_and_wake(F_INDIRECT);
}

/// Arming and publishing at the same moment, over and over: the device sees the chain, or the driver sees that it must kick.
#[test]
fn arming_and_publishing_do_not_miss_each_other() {
    for features in [F_INDIRECT, F_INDIRECT | F_EVENT_IDX] {
        let Fixture { mut driver, mut server, disk, .. } =
            Fixture::new(memory_disk(), &Options { features, ..Options::default() });
        let (ready, published, armed) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        let found = AtomicBool::new(false);
        let wait_for = |word: &AtomicU32, round: u32| {
            let mut spins = 0_u32;
            while word.load(Ordering::Acquire) < round {
                spins += 1;
                std::hint::spin_loop();
                // The other thread may not have a CPU of its own.
                if spins.is_multiple_of(200) {
                    std::thread::yield_now();
                }
            }
        };
        std::thread::scope(|scope| {
            let (ready, published, armed, found) = (&ready, &published, &armed, &found);
            scope.spawn(move || {
                let mut engine = fipsee_block::disk::Engine::new(1).expect("engine");
                for round in 1..=RACES {
                    wait_for(ready, round);
                    found.store(server.arm_and_work_remains(), Ordering::Relaxed);
                    armed.store(round, Ordering::Release);
                    // Published, or the test has failed.
                    wait_for(published, round);
                    // Once: the next chain is for the next round.
                    assert_eq!(server.visit(&disk, &mut engine, Turn::whole(false)).requests, 1);
                }
            });
            let mut random = Random(features);
            for round in 1..=RACES {
                driver.stage_request(IN, 0, &[writable(DATA, 512)]);
                let pause = random.below(200);
                ready.store(round, Ordering::Release);
                // Without PAUSE, which is longer than the race.
                for step in 0..pause {
                    std::hint::black_box(step);
                }
                driver.publish();
                fence(Ordering::SeqCst);
                let kicks = driver.must_kick();
                published.store(round, Ordering::Release);
                wait_for(armed, round);
                let is_seen = found.load(Ordering::Relaxed) || kicks;
                if !is_seen {
                    for word in [ready, published] {
                        word.store(u32::MAX, Ordering::Release);
                    }
                }
                assert!(is_seen, "round {round}: both would sleep");
                while driver.take_used().is_none() {
                    std::thread::yield_now();
                }
            }
        });
    }
}
