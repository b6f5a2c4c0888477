//! `fipsee ls`, `info`, `stat`, `resize`, `attach`, `detach` and `vm-args` against a real daemon.

use std::os::unix::net::UnixListener;
use std::process::Command;

use fipsee_testkit::Scratch;

use crate::program::{FIPSEE, Fipsee, assert_error, assert_keys, assert_success, json, serve, text};

const SIZES: [&str; 3] = ["size_bytes", "block_bytes", "max_transfer_bytes"];

#[test]
fn ls_names_every_disk() {
    let daemon = serve(&["a=null:1G", "b=memory:3M,block=4096,ro"]);
    let answer = json(&daemon.fipsee(&["ls", "--json"]));
    let disks = answer["disks"].as_array().expect("a list");
    assert_eq!(disks.len(), 2);
    for disk in disks {
        assert_keys(disk, &["disk", "kind", "read_only", "exclusive", "capabilities", "attached"]);
        assert_keys(disk, &SIZES);
    }
    let table = daemon.fipsee(&["ls"]);
    assert_success(&table);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    let words: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[1], ["a", "null", "-", "read-write", "-", "1", "GiB", "512", "0"]);
    assert_eq!(words[2], ["b", "memory", "-", "read-only", "-", "3", "MiB", "4096", "0"]);
}

#[test]
fn info_describes_a_disk_and_its_clients() {
    let daemon = serve(&["a=memory:1M"]);
    let _client = daemon.blocking("a");
    let answer = json(&daemon.fipsee(&["info", "a", "--json"]));
    assert_keys(&answer, &["disk", "first_sector", "last_sector", "capabilities"]);
    assert_keys(&answer, &SIZES);
    assert_eq!(answer["last_sector"], 2047);
    assert_eq!(answer["clients"][0]["pid"], std::process::id());
    let shown = daemon.fipsee(&["info", "a"]);
    assert_success(&shown);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    for part in ["1 MiB (1048576 bytes)", "last sector:        2047", "write_zeroes", &format!("process {}", std::process::id())]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert_error(&daemon.fipsee(&["info", "zz"]), &["no disk 'zz'"]);
}

#[test]
fn stat_counts_what_a_client_did() {
    let daemon = serve(&["a=memory:1M"]);
    let mut client = daemon.blocking("a");
    client.write_at(&[1; 4096], 0).expect("a write");
    client.read_at(&mut [0; 8192], 0).expect("a read");
    client.flush().expect("a flush");
    let answer = json(&daemon.fipsee(&["stat", "--json"]));
    assert_keys(&answer, &["uptime_s", "workers", "queues"]);
    assert_keys(&answer["workers"][0], &["worker", "queues", "sleeps"]);
    let queue = &answer["queues"][0];
    assert_keys(queue, &["disk", "client", "pid", "queue", "service_ns_p50", "service_ns_p99", "service_ns_p999"]);
    let counters = [("reads", 1), ("writes", 1), ("others", 1), ("errors", 0), ("read_bytes", 8192), ("written_bytes", 4096)];
    for (key, expected) in counters {
        assert_eq!(queue[key], expected, "{key}");
    }
    let table = daemon.fipsee(&["stat"]);
    assert_success(&table);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains("P99.9") && table.contains("8 KiB") && table.contains("WORKER"), "{table}");
    let rates = json(&daemon.fipsee(&["stat", "--json", "--interval", "0.01", "--count", "1"]));
    assert_keys(&rates, &["interval_s"]);
    assert_keys(&rates["queues"][0], &["reads_per_s", "writes_per_s", "errors_per_s", "read_bytes_per_s", "written_bytes_per_s"]);
    assert_eq!(rates["queues"][0]["reads_per_s"], 0.0);
}

#[test]
fn resize_reaches_the_daemon() {
    let daemon = serve(&["a=memory:1M,max=4M"]);
    assert_eq!(json(&daemon.fipsee(&["resize", "a", "2M", "--json"]))["size_bytes"], 2 << 20);
    let said = daemon.fipsee(&["resize", "a", "3M"]);
    assert_success(&said);
    assert_eq!(String::from_utf8_lossy(&said.stdout), "disk 'a' has 3 MiB (3145728 bytes) now\n");
    assert_eq!(json(&daemon.fipsee(&["info", "a", "--json"]))["size_bytes"], 3 << 20);
    assert_error(&daemon.fipsee(&["resize", "a", "1000"]), &["1000", "blocks of 512 bytes"]);
    assert_eq!(daemon.fipsee(&["resize", "a", "big"]).status.code(), Some(2), "a usage error");
}

#[test]
fn without_a_daemon_every_command_says_so() {
    let directory = Scratch::new();
    let socket = text(&directory.path("s"));
    for arguments in [&["ls"][..], &["info", "a"], &["stat"], &["resize", "a", "1M"], &["cp", "/dev/null", "fip:a"]] {
        let output = Command::new(FIPSEE).args(arguments).arg("--connect").arg(&socket).output();
        assert_error(&output.expect("fipsee runs"), &["no daemon at", &format!("{socket}:"), "start fipseed"]);
    }
    let run = |arguments: &[&str]| Command::new(FIPSEE).args(arguments).output().expect("fipsee runs");
    let doctor = run(&["doctor", "--connect", &socket]);
    assert_eq!(doctor.status.code(), Some(1), "a daemon that was named is missed");
    let line = format!("fail  running: none at {socket}; start fipseed");
    assert!(String::from_utf8_lossy(&doctor.stdout).contains(&line), "{doctor:?}");
    let file = text(&directory.file("file", "text"));
    for command in [&["ls"][..], &["bench", "a"], &["doctor"]] {
        let output = run(&[command, &["--connect", &file]].concat());
        assert_error(&output, &[&format!("{file} is not a socket"), "name the one that fipseed listens at"]);
    }
    // A daemon that ends meanwhile.
    let listener = UnixListener::bind(directory.path("s.admin")).expect("a socket");
    let accepts = std::thread::spawn(move || drop(listener.accept()));
    assert_error(&run(&["stat", "--connect", &socket]), &[&format!("the daemon at {socket} ended before it answered; its log")]);
    accepts.join().expect("accepted");
}

#[test]
fn the_environment_names_the_socket() {
    let daemon = serve(&["a=null:1M"]);
    let output = Command::new(FIPSEE).arg("ls").env("FIPSEE_SOCKET", daemon.socket()).output();
    assert_success(&output.expect("fipsee runs"));
}

#[test]
fn a_socket_for_machines_is_attached_used_in_options_and_detached() {
    let daemon = serve(&["a=memory:1M"]);
    let path = text(&daemon.dir.path("a.sock"));
    assert_error(&daemon.fipsee(&["vm-args", "a", "--vmm", "qemu"]), &["disk 'a' has no vhost-user socket", "fipsee attach a"]);
    assert_error(&daemon.fipsee(&["attach", "b", "--vhost-user", &path]), &["no disk 'b' here"]);
    assert_success(&daemon.fipsee(&["attach", "a", "--vhost-user", &path]));
    let info = daemon.fipsee(&["info", "a"]);
    assert_success(&info);
    assert!(String::from_utf8_lossy(&info.stdout).contains(&format!("for machines at:    {path}")));
    for (vmm, queues, part) in [
        ("qemu", "2", format!("socket,id=fipsee-a,path={path},reconnect=1")),
        ("cloud-hypervisor", "2", format!("vhost_user=on,socket={path},num_queues=2,queue_size=256")),
        ("crosvm", "1", format!("block,socket={path}")),
        ("firecracker", "1", format!("\"socket\":\"{path}\"")),
    ] {
        let options = daemon.fipsee(&["vm-args", "a", "--vmm", vmm, "--queues", queues]);
        assert_success(&options);
        let options = String::from_utf8_lossy(&options.stdout).into_owned();
        assert!(options.contains(&part), "{part} in {options}");
        assert_eq!(json(&daemon.fipsee(&["vm-args", "a", "--vmm", vmm, "--json"]))["socket"], path.as_str());
    }
    assert_success(&daemon.fipsee(&["detach", "--vhost-user", &path]));
    assert_error(&daemon.fipsee(&["detach", "--vhost-user", &path]), &["no vhost-user socket", "no disk has one"]);
    // A user who may not ask the daemon names the socket.
    assert_success(&daemon.fipsee(&["vm-args", "a", "--vmm", "qemu", "--socket", &path]));
}
