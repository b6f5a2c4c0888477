//! Either side is killed in the middle of requests: acknowledged writes are kept, and no request is carried out twice or lost.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use fipsee_block::client::{AttachOptions, Blocking};
use fipsee_testkit::hypervisor::*;
use fipsee_testkit::{Daemon, TIMEOUT, await_word, child, eventually, mapping_count, stamp};
use serde_json::json;

const F: &[&str] = &["--disk", "f=file:{dir}/disk,size=1M", "--vhost-user", "f={dir}/f.sock"];

/// Put a write into each slot: block `slot` in version `version`.
fn put_writes(vm: &mut Vm, version: u64) {
    for slot in 0..SLOTS {
        vm.ram.write(vm.queue.data_offset(slot), &stamp(BLOCK_BYTES, slot.into(), version));
        vm.queue.put(&vm.ram, slot, OUT, u64::from(slot) * 8);
    }
}

/// The version of each block of a disk, as a local client reads it.
#[track_caller]
fn versions(daemon: &Daemon, disk: &str, possible: &[u64]) -> Vec<u64> {
    // The guest may be running: it alone writes.
    let reader = AttachOptions { read_only: true, ..Daemon::options(disk) };
    let mut client = Blocking::attach(&daemon.socket(), &reader).expect("attached");
    let mut bytes = vec![0; BLOCK_BYTES];
    let version_of = |block: u16| {
        client.read_at(&mut bytes, u64::from(block) * BLOCK_BYTES as u64).expect("read");
        let is_it = |version: &&u64| bytes == stamp(BLOCK_BYTES, block.into(), **version);
        *possible.iter().find(is_it).unwrap_or_else(|| panic!("block {block} is torn"))
    };
    (0..SLOTS).map(version_of).collect()
}

#[test]
fn hypervisor_that_leaves_with_writes_in_flight_finds_every_acknowledged_one() {
    let daemon = Daemon::start(F);
    let socket = daemon.dir.path("f.sock");
    let descriptors = {
        Vm::boot(&socket).check();
        eventually("no client is attached", || daemon.attached_count("f") == 0);
        daemon.fd_count()
    };
    let mut acknowledged = vec![0; usize::from(SLOTS)];
    // The first versions are complete before the load begins.
    let mut vm = Vm::boot(&socket);
    put_writes(&mut vm, 0);
    vm.queue.kick();
    vm.queue.wait(&vm.ram, SLOTS.into());
    drop(vm);
    for version in 1..40 {
        let mut vm = Vm::boot(&socket);
        put_writes(&mut vm, version);
        vm.queue.kick();
        let answered = if version % 2 == 0 { Vec::new() } else { vm.queue.wait_for_some(&vm.ram) };
        drop(vm.hypervisor);
        // Requests answered after the hang-up count, too.
        eventually("no client is attached", || daemon.attached_count("f") == 0);
        for (slot, status) in answered.into_iter().chain(vm.queue.reap(&vm.ram)) {
            assert_eq!(status, OK);
            acknowledged[usize::from(slot)] = version;
        }
        let possible: Vec<u64> = (0..=version).collect();
        for (found, acknowledged) in versions(&daemon, "f", &possible).into_iter().zip(&acknowledged) {
            assert!(found >= *acknowledged, "an acknowledged write is lost: {found} instead of {acknowledged}");
        }
        eventually("no client is attached", || daemon.attached_count("f") == 0);
    }
    assert_eq!(daemon.fd_count(), descriptors);
}

/// As a process of its own: a hypervisor that writes for ever.
pub(crate) fn hypervisor_with_writes_in_flight() {
    let mut vm = Vm::boot(&child::socket());
    println!("writing");
    for version in 0.. {
        put_writes(&mut vm, version);
        vm.queue.kick();
        vm.queue.wait(&vm.ram, SLOTS.into());
    }
}

#[test]
fn a_hypervisor_killed_in_the_middle_of_io_leaves_nothing_behind() {
    let daemon = Daemon::start(F);
    let socket = daemon.dir.path("f.sock");
    let mut counts = None;
    for _ in 0..10 {
        let mut child = child::command_at("hypervisor_with_writes_in_flight", &socket).spawn().expect("a process");
        await_word(&mut child, "writing");
        child.kill().expect("killed");
        child.wait().expect("gone");
        Vm::boot(&socket).check();
        eventually("no client is attached", || daemon.attached_count("f") == 0);
        let now = (daemon.fd_count(), mapping_count(daemon.pid()));
        assert_eq!(now, *counts.get_or_insert(now), "descriptors or mappings of a dead hypervisor are still there");
    }
}

/// The area for requests in flight, which the hypervisor keeps.
struct Inflight {
    file: OwnedFd,
    body: Vec<u8>,
}

impl Inflight {
    fn create(hypervisor: &Hypervisor) -> Self {
        let wanted = [u64s(&[0, 0]), vec![1, 0, 64, 0], vec![0; 4]].concat();
        let mut reply = hypervisor.ask(GET_INFLIGHT_FD, &wanted);
        Self { file: reply.descriptors.pop().expect("the area"), body: reply.body }
    }

    fn hand_over(&self, hypervisor: &Hypervisor) {
        hypervisor.send(SET_INFLIGHT_FD, &self.body, &[self.file.as_fd()]);
    }
}

/// As QEMU connects again: the same memory, the same area, and the used ring's index as the base.
fn reconnect(vm: &mut Vm, socket: &Path, inflight: &Inflight) {
    vm.hypervisor = Hypervisor::connect(socket);
    vm.hypervisor.negotiate(&vm.ram);
    inflight.hand_over(&vm.hypervisor);
    let used = vm.queue.rings.used_index(&vm.ram);
    let next_available = std::mem::replace(&mut vm.queue.rings.next_available, used);
    vm.queue.start(&vm.hypervisor, &vm.ram);
    vm.queue.rings.next_available = next_available;
}

#[test]
fn a_killed_daemon_carries_out_what_was_in_flight_once_it_is_back() {
    let mut daemon = Daemon::start(F);
    let socket = daemon.dir.path("f.sock");
    let mut vm = Vm::boot(&socket);
    vm.queue.stop(&vm.hypervisor);
    let inflight = Inflight::create(&vm.hypervisor);
    inflight.hand_over(&vm.hypervisor);
    vm.queue.start(&vm.hypervisor, &vm.ram);
    vm.check();
    for version in 1..12 {
        put_writes(&mut vm, version);
        vm.queue.kick();
        let before = if version % 2 == 0 { Vec::new() } else { vm.queue.wait_for_some(&vm.ram) };
        daemon.kill_9();
        vm.hypervisor.assert_hung_up();
        daemon.restart();
        reconnect(&mut vm, &socket, &inflight);
        vm.queue.kick();
        let mut answered = vm.queue.wait(&vm.ram, usize::from(SLOTS) - before.len());
        answered.extend(before);
        answered.sort_unstable();
        let expected: Vec<(u16, u8)> = (0..SLOTS).map(|slot| (slot, OK)).collect();
        assert_eq!(answered, expected, "each once");
        assert_eq!(versions(&daemon, "f", &[version - 1, version]), vec![version; SLOTS.into()]);
    }
    vm.check();
}

#[test]
fn a_resize_is_reported_to_the_guest_and_takes_effect() {
    let daemon = Daemon::start(&["--disk", "f=file:{dir}/disk,size=1M", "--vhost-user", "f={dir}/f.sock"]);
    let mut vm = Vm::boot(&daemon.dir.path("f.sock"));
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    ours.set_read_timeout(Some(TIMEOUT)).expect("a bound");
    vm.hypervisor.send(SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]);
    drop(theirs);
    for megabytes in [2_u64, 1, 3] {
        let last = (megabytes << 20) / 512 - 8;
        let request =
            json!({ "method": "disk.resize", "disk": "f", "size_bytes": megabytes << 20, "shrink": true, "force": true });
        let answer = daemon.admin(&request);
        assert_eq!(answer["size_bytes"], megabytes << 20);
        let mut message = [0; 12];
        std::io::Read::read_exact(&mut &ours, &mut message).expect("a notification");
        assert_eq!(message[..], u32s(&[2, 1, 0]), "CONFIG_CHANGE_MSG");
        assert_eq!(config(&vm.hypervisor, 0, 8), u64s(&[(megabytes << 20) / 512]));
        assert_eq!(vm.queue.run(&vm.ram, OUT, last), OK);
        assert_eq!(vm.queue.run(&vm.ram, OUT, last + 8), IOERR);
    }
    // A hypervisor that does not read there does no harm.
    drop(ours);
    daemon.admin(&json!({ "method": "disk.resize", "disk": "f", "size_bytes": 1 << 20, "shrink": true, "force": true }));
    vm.check();
}

#[test]
fn the_cache_mode_is_the_guests_to_choose() {
    let daemon = Daemon::start(F);
    let vm = Vm::boot(&daemon.dir.path("f.sock"));
    let mode = |mode: u8| [u32s(&[32, 1, 0]), vec![mode]].concat();
    assert_eq!(config(&vm.hypervisor, 32, 1), [1]);
    vm.hypervisor.send(SET_CONFIG, &mode(0), &[]);
    assert_eq!(config(&vm.hypervisor, 32, 1), [0]);
    vm.hypervisor.send(SET_CONFIG, &mode(1), &[]);
    assert_eq!(config(&vm.hypervisor, 32, 1), [1]);
    // Drivers of other versions know more fields.
    let space = config(&vm.hypervisor, 0, 256);
    assert_eq!((&space[..8], &space[200..]), (&u64s(&[2048])[..], &[0; 56][..]));
    assert_eq!(space[34..36], [16, 0], "queues");
}

#[test]
fn while_memory_is_migrated_every_page_that_is_written_is_marked() {
    let daemon = Daemon::start(F);
    let mut vm = Vm::boot(&daemon.dir.path("f.sock"));
    vm.write_block(1, 1);
    // One bit for each page from address 0 on.
    let log = Ram::new(4096).file;
    let pages = |log: &std::fs::File| -> Vec<u64> {
        let mut bytes = vec![0; 4096];
        std::os::unix::fs::FileExt::read_exact_at(log, &mut bytes, 0).expect("a file");
        let is_set = |page: &u64| bytes[usize::try_from(page / 8).expect("small")] >> (page % 8) & 1 == 1;
        (0..4096 * 8).filter(is_set).collect()
    };
    let features = wanted(vm.hypervisor.ask(GET_FEATURES, &[]).u64());
    vm.check_block(1, 1);
    assert_eq!(pages(&log), [0_u64; 0]);
    // As QEMU begins: the log, the features, the rings again.
    vm.hypervisor.send_raw(&Hypervisor::message(SET_LOG_BASE, 0, &u64s(&[4096, 0])), &[log.as_fd()]).expect("it reads");
    vm.hypervisor.receive(SET_LOG_BASE).expect("an answer");
    vm.hypervisor.send(SET_FEATURES, &u64s(&[features | LOG_ALL]), &[]);
    let used = vm.queue.used_address(&vm.ram);
    vm.hypervisor.send(SET_VRING_ADDR, &vm.queue.addresses(&vm.ram, 1, used), &[]);
    vm.check_block(1, 1);
    let page = |offset: u64| (vm.ram.guest + offset) / 4096;
    // The data, the status, the used ring.
    let mut expected = vec![page(vm.queue.data_offset(0)), page(0x8000), used / 4096];
    expected.sort_unstable();
    assert_eq!(pages(&log), expected);
    vm.hypervisor.send(SET_FEATURES, &u64s(&[features]), &[]);
    vm.hypervisor.send(SET_VRING_ADDR, &vm.queue.addresses(&vm.ram, 0, 0), &[]);
    std::os::unix::fs::FileExt::write_all_at(&log, &[0; 4096], 0).expect("a file");
    vm.check_block(1, 1);
    assert_eq!(pages(&log), [0_u64; 0]);
}
