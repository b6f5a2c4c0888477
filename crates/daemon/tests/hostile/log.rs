//! What faults leave in the log: a line with the reason for one, some fifty a second for thousands, and how many were left out.

use std::os::fd::AsFd;
use std::time::Instant;

use fipsee_testkit::raw::{BOTH, HELLO, RawClient, attach_message, connect, sealed_memory};
use fipsee_testkit::hypervisor::{GET_FEATURES, Hypervisor, Vm};
use fipsee_testkit::{CorrectClient, Daemon, TIMEOUT, eventually};
use fipsee_ring::control::Control;
use fipsee_ring::seqpacket::Seqpacket;
use rustix::fs::SealFlags;

const FAULTY_PEERS: usize = 3_000;
/// Lines about clients that a daemon logs in a second, and one that says how many it left out.
const LINES_PER_SECOND: usize = 51;

/// Send bytes, with so many copies of a memory file, and wait until the daemon has hung up.
fn fault(control: &Seqpacket, bytes: &[u8], descriptors: usize) {
    let file = sealed_memory(4096, SealFlags::SHRINK);
    let files: Vec<_> = (0..descriptors).map(|_| file.as_fd()).collect();
    control.send(bytes, &files).expect("sent");
    while control.receive(TIMEOUT).is_ok() {}
}

/// For each fault on a new connection, the words of the log.
fn faults() -> Vec<(&'static str, Vec<u8>, usize)> {
    let hello = HELLO.encode();
    let mut reserved = attach_message("d", 1, 4, 0).encode();
    reserved[95] = 1;
    vec![
        ("the magic number is", b"GET / HTTP/1.1".to_vec(), 0),
        ("the length field is", hello[..20].to_vec(), 0),
        ("the length in bytes is", hello[..7].to_vec(), 0),
        ("longer than the protocol allows", vec![0x46; 600], 0),
        ("only REGISTER carries a descriptor", hello, 1),
        ("only REGISTER carries a descriptor", Control::Detach.encode(), 3),
        ("ATTACH follows HELLO", attach_message("d", 1, 4, 0).encode(), 0),
        ("a reserved byte", reserved, 0),
        ("REGISTER follows ATTACH", Control::Register { region: 1, access: BOTH, length_bytes: 4096 }.encode(), 1),
        ("goes from the daemon to the client", Control::Detached.encode(), 0),
    ]
}

#[test]
fn a_fault_on_the_control_socket_is_one_line_with_its_reason() {
    let daemon = Daemon::start(&["--disk", "d=memory:1M", "--disk", "w=memory:1M"]);
    let mut correct_client = CorrectClient::new(&daemon, "w");
    let reason = format!("pid={}", std::process::id());
    for (says, bytes, descriptors) in faults() {
        let before = daemon.log().len();
        fault(&connect(&daemon), &bytes, descriptors);
        eventually(says, || daemon.log()[before..].contains(says));
        let log = daemon.log()[before..].to_owned();
        assert_eq!(log.lines().count(), 1, "{says}: {log}");
        assert!(log.contains("refused") && log.contains(&reason), "{log}");
        correct_client.check();
    }
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
    inject_thousands(&daemon, &mut correct_client, "half a HELLO", || fault(&connect(&daemon), half, 0));
    eventually("every descriptor is closed", || daemon.fd_count() == descriptors);
}

#[test]
fn thousands_of_faults_on_a_vhost_user_socket_leave_fifty_lines_a_second() {
    let daemon = fipsee_testkit::guest::machine::start_with(&["--disk", "d=memory:1M", "--disk", "w=memory:1M"]);
    let mut correct_client = CorrectClient::new(&daemon, "w");
    let socket = fipsee_testkit::guest::machine::socket_of(&daemon, "d");
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
