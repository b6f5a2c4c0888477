//! Sockets and their folders: what is made, what is left, and which of several daemons has a path.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fipsee_testkit::{CorrectClient, Daemon, Guard, Scratch, assert_says, eventually, is_root, refused, refused_in, skip};
use rustix::fs::FlockOperation;

/// What is in a folder, without the daemon's log.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<_> = entries.map(|name| name.to_string_lossy().into_owned()).filter(|name| name != "log").collect();
    names.sort();
    names
}

const WITH_MACHINES: [&str; 4] = ["--disk", "a=memory:1M", "--vhost-user", "a={dir}/vm"];

#[test]
fn only_sockets_are_made_and_nothing_is_left_in_the_end() {
    let mut daemon = Daemon::start(&WITH_MACHINES);
    let sockets = ["s", "s.admin", "vm"];
    assert_eq!(names_in(&daemon.dir.0), sockets);
    daemon.kill_9_and_start_at_once();
    assert_eq!(names_in(&daemon.dir.0), sockets, "of the next one");
    daemon.take_over();
    assert_eq!(names_in(&daemon.dir.0), sockets, "of the one that took over");
    daemon.kill_9();
    assert_eq!(names_in(&daemon.dir.0), sockets, "a killed one removes nothing");
    daemon.restart();
    daemon.signal_term();
    assert!(daemon.await_exit().success());
    assert!(names_in(&daemon.dir.0).is_empty());
}

#[test]
fn only_one_of_many_daemons_gets_the_socket_that_a_killed_one_left() {
    for _ in 0..5 {
        let mut daemon = Daemon::start(&["--disk", "a=memory:1M"]);
        daemon.kill_9();
        let start = || -> Child {
            let mut command = Command::new(env!("CARGO_BIN_EXE_fipseed"));
            command.args(["--disk", "a=memory:1M", "--listen"]).arg(daemon.socket());
            command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("it can be started")
        };
        let mut all: Vec<_> = (0..4).map(|_| Guard(start())).collect();
        let mut running = || all.iter_mut().filter_map(|child| child.0.try_wait().ok()?.is_none().then_some(())).count();
        eventually("all but one are refused", || running() <= 1);
        eventually("it serves", || CorrectClient::try_new(&daemon, "a").is_ok());
        assert_eq!(running(), 1);
    }
}

#[test]
fn refusal_names_the_daemon_that_listens_also_after_a_takeover() {
    let mut daemon = Daemon::start(&WITH_MACHINES);
    for _ in 0..2 {
        let process = format!("(process {}, fipseed)", daemon.pid());
        let dir = Scratch::existing(&daemon.dir.0);
        let other = Scratch::new();
        std::os::unix::fs::symlink(&daemon.dir.0, other.path("f")).expect("a link");
        let at_vm = format!("a={}", daemon.dir.path("vm").display());
        let command = |arguments: &[&str]| {
            let output = Command::new(env!("CARGO_BIN_EXE_fipseed")).args(arguments).output().expect("it can be started");
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        let linked = other.path("f/s").display().to_string();
        for text in [
            command(&["--disk", "a=memory:1M", "--listen", &dir.path("s").display().to_string()]),
            // By another name, and where a socket of another type is.
            command(&["--disk", "a=memory:1M", "--listen", &linked]),
            refused(&["--disk", "a=memory:1M", "--vhost-user", &at_vm]),
            command(&["--disk", "a=memory:1M", "--listen", &daemon.dir.path("vm").display().to_string()]),
        ] {
            assert_says(&text, &["another server already listens at", &process, "stop it, or choose another path"]);
        }
        CorrectClient::new(&daemon, "a").check();
        daemon.take_over();
    }
}

#[test]
fn socket_that_replaced_the_daemons_own_is_not_removed() {
    let mut daemon = Daemon::start(&["--disk", "a=memory:1M"]);
    std::fs::remove_file(daemon.socket()).expect("removed");
    let _other = UnixListener::bind(daemon.socket()).expect("a free path");
    daemon.signal_term();
    assert!(daemon.await_exit().success());
    assert_eq!(names_in(&daemon.dir.0), ["s"]);
}

#[test]
fn folder_that_another_program_keeps_locked_does_not_keep_the_daemon_from_starting() {
    let dir = Scratch::new();
    let folder = std::fs::File::open(&dir.0).expect("a folder");
    rustix::fs::flock(&folder, FlockOperation::LockExclusive).expect("locked");
    let mut daemon = Daemon::start_in(dir, &[], &["--disk", "a=memory:1M"]);
    CorrectClient::new(&daemon, "a").check();
    daemon.signal_term();
    assert!(daemon.await_exit().success());
    assert!(names_in(&daemon.dir.0).is_empty());
}

#[test]
fn missing_folders_are_refused_with_the_command_that_makes_them() {
    let dir = Scratch::new();
    let missing = dir.path("new/folder").display().to_string();
    let text = {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fipseed"));
        let output = command.args(["--disk", "a=memory:1M", "--listen"]).arg(dir.path("new/folder/s")).output();
        String::from_utf8_lossy(&output.expect("it can be started").stderr).into_owned()
    };
    let advice = format!("the folder {missing} does not exist; make it (mkdir -p {missing}), or choose another path");
    assert_says(&text, &[&advice, "with --listen"]);
    let text = refused_in(&dir, &[], &["--disk", "a=memory:1M", "--vhost-user", "a={dir}/new/folder/vm"]);
    assert_says(&text, &["disk 'a'", &advice, "for its vhost-user socket"]);
    assert!(names_in(&dir.0).is_empty(), "nothing is made");
}

/// The folders of sockets for which no path was chosen.
#[test]
fn usual_folder_is_made_for_root_and_for_others() {
    if !is_root() {
        return skip("the folders of root and of another user", "only root can become another user");
    }
    let dir = Scratch::new();
    // Where the other user can run it.
    let program = dir.program("fipseed", env!("CARGO_BIN_EXE_fipseed")).display().to_string();
    let show =
        "for i in $(seq 100); do test -S $1.admin && break; sleep 0.05; done; stat -c '%a %F' $(dirname $1); kill $!; wait $!";
    let (run, own) = (dir.path("run"), dir.path("run/fipsee/fipsee.sock"));
    std::fs::create_dir(&run).expect("a folder");
    rustix::fs::chown(&run, Some(rustix::process::Uid::from_raw(4000)), None).expect("given away");
    let as_root = format!("mount -t tmpfs none /run && umask 077 && {{ {program} --disk a=memory:1M & }}; {show}");
    let as_other = format!("exec 2>&1; {program} --disk a=memory:1M & {show}");
    let mount = ["--mount", "--propagation", "private", "sh", "-c", &as_root, "sh", "/run/fipsee/fipsee.sock"];
    let tried = Command::new("unshare").args(["--mount", "mount", "-t", "tmpfs", "none", "/run"]).output();
    let mut commands = vec![];
    if tried.is_ok_and(|tried| tried.status.success()) {
        let mut unshare = Command::new("unshare");
        unshare.args(mount);
        commands.push((unshare, "755 directory"));
    } else {
        skip("the folder of root", "this root may not mount another /run");
    }
    let mut other = Command::new("setpriv");
    other.args(["--reuid", "4000", "--clear-groups", "sh", "-c", &as_other, "sh"]).arg(&own).env("XDG_RUNTIME_DIR", &run);
    commands.push((other, "700 directory"));
    for (mut command, mode) in commands {
        let output = command.env_remove("FIPSEE_SOCKET").output().expect("it can be started");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(mode), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    }
}
