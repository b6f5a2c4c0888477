//! Guests that rewrite what the daemon reads while it reads it, in virtqueues and in rings of their own: a request is carried out as it was
//! checked, or fails, or its queue stops; nobody else notices.

#[path = "../../../crates/daemon/tests/common/mod.rs"]
mod common;
#[path = "../../../crates/daemon/tests/guest_common/mod.rs"]
mod guest_common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{Daemon, Witness, eventually};
use fipsee_block::wire::{Operation, Status};
use fipsee_guest::device::{Guest, IN, IO_ERROR, OK, Options};
use fipsee_guest::ram::Ram;
use fipsee_guest::ring::{Incoming, segment};
use guest_common::{Upgraded, start_guest, start_with};

/// Rewrites of each test.
const FLIPS: u64 = 2_000_000;
/// Where no guest has memory.
const NOWHERE: u64 = 0x7fff_ffff_f000;

fn setting() -> (Daemon, Witness, Guest) {
    let daemon = start_with(&["--disk", "d=memory:8M", "--disk", "w=memory:8M"]);
    let witness = Witness::new(&daemon, "w");
    let guest = start_guest(&daemon, "d", &Options::default());
    (daemon, witness, guest)
}

/// While `flip` goes on in another thread, `ask` in this one; `ask` says whether the device still works.
fn meanwhile(ram: &Arc<Ram>, witness: &mut Witness, flip: impl Fn(&Ram) + Send + Sync, mut ask: impl FnMut() -> bool) {
    let (stop, flips) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                flip(ram);
                flips.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut asked = 0_u32;
        let mut works = true;
        while works && flips.load(Ordering::Relaxed) < FLIPS {
            works = ask();
            asked += 1;
            if asked.is_multiple_of(256) {
                witness.check();
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(!works || asked > 10, "only {asked} requests");
    });
    witness.check();
}

#[test]
fn descriptors_rewritten_while_they_are_read_are_used_as_they_were_checked() {
    let (daemon, mut witness, mut guest) = setting();
    let data = guest.ram.allocate(4096, 4096);
    let (ram, table, size) = (Arc::clone(&guest.ram), guest.queues[0].descriptors, u64::from(guest.queues[0].size));
    // The address of whichever descriptor names the data, there and nowhere, there and nowhere.
    let flip = move |ram: &Ram| {
        for index in 0..size.min(8) {
            let place = table + 16 * index;
            let address = u64::from_le_bytes(ram.read(place, 8).try_into().expect("eight bytes"));
            if address == data || address == NOWHERE {
                let other = if address == data { NOWHERE } else { data };
                ram.write(place, &other.to_le_bytes());
            }
        }
    };
    meanwhile(&ram, &mut witness, flip, || {
        let status = guest.transfer(0, IN, 0, (data, 4096));
        assert!([OK, IO_ERROR].contains(&status), "status {status}");
        true
    });
    drop(guest);
    eventually("the guest is forgotten", || daemon.attached_count("d") == 0);
    let mut next = start_guest(&daemon, "d", &Options::default());
    let data = next.ram.allocate(4096, 4096);
    assert_eq!(next.transfer(0, IN, 0, (data, 4096)), OK, "the next guest is served");
}

#[test]
fn slots_of_a_ring_in_guest_memory_rewritten_while_they_are_read_are_used_as_they_were_checked() {
    let (daemon, mut witness, mut guest) = setting();
    let mut up = Upgraded::attach(&mut guest, &[0], 4);
    let data = guest.ram.allocate(4096, 4096);
    let entry = up.rings[0].entry;
    let (good, bad) = (segment(data, 4096).to_word(), segment(NOWHERE & !0xfff, 4096).to_word());
    let ram = Arc::clone(&guest.ram);
    // The segment of every slot, there and nowhere; tag, operation and stamp stay.
    let flip = move |ram: &Ram| {
        for slot in 0..u64::from(entry.request_slots) {
            let place = entry.request_address + 64 * slot + 16;
            ram.write(place, &bad.to_le_bytes());
            ram.write(place, &good.to_le_bytes());
        }
    };
    let mut seen = [0_u32; 2];
    meanwhile(&ram, &mut witness, flip, || {
        let status = guest_common::transfer(&mut guest, &mut up, 0, Operation::Read, 0, (data, 4096));
        assert!([Status::Ok, Status::BadMemory].contains(&status), "{status:?}");
        seen[usize::from(status == Status::BadMemory)] += 1;
        true
    });
    assert!(seen[0] > 0, "no request was read whole: {seen:?}");
    drop((guest, up));
    eventually("the guest is forgotten", || daemon.attached_count("d") == 0);
}

/// What the log says of a queue that lies.
const BROKE: &str = "a virtqueue broke and is served no more until it is reset";

/// Chains whose links change while they are followed, so that they loop, end early, or lead from one into the other.
#[test]
fn links_rewritten_while_they_are_followed_stop_their_queue_at_most() {
    let daemon = start_with(&["--disk", "d=memory:8M", "--disk", "w=memory:8M"]);
    let mut witness = Witness::new(&daemon, "w");
    let mut broken = 0;
    for _ in 0..20 {
        let mut guest = start_guest(&daemon, "d", &Options::default());
        let data = guest.ram.allocate(4096, 4096);
        let (ram, table) = (Arc::clone(&guest.ram), guest.queues[0].descriptors);
        let flip = move |ram: &Ram| {
            for index in 0..8_u16 {
                let place = table + 16 * u64::from(index) + 14;
                let next = ram.read(place, 2);
                ram.write(place, &index.to_le_bytes());
                ram.write(place, &next);
            }
        };
        let mut left = 500;
        meanwhile(&ram, &mut witness, flip, || {
            let sent = guest.submit(0, IN, 0, &[(data, 4096, true)]);
            let mut is_broken = false;
            eventually("an answer, or the end of the queue", || {
                is_broken = guest.queues[0].is_broken();
                is_broken || guest.queues[0].is_done(sent.head)
            });
            broken += usize::from(is_broken);
            left -= 1;
            !is_broken && left > 0
        });
        drop(guest);
    }
    eventually("the last line", || daemon.log().matches(BROKE).count() >= broken);
    assert_eq!(daemon.log().matches(BROKE).count(), broken, "one line for each: {}", daemon.log());
    assert!(broken > 0, "no loop was ever seen");
}

#[test]
fn kicks_without_end_harm_nobody() {
    let (_daemon, mut witness, mut guest) = setting();
    let data = guest.ram.allocate(4096, 4096);
    for upgraded in [false, true] {
        let mut up = upgraded.then(|| Upgraded::attach(&mut guest, &[0], 4));
        let bell = guest.queues[0].kick.try_clone().expect("a descriptor");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200_000 {
                    let _ = rustix::io::write(&bell, &1_u64.to_ne_bytes());
                }
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                witness.check();
                match &mut up {
                    Some(up) => {
                        let status = guest_common::transfer(&mut guest, up, 0, Operation::Read, 0, (data, 4096));
                        assert_eq!(status, Status::Ok);
                    }
                    None => assert_eq!(guest.transfer(0, IN, 0, (data, 4096)), OK),
                }
            }
        });
        witness.check();
    }
}

#[test]
fn flags_of_a_ring_in_guest_memory_that_flicker_harm_nobody() {
    let (_daemon, mut witness, mut guest) = setting();
    let mut up = Upgraded::attach(&mut guest, &[0], 4);
    let data = guest.ram.allocate(4096, 4096);
    let (ram, cold) = (Arc::clone(&guest.ram), up.rings[0].entry.cold_address);
    let flip = move |ram: &Ram| {
        for value in [1, 0, u32::MAX, 0] {
            ram.write(cold + 4, &u32::to_le_bytes(value));
            ram.write(cold + 128 + 4, &u32::to_le_bytes(value));
        }
    };
    meanwhile(&ram, &mut witness, flip, || {
        up.rings[0].submit_one(Operation::Read, 3, 0, segment(data, 4096), &guest.queues[0]);
        // Who says that nobody sleeps, and is believed, has to kick without being asked.
        eventually("the answer", || {
            guest.queues[0].kick();
            up.rings[0].reap() == [Incoming::Answer(3, Status::Ok.to_wire())]
        });
        true
    });
}
