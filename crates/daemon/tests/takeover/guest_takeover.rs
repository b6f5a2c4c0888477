//! A new daemon takes over from a running one while virtual machines are connected: neither hypervisor nor guest sees an error,
//! no request is lost, none is done twice.

use fipsee_testkit::eventually;
use fipsee_testkit::guest::load::{EVERY_WAY, GuestLoad, start_every_way};
use fipsee_testkit::takeover::pauses_us;

fn rounds() -> usize {
    std::env::var("FIPSEE_TAKEOVERS").ok().and_then(|count| count.parse().ok()).unwrap_or(10)
}

#[test]
fn guests_under_load_notice_nothing() {
    let (mut daemon, loads) = start_every_way();
    let rounds = rounds();
    for _ in 0..rounds {
        loads.iter().for_each(GuestLoad::await_progress);
        daemon.take_over();
    }
    loads.iter().for_each(GuestLoad::await_progress);
    loads.into_iter().for_each(|load| assert!(load.finish() > 0));
    let mut pauses = pauses_us(&daemon.log());
    assert_eq!(pauses.len(), rounds, "each is in the log: {}", daemon.log());
    pauses.sort_unstable();
    println!(
        "{rounds} takeovers with 5 machines: the median pause is {} us, the longest {} us",
        pauses[rounds / 2],
        pauses[rounds - 1]
    );
    eventually("all clients are gone", || EVERY_WAY.iter().all(|disk| daemon.attached_count(&disk[..1]) == 0));
}
