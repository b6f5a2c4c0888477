//! Kicks and interrupts: exactly when the other side asked, over the wrap of the indices, with and without the event index.

use std::time::Instant;

use fipsee_block::disk::MemoryDisk;
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::notify::{Policy, Wanted};
use fipsee_ring::ring::{Reader, RingMemory as _};

use crate::common::driver::DATA;
use crate::common::{
    F_EVENT_IDX, F_INDIRECT, Fixture, IN, Memory as _, OK, Options, Random, attach_ring, eventfd, memory_disk, rings, writable,
};

fn both() -> [Options; 2] {
    [
        Options { features: F_INDIRECT, start: 65_530, ..Options::default() },
        Options { features: F_INDIRECT | F_EVENT_IDX, start: 65_530, ..Options::default() },
    ]
}

#[test]
fn the_driver_kicks_only_when_the_device_is_about_to_sleep() {
    for options in both() {
        let mut fixture = Fixture::new(memory_disk(), &options);
        for _ in 0..40 {
            let head = fixture.driver.request(IN, 0, &[writable(DATA, 512)]);
            assert!(!fixture.driver.must_kick(), "the device looks by itself");
            assert_eq!(fixture.round(head).0, OK);
            assert!(!fixture.driver.must_kick());
        }
        assert!(!fixture.server.arm_and_work_remains() && fixture.server.is_armed());
        fixture.offer(IN, 0, &[writable(DATA, 512)]);
        assert!(fixture.driver.must_kick(), "the device sleeps");
        fixture.server.doorbell_rang();
        assert!(!fixture.server.is_armed());
        fixture.run();
        assert!(fixture.driver.take_used().is_some());
        // Work that came before arming is found by arming.
        fixture.offer(IN, 0, &[writable(DATA, 512)]);
        assert!(fixture.server.arm_and_work_remains());
        fixture.run();
        assert!(!fixture.server.is_armed(), "a visit that takes something is awake");
        assert!(fixture.driver.take_used().is_some());
    }
}

#[test]
fn the_event_index_spares_kicks_over_the_whole_range_of_the_indices() {
    let mut fixture = Fixture::new(memory_disk(), &Options { start: 65_000, ..Options::default() });
    let mut kicks = 0;
    for _ in 0..70_000 {
        fixture.offer(IN, 0, &[writable(DATA, 512)]);
        kicks += u32::from(fixture.driver.must_kick());
        fixture.run();
        assert!(fixture.driver.take_used().is_some());
    }
    assert!(kicks <= 2, "{kicks} kicks of 70000");
}

#[test]
fn interrupts_come_exactly_when_the_driver_asks() {
    for options in both() {
        let event_index = options.features & F_EVENT_IDX != 0;
        let mut fixture = Fixture::new(memory_disk(), &options);
        let mut random = Random(5);
        // The first one comes anyway: another server may have served the device before.
        assert_eq!(fixture.request(IN, 0, &[writable(DATA, 512)]).0, OK);
        assert_eq!(rings(&fixture.call), 1);
        for round in 0..20_000 {
            let batch = 1 + u16::try_from(random.below(5)).expect("small");
            for _ in 0..batch {
                fixture.driver.stage_request(IN, 0, &[writable(DATA, 512)]);
            }
            let before = fixture.driver.next_used;
            let wanted = if event_index {
                let event = before.wrapping_add(u16::try_from(random.below(9)).expect("small")).wrapping_sub(2);
                fixture.driver.ram.store(fixture.driver.available + 4 + 2 * u64::from(fixture.driver.size), event);
                event.wrapping_sub(before) < batch
            } else {
                let refused = random.below(2) == 0;
                fixture.driver.ram.store(fixture.driver.available, u16::from(refused));
                !refused
            };
            fixture.driver.publish();
            fixture.run();
            assert_eq!(rings(&fixture.call), u64::from(wanted), "round {round}, {batch} from {before}");
            for _ in 0..batch {
                assert!(fixture.driver.take_used().is_some());
            }
        }
        assert!(fixture.counters.doorbells.get() > 1000);
    }
}

/// Once a second: requests, until an interrupt is held back. Returns how many came.
fn hold_back(fixture: &mut Fixture<MemoryDisk>) -> u64 {
    let wanted = Wanted { max_rate: Some(1), ..Wanted::default() };
    fixture.server.set_policy(Some(Policy::new(&wanted).expect("possible")));
    while fixture.server.due().is_none() {
        fixture.driver.ask_interrupt();
        assert_eq!(fixture.request(IN, 0, &[writable(DATA, 512)]).0, OK);
    }
    rings(&fixture.call)
}

#[test]
fn interrupt_that_is_held_back_comes_when_the_policy_ends_or_the_queue_stops() {
    for options in both() {
        let mut fixture = Fixture::new(memory_disk(), &options);
        let started = Instant::now();
        let came = hold_back(&mut fixture);
        assert!(came <= started.elapsed().as_secs() + 1, "{came}");
        assert_eq!(fixture.counters.suppressed.get(), 1);
        fixture.server.set_policy(None);
        assert_eq!((rings(&fixture.call), fixture.server.due()), (1, None));
        hold_back(&mut fixture);
        let counted = fixture.counters.doorbells.get();
        let _ = fixture.server.stop();
        assert_eq!((rings(&fixture.call), fixture.counters.doorbells.get()), (1, counted + 1));
    }
}

fn is_asleep(completions: &Reader<MappedRing>) -> bool {
    completions.memory().asleep().load(fipsee_ring::Ordering::Relaxed) != 0
}

#[test]
fn first_policy_touches_nothing_of_a_guest_that_sleeps_at_its_ring() {
    let mut fixture = Fixture::new(memory_disk(), &Options::default());
    let mut completions = attach_ring(&mut fixture).1;
    assert!(!completions.arm_and_work_remains());
    let before = fixture.server.state().expect("nothing is in flight");
    for wanted in [Wanted { max_rate: Some(1), ..Wanted::default() }, Wanted { auto: true, ..Wanted::default() }] {
        fixture.server.set_policy(Some(Policy::new(&wanted).expect("possible")));
        assert!(is_asleep(&completions));
        assert_eq!((fixture.server.state(), fixture.server.due()), (Some(before.clone()), None));
        fixture.server.set_policy(None);
    }
    assert!(is_asleep(&completions));
    assert_eq!(fixture.server.state(), Some(before));
}

#[test]
fn answer_over_the_virtqueue_does_not_ring_a_guest_that_sleeps_at_its_ring() {
    let wanted = Wanted { auto: true, ..Wanted::default() };
    for policy in [None, Some(Policy::new(&wanted).expect("possible"))] {
        let mut fixture = Fixture::new(memory_disk(), &Options::default());
        let mut completions = attach_ring(&mut fixture).1;
        fixture.server.set_policy(policy);
        assert!(!completions.arm_and_work_remains());
        assert_eq!(fixture.request(IN, 0, &[writable(DATA, 512)]).0, OK);
        fixture.server.flush();
        assert!(is_asleep(&completions), "{policy:?}");
        assert!(!fixture.server.state().expect("nothing is in flight").ring.expect("attached").kept, "{policy:?}");
    }
}

#[test]
fn guest_that_looked_by_itself_is_not_interrupted() {
    for options in both() {
        let event_index = options.features & F_EVENT_IDX != 0;
        let mut fixture = Fixture::new(memory_disk(), &options);
        hold_back(&mut fixture);
        if event_index {
            // Its event index is past what was used.
            fixture.driver.ask_interrupt();
        } else {
            fixture.driver.ram.store(fixture.driver.available, 1_u16);
        }
        fixture.server.flush();
        assert_eq!((rings(&fixture.call), fixture.server.due()), (0, None));
    }
}

#[test]
fn another_call_descriptor_is_rung_at_once_and_from_then_on() {
    let mut fixture = Fixture::new(memory_disk(), &Options::default());
    let other = eventfd();
    fixture.server.queue.set_call(Some(other.try_clone().expect("a descriptor"))).expect("an eventfd");
    assert_eq!(rings(&other), 1, "an interrupt may have gone to the old one");
    fixture.driver.ask_interrupt();
    assert_eq!(fixture.request(IN, 0, &[writable(DATA, 512)]).0, OK);
    assert_eq!((rings(&other), rings(&fixture.call)), (1, 0));
    fixture.server.queue.set_call(None).expect("none");
    fixture.driver.ask_interrupt();
    assert_eq!(fixture.request(IN, 0, &[writable(DATA, 512)]).0, OK);
    assert_eq!(rings(&other), 0);
}

#[test]
fn a_full_and_blocking_call_descriptor_does_not_block_the_worker() {
    let mut fixture = Fixture::new(memory_disk(), &Options::default());
    rustix::io::write(&fixture.call, &(u64::MAX - 1).to_ne_bytes()).expect("fill it");
    // The file description is shared: the hypervisor can do this at any time.
    rustix::fs::fcntl_setfl(&fixture.call, rustix::fs::OFlags::RDWR).expect("clear O_NONBLOCK");
    assert_eq!(fixture.request(IN, 0, &[writable(DATA, 512)]).0, OK);
}

#[test]
fn a_visit_takes_a_batch_and_publishes_it_at_once() {
    let mut fixture = Fixture::new(memory_disk(), &Options { size: 128, ..Options::default() });
    for _ in 0..40 {
        fixture.driver.stage_request(IN, 0, &[writable(DATA, 512)]);
    }
    fixture.driver.publish();
    let taken = fixture.visit();
    assert!((2..=32).contains(&taken), "{taken}");
    assert_eq!(u32::from(fixture.driver.used_index()), taken);
    assert_eq!(rings(&fixture.call), 1);
    assert!(fixture.server.has_work());
}
