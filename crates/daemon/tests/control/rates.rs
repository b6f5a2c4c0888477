//! Limits of requests and bytes per second, and weights: configured, set at run time, kept. A limit is tested as what it is, an upper
//! bound: so many requests take at least so long.

use fipsee_block::client::{Buffer, Completion, Disk, Queue};
use fipsee_block::wire::Status;
use fipsee_testkit::hypervisor::Vm;
use fipsee_testkit::rates::{
    assert_limited, assert_unlimited, limit_of, limit_request as request, rates_of as rates, set_limit as set,
};
use fipsee_testkit::{CorrectClient, Daemon, Scratch, as_user, assert_says, eventually, is_root, refused_in, skip};
use serde_json::{Value, json};

const NULL: &str = "[[disk]]\nname = \"a\"\nspec = \"null:1G\"\nallow_everyone = true\n";

struct Client {
    _disk: Disk,
    queue: Queue,
    buffer: Buffer,
}

impl Client {
    fn new(daemon: &Daemon) -> Self {
        let (disk, queue) = daemon.client(&Daemon::options("a"));
        Self::of(disk, queue)
    }

    fn as_user(daemon: &Daemon, uid: u32) -> Self {
        let socket = daemon.socket();
        let (disk, mut queues) = as_user(uid, &[], move || Disk::attach(&socket, &Daemon::options("a"))).expect("attached");
        Self::of(disk, queues.remove(0))
    }

    fn of(disk: Disk, queue: Queue) -> Self {
        let buffer = disk.allocate(64 << 10).expect("a buffer");
        Self { _disk: disk, queue, buffer }
    }

    /// Read so often, 8 at a time.
    fn read(&mut self, count: u64, length_bytes: u64) {
        let (mut begun, mut done) = (0, 0);
        while done < count {
            while begun < count && begun - done < 8 {
                let segment = self.buffer.segment(0, length_bytes);
                self.queue.read(0, segment, begun).expect("room");
                begun += 1;
            }
            self.queue.submit();
            let finished = &mut |completion: Completion| {
                assert_eq!(completion.status, Status::Ok);
                done += 1;
            };
            self.queue.wait(finished).expect("connected");
        }
    }
}

#[test]
fn requests_and_bytes_of_a_disk_are_limited_over_all_its_clients() {
    let daemon = Daemon::with_file(&format!("{NULL}iops = 2000\n"));
    let mut clients = [Client::new(&daemon), Client::new(&daemon)];
    let both = |clients: &mut [Client; 2], count: u64, length_bytes: u64| {
        std::thread::scope(|scope| clients.iter_mut().for_each(|client| drop(scope.spawn(|| client.read(count, length_bytes)))));
    };
    // 5 ms of 2000 are 10.
    assert_limited(1000, 2000, (10, 2), || both(&mut clients, 500, 512));
    let info = daemon.ask(&json!({ "method": "disk.info", "disk": "a" }));
    assert_eq!(rates(&info["rates"]), [&json!(2000), &Value::Null, &Value::Null]);
    let total: u64 = info["clients"].as_array().expect("a list").iter().filter_map(|client| client["reads"].as_u64()).sum();
    assert_eq!(total, 1000, "by the daemon's own counters");
    assert!(limit_of(&daemon, "disk", "a")["throttled"].as_u64().is_some_and(|count| count > 0));
    let stat = daemon.ask(&json!({ "method": "stat" }));
    assert!(stat["disks"][0]["throttled"].as_u64().is_some_and(|count| count > 0));
    set(&daemon, &json!({ "disk": "a", "iops": "off", "bytes_per_second": 64 << 20, "burst_ms": 10 }));
    let (bytes, burst) = (64 << 20, (64 << 20) / 100);
    assert_limited(32 << 20, bytes, (burst, 2 << 16), || both(&mut clients, 256, 1 << 16));
    set(&daemon, &json!({ "disk": "a", "bytes_per_second": "off" }));
    assert_eq!(rates(&limit_of(&daemon, "disk", "a")), [&Value::Null; 3]);
    assert_unlimited(&daemon, || both(&mut clients, 100_000, 512));
}

#[test]
fn a_client_is_limited_alone_and_is_again_after_a_takeover() {
    let mut daemon = Daemon::with_file(NULL);
    let (mut first, mut second) = (Client::new(&daemon), Client::new(&daemon));
    second.read(1000, 512);
    let info = daemon.ask(&json!({ "method": "disk.info", "disk": "a" }));
    let number = |index: usize| info["clients"][index]["client"].as_u64().expect("a number");
    assert_eq!(set(&daemon, &json!({ "client": number(0), "iops": 1000 }))["of_disk"], "a");
    for when in ["before", "after a takeover", "after a reload"] {
        assert_limited(200, 1000, (5, 1), || first.read(200, 512));
        assert_unlimited(&daemon, || second.read(10_000, 512));
        assert_eq!(limit_of(&daemon, "client", number(0))["iops"], 1000, "{when}");
        assert_eq!(limit_of(&daemon, "client", number(1)), Value::Null, "{when}");
        match when {
            "before" => daemon.take_over(),
            _ => _ = daemon.ask(&json!({ "method": "reload" })),
        }
    }
    let text = daemon.admin(&request(&json!({ "client": 99, "iops": 1 })))["error"].to_string();
    assert_says(&text, &["no client 99 is attached", "fipsee info"]);
}

#[test]
fn a_user_and_a_group_are_limited_over_all_their_connections() {
    if !is_root() {
        return skip("attach as other users", "only root can become another user");
    }
    let group = "[[group]]\nname = \"batch\"\nusers = [4001, 4002]\niops = 1000\nweight = 20\n";
    let daemon = Daemon::with_file(&format!("[[user]]\nname = 4000\niops = 2000\n{group}{NULL}"));
    let mut of_user = [Client::as_user(&daemon, 4000), Client::as_user(&daemon, 4000)];
    let mut of_group = [Client::as_user(&daemon, 4001), Client::as_user(&daemon, 4002)];
    let mut other = Client::as_user(&daemon, 4003);
    assert_limited(400, 2000, (10, 2), || of_user.iter_mut().for_each(|client| client.read(200, 512)));
    assert_limited(200, 1000, (5, 2), || of_group.iter_mut().for_each(|client| client.read(100, 512)));
    assert_unlimited(&daemon, || other.read(10_000, 512));
    let batch = limit_of(&daemon, "group", "batch");
    assert_eq!((&batch["weight"], batch["clients"].as_array().map(Vec::len)), (&json!(20), Some(2)));
    assert_eq!(limit_of(&daemon, "user", 4003)["weight"], 100);
    // By a reload, for those that are attached.
    daemon.dir.configure(&format!("{}{NULL}", group.replace("1000", "2000").replace("20\n", "50\n")));
    assert_eq!(daemon.ask(&json!({ "method": "reload" }))["changed"], json!(["group 'batch'", "user 4000"]));
    assert_unlimited(&daemon, || of_user[0].read(10_000, 512));
    assert_limited(400, 2000, (10, 2), || of_group.iter_mut().for_each(|client| client.read(200, 512)));
    assert_eq!(limit_of(&daemon, "group", "batch")["weight"], 50);
    for (wrong, pieces) in [
        (json!({ "user": 4001, "iops": 5 }), ["user 4001 is in group 'batch'", "--group batch"]),
        (json!({ "group": "none", "iops": 5 }), ["no group 'none' is configured", "there are: batch"]),
    ] {
        assert_says(&daemon.admin(&request(&wrong))["error"].to_string(), &pieces);
    }
}

#[test]
fn a_virtual_machine_is_limited_by_disk_client_and_group() {
    let text = format!("[[group]]\nname = \"vms\"\nmachines = [\"a\"]\niops = 1000\n{NULL}vhost_user = \"{{dir}}/vm\"\n");
    let daemon = Daemon::with_file(&text.replace("null:1G", "memory:1M"));
    let mut machine = Vm::boot(&daemon.dir.path("vm"));
    assert_limited(200, 1000, (5, 1), || (0..200).for_each(|number| machine.write_block(number % 8, number)));
    let of_group = limit_of(&daemon, "group", "vms");
    let client = of_group["clients"][0].as_u64().expect("the machine");
    set(&daemon, &json!({ "group": "vms", "iops": "off" }));
    for target in [json!({ "client": client, "iops": 1000 }), json!({ "disk": "a", "iops": 1000 })] {
        set(&daemon, &target);
        assert_limited(200, 1000, (5, 1), || (0..200).for_each(|number| machine.write_block(number % 8, number)));
        let mut off = target;
        off["iops"] = "off".into();
        set(&daemon, &off);
    }
    assert_unlimited(&daemon, || (0..2000).for_each(|number| machine.write_block(number % 8, number)));
}

#[test]
fn a_rate_may_change_a_thousand_times_while_requests_are_in_flight() {
    let daemon = Daemon::with_file(&format!("{NULL}iops = 8000\n"));
    let mut client = Client::new(&daemon);
    let changing = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for change in 0..1000 {
                let iops = if change % 2 == 0 { 4000 } else { 8000 };
                set(&daemon, &json!({ "disk": "a", "iops": iops }));
            }
            set(&daemon, &json!({ "disk": "a", "iops": 2000 }));
            changing.store(false, std::sync::atomic::Ordering::Relaxed);
        });
        client.read(1, 512);
        loop {
            let goes_on = changing.load(std::sync::atomic::Ordering::Relaxed);
            assert_limited(400, 8000, (40, 10), || client.read(400, 512));
            if !goes_on {
                break;
            }
        }
    });
    // The last one is in force, after what was taken before is paid.
    client.read(100, 512);
    assert_limited(400, 2000, (10, 10), || client.read(400, 512));
    set(&daemon, &json!({ "disk": "a", "iops": "off" }));
    assert_unlimited(&daemon, || client.read(10_000, 512));
}

#[test]
fn a_full_ring_that_waits_for_its_limit_blocks_no_other_client_of_the_disk_and_worker() {
    const DEPTH: u64 = 64;
    let daemon = Daemon::with_file(&format!("workers = 1\n{NULL}"));
    let (mut limited, mut other) = (Client::new(&daemon), Client::new(&daemon));
    let info = daemon.ask(&json!({ "method": "disk.info", "disk": "a" }));
    let number = info["clients"][0]["client"].clone();
    set(&daemon, &json!({ "client": number, "iops": 1 }));
    let mut published = 0;
    while limited.queue.read(0, limited.buffer.segment(0, 512), published).is_ok() {
        published += 1;
    }
    assert!(published >= DEPTH, "its ring is full");
    limited.queue.submit();
    eventually("it waits for its limit", || limit_of(&daemon, "client", number.clone())["throttled"].as_u64() > Some(0));
    other.read(100_000, 512);
    let info = daemon.ask(&json!({ "method": "disk.info", "disk": "a" }));
    let reads = |index: usize| info["clients"][index]["reads"].as_u64().expect("a count");
    assert!(reads(0) < published && reads(1) == 100_000, "the other one overtook what was published before: {info}");
    set(&daemon, &json!({ "client": number, "iops": "off" }));
    let mut done = 0;
    while done < published {
        limited.queue.wait(&mut |completion: Completion| done += u64::from(completion.status == Status::Ok)).expect("connected");
    }
}

#[test]
fn a_client_has_the_weight_that_was_set_for_it_and_cannot_raise_it() {
    let mut daemon = Daemon::with_file(NULL);
    let (_first, _second) = (Client::new(&daemon), Client::new(&daemon));
    let weights = |daemon: &Daemon| {
        let info = daemon.ask(&json!({ "method": "disk.info", "disk": "a" }));
        let weights = info["clients"].as_array().expect("a list").iter().map(|client| client["weight"].clone());
        (weights.collect::<Vec<_>>(), info["clients"][1]["client"].clone())
    };
    let (before, number) = weights(&daemon);
    assert_eq!(before, [100, 100]);
    let set_weight = set(&daemon, &json!({ "client": number, "weight": 300, "iops": 1_000_000 }));
    assert_eq!((&set_weight["weight"], &set_weight["of_disk"]), (&json!(300), &json!("a")));
    daemon.take_over();
    assert_eq!(weights(&daemon).0, [100, 300], "with the client, to another daemon");
    assert_eq!(limit_of(&daemon, "client", number.clone())["weight"], 300);
    assert_eq!(set(&daemon, &json!({ "client": number, "weight": "off", "iops": "off" }))["weight"], 100);
    if !is_root() {
        return skip("ask as another user", "only root can become another user");
    }
    let (_other, socket) = (Client::as_user(&daemon, 4003), daemon.socket());
    let admin = format!("{}.admin", socket.display());
    let asked = as_user(4003, &[], move || std::os::unix::net::UnixStream::connect(admin).map(drop));
    assert_eq!(asked.expect_err("refused").kind(), std::io::ErrorKind::PermissionDenied);
    assert_eq!(limit_of(&daemon, "user", 4003)["weight"], 100);
}

#[test]
fn a_client_that_waits_for_its_limit_can_detach() {
    let daemon = Daemon::with_file(&format!("{NULL}iops = 1\n"));
    let mut limited = Client::new(&daemon);
    limited.read(1, 512);
    // It waits for its second, with its request in the ring.
    let segment = limited.buffer.segment(0, 512);
    limited.queue.read(0, segment, 7).expect("room");
    limited.queue.submit();
    drop(limited);
    eventually("it is gone", || daemon.attached_count("a") == 0);
    set(&daemon, &json!({ "disk": "a", "iops": "off" }));
    CorrectClient::new(&daemon, "a").check();
}

#[test]
fn daemon_that_ends_answers_at_once_what_waits_for_a_limit() {
    let mut daemon = Daemon::with_file(&format!("{NULL}iops = 1\n"));
    let mut limited = Client::new(&daemon);
    limited.read(1, 512);
    for token in 0..60 {
        let segment = limited.buffer.segment(0, 512);
        limited.queue.read(0, segment, token).expect("room");
    }
    limited.queue.submit();
    daemon.signal_term();
    // It would take 60 s, and fail after 30.
    assert!(daemon.await_exit().success(), "{}", daemon.log());
    let mut done = 0;
    while done < 60 {
        limited.queue.wait(&mut |_: Completion| done += 1).expect("they were answered");
    }
}

#[test]
fn limits_survive_reloads_and_takeovers_are_dumped_and_gone_at_a_restart() {
    let file = format!("[[user]]\nname = 4000\nweight = 30\n[[group]]\nname = \"g\"\nusers = [4001]\n{NULL}iops = 500\n");
    let mut daemon = Daemon::with_file(&file);
    set(&daemon, &json!({ "disk": "a", "bytes_per_second": 1 << 20, "burst_ms": 20 }));
    set(&daemon, &json!({ "user": 4000, "weight": 70 }));
    set(&daemon, &json!({ "user": 4005, "iops": 9 }));
    set(&daemon, &json!({ "group": "g", "iops": 11 }));
    daemon.ask(&json!({ "method": "disk.add", "spec": "b=null:1M" }));
    set(&daemon, &json!({ "disk": "b", "iops": 13 }));
    let check = |daemon: &Daemon| {
        assert_eq!(rates(&limit_of(daemon, "disk", "a")), [&json!(500), &json!(1 << 20), &json!(20)]);
        assert_eq!(limit_of(daemon, "user", 4000)["weight"], 70);
        assert_eq!(limit_of(daemon, "user", 4005)["iops"], 9);
        assert_eq!(limit_of(daemon, "group", "g")["iops"], 11);
        assert_eq!(limit_of(daemon, "disk", "b")["iops"], 13);
    };
    for _ in 0..2 {
        check(&daemon);
        daemon.take_over();
        assert_eq!(daemon.ask(&json!({ "method": "reload" }))["changed"], json!([]));
    }
    let dump = daemon.ask(&json!({ "method": "config.dump" }))["toml"].as_str().expect("a text").to_owned();
    std::fs::write(daemon.dir.path("dumped.toml"), &dump).expect("a file");
    for (old, new) in [("f.toml", "dumped.toml"), ("dumped.toml", "f.toml")] {
        daemon.signal_term();
        assert!(daemon.await_exit().success());
        daemon.restart_with(old, new);
        if new == "dumped.toml" {
            check(&daemon);
        }
    }
    assert_eq!(rates(&limit_of(&daemon, "disk", "a")), [&json!(500), &Value::Null, &Value::Null]);
    assert_eq!(limit_of(&daemon, "user", 4000)["weight"], 30);
    assert_eq!(limit_of(&daemon, "user", 4005), Value::Null);
}

#[test]
fn impossible_and_contradictory_limits_are_refused_with_what_to_write() {
    let dir = Scratch::new();
    let of_disk = |keys: &str| format!("{NULL}{keys}\n");
    let of_group = |keys: &str| format!("[[group]]\n{keys}\n{NULL}");
    for (text, pieces) in [
        (of_disk("iops = 0"), &["line 5", "iops: 0 is not possible", "from 1 to"][..]),
        (of_disk("bytes_per_second = 0"), &["bytes_per_second: 0 is not possible", "leave it out"]),
        (of_disk("bytes_per_second = 100"), &["less than a block of 512 bytes"]),
        (of_disk("bytes_per_second = \"2T\""), &["more than can be limited"]),
        (of_disk("burst = \"10ms\""), &["a burst belongs to iops or bytes_per_second"]),
        (of_disk("iops = 10\nburst = \"10ms\""), &["less than one request; write at least 100 ms"]),
        (of_disk("iops = 10\nburst = 100"), &["write a number with its unit in quotes"]),
        (of_disk("weight = 10"), &["unknown key 'weight'"]),
        (of_group("name = \"g\"\nusers = [1]\nweight = 0"), &["weight: 0 is not possible", "from 1 to 1000"]),
        (of_group("name = \"g\"\nusers = [1]\nweight = 1001"), &["weight: 1001 is not possible", "from 1 to 1000"]),
        (of_group("name = \"g\"\nusers = [\"no-one-here\"]"), &["no user 'no-one-here'", "getent"]),
        (of_group("name = \"g\""), &["group 'g' has no members", "users = "]),
        (of_group("users = [1]"), &["the group needs a name"]),
        (of_group("name = \"g\"\nmachines = [\"z\"]"), &["machines of group 'g': no disk 'z' is defined", "there are: a"]),
        (
            of_group("name = \"g\"\nusers = [1]\n[[group]]\nname = \"h\"\nusers = [1]"),
            &["line 4, column 1: the user 1 is in several"],
        ),
        (
            of_group("name = \"g\"\nusers = [1]\n[[group]]\nname = \"g\"\nusers = [2]"),
            &["line 4, column 1: the group 'g' is defined twice"],
        ),
        (of_group("name = \"g\"\nusers = [1]\n[[user]]\nname = 1"), &["line 1, column 1: the user 1 is in several"]),
        (format!("[[user]]\nweight = 5\n{NULL}"), &["which user: name = "]),
        (format!("[user]\nname = 5\n{NULL}"), &["write [[user]]"]),
    ] {
        dir.configure(&text);
        assert_says(&refused_in(&dir, &[], &["--config", "{dir}/f.toml"]), pieces);
    }
    let daemon = Daemon::with_file(NULL);
    for (wrong, piece) in [
        (json!({ "disk": "a", "iops": 0 }), "a limit is a number above 0, or \"off\""),
        (json!({ "disk": "a", "iops": 2_000_000_000_u64 }), "write at most 1000000000"),
        (json!({ "disk": "a", "burst_ms": 5 }), "a burst belongs to iops"),
        (json!({ "disk": "a", "weight": 5 }), "a disk has no weight; name a user"),
        (json!({ "machine": 5, "weight": 5 }), "no virtual machine of process 5 is connected"),
        (json!({ "machine": -5, "weight": 5 }), "a virtual machine is a process, or the path of its socket"),
        (json!({ "user": 5, "weight": 1001 }), "a weight of 1001 is too great"),
        (json!({ "disk": "a" }), "nothing is set"),
        (json!({ "iops": 5 }), "name one of disk, port, user, group, machine and client"),
        (json!({ "disk": "a", "user": 5, "iops": 5 }), "name one of disk, port, user, group, machine and client"),
        (json!({ "disk": "z", "iops": 5 }), "no disk 'z'"),
        (json!({ "group": "g", "iops": 5 }), "no group 'g' is configured; there are none"),
    ] {
        assert_says(daemon.admin(&request(&wrong))["error"].as_str().expect("refused"), &[piece]);
    }
    assert_eq!(rates(&limit_of(&daemon, "disk", "a")), [&Value::Null; 3]);
}
