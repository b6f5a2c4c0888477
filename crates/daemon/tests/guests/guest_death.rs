//! Either side is killed: acknowledged writes stay, requests in flight are answered or repeated, others are not affected.

use std::io::Write;
use std::path::PathBuf;
use std::process::Child;

use fipsee_block::wire::{Operation, Status};
use fipsee_testkit::guest::device::{Guest, IN, OK, OUT, Options};
use fipsee_testkit::guest::machine::{Upgraded, query, socket_of, start_guest, start_with, transfer};
use fipsee_testkit::guest::ring::{Incoming, Woken, segment};
use fipsee_testkit::{CorrectClient, await_word, child, eventually, stamp};
use fipsee_virtio::blk::upgrade::wire::NO_ATTACHMENT;

const DEPTH: u16 = 32;

/// As a process of its own: keep every tag of two rings busy with writes until it is killed.
pub(crate) fn guest_that_loads_its_rings() {
    let socket = child::socket();
    let options = Options { queues: 2, ..Options::default() };
    let mut guest = Guest::start(&socket, &options).expect("a device");
    let mut up = Upgraded::attach(&mut guest, &[0, 1], DEPTH.into());
    let data = guest.ram.allocate(u64::from(DEPTH) * 4096, 4096);
    let buffer = |tag: u16| data + 4096 * u64::from(tag);
    for queue in 0..2 {
        for tag in 0..DEPTH {
            let sector = 8 * u64::from(tag);
            up.rings[queue].submit_one(Operation::Write, tag, sector, segment(buffer(tag), 4096), &guest.queues[queue]);
        }
        up.rings[queue].hold_pending(up.attachment, &mut guest);
    }
    writeln!(std::io::stdout(), "loading").expect("standard output");
    loop {
        for queue in 0..2 {
            for one in up.rings[queue].wait(up.attachment, &mut guest) {
                let Incoming::Answer(tag, 0) = one else { panic!("{one:?}") };
                let sector = 8 * u64::from(tag);
                up.rings[queue].submit_one(Operation::Write, tag, sector, segment(buffer(tag), 4096), &guest.queues[queue]);
            }
        }
    }
}

fn kill(child: &mut Child) {
    child.kill().expect("a child can be killed");
    child.wait().expect("a child can be awaited");
}

#[test]
fn guest_is_killed_and_the_next_one_is_served() {
    for disk in ["d=memory:8M", "d=file:{dir}/f,size=8M"] {
        let daemon = start_with(&["--disk", disk, "--disk", "w=memory:8M", "--workers", "2"]);
        let mut correct_client = CorrectClient::new(&daemon, "w");
        for _ in 0..5 {
            let mut child = child::command_at("guest_that_loads_its_rings", &socket_of(&daemon, "d")).spawn().expect("a child");
            await_word(&mut child, "loading");
            correct_client.check();
            kill(&mut child);
            correct_client.check();
        }
        let mut guest = start_guest(&daemon, "d", &Options::default());
        let mut up = Upgraded::attach(&mut guest, &[0], 4);
        let data = guest.ram.allocate(4096, 4096);
        assert_eq!(transfer(&mut guest, &mut up, 0, Operation::Read, 0, (data, 4096)), Status::Ok);
        drop(guest);
        eventually("everything is released", || daemon.attached_count("d") == 0);
    }
}

/// What a writer knows of one block of the disk.
#[derive(Clone, Copy, Default)]
struct BlockHistory {
    acknowledged: u64,
    written: u64,
}

/// The guest of the next test: its blocks, two queues, one tag for each block.
struct Writer {
    guest: Guest,
    up: Upgraded,
    places: Vec<BlockHistory>,
    data: u64,
    version: u64,
}

impl Writer {
    fn write(&mut self, number: usize) {
        self.version += 1;
        self.places[number].written = self.version;
        self.publish(number);
    }

    fn publish(&mut self, number: usize) {
        let (queue, tag) = (number / usize::from(DEPTH), number % usize::from(DEPTH));
        let buffer = self.data + 4096 * number as u64;
        self.guest.ram.write(buffer, &stamp(4096, number as u64, self.places[number].written));
        let tag = u16::try_from(tag).expect("small");
        let request = segment(buffer, 4096);
        self.up.rings[queue].submit_one(Operation::Write, tag, 8 * number as u64, request, &self.guest.queues[queue]);
    }

    fn reap(&mut self, again: bool) -> usize {
        let mut count = 0;
        for queue in 0..2 {
            for one in self.up.rings[queue].reap() {
                let Incoming::Answer(tag, 0) = one else { panic!("{one:?}") };
                let number = queue * usize::from(DEPTH) + usize::from(tag);
                self.places[number].acknowledged = self.places[number].written;
                count += 1;
                if again {
                    self.write(number);
                }
            }
        }
        count
    }
}

/// checks: R-9.4-2
#[test]
fn daemon_is_killed_under_load_and_no_acknowledged_write_is_lost() {
    let mut daemon = start_with(&["--disk", "d=file:{dir}/f,size=8M,block=4096", "--workers", "2"]);
    let mut guest = start_guest(&daemon, "d", &Options { queues: 2, ..Options::default() });
    let up = Upgraded::attach(&mut guest, &[0, 1], DEPTH.into());
    let count = 2 * usize::from(DEPTH);
    let data = guest.ram.allocate(4096 * count as u64, 4096);
    let mut writer = Writer { guest, up, places: vec![BlockHistory::default(); count], data, version: 0 };
    for round in 0..4 {
        (0..count).for_each(|number| writer.write(number));
        for ring in &mut writer.up.rings {
            ring.hold_pending(writer.up.attachment, &mut writer.guest);
        }
        let mut acknowledged = 0;
        while acknowledged < 2000 + 500 * round {
            acknowledged += writer.reap(true);
        }
        daemon.kill_9();
        // Messages on the rings were published before the daemon died, and count.
        writer.reap(false);
        daemon.restart();
        reconnect(&mut writer.guest);
        for ring in &mut writer.up.rings {
            // A doorbell request completed just before the kill has come back already.
            let _: Woken = ring.wait_for_doorbell(&mut writer.guest);
        }
        assert_eq!(writer.guest.ask(1, &query(writer.up.attachment)).result, NO_ATTACHMENT);
        let old = writer.up.attachment;
        writer.up = Upgraded::attach(&mut writer.guest, &[0, 1], DEPTH.into());
        assert_ne!(writer.up.attachment, old);
        verify(&mut writer);
        let open = |place: &BlockHistory| place.acknowledged != place.written;
        let numbers: Vec<usize> = (0..count).filter(|number| open(&writer.places[*number])).collect();
        numbers.into_iter().for_each(|number| writer.publish(number));
        while writer.places.iter().any(open) {
            writer.reap(false);
        }
        verify(&mut writer);
        assert_eq!(writer.guest.queues.iter().map(|queue| queue.outstanding()).sum::<usize>(), 0);
    }
}

fn reconnect(guest: &mut Guest) {
    eventually("the daemon takes the hypervisor again", || guest.reconnect().is_ok());
}

/// Every block holds the acknowledged version, or one written after it and not acknowledged.
fn verify(writer: &mut Writer) {
    let buffer = writer.guest.ram.allocate(4096, 4096);
    for number in 0..writer.places.len() {
        assert_eq!(writer.guest.transfer(number % 2, IN, 8 * number as u64, (buffer, 4096)), OK);
        let (found, place) = (writer.guest.ram.read(buffer, 4096), writer.places[number]);
        let allowed = [place.acknowledged, place.written].map(|version| stamp(4096, number as u64, version));
        assert!(place.acknowledged == 0 || allowed.contains(&found), "block {number} lost an acknowledged write");
    }
}

#[test]
fn requests_of_virtqueues_in_flight_are_finished_by_the_next_daemon() {
    let mut daemon = start_with(&["--disk", "d=file:{dir}/f,size=8M,block=4096"]);
    let mut guest = start_guest(&daemon, "d", &Options::default());
    let data = guest.ram.allocate(16 * 4096, 4096);
    for round in 0..5 {
        let mut sent = Vec::new();
        for number in 0..16 {
            let place = data + 4096 * number;
            guest.ram.write(place, &stamp(4096, number, round));
            sent.push(guest.submit(0, OUT, 8 * number, &[(place, 4096, false)]));
        }
        daemon.kill_9();
        daemon.restart();
        reconnect(&mut guest);
        for one in sent {
            assert_eq!(guest.wait(one), OK, "finished by one of the two");
        }
        let buffer = guest.ram.allocate(4096, 4096);
        for number in 0..16 {
            assert_eq!(guest.transfer(0, IN, 8 * number, (buffer, 4096)), OK);
            assert_eq!(guest.ram.read(buffer, 4096), stamp(4096, number, round));
        }
    }
}

/// checks: R-9.3-2
#[test]
fn daemon_that_ends_in_order_calls_its_guest_back() {
    let mut daemon = start_with(&["--disk", "d=memory:8M"]);
    let mut guest = start_guest(&daemon, "d", &Options::default());
    let mut up = Upgraded::attach(&mut guest, &[0], 4);
    up.rings[0].hold_taken(up.attachment, &mut guest);
    daemon.signal_term();
    assert!(daemon.await_exit().success());
    assert!(up.rings[0].doorbell_is_done(&mut guest), "its doorbell request came back");
    assert_eq!(up.rings[0].reap(), [Incoming::Detach]);
    let _: PathBuf = socket_of(&daemon, "d");
}
