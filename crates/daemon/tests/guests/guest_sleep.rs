//! Sleeping on both sides: no wake-up is lost, whatever the timing.

use fipsee_block::wire::Operation;
use fipsee_testkit::eventually;
use fipsee_testkit::guest::device::{IN, OK, Options};
use fipsee_testkit::guest::machine::{Upgraded, start_guest, start_with};
use fipsee_testkit::guest::ring::{Incoming, segment};

/// Either side sleeps first, at any distance: a lost wake-up ends in the guest's timeout.
fn rounds(event_index: bool, more: &[&str]) {
    let arguments = [&["--disk", "d=null:8M", "--workers", "2"], more].concat();
    let daemon = start_with(&arguments);
    let options = Options { queues: 2, event_index, ..Options::default() };
    let mut guest = start_guest(&daemon, "d", &options);
    let mut up = Upgraded::attach(&mut guest, &[0, 1], 16);
    let data = guest.ram.allocate(4096, 4096);
    for round in 0..20_000_u32 {
        let queue = usize::try_from(round / 3 % 2).expect("small");
        // From zero to some microseconds: around the moment at which the worker arms and sleeps.
        for _ in 0..round.wrapping_mul(0x9e37_79b1) >> 20 {
            std::hint::spin_loop();
        }
        let before = guest.queues[queue].outstanding();
        let sent = (round % 7 == 0).then(|| guest.submit(queue, IN, 0, &[(data, 512, true)]));
        up.rings[queue].submit_one(Operation::Read, 1, 0, segment(data, 512), &guest.queues[queue]);
        if round % 2 == 0 {
            // Sleep as soon as the ring is empty, without polling first.
            let _ = up.rings[queue].sleep(up.attachment, &mut guest);
        }
        assert_eq!(up.rings[queue].wait(up.attachment, &mut guest), [Incoming::Answer(1, 0)]);
        if let Some(sent) = sent {
            assert_eq!(guest.wait(sent), OK);
        }
        assert!(guest.queues[queue].outstanding() <= before + 1, "doorbell requests pile up");
    }
}

/// checks: R-9.2-2, R-9.2-3
#[test]
fn no_wake_up_is_lost_when_the_worker_sleeps_at_once() {
    rounds(false, &["--wait", "sleep"]);
}

#[test]
fn no_wake_up_is_lost_with_event_indices() {
    rounds(true, &["--wait", "sleep"]);
}

#[test]
fn no_wake_up_is_lost_when_the_worker_looks_for_a_moment() {
    rounds(true, &["--look-us", "3"]);
}

#[test]
fn idle_attachment_costs_the_daemon_nothing() {
    let daemon = start_with(&["--disk", "d=null:8M", "--workers", "1"]);
    let mut guest = start_guest(&daemon, "d", &Options::default());
    let mut up = Upgraded::attach(&mut guest, &[0], 16);
    up.rings[0].hold_pending(up.attachment, &mut guest);
    eventually("the worker sleeps with an empty ring", || fipsee_testkit::guest::machine::workers_sleep(&daemon));
    let data = guest.ram.allocate(4096, 4096);
    up.rings[0].submit_one(Operation::Read, 1, 0, segment(data, 512), &guest.queues[0]);
    assert_eq!(up.rings[0].wait(up.attachment, &mut guest), [Incoming::Answer(1, 0)]);
}
