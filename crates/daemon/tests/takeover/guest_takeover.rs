//! A new daemon takes over from a running one while virtual machines are connected: neither hypervisor nor guest sees an error,
//! no request is lost, none is done twice.

use fipsee_testkit::eventually;
use fipsee_testkit::guest::device::Options;
use fipsee_testkit::guest::load::{GuestLoad, Way};
use fipsee_testkit::guest::machine::start_with;
use fipsee_testkit::takeover::pauses_us;

fn rounds() -> usize {
    std::env::var("FIPSEE_TAKEOVERS").ok().and_then(|count| count.parse().ok()).unwrap_or(10)
}

#[test]
fn guests_under_load_notice_nothing() {
    let disks =
        ["v=memory:8M", "e=memory:8M", "r=memory:8M", "f=file:{dir}/f,size=8M,block=4096", "g=file:{dir}/g,size=8M,block=4096"];
    let arguments: Vec<&str> = disks.iter().flat_map(|disk| ["--disk", disk]).chain(["--workers", "2"]).collect();
    let mut daemon = start_with(&arguments);
    let options = Options { size: 256, ..Options::default() };
    let with_index = Options { event_index: true, ..options.clone() };
    let loads = [
        GuestLoad::start(&daemon, "v", &options, Way::Virtqueue, 64),
        GuestLoad::start(&daemon, "e", &with_index, Way::Virtqueue, 64),
        GuestLoad::start(&daemon, "r", &options, Way::Ring, 64),
        GuestLoad::start(&daemon, "f", &with_index, Way::Virtqueue, 8),
        GuestLoad::start(&daemon, "g", &options, Way::Ring, 8),
    ];
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
    eventually("all clients are gone", || disks.iter().all(|disk| daemon.attached_count(&disk[..1]) == 0));
}
