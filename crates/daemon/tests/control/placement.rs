//! The CPUs of workers, how they are reported, and old programs beside new ones.

use fipsee_block::client::{AttachOptions, Queue};
use fipsee_block::wire::{FEATURE_SOLE_WRITER, FEATURES};
use fipsee_ring::channel::{FEATURE_CHOICES, FEATURE_WORKER_CPU};
use fipsee_ring::control::{Control, FEATURE_LIST, VERSION};
use fipsee_testkit::raw::{HELLO, RawClient, attach_message, connect, receive, say};
use fipsee_testkit::{Daemon, Scratch, assert_says, eventually, refused, skip};
use fipsee_topology::{cpu_list, pin};
use serde_json::{Value, json};

const DISK: [&str; 2] = ["--disk", "a=memory:1M"];

fn start(more: &[&str]) -> Daemon {
    Daemon::start(&[&DISK, more].concat())
}

/// Each thread of the daemon, and the CPUs that the kernel lets it run on.
pub(crate) fn threads(daemon: &Daemon) -> Vec<(String, Vec<usize>)> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("a live process").flatten();
    let threads = tasks.filter_map(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        Some((field("Name:")?.to_owned(), cpu_list::parse(field("Cpus_allowed_list:")?)?))
    });
    threads.collect()
}

/// The CPUs of the workers, in order.
pub(crate) fn affinities(daemon: &Daemon) -> Vec<Vec<usize>> {
    let mut workers = threads(daemon);
    workers.retain(|(name, _)| name.starts_with("fip-worker-"));
    workers.sort();
    workers.into_iter().map(|(_, cpus)| cpus).collect()
}

/// Workers bind themselves once they run.
#[track_caller]
fn assert_affinities(daemon: &Daemon, expected: &[Vec<usize>]) {
    eventually(&format!("workers on {expected:?}"), || affinities(daemon) == expected);
}

fn worker_cpus(daemon: &Daemon) -> Value {
    let stat = daemon.admin(&json!({ "method": "stat" }));
    stat["workers"].as_array().expect("workers").iter().map(|worker| worker["cpu"].clone()).collect()
}

pub(crate) fn two_cpus() -> Option<Vec<usize>> {
    let allowed = pin::allowed().expect("some");
    if allowed.len() < 2 {
        skip("placement of workers", "there is one CPU to be used here");
        return None;
    }
    Some(allowed)
}

#[test]
fn a_worker_is_bound_to_a_cpu_that_log_info_and_channel_name() {
    let Some(allowed) = two_cpus() else { return };
    let daemon = start(&[]);
    let cpu = worker_cpus(&daemon)[0].as_u64().and_then(|cpu| usize::try_from(cpu).ok()).expect("bound");
    assert!(allowed.contains(&cpu) && cpu != 0, "{cpu} of {allowed:?}");
    assert_affinities(&daemon, &[vec![cpu]]);
    assert_says(&daemon.log(), &["placed: ", &format!("cpu={cpu}")]);
    let (_disk, queues) = daemon.attach(&AttachOptions { queue_count: 2, ..Daemon::options("a") }).expect("attached");
    assert_eq!(queues.iter().map(Queue::worker_cpu).collect::<Vec<_>>(), [Some(cpu), Some(cpu)]);
    let info = daemon.admin(&json!({ "method": "disk.info", "disk": "a" }));
    assert_eq!(info["clients"][0]["worker_cpus"], json!([cpu, cpu]));
}

#[test]
fn more_workers_than_cpus_leave_one_cpu_to_clients_and_are_reported() {
    let Some(allowed) = two_cpus() else { return };
    let daemon = start(&["--workers", &allowed.len().to_string()]);
    let cpus = worker_cpus(&daemon);
    let cpus = cpus.as_array().expect("one for each worker");
    assert_eq!(cpus.iter().filter(|cpu| cpu.is_null()).count(), 1, "{cpus:?}");
    assert_says(&daemon.log(), &["WARN", "workers are too many", "1 is not bound"]);
    let (_disk, queues) = daemon.attach(&AttachOptions { queue_count: 8, ..Daemon::options("a") }).expect("attached");
    assert!(queues.iter().any(|queue| queue.worker_cpu().is_none()) && queues.iter().any(|queue| queue.worker_cpu().is_some()));
}

#[test]
fn cpus_that_are_given_win_and_placement_off_binds_no_worker() {
    let allowed = pin::allowed().expect("some");
    let first = allowed[0];
    for placement in ["auto", "off"] {
        let daemon = start(&["--cpus", &first.to_string(), "--placement", placement]);
        assert_eq!(worker_cpus(&daemon), json!([first]));
        assert_affinities(&daemon, &[vec![first]]);
    }
    let daemon = start(&["--placement", "off", "--workers", "2"]);
    assert_eq!(worker_cpus(&daemon), json!([null, null]));
    assert_affinities(&daemon, &[allowed.clone(), allowed]);
    let (_disk, queue) = daemon.client(&Daemon::options("a"));
    assert_eq!(queue.worker_cpu(), None);
}

#[test]
fn threads_that_attach_clients_leave_a_workers_cpu_to_it() {
    let Some(allowed) = two_cpus() else { return };
    let (last, others) = allowed.split_last().expect("two");
    let machines = Scratch::new();
    let socket = format!("a={}", machines.path("v").display());
    let daemon = start(&["--cpus", &last.to_string(), "--vhost-user", &socket]);
    daemon.blocking("a").flush().expect("served");
    let mut rest = threads(&daemon);
    rest.retain(|(name, _)| !name.starts_with("fip-worker-"));
    let names: Vec<&str> = rest.iter().map(|(name, _)| name.as_str()).collect();
    assert!(["fipseed", "fip-admin", "fip-vm-a"].iter().all(|name| names.contains(name)), "{names:?}");
    assert!(rest.iter().all(|(_, cpus)| cpus == others), "{rest:?}");
    // Where a worker has every CPU, others have to run there, too.
    let all: Vec<String> = allowed.iter().map(ToString::to_string).collect();
    let daemon = start(&["--cpus", &all.join(","), "--workers", &all.len().to_string()]);
    assert!(threads(&daemon).iter().any(|(name, cpus)| name == "fipseed" && *cpus == allowed));
}

#[test]
fn a_cpu_that_does_not_exist_and_a_placement_that_does_not_are_refused() {
    for cpu in ["1023", "4096", "99999999"] {
        let usable = cpu_list::format(&pin::allowed().expect("some"));
        let pieces = [&*format!("CPU {cpu} is not one that this process may use; choose from {usable} (--cpus, cpus)")];
        assert_says(&refused(&[&DISK[..], &["--cpus", cpu]].concat()), &pieces);
        assert_says(&refused(&[&DISK[..], &["--cpus", cpu, "--check-config"]].concat()), &pieces);
    }
    let text = refused(&[&DISK[..], &["--placement", "best"]].concat());
    assert_says(&text, &["'best'", "auto, off"]);
}

#[test]
fn within_a_cpuset_of_one_cpu_no_worker_is_bound() {
    let Some(allowed) = two_cpus() else { return };
    let last = allowed[allowed.len() - 1].to_string();
    let daemon = Daemon::start_in(Scratch::new(), &["taskset", "--cpu-list", &last], &DISK);
    assert_eq!(worker_cpus(&daemon), json!([null]));
    assert_says(&daemon.log(), &["may be used: no thread is bound"]);
    daemon.blocking("a").flush().expect("it works");
}

#[test]
fn placement_may_be_set_in_the_file_and_needs_a_restart() {
    let dir = Scratch::new();
    let file = |placement: &str| format!("placement = \"{placement}\"\n[[disk]]\nname = \"a\"\nspec = \"memory:1M\"\n");
    std::fs::write(dir.path("f.toml"), file("off")).expect("written");
    let daemon = Daemon::start_in(dir, &[], &["--config", "{dir}/f.toml"]);
    assert_eq!(worker_cpus(&daemon), json!([null]));
    std::fs::write(daemon.dir.path("f.toml"), file("auto")).expect("written");
    let outcome = daemon.admin(&json!({ "method": "reload" }));
    assert_eq!(outcome["needs_restart"], json!(["placement"]));
    std::fs::write(daemon.dir.path("f.toml"), file("on")).expect("written");
    let outcome = daemon.admin(&json!({ "method": "reload" }));
    assert_says(outcome["error"].as_str().expect("an error"), &["line 1, column 13", "\"on\"", "\"auto\"", "\"off\""]);
}

/// checks: R-4.4-4
#[test]
fn a_client_that_offers_no_feature_finds_the_region_as_it_was() {
    let daemon = start(&[]);
    let client = RawClient::attach(&daemon, &attach_message("a", 2, 4, 0));
    assert_eq!(client.layout.features, 0);
    assert!(client.layout.queues.iter().all(|queue| queue.worker_cpu_plus_1 == 0));
    let mut entry = [1; 20];
    client.region.read(64 + 44, &mut entry).expect("within the table");
    assert_eq!(entry, [0; 20], "these bytes were reserved");
    let (_disk, queue) = daemon.client(&AttachOptions { ask_worker_cpu: false, ..Daemon::options("a") });
    assert_eq!(queue.worker_cpu(), None);
}

/// checks: R-4.4-1
#[test]
fn features_that_the_daemon_does_not_know_are_not_in_force() {
    let daemon = start(&[]);
    for (offered, expected) in [
        (0, 0),
        (1, FEATURE_WORKER_CPU),
        (2, FEATURE_SOLE_WRITER),
        (4, FEATURE_CHOICES),
        (8, FEATURE_LIST),
        (16, 0),
        (u64::MAX, FEATURES),
        (u64::MAX - 1, FEATURES & !1),
    ] {
        let control = connect(&daemon);
        say(&control, &Control::Hello { version_min: VERSION, version_max: VERSION, features: offered }, &[]);
        let Control::Welcome { features, .. } = receive(&control).0 else { panic!("not welcome") };
        assert_eq!(features, expected, "{offered:#x}");
    }
    say(&connect(&daemon), &HELLO, &[]);
}
