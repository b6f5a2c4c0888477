//! A worker for one disk, client, user, group or virtual machine alone: at run time and configured, kept and refused.

use fipsee_block::wire::Status;
use fipsee_testkit::hypervisor::Vm;
use fipsee_testkit::load::Load;
use fipsee_testkit::{Daemon, Scratch, assert_says, eventually, finish_one, refused_in};
use fipsee_topology::cpu_list;
use serde_json::{Value, json};

use crate::placement::two_cpus;

const DISKS: [&str; 6] = ["--disk", "a=memory:1M", "--disk", "b=memory:1M", "--disk", "c=memory:1M"];

/// Of each worker, its owner and how many queues it has; which worker it is does not matter.
fn workers_of(daemon: &Daemon) -> Vec<(Value, u64)> {
    let answer = daemon.admin(&json!({ "method": "workers" }));
    let workers = answer["workers"].as_array().expect("a list").iter();
    let fields = |worker: &Value| {
        let owner = worker["dedicated_to"].clone();
        assert_eq!(worker["state"] == "dedicated", !owner.is_null(), "{worker}");
        assert_eq!(worker["disk"].as_str(), owner.as_str().and_then(|owner| owner.strip_prefix("disk:")), "{worker}");
        (owner, worker["queues"].as_u64().expect("a number"))
    };
    let mut workers: Vec<_> = workers.map(fields).collect();
    workers.sort_by_key(|(owner, _)| owner.to_string());
    workers
}

#[track_caller]
fn expect(daemon: &Daemon, expected: &[(Value, u64)]) {
    let mut expected = expected.to_vec();
    expected.sort_by_key(|(owner, _)| owner.to_string());
    eventually(&format!("{expected:?}"), || workers_of(daemon) == expected);
}

fn limit(daemon: &Daemon, target: &Value, dedicated: bool) -> Value {
    let mut request = target.clone();
    request["method"] = "limit.set".into();
    request["dedicated"] = dedicated.into();
    daemon.admin(&request)
}

fn of_disk(daemon: &Daemon, disk: &str, dedicated: bool) -> Value {
    daemon.admin(&json!({ "method": "disk.set", "disk": disk, "dedicated": dedicated }))
}

fn clients(daemon: &Daemon, disk: &str) -> Vec<Value> {
    let info = daemon.ask(&json!({ "method": "disk.info", "disk": disk }));
    info["clients"].as_array().expect("a list").clone()
}

fn dump(daemon: &Daemon) -> String {
    daemon.admin(&json!({ "method": "config.dump" }))["toml"].as_str().expect("text").to_owned()
}

const SHARED: Value = Value::Null;

#[test]
fn a_dedicated_disk_has_a_worker_to_itself() {
    let mut daemon = Daemon::start(&[&DISKS[..], &["--workers", "2"]].concat());
    let (a, b) = (["a", "c"].map(|disk| Load::start(&daemon, disk, 4)), Load::start(&daemon, "b", 4));
    a.iter().chain([&b]).for_each(Load::await_progress);
    assert_eq!(of_disk(&daemon, "b", true)["dedicated"], true);
    let of_b = |queues| [(SHARED, 2), (json!("disk:b"), queues)];
    expect(&daemon, &of_b(1));
    a.iter().chain([&b]).for_each(Load::await_progress);
    let pieces = [
        "2 are dedicated (disk 'b', disk 'a'), and 2 workers were started, of which one is for all others",
        "start 3 (--workers, workers), or dedicate fewer",
    ];
    assert_says(of_disk(&daemon, "a", true)["error"].as_str().expect("refused"), &pieces);
    assert!(dump(&daemon).contains("dedicated = true"));
    daemon.take_over();
    expect(&daemon, &of_b(1));
    // A client that comes later is served there, too.
    let (disk, queue) = daemon.client(&Daemon::options("b"));
    expect(&daemon, &of_b(2));
    disk.detach(vec![queue]).expect("in order");
    assert_eq!(of_disk(&daemon, "b", false)["dedicated"], false);
    eventually("both are shared", || workers_of(&daemon).iter().all(|(owner, _)| owner.is_null()));
    a.into_iter().chain([b]).for_each(|load| assert!(load.finish() > 0));
}

#[test]
fn a_dedicated_client_has_a_worker_to_itself_until_it_is_gone() {
    let disks = ["a", "b"].map(|name| format!("[[disk]]\nname = \"{name}\"\nspec = \"memory:1M\"\n"));
    // Of its owners there are two at a time, on any machine.
    let mut daemon = Daemon::with_file(&format!("workers = 3\nplacement = \"off\"\n{}", disks.concat()));
    let loads = ["a", "b"].map(|disk| Load::start(&daemon, disk, 4));
    loads.iter().for_each(Load::await_progress);
    let (disk, mut queue) = daemon.client(&Daemon::options("a"));
    let buffer = disk.allocate(4096).expect("a pool");
    let mut work = || {
        for _ in 0..100 {
            queue.read(0, buffer.segment(0, 4096), 1).expect("room");
            assert_eq!(finish_one(&mut queue), Status::Ok);
        }
        loads.iter().for_each(Load::await_progress);
    };
    work();
    let [staying, dedicated] = clients(&daemon, "a").try_into().expect("two");
    let [staying, dedicated] = [staying, dedicated].map(|client| client["client"].as_u64().expect("a number"));
    assert_eq!(limit(&daemon, &json!({ "client": dedicated }), true)["dedicated"], true);
    let own = json!(format!("client:{dedicated}"));
    let is_alone = |daemon: &Daemon| {
        let workers = workers_of(daemon);
        workers.contains(&(own.clone(), 1)) && workers.iter().map(|(_, queues)| queues).sum::<u64>() == 3
    };
    eventually("it is alone", || is_alone(&daemon));
    assert_eq!(clients(&daemon, "a").iter().map(|client| client["dedicated"].clone()).collect::<Vec<_>>(), [false, true]);
    // Its disk has one, too: the client keeps its own, and falls back to that of the disk.
    assert_eq!(of_disk(&daemon, "a", true)["dedicated"], true);
    expect(&daemon, &[(SHARED, 1), (json!("disk:a"), 1), (own.clone(), 1)]);
    let refused = limit(&daemon, &json!({ "client": staying }), true);
    assert_says(refused["error"].as_str().expect("refused"), &[&format!("client {dedicated}, disk 'a', client {staying}")]);
    daemon.take_over();
    expect(&daemon, &[(SHARED, 1), (json!("disk:a"), 1), (own.clone(), 1)]);
    assert_eq!(daemon.ask(&json!({ "method": "reload" }))["changed"], json!([]), "what was set stays");
    work();
    limit(&daemon, &json!({ "client": dedicated }), false);
    eventually("both clients are at the disk's", || workers_of(&daemon).contains(&(json!("disk:a"), 2)));
    limit(&daemon, &json!({ "client": dedicated }), true);
    eventually("it is alone again", || workers_of(&daemon).contains(&(own.clone(), 1)));
    work();
    disk.detach(vec![queue]).expect("in order");
    eventually("its worker is free", || !workers_of(&daemon).iter().any(|(owner, _)| *owner == own));
    // And may be another's.
    assert_eq!(limit(&daemon, &json!({ "client": staying }), true)["dedicated"], true);
    daemon.take_over();
    loads.iter().for_each(Load::await_progress);
    expect(&daemon, &[(SHARED, 1), (json!("disk:a"), 0), (json!(format!("client:{staying}")), 1)]);
    loads.into_iter().for_each(|load| assert!(load.finish() > 0));
}

#[test]
fn a_dedicated_virtual_machine_and_user_are_configured_or_set() {
    let uid = rustix::process::geteuid().as_raw();
    let text = |machines: &str, user: &str| {
        format!(
            "workers = 3\n[[group]]\nname = \"vms\"\nmachines = [\"v\"]\n{machines}[[user]]\nname = {uid}\nweight = 70\n{user}\
             [[disk]]\nname = \"v\"\nspec = \"memory:1M\"\nvhost_user = \"{{dir}}/vm\"\n\
             [[disk]]\nname = \"w\"\nspec = \"memory:1M\"\n"
        )
    };
    let mut daemon = Daemon::with_file(&text("dedicated = true\n", ""));
    let (mut machine, load) = (Vm::boot(&daemon.dir.path("vm")), Load::start(&daemon, "w", 4));
    load.await_progress();
    let machine_works = |machine: &mut Vm| (0..100).for_each(|number| machine.write_block(number % 8, number));
    let alone = |daemon: &Daemon| eventually("it is alone", || workers_of(daemon).contains(&(json!("group:vms"), 1)));
    alone(&daemon);
    machine_works(&mut machine);
    daemon.take_over();
    alone(&daemon);
    machine_works(&mut machine);
    assert_says(&dump(&daemon), &["machines = [\"v\"]\ndedicated = true\n"]);
    // The user gets one by a reload, and the machine loses it.
    daemon.dir.configure(&text("", "dedicated = true\n"));
    assert_eq!(daemon.ask(&json!({ "method": "reload" }))["changed"], json!(["group 'vms'", format!("user {uid}")]));
    let user = json!(format!("user:{uid}"));
    eventually("the user's is alone", || workers_of(&daemon).contains(&(user.clone(), 1)));
    load.await_progress();
    machine_works(&mut machine);
    // At run time, and until a restart.
    assert_eq!(limit(&daemon, &json!({ "user": uid }), false)["dedicated"], false);
    assert_eq!(limit(&daemon, &json!({ "group": "vms" }), true)["dedicated"], true);
    alone(&daemon);
    assert!(!workers_of(&daemon).iter().any(|(owner, _)| *owner == user));
    machine_works(&mut machine);
    load.await_progress();
    assert!(load.finish() > 0);
}

#[test]
fn a_virtual_machine_of_no_group_is_known_by_its_process() {
    let text = "workers = 2\n[[disk]]\nname = \"v\"\nspec = \"memory:1M\"\nvhost_user = \"{dir}/vm\"\nallow_everyone = true\n\
                [[disk]]\nname = \"w\"\nspec = \"memory:1M\"\nvhost_user = \"{dir}/wm\"\nallow_everyone = true\n\
                [[disk]]\nname = \"x\"\nspec = \"memory:1M\"\n";
    let mut daemon = Daemon::with_file(text);
    let (mut one, mut other) = (Vm::boot(&daemon.dir.path("vm")), Vm::boot(&daemon.dir.path("wm")));
    let (disk, queue) = daemon.client(&Daemon::options("x"));
    // Both disks are of one machine: its hypervisor is this process.
    let process = std::process::id();
    let target = json!({ "machine": process });
    assert_eq!(limit(&daemon, &target, true)["machine"], process);
    let own = json!(format!("machine:{process}"));
    expect(&daemon, &[(SHARED, 1), (own.clone(), 2)]);
    let weighed = daemon.ask(&json!({ "method": "limit.set", "machine": process, "weight": 30, "iops": 1_000_000 }));
    assert_eq!((&weighed["weight"], &weighed["iops"], &weighed["dedicated"]), (&json!(30), &json!(1_000_000), &json!(true)));
    daemon.take_over();
    expect(&daemon, &[(SHARED, 1), (own.clone(), 2)]);
    for (machine, version) in [(&mut one, 1), (&mut other, 2)] {
        (0..50).for_each(|number| machine.write_block(number % 8, version));
    }
    let client = clients(&daemon, "w")[0]["client"].clone();
    let refused = limit(&daemon, &json!({ "client": client }), true);
    assert_says(refused["error"].as_str().expect("refused"), &[&format!("machine {process}, client {client}"), "dedicate fewer"]);
    disk.detach(vec![queue]).expect("in order");
    drop((one, other));
    eventually("both connections have ended", || workers_of(&daemon).iter().all(|(_, queues)| *queues == 0));
    one = Vm::boot(&daemon.dir.path("vm"));
    one.write_block(0, 9);
    expect(&daemon, &[(SHARED, 0), (own, 1)]);
    drop(one);
    eventually("its worker is free", || workers_of(&daemon).iter().all(|(owner, _)| owner.is_null()));
    assert_says(
        limit(&daemon, &target, true)["error"].as_str().expect("refused"),
        &[&format!("no virtual machine of process {process} is connected")],
    );
}

#[test]
fn more_dedicated_ones_than_cpus_are_refused_with_any_number_of_workers() {
    let Some(allowed) = two_cpus() else { return };
    let [two, one] = [&allowed[..2], &allowed[..1]].map(cpu_list::format);
    let disks = ["a", "b"].map(|name| format!("[[disk]]\nname = \"{name}\"\nspec = \"memory:1M\"\ndedicated = true\n"));
    let file = |disks: &str| {
        let dir = Scratch::new();
        dir.configure(&format!("workers = 4\n{disks}"));
        dir
    };
    let arguments = ["--config", "{dir}/f.toml"];
    let refused = |cpus: &str, disks: &str| refused_in(&file(disks), &["taskset", "--cpu-list", cpus], &arguments);
    let of_two =
        ["2 are dedicated (disk '", "2 CPUs, of which one is for all others; dedicate fewer", "share CPUs (placement = \"off\")"];
    assert_says(&refused(&two, &disks.concat()), &of_two);
    assert_says(&refused(&one, &disks[0]), &["disk 'a' is dedicated", "1 CPU, which is for all others", "do not dedicate it"]);
    let within_two = ["taskset", "--cpu-list", &*two];
    let daemon = Daemon::start_in(file(&disks.concat().replacen("dedicated = true\n", "", 1)), &within_two, &arguments);
    expect(&daemon, &[(SHARED, 0), (SHARED, 0), (SHARED, 0), (json!("disk:b"), 0)]);
    assert_says(of_disk(&daemon, "a", true)["error"].as_str().expect("refused"), &of_two);
    daemon.dir.configure(&format!("workers = 4\n{}", disks.concat()));
    assert_says(daemon.admin(&json!({ "method": "reload" }))["error"].as_str().expect("refused"), &of_two);
    // The other one instead is possible.
    of_disk(&daemon, "b", false);
    assert_eq!(of_disk(&daemon, "a", true)["dedicated"], true);
    let shared = Daemon::start_in(file(&format!("placement = \"off\"\n{}", disks.concat())), &within_two, &arguments);
    expect(&shared, &[(SHARED, 0), (SHARED, 0), (json!("disk:a"), 0), (json!("disk:b"), 0)]);
}

#[test]
fn more_dedicated_ones_than_workers_are_refused_at_the_start_and_by_a_reload() {
    let disk = "[[disk]]\nname = \"x\"\nspec = \"null:1M\"\n";
    let dir = Scratch::new();
    for (text, pieces) in [
        (
            format!("workers = 1\n{disk}dedicated = true\n"),
            ["disk 'x' is dedicated, and 1 worker was started, which is for all others", "start 2 (--workers, workers)"],
        ),
        (
            format!("workers = 2\n[[user]]\nname = 5\ndedicated = true\n{disk}dedicated = true\n"),
            ["2 are dedicated (disk 'x', user 5), and 2 workers were started", "start 3 (--workers, workers)"],
        ),
        (format!("[[user]]\nname = 5\ndedicated = 1\n{disk}"), ["line 3", "dedicated"]),
    ] {
        dir.configure(&text);
        assert_says(&refused_in(&dir, &[], &["--config", "{dir}/f.toml"]), &pieces);
    }
    let daemon = Daemon::with_file(&format!("workers = 2\n{disk}"));
    daemon
        .dir
        .configure(&format!("workers = 2\n[[group]]\nname = \"g\"\nusers = [5]\ndedicated = true\n{disk}dedicated = true\n"));
    let refused = daemon.admin(&json!({ "method": "reload" }));
    assert_says(refused["error"].as_str().expect("refused"), &["2 are dedicated (disk 'x', group 'g')"]);
    expect(&daemon, &[(SHARED, 0), (SHARED, 0)]);
    assert_says(limit(&daemon, &json!({ "disk": "x" }), true)["error"].as_str().expect("refused"), &["disk set x --dedicated"]);
}
