//! The second client of the protocol, in C over `include/` alone (`c/net`), beside the Rust one.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::LazyLock;

use fipsee_net::frame::Mac;
use fipsee_net::wire::{CHECKSUM_VALID, OFFLOAD_CHECKSUM, OFFLOADS, Offload, SEGMENT_TCP4, Status};
use fipsee_net::{AttachOptions, Port};
use fipsee_testkit::{Daemon, Guard};
use serde_json::json;
use zerocopy::IntoBytes;

use super::offloads::{TCP, assert_complete, tcp};
use super::{all_sent, assert_nothing, attach, frame, lan, mac, next, options, stat};

/// In small frames and others, with first bytes of either length, and to the longest.
const LENGTHS: [usize; 14] = [14, 15, 55, 56, 57, 58, 63, 64, 65, 127, 1514, 2049, 9013, 9014];

/// Under sanitizers: no access beyond a buffer, nothing undefined.
fn compiled(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("net-{name}"));
    let mut compiler = Command::new("gcc");
    compiler.args(["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic"]);
    compiler.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    for include in ["include", "c/fio"] {
        compiler.arg("-I").arg(root.join(include));
    }
    compiler.arg("-o").arg(&program);
    compiler.arg(root.join(format!("c/net/{name}.c")));
    compiler.args(["c/net/changes.c", "c/net/frames.c", "c/net/port.c", "c/fio/control.c"].map(|source| root.join(source)));
    let said = compiler.output().unwrap_or_else(|error| panic!("cannot run gcc: {error}; install it (Debian: gcc)"));
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    program
}

#[test]
fn c_client_over_the_headers_alone_echoes_frames_of_every_length() {
    const ROUNDS: u64 = 40;
    let daemon = lan(9000, ["", "", ""]);
    let mut a = attach(&daemon.socket(), "a");
    let count = ROUNDS * LENGTHS.len() as u64;
    let mut command = Command::new(compiled("echo"));
    command.arg(daemon.socket()).args(["lan/b", &count.to_string()]).stdout(Stdio::piped());
    let mut echo = Guard(command.spawn().expect("it starts"));
    let mut said = BufReader::new(echo.0.stdout.take().expect("its output"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    for round in 0..ROUNDS {
        // One after the other, and as many at once as the C client has buffers.
        let check = |a: &mut Port, length: usize, seed: u64| {
            let back = next(a);
            let mut expected = frame(mac(1), mac(2), length, seed);
            expected[..6].copy_from_slice(&mac(1).0);
            expected[6..12].copy_from_slice(&mac(2).0);
            assert!(back == expected, "a frame of {length} bytes came back as one of {}", back.len());
        };
        if round % 2 == 0 {
            for (seed, length) in (100 * round..).zip(LENGTHS) {
                a.send(&frame(mac(1), mac(2), length, seed)).expect("sent");
                check(&mut a, length, seed);
            }
        } else {
            (100 * round..)
                .zip(LENGTHS)
                .for_each(|(seed, length)| a.stage(&frame(mac(1), mac(2), length, seed)).expect("staged"));
            a.submit();
            (100 * round..).zip(LENGTHS).for_each(|(seed, length)| check(&mut a, length, seed));
        }
    }
    all_sent(&mut a);
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("the rest");
    assert!(echo.0.wait().expect("it ends").success());
    assert_eq!(rest, format!("1 refused, the newest with status {}\n", Status::WrongSource.to_wire()));
    assert_eq!((stat(&daemon, "b")["sent"].as_u64(), a.refused()), (Some(count), (0, None)));
}

/// `c/net/probe.c`, which does what it is asked for.
struct Probe {
    child: Guard,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Probe {
    fn command(daemon: &Daemon, pairs: u16, offloads: u32, least_mtu: u16) -> Command {
        static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| compiled("probe"));
        let mut command = Command::new(&*PROGRAM);
        command
            .arg(daemon.socket())
            .arg("lan/b")
            .args([u32::from(pairs), offloads, least_mtu.into()].map(|given| given.to_string()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    /// Attached to `lan/b`, with so many pairs and these offloads granted.
    fn attach(daemon: &Daemon, pairs: u16, offloads: u32, max_frame_bytes: u32) -> Self {
        let mut child = Guard(Self::command(daemon, pairs, offloads, 0).spawn().expect("it starts"));
        let (input, output) = child.0.stdin.take().zip(child.0.stdout.take()).expect("its pipes");
        let mut probe = Self { child, input, output: BufReader::new(output) };
        assert_eq!(probe.line(), format!("ready {pairs} {offloads} {max_frame_bytes}"));
        probe
    }

    #[track_caller]
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        assert!(line.ends_with('\n'), "the C client ended");
        line.trim_end().to_owned()
    }

    #[track_caller]
    fn ask(&mut self, request: &str) -> String {
        writeln!(self.input, "{request}").expect("it reads");
        self.line()
    }

    /// Send by this pair: what it says of the frames that were refused.
    #[track_caller]
    fn send(&mut self, pair: usize, frame: &[u8], offload: Offload) -> String {
        self.ask(&format!("send {pair} {} {}", digits(offload.as_bytes()), digits(frame)))
    }

    /// The next frame, the pair that it came by, and its offload.
    #[track_caller]
    fn receive(&mut self) -> (usize, Vec<u8>, Vec<u8>) {
        let said = self.ask("receive");
        let words: Vec<&str> = said.split(' ').collect();
        let ["frame", pair, offload, frame] = words[..] else { panic!("{said}") };
        (pair.parse().expect("a number"), bytes(frame), bytes(offload))
    }

    fn end(mut self) {
        drop(self.input);
        assert!(self.child.0.wait().expect("it ends").success());
    }
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(digits: &str) -> Vec<u8> {
    let digit = |digit: u8| u8::try_from(char::from(digit).to_digit(16).expect("a digit")).expect("less than 16");
    digits.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// checks: R-10.8-1, R-10.8-2, R-10.9-1, R-10.9-3
#[test]
fn c_client_acknowledges_events_and_names_groups() {
    let daemon = lan(1500, ["", "", ""]);
    let (mut a, mut b) = (attach(&daemon.socket(), "a"), Probe::attach(&daemon, 2, 0, 1518));
    assert_eq!(b.ask("look"), "nothing");
    for round in 0..3 {
        for (number, link) in [(2 * round + 1, "down"), (2 * round + 2, "up")] {
            daemon.ask(&json!({ "method": "net.set", "port": "lan/b", "down": link == "down" }));
            let mut said = [b.ask("receive"), b.ask("receive")];
            said.sort();
            assert_eq!(said, [0, 1].map(|pair| format!("changed {pair} {number} {link} 1500 020000000002")));
        }
    }
    assert_eq!(b.ask("look"), "nothing");
    for (number, request, state) in [
        (7, json!({ "method": "net.set_mtu", "network": "lan", "mtu": 1400 }), "1400 020000000002"),
        (8, json!({ "method": "net.set", "port": "lan/b", "mac": "02:00:00:00:00:0b" }), "1400 02000000000b"),
    ] {
        daemon.ask(&request);
        let mut said = [b.ask("receive"), b.ask("receive")];
        said.sort();
        assert_eq!(said, [0, 1].map(|pair| format!("changed {pair} {number} up {state}")));
    }
    let (group, other) = (Mac([0x33, 0x33, 0, 0, 0, 1]), Mac([0x33, 0x33, 0xff, 0, 0, 2]));
    let group_digits = digits(&group.0);
    let mut comes = |b: &mut Probe, to: Mac, expected: bool| {
        // Beside one that comes in any case, perhaps by the other pair.
        let sent = [frame(mac(1), to, 60, 1), frame(mac(1), Mac::BROADCAST, 60, 2)];
        sent.iter().for_each(|sent| a.send(sent).expect("sent"));
        all_sent(&mut a);
        let mut found: Vec<Vec<u8>> = sent.iter().skip(usize::from(!expected)).map(|_| b.receive().1).collect();
        found.sort();
        assert!(found == sent[usize::from(!expected)..], "{to}: {found:?}");
        assert_eq!(b.ask("look"), "nothing");
    };
    comes(&mut b, other, true);
    assert_eq!(b.ask(&format!("join {group_digits}")), "given 0 0");
    comes(&mut b, group, true);
    comes(&mut b, other, false);
    assert_eq!(b.ask(&format!("leave {group_digits}")), "given 0 0");
    comes(&mut b, group, false);
    assert_eq!(b.ask("all"), "given 0 0");
    comes(&mut b, other, true);
    assert_eq!(b.ask("none"), "given 0 0");
    comes(&mut b, other, false);
    assert_eq!(b.ask("join 020000000009"), format!("given 1 {}", Status::Invalid.to_wire()));
    for number in 0..64 {
        assert_eq!(b.ask(&format!("join 3333000000{number:02x}")), format!("given 1 {}", Status::Invalid.to_wire()));
    }
    assert_eq!(b.ask(&format!("join {}", digits(&other.0))), format!("given 2 {}", Status::Limited.to_wire()));
    b.end();
}

/// checks: R-10.1-5, R-10.4-9
#[test]
fn c_client_gets_each_flow_by_one_of_its_pairs_and_sends_by_each() {
    let daemon = lan(9000, ["any_source = true", "", ""]);
    let (mut a, mut b) = (attach(&daemon.socket(), "a"), Probe::attach(&daemon, 4, 0, 9018));
    let mut pairs = [None; 32];
    let sent = |source: u8, round| frame(mac(source), mac(2), LENGTHS[usize::from(source) % LENGTHS.len()], round);
    for round in 0..3 {
        // All at once: the buffers of the pairs hold them side by side.
        (16..48).for_each(|source| a.stage(&sent(source, round)).expect("staged"));
        all_sent(&mut a);
        for _ in 16..48 {
            let (by, found, _) = b.receive();
            let source = found[11];
            assert!(found == sent(source, round), "from {source}: {} bytes", found.len());
            assert_eq!(*pairs[usize::from(source) - 16].get_or_insert(by), by, "of one flow");
        }
    }
    let used = (0..4).filter(|pair| pairs.contains(&Some(*pair))).count();
    assert!(used > 1, "{pairs:?}");
    for pair in 0..4 {
        let sent = frame(mac(2), mac(1), 2000, pair as u64);
        assert_eq!(b.send(pair, &sent, Offload::NONE), "given 0 0");
        assert_eq!(next(&mut a), sent);
    }
    b.end();
}

/// checks: R-10.1-1, R-10.5-1, R-10.5-3
#[test]
fn c_client_leaves_checksums_and_segments_to_others_and_takes_theirs() {
    let daemon = lan(1500, ["", "", ""]);
    // One frame is 65 segments at once.
    let with = |port, offloads, depth| {
        Port::attach(&daemon.socket(), &AttachOptions { offloads, depth, ..options(port) }).expect("attached")
    };
    let (mut a, mut c) = (with("a", OFFLOADS, 64), with("c", 0, 256));
    let mut b = Probe::attach(&daemon, 1, OFFLOADS, 65_553);
    let from_b = |to: u8, payload: usize| {
        let mut frame = tcp(to, payload, 1);
        frame[11] = 2;
        frame
    };
    let segments = Offload { segmentation: SEGMENT_TCP4, segment_bytes: 1000, ..TCP };
    let received = |offload: Offload| Offload { header_bytes: if offload.segmentation == 0 { 0 } else { 54 }, ..offload };
    for payload in [0, 1, 20, 1460, 40_000, 65_000] {
        let offload = if payload > 1460 { segments } else { TCP };
        a.stage_offloaded(&tcp(2, payload, 1), offload).expect("staged");
        a.submit();
        let (_, found, left) = b.receive();
        assert!(found == tcp(2, payload, 1), "{payload} bytes");
        assert_eq!(left, received(offload).as_bytes());
        assert_eq!(b.send(0, &from_b(1, payload), offload), "given 0 0");
        assert!(next(&mut a) == from_b(1, payload), "{payload} bytes");
        assert_eq!(a.received_offload(), received(offload));
        assert_eq!(b.send(0, &from_b(3, payload), offload), "given 0 0");
        for _ in 0..payload.div_ceil(if payload > 1460 { 1000 } else { 1460 }).max(1) {
            assert_complete(&next(&mut c));
        }
    }
    let valid = Offload { flags: CHECKSUM_VALID, ..Offload::NONE };
    a.stage_offloaded(&frame(mac(1), mac(2), 60, 5), valid).expect("staged");
    a.send(&frame(mac(1), mac(2), 60, 6)).expect("sent");
    assert_eq!(b.receive(), (0, frame(mac(1), mac(2), 60, 5), valid.as_bytes().to_vec()));
    assert_eq!(b.receive(), (0, frame(mac(1), mac(2), 60, 6), Offload::NONE.as_bytes().to_vec()));
    let wrong = Offload { checksum_start: 3000, ..TCP };
    assert_eq!(b.send(0, &from_b(1, 20), wrong), format!("given 1 {}", Status::BadOffload.to_wire()));
    b.end();
    let mut b = Probe::attach(&daemon, 1, OFFLOAD_CHECKSUM, 1518);
    assert_eq!(b.send(0, &from_b(1, 400), segments), format!("given 1 {}", Status::Unsupported.to_wire()));
    a.stage_offloaded(&tcp(2, 3000, 1), segments).expect("staged");
    a.submit();
    for _ in 0..3 {
        assert_complete(&b.receive().1);
    }
    b.end();
    assert_nothing(&mut a);
    let refused = Probe::command(&daemon, 1, 0, 1501).stderr(Stdio::piped()).output().expect("it runs");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("an MTU of 1500, and the client needs 1501"), "{said}");
}
