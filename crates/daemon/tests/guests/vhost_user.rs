//! Virtual machines are served: a guest's writes are kept, whatever its hypervisor does meanwhile.

use std::os::fd::AsFd;

use fipsee_testkit::hypervisor::*;
use fipsee_testkit::{CorrectClient, Daemon, assert_says, eventually, mapping_count, stamp};
use serde_json::json;

const A: &[&str] = &["--disk", "a=memory:1M", "--vhost-user", "a={dir}/a.sock"];

#[test]
fn what_a_guest_writes_a_local_client_reads_and_the_other_way_round() {
    for disk in ["a=memory:1M,shared", "a=file:{dir}/disk,size=1M,shared"] {
        let daemon = Daemon::start(&["--disk", disk, "--vhost-user", "a={dir}/a.sock"]);
        let mut vm = Vm::boot(&daemon.dir.path("a.sock"));
        let mut client = daemon.blocking("a");
        for block in 0..20 {
            vm.write_block(block, 7);
        }
        assert_eq!(vm.queue.run(&vm.ram, FLUSH, 0), OK);
        let mut bytes = vec![0; BLOCK_BYTES];
        for block in 0..20 {
            client.read_at(&mut bytes, block * BLOCK_BYTES as u64).expect("read");
            assert_eq!(bytes, stamp(BLOCK_BYTES, block, 7));
            client.write_at(&stamp(BLOCK_BYTES, block, 8), block * BLOCK_BYTES as u64).expect("written");
        }
        for block in 0..20 {
            vm.check_block(block, 8);
        }
        assert_eq!(vm.queue.run(&vm.ram, IN, 2048), IOERR, "beyond the end");
        assert_eq!(vm.queue.run(&vm.ram, GET_ID, 0), OK);
        assert_eq!(vm.ram.read(vm.queue.data_offset(0), 3), b"a\0\0", "the name is the serial number");
    }
}

#[test]
fn the_next_hypervisor_is_served_whenever_the_one_before_left() {
    let daemon = Daemon::start(A);
    let socket = daemon.dir.path("a.sock");
    Vm::boot(&socket).check();
    let descriptors = daemon.fd_count();
    let mappings = mapping_count(daemon.pid());
    for round in 0..50 {
        let hypervisor = Hypervisor::connect(&socket);
        let (ram, mut queue) = (Ram::new(1 << 20), Queue::new(0));
        match round % 5 {
            0 => {}
            1 => half_a_message(&hypervisor),
            2 => hypervisor.negotiate(&ram),
            _ => {
                hypervisor.negotiate(&ram);
                queue.start(&hypervisor, &ram);
                (0..SLOTS).for_each(|slot| queue.put(&ram, slot, OUT, u64::from(slot) * 8));
                queue.kick();
            }
        }
    }
    Vm::boot(&socket).check();
    eventually("no client is attached", || daemon.attached_count("a") == 0);
    assert_eq!(daemon.fd_count(), descriptors);
    assert_eq!(mapping_count(daemon.pid()), mappings, "the guests' memory is unmapped");
}

#[test]
fn a_second_hypervisor_waits_until_the_first_is_gone() {
    let daemon = Daemon::start(A);
    let socket = daemon.dir.path("a.sock");
    let mut first = Vm::boot(&socket);
    let second = Hypervisor::connect(&socket);
    second.say(GET_FEATURES, &[]);
    first.check();
    drop(first);
    assert_ne!(second.receive(GET_FEATURES).expect("an answer").u64(), 0);
}

#[test]
fn a_queue_runs_once_all_of_it_is_known_in_whatever_order_that_was_said() {
    let daemon = Daemon::start(A);
    for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3], [3, 4, 0, 2, 1], [1, 2, 3, 4, 0]] {
        let hypervisor = Hypervisor::connect(&daemon.dir.path("a.sock"));
        let (ram, mut queue) = (Ram::new(1 << 20), Queue::new(0));
        hypervisor.negotiate(&ram);
        // Requests may be available before the queue runs.
        ram.write(queue.data_offset(0), &stamp(BLOCK_BYTES, 0, 4));
        queue.put(&ram, 0, OUT, 0);
        queue.kick();
        for step in order {
            match step {
                0 => hypervisor.send(SET_VRING_NUM, &u32s(&[0, 64]), &[]),
                1 => hypervisor.send(SET_VRING_ADDR, &queue.addresses(&ram, 0, 0), &[]),
                2 => hypervisor.send(SET_VRING_CALL, &u64s(&[0]), &[queue.call.as_fd()]),
                3 => hypervisor.send(SET_VRING_KICK, &u64s(&[0]), &[queue.kick.as_fd()]),
                _ => hypervisor.send(SET_VRING_ENABLE, &u32s(&[0, 1]), &[]),
            }
        }
        assert_eq!(queue.wait(&ram, 1), [(0, OK)], "{order:?}");
        queue.check_block(&ram, 0, 4);
    }
}

#[test]
fn without_protocol_features_a_queue_needs_no_enabling() {
    let daemon = Daemon::start(A);
    let hypervisor = Hypervisor::connect(&daemon.dir.path("a.sock"));
    let (ram, mut queue) = (Ram::new(1 << 20), Queue::new(0));
    let features = wanted(hypervisor.ask(GET_FEATURES, &[]).u64());
    hypervisor.say(SET_FEATURES, &u64s(&[features & !PROTOCOL_FEATURES]));
    let say = |code: u32, body: &[u8], descriptors: &[_]| {
        hypervisor.send_raw(&Hypervisor::message(code, 0, body), descriptors).expect("it reads");
    };
    say(SET_MEM_TABLE, &ram.table(), &[ram.file.as_fd()]);
    say(SET_VRING_NUM, &u32s(&[0, 64]), &[]);
    say(SET_VRING_ADDR, &queue.addresses(&ram, 0, 0), &[]);
    say(SET_VRING_CALL, &u64s(&[0]), &[queue.call.as_fd()]);
    say(SET_VRING_KICK, &u64s(&[0]), &[queue.kick.as_fd()]);
    queue.write_block(&ram, 1, 1);
    queue.check_block(&ram, 1, 1);
}

#[test]
fn a_stopped_queue_reports_where_it_stopped_and_goes_on_there() {
    let daemon = Daemon::start(A);
    let mut vm = Vm::boot(&daemon.dir.path("a.sock"));
    vm.check();
    assert_eq!(vm.queue.stop(&vm.hypervisor), vm.queue.rings.next_available);
    vm.queue.put(&vm.ram, 0, FLUSH, 0);
    vm.queue.kick();
    // An answered request means that every earlier one was seen.
    vm.hypervisor.ask(GET_FEATURES, &[]);
    assert_eq!(vm.queue.reap(&vm.ram), []);
    vm.queue.rings.next_available -= 1;
    vm.queue.start(&vm.hypervisor, &vm.ram);
    vm.queue.rings.next_available += 1;
    assert_eq!(vm.queue.wait(&vm.ram, 1), [(0, OK)]);
    vm.check();
}

#[test]
fn a_disabled_queue_serves_what_came_meanwhile_once_it_is_enabled() {
    let daemon = Daemon::start(A);
    let mut vm = Vm::boot(&daemon.dir.path("a.sock"));
    for _ in 0..20 {
        vm.hypervisor.send(SET_VRING_ENABLE, &u32s(&[0, 0]), &[]);
        vm.queue.put(&vm.ram, 5, OUT, 0);
        vm.queue.kick();
        vm.hypervisor.ask(GET_FEATURES, &[]);
        assert_eq!(vm.queue.reap(&vm.ram), []);
        vm.hypervisor.send(SET_VRING_ENABLE, &u32s(&[0, 1]), &[]);
        assert_eq!(vm.queue.wait(&vm.ram, 1), [(5, OK)]);
    }
    vm.check();
}

#[test]
fn after_a_reset_another_driver_begins_with_new_rings_and_features() {
    let daemon = Daemon::start(A);
    let mut vm = Vm::boot(&daemon.dir.path("a.sock"));
    for _ in 0..5 {
        vm.check();
        vm.hypervisor.send(RESET_DEVICE, &[], &[]);
        let features = wanted(vm.hypervisor.ask(GET_FEATURES, &[]).u64());
        vm.hypervisor.send(SET_FEATURES, &u64s(&[features]), &[]);
        vm.ram.write(0, &[0; 0x4000]);
        vm.queue = Queue::new(0);
        vm.queue.start(&vm.hypervisor, &vm.ram);
    }
    vm.check();
}

#[test]
fn two_devices_and_two_queues_each_serve_their_own_disk() {
    let daemon = Daemon::start(&[
        "--disk",
        "a=memory:1M",
        "--disk",
        "b=memory:1M",
        "--workers",
        "2",
        "--vhost-user",
        "a={dir}/a.sock",
        "--vhost-user",
        "b={dir}/b.sock",
    ]);
    let mut vms = ["a.sock", "b.sock"].map(|name| Vm::boot(&daemon.dir.path(name)));
    let mut seconds = [Queue::new(1), Queue::new(1)];
    for (vm, second) in vms.iter().zip(&seconds) {
        assert_eq!(vm.hypervisor.ask(GET_QUEUE_NUM, &[]).u64(), 16);
        second.start(&vm.hypervisor, &vm.ram);
    }
    for block in 0..8 {
        for (version, (vm, second)) in (0..).zip(vms.iter_mut().zip(&mut seconds)) {
            second.write_block(&vm.ram, block, version);
            vm.check_block(block, version);
        }
    }
    for (version, (vm, second)) in (0..).zip(vms.iter_mut().zip(&mut seconds)) {
        vm.check_block(0, version);
        second.check_block(&vm.ram, 7, version);
    }
    let info = daemon.admin(&json!({ "method": "disk.info", "disk": "a" }));
    assert_eq!(info["clients"][0]["kind"], "vhost-user");
    assert_eq!(info["clients"][0]["queues"], 2);
    assert_eq!(info["clients"][0]["pid"], std::process::id());
    let stat = daemon.admin(&json!({ "method": "stat" }));
    let workers: Vec<_> = stat["workers"].as_array().expect("workers").iter().map(|worker| worker["queues"].clone()).collect();
    assert_eq!(workers, [2, 2], "queues are spread");
    // A request is counted after its answer.
    eventually("the numbers", || {
        let stat = daemon.admin(&json!({ "method": "stat" }));
        let of_b: Vec<_> = stat["queues"].as_array().expect("queues").iter().filter(|queue| queue["disk"] == "b").collect();
        [&of_b[1]["writes"], &of_b[1]["reads"], &of_b[0]["reads"]] == [8, 1, 9]
    });
}

#[test]
fn memory_comes_and_goes_while_the_queue_runs() {
    let daemon = Daemon::start(A);
    let mut vm = Vm::boot(&daemon.dir.path("a.sock"));
    assert!(vm.hypervisor.ask(GET_MAX_MEM_SLOTS, &[]).u64() >= 32);
    vm.write_block(2, 9);
    let more = Ram::at(0x4000_0000, 1 << 16);
    let region = [u64s(&[0]), more.region()].concat();
    let read_into_more = |vm: &mut Vm| {
        vm.queue.put_at(&vm.ram, 1, IN, 16, Some(more.guest + 0x1000));
        vm.queue.kick();
        vm.queue.wait(&vm.ram, 1)[0].1
    };
    for _ in 0..10 {
        assert_eq!(read_into_more(&mut vm), IOERR, "the region is not mapped");
        vm.hypervisor.send(ADD_MEM_REG, &region, &[more.file.as_fd()]);
        assert_eq!(read_into_more(&mut vm), OK);
        assert_eq!(more.read(0x1000, BLOCK_BYTES), stamp(BLOCK_BYTES, 2, 9));
        more.write(0x1000, &[0; BLOCK_BYTES]);
        vm.hypervisor.send(REM_MEM_REG, &region, &[]);
        // The same memory, mapped anew, as after every binding of a driver in QEMU.
        vm.hypervisor.send(SET_MEM_TABLE, &vm.ram.table(), &[vm.ram.file.as_fd()]);
        vm.check();
    }
}

#[test]
fn a_queue_whose_memory_is_taken_away_waits_for_it() {
    let daemon = Daemon::start(&[A, &["--disk", "w=memory:1M"]].concat());
    let mut vm = Vm::boot(&daemon.dir.path("a.sock"));
    let mut correct_client = CorrectClient::new(&daemon, "w");
    vm.check();
    let region = [u64s(&[0]), vm.ram.region()].concat();
    vm.hypervisor.send(REM_MEM_REG, &region, &[]);
    vm.queue.put(&vm.ram, 0, FLUSH, 0);
    vm.queue.kick();
    correct_client.check();
    assert_eq!(vm.queue.reap(&vm.ram), []);
    assert_says(&daemon.log(), &["a queue stops with its memory", "disk=\"a\"", "queue=0"]);
    vm.hypervisor.send(ADD_MEM_REG, &region, &[vm.ram.file.as_fd()]);
    assert_eq!(vm.queue.wait(&vm.ram, 1), [(0, OK)]);
    vm.check();
}

#[test]
fn device_that_follows_another_on_its_connection_begins_anew() {
    let daemon = Daemon::start(A);
    let mut vm = Vm::boot(&daemon.dir.path("a.sock"));
    vm.write_block(2, 9);
    for _ in 0..3 {
        // Unplugged, as by QEMU: the queue is stopped, the connection stays open, the memory stays.
        vm.queue.stop(&vm.hypervisor);
        vm.hypervisor.say(SET_OWNER, &[]);
        let (ram, mut queue) = (Ram::new(1 << 20), Queue::new(0));
        vm.hypervisor.send(SET_FEATURES, &u64s(&[wanted(vm.hypervisor.ask(GET_FEATURES, &[]).u64())]), &[]);
        vm.hypervisor.send(ADD_MEM_REG, &[u64s(&[0]), ram.region()].concat(), &[ram.file.as_fd()]);
        queue.start(&vm.hypervisor, &ram);
        queue.check_block(&ram, 2, 9);
        (vm.ram, vm.queue) = (ram, queue);
        vm.check();
    }
}

#[test]
fn no_kick_is_lost_between_a_worker_that_falls_asleep_and_a_guest_that_is_not_asked_to_kick() {
    for wait in ["sleep", "adaptive"] {
        let daemon = Daemon::start(&[A, &["--wait", wait, "--look-us", "1"]].concat());
        let mut vm = Vm::boot(&daemon.dir.path("a.sock"));
        for round in 0..3000_u16 {
            let count = round % 7 + 1;
            (0..count).for_each(|slot| vm.queue.put(&vm.ram, slot, OUT, 0));
            vm.queue.kick_if_asked(&vm.ram);
            vm.queue.wait(&vm.ram, count.into());
        }
    }
}
