//! The program: all its threads are confined, and it reports what it can no longer do.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use clap::Parser;
use fipsee_daemon::config::Arguments;
use fipsee_testkit::{CorrectClient, Daemon, Scratch, assert_says, child, eventually, refused_in};
use serde_json::{Value, json};

/// The lines with this prefix in each thread's status.
fn of_threads(pid: u32, name: &str) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a live process");
    let status = threads.filter_map(|thread| std::fs::read_to_string(thread.expect("an entry").path().join("status")).ok());
    status.filter_map(|text| text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))).collect()
}

#[track_caller]
fn assert_confined(pid: u32, is_confined: bool) {
    for (name, yes, no) in [("NoNewPrivs:", "1", "0"), ("Seccomp:", "2", "0"), ("Seccomp_filters:", "3", "0")] {
        let values = of_threads(pid, name);
        assert!(values.len() >= 2, "threads: {values:?}");
        let expected = if is_confined { yes } else { no };
        assert!(values.iter().all(|value| value == expected), "{name} {values:?}, not {expected}");
    }
}

#[test]
fn every_thread_is_confined_whenever_it_was_made() {
    if !super::has_landlock("a confined daemon") {
        return;
    }
    let arguments = [
        "--disk",
        "a=memory:4M",
        "--disk",
        "f=file:{dir}/f,size=4M",
        "--workers",
        "3",
        "--vhost-user",
        "a={dir}/vm",
        "--wait",
        "sleep",
    ];
    let daemon = Daemon::start(&arguments);
    // The answer comes when everything is set up.
    daemon.admin(&json!({ "method": "disk.list" }));
    assert_confined(daemon.pid(), true);
    let answer = daemon.admin(&json!({ "method": "disk.attach", "disk": "f", "vhost_user": daemon.dir.path("later") }));
    assert!(answer["error"].is_null(), "{answer}");
    let (mut first, mut second) = (CorrectClient::new(&daemon, "a"), CorrectClient::new(&daemon, "f"));
    first.check();
    second.check();
    // Two for machines, three workers, administration, the main thread.
    assert!(of_threads(daemon.pid(), "Name:").len() >= 7);
    assert_confined(daemon.pid(), true);
    assert_says(&daemon.log(), &["confined landlock=true seccomp=true"]);
}

#[test]
fn no_thread_is_confined_where_that_is_not_wanted() {
    let daemon = Daemon::start(&["--disk", "a=memory:4M", "--confine", "off"]);
    daemon.admin(&json!({ "method": "disk.list" }));
    assert_confined(daemon.pid(), false);
    assert!(!daemon.log().contains("confined"), "{}", daemon.log());
}

#[test]
fn confined_and_unconfined_daemons_take_over_from_each_other() {
    if !super::has_landlock("takeovers of a confined daemon") {
        return;
    }
    let mut daemon = Daemon::start(&["--disk", "a=memory:4M", "--disk", "f=file:{dir}/f,size=4M"]);
    let mut correct_clients = ["a", "f"].map(|disk| CorrectClient::new(&daemon, disk));
    for (more, is_confined) in [(&["--confine", "off"][..], false), (&[], true), (&["--confine", "required"], true)] {
        daemon.try_take_over(more).expect("taken over");
        correct_clients.iter_mut().for_each(CorrectClient::check);
        assert_confined(daemon.pid(), is_confined);
    }
}

fn reload(daemon: &Daemon, text: &str) -> Value {
    std::fs::write(daemon.dir.path("conf/f.toml"), text).expect("a file");
    daemon.admin(&json!({ "method": "reload" }))
}

#[test]
fn disks_and_sockets_elsewhere_are_refused_with_the_setting_that_allows_them() {
    if !super::has_landlock("folders of a confined daemon") {
        return;
    }
    // The daemon's own folder holds its socket.
    let (dir, others) = (Scratch::new(), Scratch::new());
    for folder in [dir.path("conf"), others.path("named"), others.path("elsewhere")] {
        std::fs::create_dir(folder).expect("a folder");
    }
    let path = |name: &str| others.path(name).display().to_string();
    let head = format!("confine_paths = [\"{}\"]\n[[disk]]\nname = \"a\"\nspec = \"memory:4M\"\n", path("named"));
    let disk = |folder: &str| format!("{head}[[disk]]\nname = \"b\"\nspec = \"file:{},size=1M\"\n", path(&format!("{folder}/b")));
    let socket = |folder: &str| format!("{head}vhost_user = \"{}\"\n", path(&format!("{folder}/vm")));
    let (named, elsewhere) = ([disk("named"), socket("named")], [disk("elsewhere"), socket("elsewhere")]);
    let by_hand = json!({ "method": "disk.attach", "disk": "a", "vhost_user": path("elsewhere/vm") });
    std::fs::write(dir.path("conf/f.toml"), &head).expect("a file");
    let daemon = Daemon::start_in(dir, &[], &["--config", "{dir}/conf/f.toml"]);
    let mut correct_client = CorrectClient::new(&daemon, "a");
    let answers = elsewhere.iter().map(|text| reload(&daemon, text)).chain([daemon.admin(&by_hand)]);
    for answer in answers.collect::<Vec<_>>() {
        let text = answer["error"].as_str().unwrap_or_else(|| panic!("not refused: {answer}")).to_owned();
        assert_says(&text, &["Permission denied", "landlock", "elsewhere/", "in confine_paths, and restart it"]);
    }
    // In a folder for sockets, no file can be made.
    let beside_the_socket = format!("{head}[[disk]]\nname = \"b\"\nspec = \"file:{},size=1M\"\n", daemon.dir.path("b").display());
    let after_another = format!("{}[[disk]]\nname = \"c\"\nspec = \"file:{},size=1M\"\n", named[0], path("elsewhere/c"));
    for (text, refused) in [(&beside_the_socket, daemon.dir.path("b")), (&after_another, others.path("elsewhere/c"))] {
        for _ in 0..2 {
            let answer = reload(&daemon, text);
            let text = answer["error"].as_str().unwrap_or_else(|| panic!("not refused: {answer}"));
            assert_says(text, &["cannot be created", "Permission denied", "landlock"]);
            assert!(!refused.exists() && !others.path("named/b").exists(), "a refused reload changes nothing");
        }
    }
    for text in &named {
        let answer = reload(&daemon, text);
        assert!(answer["error"].is_null(), "{answer}");
    }
    correct_client.check();
    let answer = reload(&daemon, "confine = \"off\"\n[[disk]]\nname = \"a\"\nspec = \"memory:4M\"\n");
    assert_eq!(answer["needs_restart"], json!(["confine", "confine_paths"]), "{answer}");
}

#[test]
fn configuration_that_an_editor_replaced_is_read_again() {
    let dir = Scratch::new();
    std::fs::create_dir(dir.path("conf")).expect("a folder");
    let text = "[[disk]]\nname = \"a\"\nspec = \"memory:4M\"\n";
    std::fs::write(dir.path("conf/f.toml"), text).expect("a file");
    let daemon = Daemon::start_in(dir, &[], &["--config", "{dir}/conf/f.toml"]);
    std::fs::write(daemon.dir.path("conf/new"), format!("max_clients = 7\n{text}")).expect("a file");
    std::fs::rename(daemon.dir.path("conf/new"), daemon.dir.path("conf/f.toml")).expect("replaced");
    assert_eq!(daemon.admin(&json!({ "method": "reload" }))["changed"], json!(["max_clients"]));
}

#[test]
fn missing_folder_is_reported() {
    let dir = Scratch::new();
    let text = refused_in(&dir, &[], &["--disk", "a=memory:1M", "--confine-path", "{dir}/none"]);
    assert_says(&text, &["/none, named in confine_paths", "No such file", "create it or remove it"]);
}

/// As a process of its own: becomes a daemon that sees a kernel without landlock, or without seccomp.
pub(crate) fn daemon_of_a_poorer_kernel() {
    let words = std::env::var("FIPSEED_TEST_POORER").expect("the parent gives its command line");
    let mut words = words.split('\n');
    let missing: i64 = words.next().and_then(|number| number.parse().ok()).expect("a number");
    let unknown = seccompiler::SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let arch = std::env::consts::ARCH.try_into().expect("known");
    let rules = [(missing, Vec::new())].into_iter().collect();
    let filter = seccompiler::SeccompFilter::new(rules, seccompiler::SeccompAction::Allow, unknown, arch).expect("a filter");
    let program: seccompiler::BpfProgram = filter.try_into().expect("a program");
    seccompiler::apply_filter(&program).expect("seccomp");
    panic!("{}", Command::new(env!("CARGO_BIN_EXE_fipseed")).args(words).exec());
}

fn on_a_poorer_kernel(missing: i64, dir: &Scratch, confine: &str) -> std::process::Child {
    let socket = dir.path("s");
    let socket = socket.to_str().expect("text");
    let words = [&missing.to_string(), "--listen", socket, "--disk", "a=memory:1M", "--confine", confine];
    let mut command = child::command("daemon_of_a_poorer_kernel");
    let log = std::fs::File::create(dir.path("log")).expect("a log");
    command.env("FIPSEED_TEST_POORER", words.join("\n")).stderr(log).spawn().expect("started")
}

#[test]
fn kernel_that_cannot_confine_is_reported_and_accepted_unless_confinement_is_required() {
    if !super::has_landlock("a kernel that lacks one part") {
        return;
    }
    for (missing, what) in [(libc::SYS_landlock_create_ruleset, "landlock"), (libc::SYS_seccomp, "filter of system calls")] {
        let dir = Scratch::new();
        let log = || std::fs::read_to_string(dir.path("log")).unwrap_or_default();
        let mut child = on_a_poorer_kernel(missing, &dir, "required");
        assert!(!child.wait().expect("it ends").success(), "{}", log());
        assert_says(&log(), &["error: the daemon cannot confine itself", what, "confine = \"best-effort\""]);
        let mut child = on_a_poorer_kernel(missing, &dir, "best-effort");
        eventually("it serves", || log().contains("ready"));
        assert_says(&log(), &["not wholly confined", what]);
        child.kill().expect("a child can be killed");
        child.wait().expect("it ends");
    }
}

/// As a process of its own: a program that contains the daemon.
pub(crate) fn program_around_a_daemon() {
    let listen = child::socket();
    let arguments = Arguments::parse_from(["fipseed", "--disk", "a=memory:1M", "--listen", listen.to_str().expect("text")]);
    let config = arguments.into_config().expect("a configuration");
    let daemon = std::thread::spawn(move || fipsee_daemon::run(config));
    let pid = std::process::id();
    eventually("it serves", || fipsee_block::client::Blocking::attach(&listen, &Daemon::options("a")).is_ok());
    assert_confined(pid, false);
    std::fs::read("/etc/passwd").expect("as ever");
    assert!(Command::new("true").status().expect("as ever").success());
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).expect("to itself");
    daemon.join().expect("no panic").expect("an orderly end");
}

#[test]
fn program_that_contains_a_daemon_stays_as_it_is() {
    let dir = Scratch::new();
    let mut command = child::command_at("program_around_a_daemon", &dir.path("s"));
    let output = command.stderr(Stdio::piped()).output().expect("this program can be started");
    assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
}
