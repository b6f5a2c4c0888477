//! The choices of rings: the clients that the daemon advises, its advice, and the source of it.

use fipsee_block::client::Queue;
use fipsee_ring::channel::{FEATURE_CHOICES, FEATURE_WORKER_CPU};
use fipsee_ring::control::{Control, VERSION};
use fipsee_ring::tuning::{Choices, Ownership, TAKE_MANY, Touch};
use fipsee_testkit::raw::{RawClient, attach_message, connect, receive, say};
use fipsee_testkit::{Daemon, Scratch, assert_says, skip};
use fipsee_topology::cache::{self, Kept};
use fipsee_topology::choose::{self, Basis, ByDistance, Chosen, Trial};
use fipsee_topology::machine::Machine;
use fipsee_topology::matrix::{Cost, Matrix};

const DISK: [&str; 4] = ["--disk", "a=memory:1M", "--disk", "b=memory:1M"];
/// Offset of the advice in the table's first entry.
const ADVICE_OFFSET_BYTES: u64 = 64 + 48;

/// Choices that no family has.
fn odd() -> Choices {
    let choices = Choices::NONE.with_ownership(Ownership::LockedAhead).with_touch(Touch::Never);
    choices.with_burst_prefetch(false).with_take(TAKE_MANY).as_measured()
}

/// The file of `fipsee topology` for this machine, with `choices` everywhere.
fn kept(machine: &Machine, choices: Choices) -> Kept {
    let directions = machine.usable.iter().flat_map(|from| machine.usable.iter().map(move |to| (*from, *to)));
    let costs = directions.filter(|(from, to)| from != to);
    let matrix = Matrix::new(2_000_000_000, Some(20.0), costs.map(|way| (way, Cost { median_ticks: 200.0, least_ticks: 190.0 })));
    let trials = vec![Trial { tried: Choices::NONE.with_take(TAKE_MANY), ratio: 0.77, taken: true }];
    let chosen = Chosen { choices, basis: Basis::Measured, floor_ticks: [300.0; 2], milliseconds: 4.0, trials };
    let choices: ByDistance = choose::pairs(machine, None).into_keys().map(|distance| (distance, chosen.clone())).collect();
    Kept { matrix, choices }
}

/// The wrapper with which a daemon finds `dir`'s measurement: root's daemon reads /run, so it gets a /run of its own.
fn prefix() -> Vec<&'static str> {
    const OWN_FILES: &str =
        "mount -t tmpfs none /run && mkdir /run/fipsee && cp {dir}/fipsee/topology.json /run/fipsee/ && exec \"$@\"";
    if rustix::process::geteuid().is_root() {
        vec!["unshare", "--mount", "--propagation", "private", "sh", "-c", OWN_FILES, "sh"]
    } else {
        vec!["env", "XDG_CACHE_HOME={dir}"]
    }
}

/// A daemon that starts on a machine with this measurement, if that can be arranged here.
fn start_with(text: impl FnOnce(&Scratch, &Machine), arguments: &[&str]) -> Option<Daemon> {
    let machine = Machine::this();
    let may_mount = || {
        let tried = std::process::Command::new("unshare").args(["--mount", "mount", "-t", "tmpfs", "none", "/run"]).output();
        tried.is_ok_and(|tried| tried.status.success())
    };
    if machine.usable.len() < 2 {
        skip("choices that were measured", "there is one CPU to be used here");
        return None;
    }
    if rustix::process::geteuid().is_root() && !may_mount() {
        skip("choices that were measured", "root's file is shared by all, and this root may not mount another");
        return None;
    }
    let dir = Scratch::new();
    text(&dir, &machine);
    Some(Daemon::start_in(dir, &prefix(), &[&DISK, arguments].concat()))
}

fn measured(arguments: &[&str]) -> Option<Daemon> {
    let write = |dir: &Scratch, machine: &Machine| {
        cache::write(&dir.path("fipsee/topology.json"), machine, &kept(machine, odd())).expect("written");
    };
    start_with(write, arguments)
}

/// A client that offers `features`, and the word of advice that it finds.
fn advice(daemon: &Daemon, name: &str, features: u64) -> (RawClient, u32) {
    let control = connect(daemon);
    say(&control, &Control::Hello { version_min: VERSION, version_max: VERSION, features }, &[]);
    assert!(matches!(receive(&control).0, Control::Welcome { .. }));
    say(&control, &attach_message(name, 1, 4, 0), &[]);
    let (answer, descriptors) = receive(&control);
    let client = RawClient::attached(control, &answer, descriptors);
    let mut word = [0; 4];
    client.region.read(ADVICE_OFFSET_BYTES, &mut word).expect("within the table");
    (client, u32::from_le_bytes(word))
}

#[test]
fn what_was_measured_is_advised_to_clients_that_ask_and_logged_with_its_reason() {
    for arguments in [&[][..], &["--placement", "off"], &["--workers", "2"]] {
        let Some(daemon) = measured(arguments) else { return };
        let (client, word) = advice(&daemon, "a", FEATURE_CHOICES);
        assert_eq!(word, odd().word(), "{arguments:?}: {}", daemon.log());
        assert_eq!(client.layout.queues[0].choices, odd());
        assert_eq!(client.layout.queues[0].worker_cpu_plus_1, 0, "this feature was not offered");
        let (_disk, queues) = daemon.attach(&Daemon::options("b")).expect("attached");
        let applied: Vec<Choices> = queues.iter().map(Queue::choices).collect();
        assert!(applied.iter().all(|choices| choices.ownership() == Some(Ownership::LockedAhead)), "{applied:?}");
        assert!(applied.iter().all(|choices| choices.is_measured() && choices.take() == Some(TAKE_MANY)), "{applied:?}");
        let because = "choices of rings: measured, in times of what was before: take 16 0.77";
        assert_says(&daemon.log(), &["ownership locked ahead", "touch never", because]);
        daemon.blocking("a").flush().expect("served with them");
    }
}

/// checks: R-4.4-4
#[test]
fn a_client_that_does_not_ask_is_advised_of_nothing_and_served_by_the_same_choices() {
    let Some(daemon) = measured(&[]) else { return };
    for features in [0, FEATURE_WORKER_CPU] {
        let (client, word) = advice(&daemon, "a", features);
        assert_eq!((word, client.layout.queues[0].choices), (0, Choices::NONE), "{features:#x}");
    }
}

#[test]
fn a_file_of_an_older_version_is_a_warning_and_the_familys_choices_are_advised() {
    let write = |dir: &Scratch, machine: &Machine| {
        let path = dir.path("fipsee/topology.json");
        cache::write(&path, machine, &kept(machine, odd())).expect("written");
        let text = std::fs::read_to_string(&path).expect("just written");
        std::fs::write(&path, text.replace("\"version\":2", "\"version\":1")).expect("written");
    };
    let Some(daemon) = start_with(write, &[]) else { return };
    let (_client, word) = advice(&daemon, "a", FEATURE_CHOICES);
    assert_eq!(word, choose::of_family().word());
    assert_says(&daemon.log(), &["WARN", "has version 1, and this program writes 2", "choices of rings: by the CPU's family"]);
    let (_disk, queues) = daemon.attach(&Daemon::options("b")).expect("attached");
    assert_eq!(queues[0].choices(), choose::of_family());
}
