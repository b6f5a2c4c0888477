//! Commands that write claim the disk: they are refused while a guest or another client may write it, and nothing is overwritten.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Instant;

use fipsee_ring::control::{Control, Refusal, RefusalCode, VERSION, Wanted};
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_testkit::guest::device::{Guest, IN, OK, OUT, Options};
use fipsee_testkit::{Daemon, Guard, Scratch, TIMEOUT};

use crate::program::{FIPSEE, Fipsee, assert_error, assert_success, json, noise, serve, text};

const DISK_BYTES: usize = 1 << 20;

/// A daemon whose disk `a` a guest uses, which has written all of it: its content.
fn start_with_guest() -> (Daemon, Guest, Vec<u8>) {
    let daemon = serve(&["a=memory:1M", "b=memory:1M"]);
    let socket = daemon.dir.path("vm");
    assert_success(&daemon.fipsee(&["attach", "a", "--vhost-user", &text(&socket)]));
    let mut guest = Guest::start(&socket, &Options::default()).expect("the device takes a guest");
    let content = noise(DISK_BYTES, 77);
    let data = guest.ram.allocate(64 << 10, 4096);
    for (sector, piece) in (0..).step_by(128).zip(content.chunks(64 << 10)) {
        guest.ram.write(data, piece);
        assert_eq!(guest.transfer(0, OUT, sector, (data, 64 << 10)), OK);
    }
    (daemon, guest, content)
}

/// What the guest reads.
fn read_by(guest: &mut Guest) -> Vec<u8> {
    let data = guest.ram.allocate(64 << 10, 4096);
    let pieces = (0..DISK_BYTES as u64 / 512).step_by(128).flat_map(|sector| {
        assert_eq!(guest.transfer(0, IN, sector, (data, 64 << 10)), OK);
        guest.ram.read(data, 64 << 10)
    });
    pieces.collect()
}

const HOLDER: [&str; 4] = ["disk 'a' cannot be written safely", "(a virtual machine)", "sole writer", "--force"];

#[test]
fn cp_and_bench_do_not_touch_the_disk_of_a_guest() {
    let (daemon, mut guest, content) = start_with_guest();
    let source = text(&daemon.dir.file("source", noise(DISK_BYTES, 3)));
    let bench = |mix: &'static str| ["bench", "a", "--seconds", "0.05", "--json", "--rw", mix];
    assert_error(&daemon.fipsee(&["cp", &source, "fip:a"]), &HOLDER);
    assert_error(&daemon.fipsee(&["cp", "fip:b", "fip:a"]), &HOLDER);
    for mix in ["randwrite", "write", "randrw"] {
        assert_error(&daemon.fipsee(&bench(mix)), &HOLDER);
    }
    assert!(read_by(&mut guest) == content, "nothing was overwritten");
    // Reading needs no claim.
    let back = daemon.dir.path("back");
    assert_success(&daemon.fipsee(&["cp", "--verify", "fip:a", &text(&back)]));
    assert!(std::fs::read(&back).expect("the copy") == content);
    assert_success(&daemon.fipsee(&bench("randread")));
    let (info, list) = (daemon.fipsee(&["info", "a"]), daemon.fipsee(&["ls"]));
    assert!(String::from_utf8_lossy(&info.stdout).contains("a virtual machine, sole writer"), "{info:?}");
    assert!(String::from_utf8_lossy(&list.stdout).contains("read-write, claimed"), "{list:?}");
    // With --force the disk is overwritten.
    assert_success(&daemon.fipsee(&["cp", "--force", &source, "fip:a"]));
    assert!(read_by(&mut guest) == noise(DISK_BYTES, 3));
    assert_success(&daemon.fipsee(&[&bench("randwrite")[..], &["--force"]].concat()));
    guest.frontend.stop_vring(0).expect("an answer");
    assert_success(&daemon.fipsee(&["cp", "--verify", &source, "fip:a"]));
}

/// A copy from standard input, which goes on until that is closed.
fn start_copy(daemon: &Daemon) -> Guard {
    let mut copy = daemon.command(&["cp", "-", "fip:a"]);
    let mut copy = Guard(copy.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("fipsee runs"));
    copy.0.stdin.as_mut().expect("a pipe").write_all(&noise(4096, 1)).expect("it reads");
    let deadline = Instant::now() + TIMEOUT;
    while json(&daemon.fipsee(&["info", "a", "--json"]))["claimed"] != true {
        assert!(Instant::now() < deadline, "the copy does not attach");
    }
    copy
}

#[test]
fn commands_keep_each_other_and_guests_out_while_they_write() {
    let daemon = serve(&["a=memory:1M", "s=memory:1M,shared"]);
    let socket = daemon.dir.path("vm");
    assert_success(&daemon.fipsee(&["attach", "a", "--vhost-user", &text(&socket)]));
    let mut copy = start_copy(&daemon);
    let pid = format!("process {} is its sole writer", copy.0.id());
    assert_error(&daemon.fipsee(&["bench", "a", "--seconds", "0.05", "--rw", "randwrite"]), &[&pid]);
    assert_error(&daemon.fipsee_with_input(&["cp", "-", "fip:a"], b"x"), &[&pid]);
    assert!(Guest::start(&socket, &Options::default()).is_err(), "a guest started beside it");
    assert_success(&daemon.fipsee(&["cp", "fip:a", "fip:s"]));
    drop(copy.0.stdin.take());
    assert!(copy.0.wait().expect("awaited").success());
    Guest::start(&socket, &Options::default()).expect("the claim ended with the copy");
    // On a shared disk there are no claims.
    let shared =
        [(); 2].map(|()| daemon.command(&["bench", "s", "--rw", "randwrite", "--seconds", "0.3"]).stdout(Stdio::null()).spawn());
    for bench in shared {
        assert!(Guard(bench.expect("fipsee runs")).0.wait().expect("awaited").success());
    }
}

#[test]
fn a_writer_that_claims_nothing_keeps_commands_out() {
    let daemon = serve(&["a=memory:1M"]);
    let mut client = daemon.blocking("a");
    client.write_at(&[7; 4096], 0).expect("written");
    let expected = format!("process {} may write it, too", std::process::id());
    assert_error(&daemon.fipsee_with_input(&["cp", "-", "fip:a"], &noise(4096, 1)), &[&expected, "end that first"]);
    assert_error(&daemon.fipsee(&["bench", "a", "--seconds", "0.05", "--rw", "write"]), &[&expected]);
    let mut bytes = [0; 4096];
    client.read_at(&mut bytes, 0).expect("read");
    assert_eq!(bytes, [7; 4096]);
    drop(client);
    // Not a moment is waited here: the daemon lets the command wait.
    assert_success(&daemon.fipsee_with_input(&["cp", "-", "fip:a"], &noise(4096, 1)));
}

#[test]
fn resize_to_less_asks_for_shrink_and_beside_clients_for_force() {
    let daemon = serve(&["a=memory:2M,max=4M"]);
    assert_error(&daemon.fipsee(&["resize", "a", "1M"]), &["has 2097152 bytes", "last 1048576 bytes would be lost", "--shrink"]);
    let client = daemon.blocking("a");
    assert_error(&daemon.fipsee(&["resize", "a", "1M", "--shrink"]), &["in use by process", "add --force"]);
    assert_eq!(daemon.fipsee(&["resize", "a", "1M", "--force"]).status.code(), Some(2), "force alone says nothing");
    assert_eq!(json(&daemon.fipsee(&["info", "a", "--json"]))["size_bytes"], 2 << 20);
    assert_success(&daemon.fipsee(&["resize", "a", "1M", "--shrink", "--force"]));
    drop(client);
    assert_eq!(json(&daemon.fipsee(&["resize", "a", "4M", "--json"]))["size_bytes"], 4 << 20);
}

/// A daemon that has no features, and refuses the second client that does not mind: the flags of its ATTACH.
fn old_daemon(socket: &Path) -> std::thread::JoinHandle<u32> {
    let kind = rustix::net::SocketType::SEQPACKET;
    let listener = rustix::net::socket(rustix::net::AddressFamily::UNIX, kind, None).expect("a socket");
    rustix::net::bind(&listener, &rustix::net::SocketAddrUnix::new(socket).expect("a short path")).expect("bound");
    rustix::net::listen(&listener, 4).expect("listening");
    std::thread::spawn(move || {
        loop {
            let control = Seqpacket::from_fd(rustix::net::accept(&listener).expect("a client"));
            let Ok(_hello) = control.receive(TIMEOUT) else { continue };
            let (max_queues, max_depth, max_pool_bytes) = (1, 64, 1 << 20);
            let welcome = Control::Welcome { version: VERSION, max_queues, max_depth, features: 0, max_pool_bytes };
            control.send(&welcome.encode(), &[]).expect("it reads");
            let Ok(attach) = control.receive(TIMEOUT) else { continue };
            let refusal = Control::Refused(Refusal { code: RefusalCode::Limit, text: "that is enough".to_owned() });
            control.send(&refusal.encode(), &[]).expect("it reads");
            let Ok(Control::Attach(Wanted { flags, .. })) = Control::decode(&attach.bytes) else { panic!("no ATTACH") };
            return flags;
        }
    })
}

#[test]
fn with_a_daemon_that_knows_no_claims_commands_warn_and_go_on() {
    for arguments in [&["cp", "-", "fip:a"][..], &["bench", "a", "--rw", "write"]] {
        let directory = Scratch::new();
        let socket = directory.path("s");
        let daemon = old_daemon(&socket);
        let mut command = std::process::Command::new(FIPSEE);
        let output: Output =
            command.arg("--connect").arg(&socket).args(arguments).stdin(Stdio::null()).output().expect("fipsee runs");
        assert_eq!(daemon.join().expect("the script ran to its end"), 0, "nothing is claimed");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.starts_with("note: the daemon is too old to keep others from writing disk 'a'"), "{said}");
        assert_error(&output, &["that is enough"]);
    }
}

#[test]
fn a_killed_copy_leaves_no_claim() {
    let daemon = serve(&["a=memory:1M"]);
    let mut copy = start_copy(&daemon);
    copy.0.kill().expect("killed");
    copy.0.wait().expect("awaited");
    let mut said = String::new();
    copy.0.stderr.take().expect("a pipe").read_to_string(&mut said).expect("a pipe");
    assert_success(&daemon.fipsee_with_input(&["cp", "-", "fip:a"], &noise(4096, 1)));
}
