//! The guest's half of rings and upgrade requests in C, with the shipped headers.

use fipsee_ring::tuning::{Choices, Ownership, Touch};
use fipsee_testkit::guest::c::{self, CRing};
use fipsee_testkit::guest::device::Options;
use fipsee_testkit::guest::machine::{detach_request, query, start_guest, start_with};
use fipsee_testkit::guest::ring::plan;
use fipsee_testkit::stamp;
use fipsee_virtio::blk::upgrade::wire::{self, DONE, FEATURES, RUNG, UpgradeRequest};

const READ: u8 = 1;
const WRITE: u8 = 2;

/// Write and read 16 blocks at a time, asleep when idle. `advice` replaces the daemon's.
fn read_and_write(rounds: u64, advice: Option<Choices>) {
    let daemon = start_with(&["--disk", "d=memory:8M", "--wait", "sleep"]);
    let mut guest = start_guest(&daemon, "d", &Options::default());
    let entry = plan(&guest.ram, 16, 0);
    let reply = guest.ask_bytes(0, &c::attach(&entry));
    assert_eq!((reply.result, reply.features), (DONE, FEATURES), "C asks for advice");
    let mut ring = CRing::open(&guest.ram, &entry);
    ring.choose(advice.unwrap_or(Choices::from_word(reply.choices)));
    let data = guest.ram.allocate(16 * 4096, 4096);
    let mut doorbell = None;
    for round in 0..rounds {
        for (operation, version) in [(WRITE, round), (READ, 0)] {
            for tag in 0..16 {
                let place = data + 4096 * u64::from(tag);
                guest.ram.write(place, &stamp(4096, tag.into(), version));
                if ring.submit(operation, tag, 8 * u64::from(tag), (place, 8)) {
                    guest.queues[0].kick();
                }
            }
            let mut answered = Vec::new();
            while answered.len() < 16 {
                let all = ring.reap();
                if all.is_empty() {
                    let pending =
                        *doorbell.get_or_insert_with(|| guest.send_upgrade_request(0, &c::doorbell(reply.attachment, 0)));
                    if !ring.arm_and_work_remains() {
                        guest.wait(pending);
                        assert_eq!(guest.reply(pending).result, RUNG);
                        doorbell = None;
                        ring.woken();
                    }
                }
                answered.extend(all);
            }
            answered.sort_unstable();
            assert_eq!(answered, (0..16).map(|tag| (tag, 0)).collect::<Vec<_>>());
        }
        for tag in 0..16 {
            assert_eq!(guest.ram.read(data + 4096 * tag, 4096), stamp(4096, tag, round));
        }
    }
}

#[test]
fn guest_written_in_c_reads_writes_sleeps_and_wakes() {
    read_and_write(3000, None);
}

#[test]
fn guest_written_in_c_may_make_every_choice() {
    for ownership in [Ownership::PrefetchNext, Ownership::LockedAhead, Ownership::NotAsked] {
        for touch in [Touch::Never, Touch::Runs, Touch::Always] {
            read_and_write(300, Some(Choices::NONE.with_ownership(ownership).with_touch(touch)));
        }
    }
}

/// checks: R-9.1-5
#[test]
fn guest_is_advised_choices_if_its_attach_asks_for_them() {
    let daemon = start_with(&["--disk", "d=memory:8M"]);
    let mut guest = start_guest(&daemon, "d", &Options::default());
    let entries = [plan(&guest.ram, 16, 0)];
    let attach = |features| UpgradeRequest {
        operation: wire::Operation::Attach,
        attachment: 0,
        features,
        queue: 0,
        entries: entries.to_vec(),
    };
    let plain = guest.ask(0, &attach(0));
    assert_eq!((plain.result, plain.features, plain.choices), (DONE, 0, 0), "as before advice existed");
    assert_eq!(guest.ask(0, &detach_request(plain.attachment)).result, DONE);

    let offered = guest.ask(0, &query(0));
    assert_eq!((offered.features, offered.choices), (FEATURES, 0), "a query advises nothing");
    let advised = guest.ask(0, &attach(FEATURES));
    assert_eq!((advised.result, advised.features), (DONE, FEATURES));
    let choices = Choices::from_word(advised.choices);
    assert!(choices.ownership().is_some() && choices.touch().is_some(), "{choices:?} advises nothing");
    assert_eq!(guest.ask(0, &query(0)).choices, 0);
}
