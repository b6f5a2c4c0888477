//! What faults leave in the log: a line with the reason for one, some fifty a second for thousands, and how many were left out.

use std::os::fd::AsFd;
use std::time::Instant;

use fipsee_ring::control::{Control, Refusal};
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_testkit::guest::machine::{socket_of, start_with};
use fipsee_testkit::hypervisor::{GET_FEATURES, Hypervisor, Vm};
use fipsee_testkit::raw::{BOTH, HELLO, RawClient, assert_closed, attach_message, connect, receive, say, sealed_memory};
use fipsee_testkit::{CorrectClient, Daemon, assert_says, eventually};
use rustix::fs::SealFlags;

const FAULTY_PEERS: usize = 3_000;
/// Lines about clients that a daemon logs in a second, and one that says how many it left out.
const LINES_PER_SECOND: usize = 51;

/// Send bytes, with so many copies of a memory file, and wait until the daemon has hung up; the text of its refusal.
fn fault(control: &Seqpacket, bytes: &[u8], descriptors: usize) -> String {
    let file = sealed_memory(4096, SealFlags::SHRINK);
    let files: Vec<_> = (0..descriptors).map(|_| file.as_fd()).collect();
    control.send(bytes, &files).expect("sent");
    let Control::Refused(Refusal { text, .. }) = receive(control).0 else { panic!("{bytes:?} is taken") };
    assert_closed(control);
    text
}

/// What each fault leaves in the refusal and in the log, how many messages of a correct client come before it, its bytes, its
/// descriptors.
fn faults() -> Vec<(&'static str, usize, Vec<u8>, usize)> {
    let hello = HELLO.encode();
    let changed = |offset: usize, value: u8| {
        let mut bytes = hello.clone();
        bytes[offset] ^= value;
        bytes
    };
    let attach = attach_message("d", 1, 4, 0).encode();
    let of_version_2 = [&attach[..6], &[2], &attach[7..]].concat();
    let reserved = [&attach[..95], &[1]].concat();
    let nothing = attach_message("d", 1, 0, 0).encode();
    let register = Control::Register { region: 1, access: BOTH, length_bytes: 4096 }.encode();
    let welcome = Control::Welcome { version: 1, max_queues: 1, max_depth: 1, features: 0, max_pool_bytes: 0 }.encode();
    let longer = [&hello[..], &[0; 8]].concat();
    vec![
        ("the magic number is", 0, b"GET / HTTP/1.1".to_vec(), 0),
        ("the magic number is", 0, vec![0; 512], 0),
        ("the message kind is", 0, changed(4, 0x80), 0),
        ("the length field is", 0, changed(8, 1), 0),
        ("the length field is", 0, hello[..20].to_vec(), 0),
        ("the length field is", 0, longer, 0),
        ("the length in bytes is", 0, hello[..7].to_vec(), 0),
        ("the length in bytes is", 0, vec![0xff; 1], 0),
        ("longer than the protocol allows", 0, vec![0x46; 513], 0),
        ("longer than the protocol allows", 0, vec![0x46; 60_000], 0),
        ("the version is 0x2", 1, of_version_2, 0),
        ("a reserved byte", 0, reserved, 0),
        ("only REGISTER carries a descriptor", 0, hello.clone(), 1),
        ("only REGISTER carries a descriptor", 0, Control::Detach.encode(), 3),
        ("ATTACH follows HELLO, once", 0, attach.clone(), 0),
        ("ATTACH follows HELLO, once", 2, attach, 0),
        ("HELLO came twice", 1, hello.clone(), 0),
        ("HELLO came twice", 2, hello, 0),
        ("DETACH follows ATTACH", 0, Control::Detach.encode(), 0),
        ("DETACH follows ATTACH", 1, Control::Detach.encode(), 0),
        ("REGISTER follows ATTACH", 1, register, 1),
        ("UNREGISTER follows ATTACH", 1, Control::Unregister { region: 1 }.encode(), 0),
        ("unknown service or flag, or for no queue or depth 0", 1, nothing, 0),
        ("goes from the daemon to the client", 0, welcome, 0),
        ("goes from the daemon to the client", 2, Control::Detached.encode(), 0),
    ]
}

#[test]
fn a_fault_on_the_control_socket_is_one_line_with_its_reason() {
    let daemon = Daemon::start(&["--disk", "d=memory:1M", "--disk", "w=memory:1M"]);
    let mut correct_client = CorrectClient::new(&daemon, "w");
    // What is made at first use exists.
    drop(CorrectClient::new(&daemon, "d"));
    eventually("it is gone", || daemon.attached_count("d") == 0);
    let descriptors = daemon.fd_count();
    let reason = format!("pid={}", std::process::id());
    for (says, messages, bytes, files) in faults() {
        let before = daemon.log().len();
        let control = connect(&daemon);
        for message in &[HELLO, attach_message("d", 1, 4, 0)][..messages] {
            say(&control, message, &[]);
            receive(&control);
        }
        let text = fault(&control, &bytes, files);
        assert_says(&text, &[says]);
        let is_no_message =
            ["the magic", "the message kind", "the length", "the version"].iter().any(|what| says.starts_with(what));
        if is_no_message {
            assert_says(&text, &["malformed control message", "not a Fip-see program or speaks another version"]);
        }
        eventually(says, || daemon.log()[before..].contains(says));
        let log = daemon.log()[before..].to_owned();
        // Beside the coming and going of those that attached.
        let lines: Vec<&str> = log.lines().filter(|line| !line.contains(" INFO ")).collect();
        assert!(lines.len() == 1 && lines[0].contains("refused") && lines[0].contains(&reason), "{says}: {log}");
        correct_client.check();
    }
    eventually("nothing of them is left", || daemon.attached_count("d") == 0 && daemon.fd_count() == descriptors);
}

/// Faults by the thousand, and then what a single one leaves in the log.
fn inject_thousands(daemon: &Daemon, correct_client: &mut CorrectClient, what: &str, mut one: impl FnMut()) {
    let (started, before) = (Instant::now(), daemon.log().len());
    for count in 0..FAULTY_PEERS {
        one();
        if count.is_multiple_of(100) {
            correct_client.check();
        }
    }
    let lines = daemon.log()[before..].lines().count();
    let most = LINES_PER_SECOND * usize::try_from(started.elapsed().as_secs() + 2).expect("minutes");
    assert!((1..=most).contains(&lines), "{what}: {lines} lines in the log, {most} are allowed");
    eventually("a line says how many were left out", || {
        one();
        daemon.log()[before..].contains("lines about clients were left out")
    });
    correct_client.check();
}

#[test]
fn thousands_of_faults_leave_fifty_lines_a_second() {
    let daemon = Daemon::start(&["--disk", "w=memory:1M"]);
    let mut correct_client = CorrectClient::new(&daemon, "w");
    let descriptors = daemon.fd_count();
    let half = &HELLO.encode()[..20];
    inject_thousands(&daemon, &mut correct_client, "half a HELLO", || drop(fault(&connect(&daemon), half, 0)));
    eventually("every descriptor is closed", || daemon.fd_count() == descriptors);
}

#[test]
fn thousands_of_faults_on_a_vhost_user_socket_leave_fifty_lines_a_second() {
    let daemon = start_with(&["--disk", "d=memory:1M", "--disk", "w=memory:1M"]);
    let mut correct_client = CorrectClient::new(&daemon, "w");
    let socket = socket_of(&daemon, "d");
    Vm::boot(&socket).check();
    let descriptors = daemon.fd_count();
    inject_thousands(&daemon, &mut correct_client, "half a request", || {
        let hypervisor = Hypervisor::connect(&socket);
        let _ = hypervisor.send_raw(&Hypervisor::message(GET_FEATURES, 0, &[1]), &[]);
        hypervisor.assert_hung_up();
    });
    eventually("every descriptor is closed", || daemon.fd_count() == descriptors);
    Vm::boot(&socket).check();
}

/// A client that is attached and requests memory that is refused keeps its attachment, and the log does not grow.
#[test]
fn memory_that_is_refused_is_not_logged_each_time() {
    let daemon = Daemon::start(&["--disk", "d=memory:1M", "--disk", "w=memory:1M"]);
    let mut correct_client = CorrectClient::new(&daemon, "w");
    let client = RawClient::attach(&daemon, &attach_message("d", 1, 4, 0));
    let file = sealed_memory(4096, SealFlags::empty());
    for count in 0..FAULTY_PEERS {
        if count.is_multiple_of(100) {
            correct_client.check();
        }
        let answer = client.register(1, BOTH, 4096, &file);
        assert!(matches!(answer, Control::Refused(_)), "{answer:?}");
    }
    correct_client.check();
    assert!(daemon.log().lines().count() < 20, "{}", daemon.log());
}
