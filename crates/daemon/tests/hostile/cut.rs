//! Guest memory that is cut under the daemon, with virtqueues and with rings in it: no SIGBUS, a line in the log, and no effect
//! on other clients.

use fipsee_block::wire::{Operation, request_one_segment};
use fipsee_testkit::guest::machine::{attach_request, socket_of, start_with};
use fipsee_testkit::guest::ring::segment;
use fipsee_testkit::hypervisor::{IN, OUT, Vm, rings};
use fipsee_testkit::{CorrectClient, Daemon, eventually};
use fipsee_virtio::blk::upgrade::wire::{DONE, Entry, REQUEST_TYPE, Reply};

const BROKE: &str = "a virtqueue broke and is not served until it is reset";
/// Where the memory of a [`Vm`] holds nothing of its queue.
const PLACE: u64 = 0x4_0000;
const PAYLOAD: u64 = PLACE + 0x8000;

fn setting() -> (Daemon, CorrectClient) {
    let daemon = start_with(&["--disk", "d=memory:1M", "--disk", "w=memory:1M"]);
    let correct_client = CorrectClient::new(&daemon, "w");
    (daemon, correct_client)
}

/// The queue stopped, said so, and is forgotten; other clients are served on.
#[track_caller]
fn assert_stopped(daemon: &Daemon, correct_client: &mut CorrectClient, vm: Vm, lines: usize) {
    assert!(rings(&vm.queue.error), "the queue does not say that it broke");
    eventually("the line in the log", || daemon.log().matches(BROKE).count() == lines);
    correct_client.check();
    drop(vm);
    eventually("the guest is forgotten", || daemon.attached_count("d") == 0);
    Vm::boot(&socket_of(daemon, "d")).check();
    correct_client.check();
    eventually("the next one, too", || daemon.attached_count("d") == 0);
    assert_eq!(daemon.log().matches(BROKE).count(), lines, "the line came again");
}

#[test]
fn memory_cut_under_a_virtqueue_stops_that_queue() {
    let (daemon, mut correct_client) = setting();
    // All of it, and what is read or written but not the rings.
    for (lines, (left_bytes, kind)) in [(0, IN), (0x1_0000, IN), (0x1_0000, OUT)].into_iter().enumerate() {
        let mut vm = Vm::boot(&socket_of(&daemon, "d"));
        vm.check();
        // Without rings no request can be put there, and the daemon finds them gone. With them it would answer at once, if it
        // looks by itself just then, and find nothing cut.
        vm.ram.file.set_len(left_bytes).expect("cut");
        if left_bytes > 0 {
            vm.queue.put(&vm.ram, 0, kind, 0);
        }
        vm.queue.kick();
        assert_stopped(&daemon, &mut correct_client, vm, lines + 1);
    }
}

/// Attach a queue with its rings and cold words at `PLACE`.
fn attach(vm: &mut Vm) {
    let at = |offset: u64| vm.ram.guest + PLACE + offset;
    let entry = Entry {
        request_address: at(0),
        completion_address: at(0x1000),
        cold_address: at(0x2000),
        request_slots: 4,
        completion_slots: 8,
        request_start: 0,
        completion_start: 0,
        depth: 4,
        virtqueue: 0,
    };
    let upgrade_request = attach_request(&[entry]);
    vm.ram.write(PLACE + 0x3000, &[&REQUEST_TYPE.to_le_bytes()[..], &[0; 12]].concat());
    vm.ram.write(PLACE + 0x4000, &upgrade_request);
    let length = u32::try_from(upgrade_request.len()).expect("short");
    for (index, (offset, length, flags)) in
        [(0x3000, 16, 1), (0x4000, length, 1), (0x5000, 64, 3), (0x6000, 1, 2)].into_iter().enumerate()
    {
        let index = 40 + u16::try_from(index).expect("four");
        vm.queue.describe(&vm.ram, index, at(offset), length, flags, index + 1);
    }
    let before = vm.queue.rings.used_index(&vm.ram);
    vm.queue.offer(&vm.ram, 40);
    vm.queue.kick();
    eventually("the answer", || vm.queue.rings.used_index(&vm.ram) != before);
    let reply = vm.ram.read(PLACE + 0x5000, 64);
    assert_eq!(reply.first_chunk().and_then(Reply::from_bytes).expect("a reply").result, DONE);
}

/// Publish a request for the payload as number `index` of the first lap.
fn publish(vm: &Vm, operation: Operation, index: u64) {
    let mut bytes = request_one_segment(operation, 0, 3, 0, segment(vm.ram.guest + PAYLOAD, 4096)).to_bytes();
    bytes[60..].copy_from_slice(&1_u32.to_le_bytes());
    let place = PLACE + 64 * index;
    vm.ram.write(place, &bytes[..60]);
    vm.ram.write(place + 60, &bytes[60..]);
}

#[test]
fn memory_cut_under_a_ring_stops_its_queue() {
    let (daemon, mut correct_client) = setting();
    let cuts = [(0, Operation::Read), (PAYLOAD, Operation::Read), (PAYLOAD, Operation::Write)];
    for (lines, (left_bytes, operation)) in cuts.into_iter().enumerate() {
        let mut vm = Vm::boot(&socket_of(&daemon, "d"));
        attach(&mut vm);
        publish(&vm, Operation::Read, 0);
        vm.queue.kick();
        eventually("the answer over the ring", || vm.ram.read(PLACE + 0x1000 + 60, 1) == [1]);
        vm.ram.file.set_len(left_bytes).expect("cut");
        if left_bytes > 0 {
            publish(&vm, operation, 1);
        }
        vm.queue.kick();
        assert_stopped(&daemon, &mut correct_client, vm, lines + 1);
    }
}
