//! `fipsee disk`, `config dump` and `wait`.

use std::process::{Command, Stdio};

use fipsee_testkit::daemon::program;
use fipsee_testkit::{Daemon, Scratch, as_user, assert_says, eventually, is_root, skip};

use crate::program::{FIPSEE, Fipsee, assert_error, assert_success, json, serve, text};

#[test]
fn disks_are_added_listed_set_and_removed() {
    let daemon = serve(&["a=memory:1M"]);
    let added = daemon.fipsee(&["disk", "add", "b=memory:2M", "--allow-uid", "7", "--allow-user", "8", "--allow-everyone"]);
    assert_success(&added);
    assert_says(&String::from_utf8_lossy(&added.stdout), &["disk 'b' of 2 MiB is served until the daemon is restarted"]);
    assert_eq!(daemon.fipsee(&["disk", "ls"]).stdout, daemon.fipsee(&["ls"]).stdout);
    let dump = || String::from_utf8(daemon.fipsee(&["config", "dump"]).stdout).expect("UTF-8");
    assert_says(&dump(), &["# added at run time", "spec = \"memory:2097152\"", "allow_uids = [7, 8]", "allow_everyone = true"]);
    assert_error(&daemon.fipsee(&["disk", "add", "b=memory:2M"]), &["disk 'b' is served already"]);
    let set = ["disk", "set", "b", "--allow-uids", "--allow-group=root,2", "--allow-everyone=false", "--shared=true", "--json"];
    assert_eq!(json(&daemon.fipsee(&set))["shared"], true);
    assert_says(&dump(), &["memory:2097152,shared", "allow_gids = [0, 2]"]);
    assert!(!dump().contains("allow_uids") && !dump().contains("everyone"), "{}", dump());
    assert_error(&daemon.fipsee(&["disk", "set", "b"]), &["nothing to change; give --allow-user"]);
    for (wrong, what) in [("--allow-user=no-one-here", "user"), ("--allow-group=no-one-here", "group")] {
        let output = daemon.fipsee(&["disk", "set", "b", wrong]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_says(&said, &[&format!("there is no {what} 'no-one-here'; use a name that `getent "), "or a number"]);
        assert_eq!(output.status.code(), Some(2));
    }
    for (wrong, pieces) in [
        ("--max-clients=0", &["--max-clients", "write an integer from 1", "or off"][..]),
        ("--max-queues=none", &["--max-queues", "write an integer from 1 to 65535", "or off"]),
        ("--max-depth=-1", &["--max-depth", "write an integer from 1", "or off"]),
    ] {
        let output = daemon.fipsee(&["disk", "set", "b", wrong]);
        assert_says(&String::from_utf8_lossy(&output.stderr), pieces);
        assert_eq!(output.status.code(), Some(2));
    }
    assert_success(&daemon.fipsee(&["disk", "set", "b", "--max-clients", "1", "--max-queues", "2", "--max-depth", "8"]));
    let shown = String::from_utf8(daemon.fipsee(&["info", "b"]).stdout).expect("UTF-8");
    assert_says(&shown, &["2 queues of depth 8, ", "1 on this disk, "]);
    assert_error(&daemon.fipsee(&["disk", "set", "b", "--max-depth", "1000"]), &["max_depth 1000 of a disk is above 256"]);
    assert_success(&daemon.fipsee(&["disk", "set", "b", "--max-queues=off"]));
    assert_says(&dump(), &["max_clients = 1\nmax_depth = 8\n"]);
    assert_success(&daemon.fipsee(&["disk", "add", "c=null:1M", "--max-clients", "4"]));
    assert_eq!(json(&daemon.fipsee(&["info", "c", "--json"]))["own_limits"]["max_clients"], 4);
    assert_success(&daemon.fipsee(&["disk", "remove", "c"]));
    let client = daemon.blocking("b");
    assert_error(&daemon.fipsee(&["bench", "b", "--seconds", "1"]), &["disk 'b' has its limit of 1 clients", "--max-clients"]);
    let in_use = format!("in use by process {}", std::process::id());
    assert_error(&daemon.fipsee(&["disk", "remove", "b"]), &["disk 'b'", &in_use]);
    drop(client);
    eventually("the client is gone", || daemon.attached_count("b") == 0);
    assert_success(&daemon.fipsee(&["disk", "remove", "b"]));
    assert_error(&daemon.fipsee(&["disk", "remove", "b"]), &["no disk 'b'"]);
}

#[test]
fn file_that_the_daemon_cannot_open_is_opened_by_the_command() {
    let elsewhere = Scratch::new();
    let daemon = Daemon::start(&["--disk", "a=memory:1M"]);
    let path = elsewhere.path("x,y");
    let add = |arguments: &[&str]| {
        let mut command = daemon.command(&["disk", "add"]);
        command.args(arguments).current_dir(&elsewhere.0).output().expect("fipsee runs")
    };
    // Relative to the command's folder, with a comma, and new.
    assert_success(&add(&["f=file:,size=1M", "--path", "x,y"]));
    daemon.blocking("f").write_at(&[3; 512], 0).expect("written");
    assert_eq!(std::fs::read(&path).expect("there")[..512], [3; 512]);
    // A refusal leaves no file.
    assert_error(&add(&["g=file:new,size=1M", "--vhost-user", "/no/such/folder/vm"]), &["vhost-user socket"]);
    assert!(!elsewhere.path("new").exists());
    assert_error(&add(&["g=file:none"]), &["does not exist; add size=SIZE"]);
    assert_error(&add(&["f=file:new,size=1M"]), &["disk 'f' is served already"]);
    assert!(!elsewhere.path("new").exists());
    assert_success(&daemon.fipsee(&["disk", "remove", "f"]));
    assert!(path.exists(), "its contents stay");
}

#[test]
fn wait_ends_when_the_disk_is_served_and_at_its_timeout() {
    let dir = Scratch::new();
    let socket = dir.path("s");
    let wait = |arguments: &[&str]| {
        let mut command = Command::new(FIPSEE);
        command.args(["--connect", &text(&socket), "wait"]).args(arguments).stdin(Stdio::null()).stderr(Stdio::piped());
        command.spawn().expect("fipsee runs")
    };
    let output = wait(&["--timeout", "0"]).wait_with_output().expect("it ends");
    assert_error(&output, &["no daemon answers after 0 s", &text(&socket)]);
    let (for_daemon, for_disk) = (wait(&[]), wait(&["b"]));
    let daemon = Daemon::start_in(dir, &[], &["--disk", "a=memory:1M"]);
    assert_success(&for_daemon.wait_with_output().expect("it ends"));
    assert_error(&daemon.fipsee(&["wait", "b", "--timeout", "0"]), &["disk 'b' is not served after 0 s", "no disk 'b'"]);
    assert_success(&daemon.fipsee(&["disk", "add", "b=memory:1M,exclusive"]));
    assert_success(&for_disk.wait_with_output().expect("it ends"));
    eventually("it is gone", || daemon.attached_count("b") == 0);
    let _client = daemon.blocking("b");
    // In use by another is served as well.
    assert_success(&daemon.fipsee(&["wait", "b", "--timeout", "0"]));
}

#[test]
fn wait_needs_no_right_to_administer_and_disk_does() {
    if !is_root() {
        return skip("be another user", "only root can");
    }
    let daemon = Daemon::start(&["--disk", "a=memory:1M", "--allow-uid", "4000"]);
    std::fs::set_permissions(&daemon.dir.0, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("ours");
    // A copy that every user can run.
    let copy = daemon.dir.program("fipsee", FIPSEE);
    let socket = text(&daemon.socket());
    let as_other = move |arguments: &'static [&'static str]| {
        let (copy, socket) = (copy.clone(), socket.clone());
        as_user(4000, &[], move || Command::new(copy).args(["--connect", &socket]).args(arguments).output().expect("it runs"))
    };
    assert_success(&as_other(&["wait", "a", "--timeout", "5"]));
    for arguments in [&["disk", "add", "b=memory:1M"][..], &["disk", "remove", "a"], &["config", "dump"]] {
        assert_error(&as_other(arguments), &["no permission to open", "use the daemon's user or root"]);
    }
}

#[test]
fn daemon_in_the_background_is_reported_once_it_serves() {
    let dir = Scratch::new();
    let fipseed = |disk: &str| {
        let mut command = Command::new(program());
        command.arg("--listen").arg(dir.path("s")).args(["--disk", disk, "--daemonize"]).stdin(Stdio::null());
        let log = std::fs::File::create(dir.path("log")).expect("a file");
        command.stdout(Stdio::piped()).stderr(log).output().expect("it runs")
    };
    let started = fipseed("a=memory:1M");
    assert_success(&started);
    let pid: i32 = String::from_utf8_lossy(&started.stdout).trim().parse().expect("its process");
    let waited = Command::new(FIPSEE).args(["--connect", &text(&dir.path("s")), "wait", "a", "--timeout", "0"]).output();
    let pid = rustix::process::Pid::from_raw(pid).expect("not 0");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    assert_success(&waited.expect("fipsee runs"));
    eventually("it has removed its socket", || !dir.path("s").exists());
    let failed = fipseed("a=file:/no/such/file");
    assert_eq!((failed.status.code(), failed.stdout.len()), (Some(1), 0));
    let log = std::fs::read_to_string(dir.path("log")).expect("a log");
    assert_eq!(log.matches("error: ").count(), 1, "{log}");
    assert_says(&log, &["/no/such/file does not exist"]);
}

#[test]
fn ready_is_written_to_a_descriptor_that_is_passed() {
    let dir = Scratch::new();
    let command =
        |fd: &str| format!("{} --listen {} --disk a=memory:1M --ready-fd {fd}", program().display(), text(&dir.path("s")));
    let bash = |script: &str| Command::new("bash").args(["-c", script]).stdin(Stdio::null()).output().expect("bash runs");
    // `cat` ends when the daemon has closed the descriptor, while it goes on.
    let script = format!("exec 4< <(exec {} 3>&1 >/dev/null 2>/dev/null); cat <&4; kill $!; wait $!", command("3"));
    let output = bash(&script);
    assert_success(&output);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ready\n");
    for (fd, piece) in [("2", "standard input, output or error"), ("77", "Bad file descriptor")] {
        assert_error(&bash(&command(fd)), &["--ready-fd", piece, "open for writing"]);
    }
}

#[test]
fn limits_are_shown_set_and_removed() {
    let dir = Scratch::new();
    let toml =
        "[[group]]\nname = \"batch\"\nusers = [4711]\nweight = 50\n[[disk]]\nname = \"a\"\nspec = \"null:1M\"\niops = 700\n";
    std::fs::write(dir.path("f.toml"), toml).expect("a file");
    let daemon = Daemon::start_in(dir, &[], &["--config", "{dir}/f.toml"]);
    let shown = |arguments: &[&str]| {
        let output = daemon.fipsee(&[&["limit"], arguments].concat());
        assert_success(&output);
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    assert_eq!(
        shown(&[]),
        ["OF WEIGHT IOPS BYTES/S BURST WORKER CLIENTS THROTTLED", "disk a - 700 - 5 ms - 0 0", "group batch 50 - - - - 0 0"]
    );
    assert_eq!(shown(&["a", "--iops", "900", "--bytes-per-second=2M", "--burst", "20ms"])[1], "disk a - 900 2 MiB 20 ms - 0 0");
    assert_eq!(shown(&["--user", "root", "--weight", "300"])[1], "user root (0) 300 - - - - 0 0");
    assert_eq!(shown(&["--group", "batch", "--iops", "5"])[1], "group batch 50 5 - 5 ms - 0 0");
    assert_eq!(shown(&["a"])[1..], ["disk a - 900 2 MiB 20 ms - 0 0"]);
    assert_eq!(shown(&["a", "--off"])[1], "disk a - - - - - 0 0");
    assert_eq!(shown(&["--user", "4712"]), ["nothing limits it"]);
    let of_disk = json(&daemon.fipsee(&["limit", "a", "--iops", "10", "--json"]));
    assert_eq!((&of_disk["limits"][0]["disk"], &of_disk["limits"][0]["iops"]), (&"a".into(), &10.into()));
    assert_success(&daemon.fipsee(&["limit", "a", "--off"]));
    let client = daemon.blocking("a");
    let number = json(&daemon.fipsee(&["info", "a", "--json"]))["clients"][0]["client"].to_string();
    assert_eq!(shown(&["--client", &number, "--iops", "8"])[1], format!("client {number} of disk a 100 8 - 5 ms - - 0"));
    drop(client);
    for (arguments, pieces) in [
        (&["a", "--iops=1", "--burst=10ms"][..], &["less than one request; write at least 1000 ms"][..]),
        (&["z"], &["no disk 'z'", "there are: a"]),
        (&["--group", "z"], &["no group 'z' is configured"]),
        (&["--client", "99", "--iops=1"], &["no client 99 is attached"]),
        (&["a", "--weight", "5"], &["a disk has no weight; name a user"]),
    ] {
        assert_error(&daemon.fipsee(&[&["limit"], arguments].concat()), pieces);
    }
    for (arguments, piece) in [
        (&["a", "--iops", "0"][..], "write an integer from 1 to 1000000000, or off"),
        (&["--user", "root", "--weight", "70000"], "write an integer from 1 to 1000, or off"),
        (&["a", "--bytes-per-second", "0"], "0 is not possible"),
        (&["a", "--burst", "100"], "for example 100ms, or off"),
        (&["--iops", "5"], "required"),
        (&["a", "--user", "root"], "cannot be used with"),
        (&["--user", "no-one-here"], "no user 'no-one-here'"),
    ] {
        let output = daemon.fipsee(&[&["limit"], arguments].concat());
        assert_says(&String::from_utf8_lossy(&output.stderr), &[piece]);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
