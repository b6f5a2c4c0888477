//! `fipsee net`: what it shows of ports, and frames between two of them.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;

use fipsee_net::server::tap;
use fipsee_net::{AttachOptions, Port};
use fipsee_ring::clock;
use fipsee_testkit::daemon::Launch;
use fipsee_testkit::guest::net::{NetGuest, NetOptions};
use fipsee_testkit::netns::Namespace;
use fipsee_testkit::stack::Stack;
use fipsee_testkit::{Daemon, Guard, Scratch, TIMEOUT, assert_says, eventually};
use serde_json::json;

use crate::program::{FIPSEE, Fipsee, assert_error, assert_success, ending, errors_of, json, pid};

const FILE: &str = "workers = 1\nlog_level = \"error\"\n[[network]]\nname = \"lan\"\nmtu = 9000\n\
    [[network.port]]\nname = \"a\"\nmac = \"02:00:00:00:00:0a\"\nvlan = 10\n\
    [[network.port]]\nname = \"b\"\nmac = \"02:00:00:00:00:0b\"\nvlan = 10\nisolated = true\n\
    [[network.port]]\nname = \"c\"\ntrunk = [10, 20]\n\
    [[network.port]]\nname = \"m\"\nmac = \"02:00:00:00:00:0d\"\nmirror = true\n";

fn daemon() -> Daemon {
    let dir = Scratch::new();
    dir.configure(FILE);
    let program = [FIPSEE, "serve"].map(str::to_owned).to_vec();
    let arguments = vec!["--config".to_owned(), "{dir}/f.toml".to_owned()];
    Daemon::launch(dir, Launch { program, arguments, own_group: false, ends_with_us: false }).expect("the daemon listens")
}

#[test]
fn frames_go_to_a_port_that_answers_and_are_counted() {
    let daemon = daemon();
    for (count, sent) in [("3", 3), ("1000000", 5)] {
        let unanswered = daemon.fipsee(&["net", "ping", "lan/a", "--to", "lan/b", "--count", count, "--timeout", "0.01"]);
        let text = format!(
            "no answer to {sent} frames from 02:00:00:00:00:0b; does `fipsee net echo` run there, are both ports in one VLAN"
        );
        assert_error(&unanswered, &[&text, "`fipsee net info`"]);
    }
    let mut command = daemon.command(&["net", "echo", "lan/b", "--count", "150"]);
    let mut echo = Guard(command.stdout(Stdio::piped()).spawn().expect("fipsee runs"));
    let mut line = String::new();
    BufReader::new(echo.0.stdout.as_mut().expect("its output")).read_line(&mut line).expect("a line");
    assert_eq!(line, "lan/b answers at 02:00:00:00:00:0b\n");
    let in_use = json(&daemon.fipsee(&["net", "ls", "--json"]));
    assert_eq!(in_use["ports"][1], json!({ "port": "lan/b", "mac": "02:00:00:00:00:0b", "mtu": 9000, "in_use": true }));
    for (to, length, count) in [("lan/b", "64", "100"), ("02:00:00:00:00:0b", "9014", "50")] {
        let pinged =
            daemon.fipsee(&["net", "ping", "lan/a", "--to", to, "--count", count, "--length", length, "--timeout", "60"]);
        assert_success(&pinged);
        let said = String::from_utf8_lossy(&pinged.stdout).into_owned();
        assert!(
            said.starts_with(&format!("{count} frames of {length} bytes to 02:00:00:00:00:0b, {count} came back; ")),
            "{said}"
        );
    }
    assert!(ending(&mut echo).success());
    let stat = daemon.fipsee(&["net", "stat"]);
    let rows: Vec<Vec<String>> =
        String::from_utf8_lossy(&stat.stdout).lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
    assert_eq!(
        (rows[1][0].as_str(), rows[1][1].as_str(), rows[1].last().map(String::as_str)),
        ("lan/a", "158", Some("0")),
        "{rows:?}"
    );
    let info = daemon.fipsee(&["net", "info", "lan"]);
    assert_success(&info);
    let info = String::from_utf8_lossy(&info.stdout).into_owned();
    for part in ["mtu      9000", "trunk 10,20", "isolated", "02:00:00:00:00:0a"] {
        assert!(info.contains(part), "{part}: {info}");
    }
}

/// The frames of a capture, with their times in nanoseconds since the epoch.
fn frames_of(capture: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let word = |at: usize| u32::from_le_bytes(capture[at..at + 4].try_into().expect("four bytes"));
    assert_eq!(word(0), 0x0a0d_0d0a, "it begins with a section");
    let (mut frames, mut at) = (Vec::new(), 0);
    while at < capture.len() {
        let (kind, length) = (word(at), word(at + 4) as usize);
        assert_eq!(word(at + length - 4) as usize, length, "a block ends with its length");
        if kind == 6 {
            let bytes = word(at + 20) as usize;
            assert_eq!((word(at + 24) as usize, length), (bytes, 32 + bytes.next_multiple_of(4)));
            frames.push((u64::from(word(at + 12)) << 32 | u64::from(word(at + 16)), capture[at + 28..at + 28 + bytes].to_vec()));
        }
        at += length;
    }
    frames
}

#[test]
fn every_frame_of_a_network_is_captured_at_its_mirror() {
    let daemon = daemon();
    let file = daemon.dir.path("lan.pcapng");
    let in_use = |port: usize| json(&daemon.fipsee(&["net", "ls", "--json"]))["ports"][port]["in_use"] == true;
    let ping = |count: &str, length: &str| {
        let mut echo = Guard(
            daemon.command(&["net", "echo", "lan/b", "--count", count]).stdout(Stdio::null()).spawn().expect("fipsee runs"),
        );
        eventually("it has its port", || in_use(1));
        let pinged =
            daemon.fipsee(&["net", "ping", "lan/a", "--to", "lan/b", "--count", count, "--length", length, "--timeout", "60"]);
        assert_success(&pinged);
        assert!(ending(&mut echo).success());
    };
    // To a pipe, so many frames; to a file, until it is interrupted.
    for to_pipe in [true, false] {
        let mut command = daemon.command(&["net", "capture", "lan/m"]);
        if to_pipe {
            command.args(["--count", "20"])
        } else {
            command.arg("-w").arg(&file)
        };
        let mut capture = Guard(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("fipsee runs"));
        eventually("it has its port", || in_use(3));
        ping("7", "64");
        ping("3", "9014");
        let mut out = Vec::new();
        if to_pipe {
            capture.0.stdout.take().expect("a pipe").read_to_end(&mut out).expect("the capture");
        } else {
            eventually("all is in the file", || std::fs::metadata(&file).is_ok_and(|file| file.len() > 6 * 9014 + 14 * 64));
            rustix::process::kill_process(pid(&capture), rustix::process::Signal::INT).expect("interrupted");
        }
        assert!(ending(&mut capture).success());
        assert_eq!(errors_of(&mut capture), "20 frames of lan/m\n");
        let frames = frames_of(&if to_pipe { out } else { std::fs::read(&file).expect("the capture") });
        let lengths: Vec<usize> = frames.iter().map(|(_, frame)| frame.len()).collect();
        assert_eq!(lengths, [[64; 14].as_slice(), &[9014; 6]].concat());
        let (a, b) = ([2, 0, 0, 0, 0, 0x0a], [2, 0, 0, 0, 0, 0x0b]);
        for (index, (_, frame)) in frames.iter().enumerate() {
            let (to, from) = if index % 2 == 0 { (b, a) } else { (a, b) };
            assert_eq!(frame[..14], [&to[..], &from, &[0x88, 0xb5]].concat());
        }
        assert!(frames.is_sorted_by_key(|(ns, _)| *ns) && frames[0].0 > 1_700_000_000_000_000_000);
    }
}

#[test]
fn mistakes_name_what_to_do() {
    let daemon = daemon();
    for (arguments, text) in [
        (&["net", "info", "wan"][..], "no network 'wan' here; there are: lan"),
        (&["net", "ping", "lan/x", "--to", "lan/b"], "`fipsee net ls` lists those"),
        (&["net", "ping", "lan/a", "--to", "lan/x"], "no port 'lan/x' that you may use; `fipsee net ls` lists those"),
        (&["net", "ping", "lan/a", "--to", "x"], "'x' is no MAC address; write six bytes"),
        (&["net", "ping", "lan/a", "--to", "lan/b", "--length", "21"], "--length 21: write 22 to 9018"),
        (&["net", "capture", "lan/x"], "lan/x"),
        (&["net", "capture", "lan/m", "-w", "/nowhere/f"], "the folder /nowhere does not exist"),
        (&["net", "ping", "lan/c", "--to", "lan/b"], "the daemon did not take the frame: the port is not in this VLAN"),
    ] {
        assert_error(&daemon.fipsee(arguments), &[text]);
    }
}

#[test]
fn ports_are_added_and_removed() {
    let daemon = daemon();
    let added =
        daemon.fipsee(&["net", "attach", "lan", "--name", "d", "--mac", "02:00:00:00:00:1d", "--trunk=10,20", "--isolated"]);
    assert_success(&added);
    assert!(String::from_utf8_lossy(&added.stdout).contains("port 'lan/d' with the address 02:00:00:00:00:1d is there"));
    let ports = json(&daemon.fipsee(&["net", "ls", "--json"]));
    assert_eq!(ports["ports"][3], json!({ "port": "lan/d", "mac": "02:00:00:00:00:1d", "mtu": 9000, "in_use": false }));
    assert_success(&daemon.fipsee(&["net", "detach", "lan/d"]));
    assert_error(&daemon.fipsee(&["net", "detach", "lan/d"]), &["no port 'lan/d' here"]);
    let at = daemon.dir.path("d.vm");
    let path = at.to_str().expect("UTF-8");
    let added = daemon.fipsee(&["net", "attach", "lan", "--name", "d", "--vhost-user", path]);
    assert_success(&added);
    assert_says(&String::from_utf8_lossy(&added.stdout), &["is there until", "fipsee vm-args --net lan/d --vmm qemu prints how"]);
    let options = daemon.fipsee(&["vm-args", "--net", "lan/d", "--vmm", "qemu", "--memory", "1G"]);
    assert_success(&options);
    assert_says(&String::from_utf8_lossy(&options.stdout), &[path, "-netdev vhost-user"]);
    assert_says(&String::from_utf8_lossy(&daemon.fipsee(&["config", "dump"]).stdout), &["# added at run time", path]);
    assert_success(&daemon.fipsee(&["net", "detach", "lan/d"]));
    assert!(!at.exists());
    assert_error(&daemon.fipsee(&["vm-args", "--net", "lan/a", "--vmm", "qemu"]), &["fipsee net attach lan --vhost-user PATH"]);
    assert_error(
        &daemon.fipsee(&["net", "attach", "lan", "--name", "d", "--fd", "99"]),
        &["--fd 99", "leave this descriptor open"],
    );
    assert_error(&daemon.fipsee(&["net", "attach", "lan", "--name", "d", "--tap", "a:b"]), &["cannot be the name of a device"]);
}

#[test]
fn port_without_a_name_is_named_after_its_socket_and_found_by_its_network() {
    let daemon = daemon();
    let attach = |more: &[&str]| daemon.fipsee(&[&["net", "attach", "lan"], more].concat());
    let socket = |name: &str| daemon.dir.path(name).to_str().expect("UTF-8").to_owned();
    let options = |more: &[&str]| daemon.fipsee(&[&["vm-args", "--vmm", "qemu", "--net", "lan"], more].concat());
    let make = "make a port with: fipsee net attach lan --vhost-user PATH";
    assert_error(&options(&[]), &["network 'lan' has no free port for a virtual machine", make]);
    // As the message says.
    let added = attach(&["--vhost-user", &socket("vm1.sock")]);
    assert_success(&added);
    assert_says(&String::from_utf8_lossy(&added.stdout), &["port 'lan/vm1' with the address", "--net lan/vm1 --vmm qemu"]);
    let found = json(&options(&["--json"]));
    assert_eq!((&found["ports"], &found["sockets"]), (&json!(["lan/vm1"]), &json!([socket("vm1.sock")])));
    assert_error(&options(&["--net", "lan/vm1"]), &["port 'lan/vm1' is named twice"]);
    // Names that are taken, by a port of programs, too, and names that no port can have.
    std::fs::create_dir(daemon.dir.path("d")).expect("a fresh directory");
    for (more, port) in [
        (&["--vhost-user", &socket("d/vm1.vhost-user")][..], "lan/vm1-2"),
        (&["--vhost-user", &socket("a.sock")], "lan/a-2"),
        (&["--vhost-user", &socket("der gast")], "lan/port-1"),
        (&[], "lan/port-2"),
    ] {
        assert_eq!(json(&attach(&[more, &["--json"]].concat()))["port"], port);
    }
    let taken = attach(&["--vhost-user", &socket("vm1.sock")]);
    assert_error(&taken, &["is the vhost-user socket of port 'lan/vm1' already; choose another path"]);
    let several = "several free ports for virtual machines (lan/vm1, lan/vm1-2, lan/a-2, lan/port-1); name one: --net lan/vm1";
    assert_error(&options(&[]), &[several]);
    for port in ["lan/vm1", "lan/vm1-2", "lan/a-2"] {
        assert_success(&daemon.fipsee(&["net", "detach", port]));
    }
    let guest = NetGuest::start(Path::new(&socket("der gast")), &NetOptions::default()).expect("it is served");
    assert_error(&options(&[]), &["no free port for a virtual machine (in use: lan/port-1)", make]);
    drop(guest);
}

#[test]
fn port_is_added_with_all_that_the_configuration_can_say_of_one() {
    let daemon = daemon();
    let more = ["--allmulti", "--ips=192.0.2.1,2001:db8::1", "--down"];
    let added = daemon.fipsee(&[&["net", "attach", "lan", "--name", "d"], &more[..]].concat());
    assert_success(&added);
    assert_says(&String::from_utf8_lossy(&added.stdout), &["; it is down until fipsee net set lan/d --up"]);
    let port = || json(&daemon.fipsee(&["net", "info", "lan", "--json"]))["ports"][4].clone();
    let shown = port();
    assert_eq!(["port", "may", "ips", "link"].map(|key| &shown[key]), ["d", "allmulti", "192.0.2.1, 2001:db8::1", "down"]);
    assert_success(&daemon.fipsee(&["net", "set", "lan/d", "--up"]));
    assert_eq!(port()["link"], "up");
    assert_says(
        &String::from_utf8_lossy(&daemon.fipsee(&["config", "dump"]).stdout),
        &["ips = [\"192.0.2.1\", \"2001:db8::1\"]\nallmulti = true"],
    );
    let group = daemon.fipsee(&["net", "attach", "lan", "--ips=224.0.0.1"]);
    assert_error(&group, &["224.0.0.1 is no address of one station"]);
    let no_address = daemon.fipsee(&["net", "attach", "lan", "--ips=192.0.2.0/24"]);
    assert_eq!(no_address.status.code(), Some(2));
}

#[test]
fn device_is_made_by_the_command_and_passed_to_a_daemon_that_has_confined_itself() {
    let Some([space]) = Namespace::several("a TAP device that is passed", &[]) else { return };
    let dir = Scratch::new();
    dir.configure(FILE);
    let mut daemon = Daemon::start_in(dir, &[], &["--config", "{dir}/f.toml"]);
    let socket = daemon.socket();
    let fipsee = |arguments: &str| space.try_run(&format!("{FIPSEE} --connect {} {arguments}", socket.display()));
    let said = fipsee("net attach lan --name host --mac 02:00:00:00:00:0e --tap fip0 --queues 2").expect("attached");
    assert!(said.contains("port 'lan/host', device 'fip0' of the host, with the address 02:00:00:00:00:0e"), "{said}");
    let link = |space: &Namespace| space.run("ip -details link show dev fip0");
    assert_says(&link(&space), &["mtu 9000", "02:00:00:00:00:0e", "UP", "numtxqueues 2"]);
    let dump = String::from_utf8(daemon.fipsee(&["config", "dump"]).stdout).expect("UTF-8");
    assert_says(&dump, &["# added at run time\n[[network.port]]\nname = \"host\"", "tap = \"fip0\"\nqueues = 2"]);
    let made = link(&space);
    daemon.take_over();
    assert_eq!(link(&space).lines().next(), made.lines().next(), "the same device");
    let info = String::from_utf8(daemon.fipsee(&["net", "info", "lan"]).stdout).expect("UTF-8");
    assert_says(&info, &["device fip0"]);
    let taken = fipsee("net attach lan --name other --tap fip0").expect_err("it is in use");
    assert_says(&taken, &["device 'fip0' cannot be opened"]);
    // It is deleted. The port is kept for it, by the next daemon, too, until it is there again.
    space.run("ip link del fip0");
    eventually("it is noticed", || daemon.log().contains("the device is gone"));
    daemon.take_over();
    assert!(space.try_run("ip link show dev fip0").is_err(), "no daemon makes it again");
    assert_error(&daemon.fipsee(&["net", "echo", "lan/host"]), &["port 'lan/host' is the device 'fip0' of the host"]);
    assert_says(&fipsee("net attach lan --name host --tap fip1").expect_err("another"), &["was device 'fip0', which is gone"]);
    let again = fipsee("net attach lan --tap fip0").expect("it is there again");
    assert_says(&again, &["port 'lan/host', device 'fip0'"]);
    assert_says(&link(&space), &["mtu 9000", "02:00:00:00:00:0e", "UP"]);
    assert_success(&daemon.fipsee(&["net", "detach", "lan/host"]));
    eventually("it goes with the port", || space.try_run("ip link show dev fip0").is_err());
    // Without a name the port has that of the device, which has no carrier while the port is down.
    assert_says(&fipsee("net attach lan --tap fip0 --down").expect("attached"), &["port 'lan/fip0', device 'fip0' of the host"]);
    eventually("it is down", || link(&space).contains("NO-CARRIER"));
    assert_success(&daemon.fipsee(&["net", "detach", "lan/fip0"]));
    let no_device =
        space.run_script(&format!("{FIPSEE} --connect {} net attach lan --name d --fd 5 5<>/dev/net/tun", socket.display()));
    assert_says(&no_device.expect_err("no device"), &["the descriptor is of no TAP device", "TUNSETIFF"]);
}

/// A device that this process has opened, with so many queues.
fn open(space: &Namespace, name: &str, queues: u16) -> Vec<OwnedFd> {
    std::thread::scope(|scope| {
        let open = || space.enter().and_then(|()| tap::open(name, queues));
        scope.spawn(open).join().expect("no panic").expect("a device").queues
    })
}

/// `fipsee`, to which the queues of a device are passed as its descriptors 3 and 4.
fn with_device(space: &Namespace, mut queues: Vec<OwnedFd>, arguments: &[&str]) -> Result<String, String> {
    let mut command = space.command("sh");
    command.args(["-c", "exec 3<&0 4<&2 </dev/null 2>&1; exec \"$@\"", "sh", FIPSEE]).args(arguments);
    command.stdin(queues.remove(0)).stderr(queues.pop().map_or_else(Stdio::null, Stdio::from)).stdout(Stdio::piped());
    let ended = command.spawn().and_then(std::process::Child::wait_with_output).expect("fipsee runs");
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    if ended.status.success() { Ok(said) } else { Err(said) }
}

#[test]
fn device_that_another_program_has_opened_is_passed_by_its_descriptors_and_carries_frames() {
    let Some([space]) = Namespace::several("a TAP device that is passed by its descriptors", &["tc"]) else { return };
    let dir = Scratch::new();
    dir.configure(FILE);
    let daemon = Daemon::start_in(dir, &[], &["--config", "{dir}/f.toml"]);
    let socket = daemon.socket();
    let mut station = Port::attach(&socket, &AttachOptions::new("lan/a")).expect("attached");
    let socket = socket.to_str().expect("UTF-8");
    let own = [2, 0, 0, 0, 0, 0x0e];
    for queues in [1, 2] {
        let attach =
            ["--connect", socket, "net", "attach", "lan", "--name", "host", "--mac", "02:00:00:00:00:0e", "--vlan", "10"];
        let descriptors = ["--fd", "3", "--fd", "4"];
        let passed =
            with_device(&space, open(&space, "fip0", queues), &[&attach[..], &descriptors[..usize::from(queues) * 2]].concat());
        assert_says(
            &passed.expect("attached"),
            &["port 'lan/host', device 'fip0' of the host, with the address 02:00:00:00:00:0e"],
        );
        assert_says(&space.run("ip link show dev fip0"), &["mtu 9000", "02:00:00:00:00:0e"]);
        let dump = String::from_utf8(daemon.fipsee(&["config", "dump"]).stdout).expect("UTF-8");
        assert_says(&dump, &["# added at run time\n[[network.port]]\nname = \"host\"", &format!("queues = {queues}\n")]);
        let stack = Stack::new(&space, "fip0", (own, station.mac().0));
        let port = RefCell::new(&mut station);
        let next = || {
            let (mut frame, deadline) = (Vec::new(), clock::ticks() + clock::duration_to_ticks(TIMEOUT));
            assert!(port.borrow_mut().wait(Some(deadline), &mut frame).expect("the daemon is there"), "no frame");
            frame
        };
        stack.exchange(16, |frame| port.borrow_mut().send(frame).expect("sent"), next);
        if queues == 2 {
            let by_queue: [u64; 2] = stack.sent_by_queue();
            assert!(by_queue.iter().all(|frames| *frames >= 16), "{by_queue:?}");
        }
        assert_success(&daemon.fipsee(&["net", "detach", "lan/host"]));
        eventually("no process has it any more", || space.try_run("ip link show dev fip0").is_err());
    }
    // Of two devices.
    let different = ["fip0", "fip1"].into_iter().flat_map(|name| open(&space, name, 1)).collect();
    let attach = ["--connect", socket, "net", "attach", "lan", "--name", "host", "--fd", "3", "--fd", "4"];
    let refused = with_device(&space, different, &attach);
    assert_says(&refused.expect_err("two devices"), &["the descriptors are of different devices: fip0, fip1"]);
}
