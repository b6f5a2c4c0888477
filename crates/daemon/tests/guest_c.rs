//! The guest's half of rings and questions in C, by the headers that ship.

mod common;
mod guest_common;

use fipsee_guest::c::{self, CRing};
use fipsee_guest::device::Options;
use fipsee_guest::ring::plan;
use fipsee_virtio::upgrade::wire::{DONE, RUNG};

use common::stamp;
use guest_common::{start_guest, start_with};

const READ: u8 = 1;
const WRITE: u8 = 2;

#[test]
fn guest_written_in_c_reads_writes_sleeps_and_wakes() {
    let daemon = start_with(&["--disk", "d=memory:8M", "--wait", "sleep"]);
    let mut guest = start_guest(&daemon, "d", &Options::default());
    let entry = plan(&guest.ram, 16, 0);
    let reply = guest.ask_bytes(0, &c::attach(&entry));
    assert_eq!(reply.result, DONE);
    let mut ring = CRing::open(&guest.ram, &entry);
    let data = guest.ram.allocate(16 * 4096, 4096);
    let mut bell = None;
    for round in 0..3000_u64 {
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
                    let parked = *bell.get_or_insert_with(|| guest.send_question(0, &c::bell(reply.attachment, 0)));
                    if !ring.arm_and_work_remains() {
                        guest.wait(parked);
                        assert_eq!(guest.reply(parked).result, RUNG);
                        bell = None;
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
