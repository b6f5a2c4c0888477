//! A hypervisor or guest that sends nonsense loses its own connection or queue, and no other is affected.

use std::os::fd::{AsFd, BorrowedFd};

use fipsee_block::client::AttachOptions;
use fipsee_ring::control::RefusalCode;
use fipsee_testkit::hypervisor::*;
use fipsee_testkit::{CorrectClient, Daemon, as_user, assert_says, eventually, is_root, refusal_of, skip};
use serde_json::json;

const A: &[&str] = &["--disk", "a=memory:1M", "--disk", "w=memory:1M", "--vhost-user", "a={dir}/a.sock"];

/// A message, its descriptors, and its line in the log.
struct Nonsense {
    code: u32,
    body: Vec<u8>,
    descriptors: usize,
    says: &'static str,
}

const fn nonsense(code: u32, body: Vec<u8>, descriptors: usize, says: &'static str) -> Nonsense {
    Nonsense { code, body, descriptors, says }
}

/// Each is sent after features, protocol features and memory are agreed.
fn all_nonsense() -> Vec<Nonsense> {
    [nonsense_of_the_device(), nonsense_of_queues()].into_iter().flatten().collect()
}

fn nonsense_of_the_device() -> Vec<Nonsense> {
    let region = |guest: u64, length: u64, user: u64, offset: u64| u64s(&[guest, length, user, offset]);
    let table = |count: u32, regions: &[Vec<u8>]| [u32s(&[count, 0]), regions.concat()].concat();
    let single = |region: Vec<u8>| [u64s(&[0]), region].concat();
    vec![
        nonsense(999, vec![], 0, "request 999: invalid message"),
        nonsense(0, vec![], 0, "request 0: invalid message"),
        nonsense(40, vec![], 0, "GET_STATUS: invalid message"),
        nonsense(GET_FEATURES, vec![1], 0, "GET_FEATURES: invalid message"),
        nonsense(GET_FEATURES, vec![], 1, "GET_FEATURES: invalid message"),
        nonsense(GET_FEATURES, vec![0; 5000], 0, "GET_FEATURES: invalid message"),
        nonsense(SET_FEATURES, u64s(&[u64::MAX]), 0, "SET_FEATURES: virtio features"),
        nonsense(SET_PROTOCOL_FEATURES, u64s(&[u64::MAX]), 0, "SET_PROTOCOL_FEATURES: protocol features"),
        nonsense(SET_MEM_TABLE, table(0, &[]), 0, "SET_MEM_TABLE: its count does not match its regions and descriptors"),
        nonsense(
            SET_MEM_TABLE,
            table(2, &[region(0, 4096, 0, 0)]),
            2,
            "SET_MEM_TABLE: its count does not match its regions and descriptors",
        ),
        nonsense(
            SET_MEM_TABLE,
            table(1, &[region(0, 4096, 0, 0)]),
            0,
            "SET_MEM_TABLE: its count does not match its regions and descriptors",
        ),
        nonsense(SET_MEM_TABLE, table(1, &[region(0, 0, 0, 0)]), 1, "SET_MEM_TABLE: the guest's memory of 0 bytes"),
        nonsense(SET_MEM_TABLE, table(1, &[region(u64::MAX, 4096, 0, 0)]), 1, "SET_MEM_TABLE: the guest's memory of 4096 bytes"),
        nonsense(
            SET_MEM_TABLE,
            table(1, &[region(0, 1 << 40, 0, 0)]),
            1,
            "SET_MEM_TABLE: the guest's memory of 1099511627776 bytes",
        ),
        nonsense(SET_MEM_TABLE, table(1, &[region(0, 4096, 0, 1 << 40)]), 1, "SET_MEM_TABLE: the guest's memory of 4096 bytes"),
        nonsense(SET_MEM_TABLE, vec![1], 1, "SET_MEM_TABLE: its count does not match its regions and descriptors"),
        nonsense(SET_MEM_TABLE, vec![0; 5000], 1, "SET_MEM_TABLE: invalid message"),
        nonsense(
            SET_MEM_TABLE,
            table(2, &[region(0, 8192, 0, 0), region(4096, 4096, 1 << 30, 0)]),
            2,
            "SET_MEM_TABLE: the guest's memory cannot be used: two regions of guest memory overlap",
        ),
        nonsense(
            ADD_MEM_REG,
            single(region(0x10_0000, 4096, 0, 0)),
            1,
            "ADD_MEM_REG: the guest's memory cannot be used: two regions",
        ),
        nonsense(ADD_MEM_REG, single(region(u64::MAX - 4095, 8192, 0, 0)), 1, "ADD_MEM_REG"),
        nonsense(
            REM_MEM_REG,
            single(region(0x10_0000, 4096, 0, 0)),
            0,
            "REM_MEM_REG: there is no region of memory of 4096 bytes at 0x100000",
        ),
    ]
}

fn nonsense_of_queues() -> Vec<Nonsense> {
    vec![
        nonsense(SET_VRING_NUM, u32s(&[16, 64]), 0, "SET_VRING_NUM: there is no queue 16: the device has 16"),
        nonsense(SET_VRING_NUM, u32s(&[u32::MAX, 64]), 0, "SET_VRING_NUM: there is no queue 4294967295"),
        nonsense(SET_VRING_NUM, u32s(&[0, 0]), 0, "SET_VRING_NUM: the size of a queue is a power of two"),
        nonsense(SET_VRING_NUM, u32s(&[0, 63]), 0, "SET_VRING_NUM: the size of a queue is a power of two"),
        nonsense(SET_VRING_NUM, u32s(&[0, 65536]), 0, "SET_VRING_NUM: the size of a queue is a power of two"),
        nonsense(SET_VRING_BASE, u32s(&[0, 65536]), 0, "SET_VRING_BASE: the base of a queue has 16 bits"),
        nonsense(SET_VRING_ADDR, [u32s(&[0, 0]), u64s(&[1, 0, 0, 0])].concat(), 0, "SET_VRING_ADDR: invalid message"),
        nonsense(SET_VRING_ADDR, [u32s(&[17, 0]), u64s(&[0, 0, 0, 0])].concat(), 0, "SET_VRING_ADDR: there is no queue 17"),
        nonsense(GET_VRING_BASE, u32s(&[99, 0]), 0, "GET_VRING_BASE: there is no queue 99"),
        nonsense(SET_VRING_KICK, u64s(&[200]), 1, "SET_VRING_KICK: there is no queue 200"),
        nonsense(SET_VRING_KICK, u64s(&[0]), 0, "SET_VRING_KICK: invalid message"),
        nonsense(SET_VRING_KICK, u64s(&[0x100]), 0, "SET_VRING_KICK: a queue without a kick descriptor is not supported"),
        nonsense(SET_VRING_CALL, u64s(&[77]), 1, "SET_VRING_CALL: there is no queue 77"),
        nonsense(SET_VRING_ENABLE, u32s(&[0, 2]), 0, "SET_VRING_ENABLE: invalid parameters"),
        nonsense(SET_VRING_ENABLE, u32s(&[16, 1]), 0, "SET_VRING_ENABLE: there is no queue 16"),
        nonsense(SET_BACKEND_REQ_FD, vec![], 0, "SET_BACKEND_REQ_FD: it must bring one descriptor"),
        nonsense(SET_BACKEND_REQ_FD, vec![], 2, "SET_BACKEND_REQ_FD: it must bring one descriptor"),
        nonsense(SET_BACKEND_REQ_FD, vec![], 1, "SET_BACKEND_REQ_FD: its descriptor must be a Unix stream socket"),
        nonsense(SET_CONFIG, [u32s(&[0, 8, 0]), vec![1; 8]].concat(), 0, "SET_CONFIG: only the cache mode"),
        nonsense(GET_CONFIG, u32s(&[0, 8, 0]), 0, "GET_CONFIG: invalid message"),
        nonsense(
            GET_INFLIGHT_FD,
            [u64s(&[0, 0]), vec![255; 4], vec![0; 4]].concat(),
            0,
            "GET_INFLIGHT_FD: requests in flight of 65535",
        ),
        nonsense(SET_INFLIGHT_FD, [u64s(&[1 << 50, 0]), vec![1, 0, 64, 0], vec![0; 4]].concat(), 1, "SET_INFLIGHT_FD: the area"),
        nonsense(SET_LOG_BASE, u64s(&[1 << 50, 0]), 1, "SET_LOG_BASE: the log of writes cannot be mapped"),
    ]
}

#[test]
fn nonsense_is_logged_with_its_reason_and_costs_only_its_own_connection() {
    // A daemon limits its log lines a second about clients.
    for some in all_nonsense().chunks(20) {
        refuse_and_log(some);
    }
}

fn refuse_and_log(nonsense: &[Nonsense]) {
    let daemon = Daemon::start(A);
    let socket = daemon.dir.path("a.sock");
    let mut correct_client = CorrectClient::new(&daemon, "w");
    let file = Ram::new(8192).file;
    for Nonsense { code, body, descriptors, says } in nonsense {
        let before = daemon.log().len();
        let hypervisor = Hypervisor::connect(&socket);
        hypervisor.negotiate(&Ram::new(1 << 16));
        let descriptors: Vec<BorrowedFd<'_>> = (0..*descriptors).map(|_| file.as_fd()).collect();
        // The socket holds more than the daemon reads before it hangs up.
        let _ = hypervisor.send_raw(&Hypervisor::message(*code, 0, body), &descriptors);
        hypervisor.assert_hung_up();
        eventually(says, || daemon.log()[before..].contains(says));
        assert_says(&daemon.log()[before..], &["refused and detached", "disk=\"a\"", &format!("pid={}", std::process::id())]);
    }
    Vm::boot(&socket).check();
    correct_client.check();
}

#[test]
fn what_was_not_agreed_on_is_refused() {
    let daemon = Daemon::start(A);
    let socket = daemon.dir.path("a.sock");
    let file = Ram::new(4096).file;
    let ours = [u64s(&[0]), u64s(&[0, 4096, 0, 0])].concat();
    for (code, body, descriptors) in [
        (SET_BACKEND_REQ_FD, vec![], 1),
        (GET_QUEUE_NUM, vec![], 0),
        (GET_CONFIG, u32s(&[0, 4, 0, 0]), 0),
        (ADD_MEM_REG, ours, 1),
        (GET_INFLIGHT_FD, [u64s(&[0, 0]), vec![1, 0, 64, 0], vec![0; 4]].concat(), 0),
        (SET_LOG_BASE, u64s(&[4096, 0]), 1),
        (SET_VRING_ENABLE, u32s(&[0, 1]), 0),
    ] {
        let hypervisor = Hypervisor::connect(&socket);
        let descriptors: Vec<BorrowedFd<'_>> = (0..descriptors).map(|_| file.as_fd()).collect();
        hypervisor.send_raw(&Hypervisor::message(code, 0, &body), &descriptors).expect("it reads");
        hypervisor.assert_hung_up();
    }
    Vm::boot(&socket).check();
}

#[test]
fn half_a_message_holds_up_only_its_own_socket() {
    let daemon = Daemon::start(&[A, &["--vhost-user", "a={dir}/b.sock"]].concat());
    let hypervisor = Hypervisor::connect(&daemon.dir.path("a.sock"));
    half_a_message(&hypervisor);
    Vm::boot(&daemon.dir.path("b.sock")).check();
    CorrectClient::new(&daemon, "w").check();
    drop(hypervisor);
    Vm::boot(&daemon.dir.path("a.sock")).check();
}

/// Does the thread of the machine wait for the rest of a message? Between messages it sleeps in epoll.
fn awaits_the_rest(daemon: &Daemon) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("a live process").flatten();
    let read = |task: &std::fs::DirEntry, file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
    tasks.into_iter().any(|task| read(&task, "comm") == "fip-vm-a\n" && read(&task, "wchan").starts_with("poll_schedule_timeout"))
}

#[test]
fn half_a_message_keeps_no_queue_but_its_own_at_a_worker_and_ends() {
    let daemon = Daemon::start(&[A, &["--disk", "x=memory:1M", "--workers", "3"]].concat());
    let _first = CorrectClient::new(&daemon, "w");
    let mut vm = Vm::boot(&daemon.dir.path("a.sock"));
    vm.check();
    let mut last = CorrectClient::new(&daemon, "x");
    let queues = || {
        let answer = daemon.admin(&json!({ "method": "workers" }));
        let workers = answer["workers"].as_array().expect("a list").iter();
        workers.map(|worker| worker["queues"].as_u64().expect("a number")).collect::<Vec<_>>()
    };
    assert_eq!(queues(), [1, 1, 1]);
    half_a_message(&vm.hypervisor);
    eventually("it has the half", || awaits_the_rest(&daemon));
    daemon.admin(&json!({ "method": "workers.set", "workers": "1" }));
    eventually("only the machine's queue stays", || queues() == [2, 1, 0]);
    last.check();
    eventually("the machine is not waited for without end", || queues() == [2, 0, 0]);
    vm.hypervisor.assert_hung_up();
    assert_says(&daemon.log(), &["the rest of the message did not come within 10 s"]);
}

/// A chain without an end.
fn loop_in_the_queue(vm: &mut Vm) {
    vm.queue.describe(&vm.ram, 0, vm.ram.guest + 0x4000, 16, 1, 1);
    vm.queue.describe(&vm.ram, 1, vm.ram.guest + 0x5000, 512, 1, 1);
    vm.queue.offer(&vm.ram, 0);
    vm.queue.kick();
}

#[test]
fn a_broken_queue_stops_with_a_line_in_the_log_while_others_work_and_works_after_a_reset() {
    let disk = "a=memory:1M,shared";
    let daemon = Daemon::start(&["--disk", disk, "--vhost-user", "a={dir}/a.sock", "--vhost-user", "a={dir}/b.sock"]);
    let mut healthy = Vm::boot(&daemon.dir.path("b.sock"));
    let mut vm = Vm::boot(&daemon.dir.path("a.sock"));
    for round in 1..=3 {
        vm.check();
        loop_in_the_queue(&mut vm);
        assert!(rings(&vm.queue.error), "the error descriptor");
        let line = "a virtqueue broke and is not served until it is reset";
        eventually("the line in the log", || daemon.log().matches(line).count() == round);
        assert_says(&daemon.log(), &["disk=\"a\"", "queue=0"]);
        vm.queue.put(&vm.ram, 2, FLUSH, 0);
        vm.queue.kick();
        healthy.check();
        assert_eq!(vm.queue.reap(&vm.ram), []);
        vm.queue.stop(&vm.hypervisor);
        vm.ram.write(0, &[0; 0x4000]);
        vm.queue = Queue::new(0);
        vm.queue.start(&vm.hypervisor, &vm.ram);
    }
    vm.check();
}

#[test]
fn rings_outside_memory_are_reported_and_the_connection_stays() {
    let daemon = Daemon::start(A);
    let mut correct_client = CorrectClient::new(&daemon, "w");
    let hypervisor = Hypervisor::connect(&daemon.dir.path("a.sock"));
    let (ram, mut queue) = (Ram::new(1 << 20), Queue::new(0));
    hypervisor.negotiate(&ram);
    let elsewhere = Ram { user: 0x1000, ..Ram::new(4096) };
    queue.start(&hypervisor, &elsewhere);
    correct_client.check();
    assert_says(&daemon.log(), &["a queue cannot be served", "its rings are not in the memory"]);
    hypervisor.send(SET_VRING_ADDR, &queue.addresses(&ram, 0, 0), &[]);
    queue.write_block(&ram, 0, 1);
    correct_client.check();
}

#[test]
fn a_kick_descriptor_that_cannot_ring_is_reported() {
    let daemon = Daemon::start(A);
    let mut correct_client = CorrectClient::new(&daemon, "w");
    let hypervisor = Hypervisor::connect(&daemon.dir.path("a.sock"));
    let (ram, mut queue) = (Ram::new(1 << 20), Queue::new(0));
    hypervisor.negotiate(&ram);
    let doorbell = std::mem::replace(&mut queue.kick, ram.file.try_clone().expect("a copy").into());
    queue.start(&hypervisor, &ram);
    correct_client.check();
    assert_says(&daemon.log(), &["a queue cannot be served", "its kick descriptor cannot be watched"]);
    queue.kick = doorbell;
    queue.start(&hypervisor, &ram);
    queue.write_block(&ram, 0, 1);
    correct_client.check();
}

#[test]
fn exclusive_use_excludes_hypervisors_and_hypervisors_exclude_it() {
    let daemon = Daemon::start(A);
    let socket = daemon.dir.path("a.sock");
    let exclusive = AttachOptions { exclusive: true, ..Daemon::options("a") };
    let (disk, queues) = daemon.attach(&exclusive).expect("attached");
    Hypervisor::connect(&socket).assert_hung_up();
    eventually("the line in the log", || daemon.log().contains("a hypervisor is refused"));
    assert_says(&daemon.log(), &["disk 'a' is in use exclusively by process"]);
    disk.detach(queues).expect("detached");
    // A client receives DETACHED just before its place is free.
    eventually("its place is free", || daemon.attached_count("a") == 0);
    let mut vm = Vm::boot(&socket);
    let text = refusal_of(daemon.attach(&exclusive), RefusalCode::Busy);
    assert_says(&text, &["exclusive use was asked for"]);
    vm.check();
}

#[test]
fn a_read_only_disk_is_one_for_guests_too() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M,ro", "--vhost-user", "a={dir}/a.sock"]);
    let mut vm = Vm::boot(&daemon.dir.path("a.sock"));
    assert_ne!(vm.hypervisor.ask(GET_FEATURES, &[]).u64() & 1 << 5, 0, "VIRTIO_BLK_F_RO");
    assert_eq!(vm.queue.run(&vm.ram, OUT, 0), IOERR);
    assert_eq!(vm.queue.run(&vm.ram, IN, 0), OK);
}

#[test]
fn hypervisors_of_other_users_need_to_be_on_the_list() {
    if !is_root() {
        return skip("users of hypervisors", "only root can take another user's place");
    }
    let daemon = Daemon::start(&[A, &["--allow-uid", "4001"]].concat());
    let socket = daemon.dir.path("a.sock");
    std::fs::set_permissions(&daemon.dir.0, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("ours");
    let connect_as = |user: u32| {
        let socket = socket.clone();
        as_user(user, &[], move || Hypervisor::connect(&socket))
    };
    connect_as(4000).assert_hung_up();
    eventually("the line in the log", || daemon.log().contains("disk 'a' is not for user 4000"));
    assert_ne!(connect_as(4001).ask(GET_FEATURES, &[]).u64(), 0);
}
