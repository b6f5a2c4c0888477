//! Sections 4.1 to 4.6: the control socket.

use std::os::fd::AsFd;

use fipsee_testkit::bytes::*;
use fipsee_testkit::{CorrectClient, Daemon, eventually};
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use super::client::{Client, greeted};

const SHRINK: SealFlags = SealFlags::SHRINK;

fn daemon() -> (Daemon, CorrectClient) {
    let daemon = Daemon::start(&["--disk", "a=memory:1M", "--disk", "w=memory:1M"]);
    let correct_client = CorrectClient::new(&daemon, "w");
    (daemon, correct_client)
}

/// A connection in each state of 4.3.
fn in_each_state(daemon: &Daemon) -> [(&'static str, Socket); 3] {
    let attached = Client::attach(daemon, &Wanted::disk("a")).control;
    [("connected", Socket::connect(&daemon.socket())), ("greeted", greeted(daemon)), ("attached", attached)]
}

/// checks: R-4.1-1
#[test]
fn the_socket_takes_packets_only() {
    let (daemon, _correct_client) = daemon();
    for kind in [SocketType::STREAM, SocketType::DGRAM] {
        let socket = rustix::net::socket(AddressFamily::UNIX, kind, None).expect("a socket");
        let refused = rustix::net::connect(&socket, &SocketAddrUnix::new(daemon.socket()).expect("a path"));
        assert_eq!(refused, Err(Errno::PROTOTYPE), "{kind:?}");
    }
}

fn malformed() -> Vec<(&'static str, Vec<u8>)> {
    let (hello, attach) = (hello(1, 1, 0), attach(&Wanted::disk("a")));
    let unregister = about_region(UNREGISTER, 1);
    let longer = |bytes: &[u8]| [with(bytes.to_vec(), 8, &[bytes.len().to_le_bytes()[0] + 4]), vec![0; 4]].concat();
    vec![
        ("magic", with(hello.clone(), 0, b"f")),
        ("kind 0", with(hello.clone(), 4, &[0])),
        ("kind 12, of another length", with(hello.clone(), 4, &[12])),
        ("kind 14", with(hello.clone(), 4, &[14])),
        ("kind 257", with(hello.clone(), 5, &[1])),
        ("version 0 of ATTACH", with(attach.clone(), 6, &[0])),
        ("version 2 of ATTACH", with(attach.clone(), 6, &[2])),
        ("version 2 of UNREGISTER", with(unregister.clone(), 6, &[2])),
        ("version 2 of DETACH", with(control(DETACH, 12), 6, &[2])),
        ("length field", with(hello.clone(), 8, &[25])),
        ("length field, high", with(hello.clone(), 11, &[1])),
        ("shorter than its length", hello[..20].to_vec()),
        ("HELLO too short", with(hello[..20].to_vec(), 8, &[20])),
        ("HELLO of version 2 too short", with(with(hello[..20].to_vec(), 8, &[20]), 6, &[2])),
        ("HELLO of version 1 too long", longer(&hello)),
        ("DETACH too long", longer(&control(DETACH, 12))),
        ("no header", hello[..11].to_vec()),
        ("1 byte", hello[..1].to_vec()),
        ("512 bytes", control(HELLO, 512)),
        ("513 bytes", control(HELLO, 513)),
        ("60,000 bytes", vec![0; 60_000]),
        ("reserved bytes of UNREGISTER", with(unregister, 15, &[1])),
        ("a name that is no UTF-8", with(attach.clone(), 33, &[0xff])),
        ("a name cut amid a character", with(attach.clone(), 33, &[0xc3])),
        ("bytes behind the name", with(attach, 95, b"x")),
    ]
}

/// checks: R-4.2-2, R-4.2-3, R-4.2-4, R-4.1-4, R-4.3-3, R-1-2, R-6-3
#[test]
fn a_malformed_message_is_refused_in_every_state_and_ends_the_connection() {
    let (daemon, mut correct_client) = daemon();
    for (what, bytes) in malformed() {
        for (state, control) in in_each_state(&daemon) {
            control.send(&bytes, &[]);
            control.assert_refused(2, &format!("{what}, {state}"));
            control.assert_closed();
        }
    }
    correct_client.check();
    eventually("nothing is left", || daemon.attached_count("a") == 0);
}

/// checks: R-4.2-5, R-4.1-5, R-4.3-3
#[test]
fn descriptors_where_none_belong_make_a_message_malformed() {
    let (daemon, _correct_client) = daemon();
    let files: Vec<_> = (0..130).map(|_| memory_file(4096, SHRINK)).collect();
    let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    for (what, state, bytes, count) in [
        ("HELLO", 0, hello(1, 1, 0), 1),
        ("ATTACH", 1, attach(&Wanted::disk("a")), 2),
        ("UNREGISTER", 2, about_region(UNREGISTER, 1), 1),
        ("DETACH", 2, control(DETACH, 12), 129),
        ("REGISTER with 130", 2, register(1, 3, 4096), 130),
    ] {
        let mut states = Vec::from(in_each_state(&daemon));
        let (_, control) = states.swap_remove(state);
        control.send(&bytes, &borrowed[..count]);
        control.assert_refused(2, what);
        control.assert_closed();
    }
}

/// checks: R-4.1-7, R-4.3-2
#[test]
fn a_packet_of_no_bytes_is_a_hang_up() {
    let (daemon, _correct_client) = daemon();
    for (_, control) in in_each_state(&daemon) {
        control.send(&[], &[]);
        control.assert_closed();
    }
    eventually("it is detached", || daemon.attached_count("a") == 0);
}

/// checks: R-4.3-5, R-4.4-1, R-4.4-2, R-4.4-4, R-4.2-1, R-4.2-6, R-1-1
#[test]
fn the_version_is_the_newest_of_both_and_features_are_those_of_both() {
    let (daemon, _correct_client) = daemon();
    let known = u64_at(&Socket::connect(&daemon.socket()).ask(&hello(1, 1, u64::MAX), &[]).bytes, 24);
    assert_eq!(known & 1, 1, "worker CPU");
    let newer = |min, max| with(hello(min, max, 0), 6, &[2]);
    let longer = [with(newer(1, 9), 8, &[32]), vec![0xee; 8]].concat();
    for (what, bytes, features) in [
        ("1 alone", hello(1, 1, 0), 0),
        ("0 to 5", hello(0, 5, 1), 1),
        ("any", hello(0, u16::MAX, u64::MAX), known),
        ("unknown features", hello(1, 1, !known), 0),
        ("a header of version 2", newer(1, 2), 0),
        ("a longer HELLO of version 2", longer, 0),
    ] {
        let control = Socket::connect(&daemon.socket());
        let welcome = control.ask(&bytes, &[]);
        assert_eq!((welcome.bytes.len(), &welcome.bytes[..12]), (40, &control_header()[..]), "{what}");
        assert_eq!(u16_at(&welcome.bytes, 12), 1, "{what}: the version in force");
        assert_eq!(u64_at(&welcome.bytes, 24), features, "{what}: features");
        assert!((1..=64).contains(&u16_at(&welcome.bytes, 14)) && (1..=4096).contains(&u32_at(&welcome.bytes, 16)), "{what}");
        assert!(u32_at(&welcome.bytes, 20) == 0 && u64_at(&welcome.bytes, 32) <= 1 << 30, "{what}");
    }
    for (what, bytes) in [
        ("newer", hello(2, 3, 0)),
        ("older", hello(0, 0, 0)),
        ("the largest below the smallest", hello(2, 1, 0)),
        ("the largest below the smallest", hello(1, 0, 0)),
        ("newer, header too", newer(2, 9)),
    ] {
        let control = Socket::connect(&daemon.socket());
        control.send(&bytes, &[]);
        control.assert_refused(1, what);
        control.assert_closed();
    }
}

fn control_header() -> Vec<u8> {
    control(WELCOME, 40)[..12].to_vec()
}

/// checks: R-4.3-6, R-4.3-7, R-4.3-8, R-4.5-3
#[test]
fn an_attach_that_cannot_be_granted_is_refused_with_its_code() {
    let (daemon, mut correct_client) = daemon();
    let good = Wanted::disk("a");
    let exclusive = Wanted { flags: 2, ..good };
    for (what, wanted, code) in [
        ("service 0", Wanted { service: 0, ..good }, 2),
        ("calls", Wanted { service: 2, ..good }, 2),
        ("service 3", Wanted { service: 3, ..good }, 2),
        ("a claim without its feature", Wanted { flags: 4, ..good }, 2),
        ("to ignore claims, without the feature", Wanted { flags: 8, ..good }, 2),
        ("flag 16", Wanted { flags: 16, ..good }, 2),
        ("the last flag", Wanted { flags: 1 << 31, ..good }, 2),
        ("no queue", Wanted { queues: 0, ..good }, 2),
        ("depth 0", Wanted { depth: 0, ..good }, 2),
        ("no name", Wanted { name: b"", ..good }, 3),
        ("another name", Wanted { name: b"A", ..good }, 3),
        ("a name of 64 bytes", Wanted { name: &[b'a'; 64], ..good }, 3),
        ("a wrong service of an unknown disk", Wanted { service: 9, name: b"", ..good }, 2),
        ("alone, beside another", Wanted { name: b"w", ..exclusive }, 5),
    ] {
        let control = greeted(&daemon);
        control.send(&attach(&wanted), &[]);
        control.assert_refused(code, what);
        control.assert_closed();
    }
    let alone = Client::attach(&daemon, &exclusive);
    let control = greeted(&daemon);
    control.send(&attach(&good), &[]);
    control.assert_refused(5, "beside an exclusive client");
    drop(alone);
    correct_client.check();
}

/// checks: R-4.5-2
#[test]
fn read_only_attachment_cannot_write() {
    let (daemon, _correct_client) = daemon();
    for (flags, capability, status) in [(0, 1, 0), (1, 0, 5)] {
        let mut client = Client::attach(&daemon, &Wanted { flags, ..Wanted::disk("a") });
        assert_eq!(u32_at(client.info(), 36) & 1, capability, "flags {flags}");
        assert_eq!(client.ask(&transfer(WRITE, 1, 0, (0, 1, 0))), status, "flags {flags}");
        for operation in [DISCARD, ZERO] {
            let range = request((operation, 0, 0), 3, 0, &8_u64.to_le_bytes(), 0);
            assert_eq!(client.ask(&range), status, "operation {operation}, flags {flags}");
        }
        assert_eq!(client.ask(&transfer(READ, 2, 0, (0, 1, 0))), 0, "flags {flags}");
    }
}

/// checks: R-4.3-9, R-4.3-10, R-4.3-11, R-4.3-12, R-4.3-14, R-4.6-1
#[test]
fn memory_that_cannot_be_registered_is_refused_and_the_attachment_stays() {
    let (daemon, _correct_client) = daemon();
    let mut client = Client::attach(&daemon, &Wanted::disk("a"));
    let held = memory_file(8192, SHRINK);
    assert_eq!(client.register(5, 3, 8192, &held).bytes, about_region(REGISTERED, 5));
    let good = memory_file(4096, SHRINK);
    let unsealed = memory_file(4096, SealFlags::GROW);
    let written = memory_file(4096, SHRINK | SealFlags::WRITE);
    let in_future = memory_file(4096, SHRINK | SealFlags::FUTURE_WRITE);
    let no_memory = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd");
    let two = [good.as_fd(), good.as_fd()];
    // The order of 4.3's rows: the id before the length, the length before the descriptor.
    for (what, (id, access, length), files, code) in [
        ("id 0", (0, 3, 4096), &[good.as_fd()][..], 7),
        ("id 64", (64, 3, 4096), &[good.as_fd()], 7),
        ("the last id", (u16::MAX, 3, 4096), &[good.as_fd()], 7),
        ("an id in use", (5, 3, 4096), &[good.as_fd()], 7),
        ("no access", (1, 0, 4096), &[good.as_fd()], 7),
        ("unknown access", (1, 4, 4096), &[good.as_fd()], 7),
        ("no length", (1, 3, 0), &[good.as_fd()], 7),
        ("a length above 2^41", (1, 3, (1 << 41) + 1), &[good.as_fd()], 7),
        ("the largest length", (1, 3, u64::MAX), &[good.as_fd()], 7),
        ("2^41, which is above the limit", (1, 3, 1 << 41), &[good.as_fd()], 6),
        ("above the limit, and no descriptor", (1, 3, 1 << 41), &[], 6),
        ("no descriptor", (1, 3, 4096), &[], 7),
        ("an id in use, and no descriptor", (5, 3, 4096), &[], 7),
        ("two descriptors", (1, 3, 4096), &two, 7),
        ("longer than the file", (1, 3, 4097), &[good.as_fd()], 7),
        ("a file that can shrink", (1, 3, 4096), &[unsealed.as_fd()], 7),
        ("a file that is not to be written", (1, 2, 4096), &[written.as_fd()], 7),
        ("a file that is not to be written", (1, 3, 4096), &[in_future.as_fd()], 7),
        ("no memory file", (1, 3, 4096), &[no_memory.as_fd()], 7),
    ] {
        assert_refusal(&client.control.ask(&register(id, access, length), files), code, what);
    }
    for id in [0, 1, 63, 64, u16::MAX] {
        assert_refusal(&client.control.ask(&about_region(UNREGISTER, id), &[]), 7, "UNREGISTER of no memory");
    }
    assert_eq!(client.register(1, 1, 4096, &written).bytes, about_region(REGISTERED, 1), "to be loaded from only");
    assert_eq!(client.ask(&transfer(READ, 1, 0, (0, 16, 5))), 0, "the attachment is unchanged");
}

/// checks: R-4.6-2, R-4.6-3, R-3.4-1, R-3.4-2, R-3.4-3
#[test]
fn registered_memory_may_be_named_from_the_answer_on_until_it_is_taken_back() {
    let (daemon, _correct_client) = daemon();
    let mut client = Client::attach(&daemon, &Wanted { queues: 2, ..Wanted::disk("a") });
    // The pool, by id 0 from its own beginning, both ways.
    client.fill(512, &[7; 512]);
    assert_eq!(client.ask(&transfer(WRITE, 1, 3, (1, 1, 0))), 0);
    assert_eq!(client.ask(&transfer(READ, 1, 3, (2, 1, 0))), 0);
    assert_eq!(client.pool(1024, 512), [7; 512]);
    let pool_sectors = u32::try_from(client.pool_bytes / 512).expect("small");
    assert_eq!(client.ask(&transfer(READ, 1, 3, (pool_sectors - 1, 1, 0))), 0);
    assert_eq!(client.ask(&transfer(READ, 1, 3, (pool_sectors, 1, 0))), 4);
    // A sector and a half: one can be named.
    let file = memory_file(4096, SHRINK);
    let mapped = Mapped::new(&file, 4096);
    for round in 0..3_u8 {
        assert_eq!(client.register(63, 3, 512 + 511, &file).bytes, about_region(REGISTERED, 63));
        mapped.write(0, &[round; 1024]);
        for queue in 0..2 {
            assert_eq!(client.ask_on(queue, &transfer(WRITE, 2, 9, (0, 1, 63))), 0, "queue {queue}");
            assert_eq!(client.ask_on(queue, &transfer(READ, 2, 9, (1, 1, 63))), 4, "the half sector, queue {queue}");
        }
        assert_eq!(client.ask(&transfer(READ, 2, 9, (0, 1, 0))), 0);
        assert_eq!(client.pool(0, 512), [round; 512]);
        assert_eq!(client.control.ask(&about_region(UNREGISTER, 63), &[]).bytes, about_region(UNREGISTERED, 63));
        assert_eq!(client.ask(&transfer(READ, 2, 9, (0, 1, 63))), 4, "it is unregistered");
    }
    assert_eq!(client.register(1, 1, 4096, &file).kind(), REGISTERED);
    assert_eq!(client.register(2, 2, 4096, &file).kind(), REGISTERED);
    for (operation, id, status) in [(READ, 1, 4), (WRITE, 1, 0), (READ, 2, 0), (WRITE, 2, 4)] {
        assert_eq!(client.ask(&transfer(operation, 3, 0, (0, 1, id))), status, "operation {operation}, id {id}");
    }
}

/// checks: R-4.6-4
#[test]
fn memory_taken_back_too_early_is_there_until_requests_in_flight_are_answered() {
    let daemon = Daemon::start(&["--disk", "a=delay:100ms:memory:1M", "--disk", "w=memory:1M", "--workers", "1"]);
    let mut other = Client::attach(&daemon, &Wanted::disk("w"));
    let mut client = Client::attach(&daemon, &Wanted { queues: 2, depth: 2, ..Wanted::disk("a") });
    let file = memory_file(4096, SHRINK);
    assert_eq!(client.register(1, 3, 4096, &file).kind(), REGISTERED);
    client.publish(&transfer(READ, 1, 0, (0, 1, 1)));
    client.publish(&transfer(WRITE, 2, 8, (0, 1, 1)));
    // The only worker visits every queue before it completes so many requests of one: both are in flight.
    for tag in 0..200 {
        assert_eq!(other.ask(&flush(tag)), 0);
    }
    client.control.send(&about_region(UNREGISTER, 1), &[]);
    client.publish_on(1, &transfer(READ, 3, 0, (0, 1, 1)));
    let answer = client.control.receive().expect("an answer");
    assert_eq!(answer.bytes, about_region(UNREGISTERED, 1));
    // Published before the answer, so they are in the ring when the answer arrives.
    let mut first = [client.completion(), client.completion()];
    first.sort_unstable();
    assert_eq!(first, [(1, 0), (2, 0)], "those in flight are done");
    let (tag, status) = client.completion_on(1);
    assert!(tag == 3 && [0, 4].contains(&status), "{status}");
    assert_eq!(client.ask(&transfer(READ, 4, 0, (0, 1, 1))), 4);
}
