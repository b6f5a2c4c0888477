//! Malformed and fuzzed frames of a program that knows nothing of us (scapy), into a TAP device, while two other ports exchange frames.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fipsee_net::{AttachOptions, Port};
use fipsee_ring::clock;
use fipsee_testkit::netns::Namespace;
use fipsee_testkit::process::Guard;
use fipsee_testkit::{Daemon, Scratch, eventually, skip};
use serde_json::Value;

use super::tap::Ends;
use super::{frame, mac, options, stat};

/// Debian's Python, for which its scapy is installed.
const PYTHON: &str = "/usr/bin/python3";
const SCRIPT: &str = include_str!("malformed.py");
const MARK: &[u8] = b"must not arrive";
const OWN_IP: [u8; 4] = [10, 9, 0, 1];
const OWN_IP6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// Buffers of a victim: more than all that scapy sends, so that what it loses is not for want of CPU time.
const DEPTH: u32 = 2048;

/// A daemon in the namespace. Port `h` is its device, which has nothing to say of its own; `a` and `b` are the victims.
fn start(space: &Namespace) -> Daemon {
    space.run("ip tuntap add dev fip0 mode tap");
    space.run("ip link set dev fip0 addrgenmode none txqueuelen 4096");
    let dir = Scratch::new();
    let port = |name, number, keys| format!("[[network.port]]\nname = \"{name}\"\nmac = \"02:00:00:00:00:0{number}\"\n{keys}\n");
    let h = "tap = \"fip0\"\nflood_limit = 100\nips = [\"10.9.0.1\", \"2001:db8::1\"]";
    let ports = [port("a", 1, ""), port("b", 4, ""), port("h", 2, h)].concat();
    dir.configure(&format!("max_depth = {DEPTH}\nmax_pool_bytes = \"64M\"\n[[network]]\nname = \"lan\"\nmtu = 1400\n{ports}"));
    let prefix = space.prefix();
    let daemon = Daemon::start_in(dir, &prefix.each_ref().map(String::as_str), &["--config", "{dir}/f.toml", "--workers", "1"]);
    // Longer than the network's, so that the kernel lets frames pass that are too long.
    space.run("ip link set dev fip0 mtu 9000 up");
    daemon
}

/// What came of the stranger is of its own addresses.
#[track_caller]
fn check_stranger(found: &[u8]) {
    let ips = |at: usize, allowed: &[&[u8]]| allowed.iter().any(|ip| found.get(at..at + ip.len()) == Some(*ip));
    let is_own = match found[12..14] {
        _ if found[6..12] != mac(2).0 || found.windows(MARK.len()).any(|part| part == MARK) => false,
        [8, 0] => found[14] >> 4 == 4 && ips(26, &[&OWN_IP, &[0; 4]]),
        [8, 6] => found[22..28] == mac(2).0 && ips(28, &[&OWN_IP, &[0; 4]]),
        [0x86, 0xdd] => found[14] >> 4 == 6 && ips(22, &[&OWN_IP6, &[0; 16]]),
        [0x81, 0] | [0x88, 0xa8] | [0x91, 0] => false,
        _ => true,
    };
    assert!(is_own, "a frame that must not arrive: {found:02x?}");
}

/// The victims' frames, one at a time to and fro; how many of the stranger's came.
struct Victims<'a> {
    is_over: &'a AtomicBool,
    exchanged: &'a AtomicU64,
    strangers: &'a AtomicU64,
}

impl Victims<'_> {
    /// Wait for this frame of the other victim. `None`: it is over.
    fn next(&self, port: &mut Port, from: u8, expected: &[u8]) -> Option<()> {
        let mut found = Vec::new();
        while !self.is_over.load(Ordering::Acquire) {
            let soon = clock::ticks() + clock::ticks_per_second() / 100;
            if !port.wait(Some(soon), &mut found).expect("the daemon lives") {
                continue;
            }
            if found[6..12] == mac(from).0 && found[12..14] == [0x88, 0xb5] {
                assert_eq!(found, expected, "lost, or out of order");
                return Some(());
            }
            check_stranger(&found);
            self.strangers.fetch_add(1, Ordering::Relaxed);
        }
        None
    }

    fn exchange(&self, port: &mut Port, (own, other): (u8, u8)) {
        for number in 0.. {
            let length = 60 + usize::try_from(number % 1300).expect("small");
            let [there, back] = [(1, 4), (4, 1)].map(|(from, to)| frame(mac(from), mac(to), length, number));
            let (mine, theirs) = if own == 1 { (&there, &back) } else { (&back, &there) };
            if own == 1 {
                port.send(mine).expect("sent");
            }
            let Some(()) = self.next(port, other, theirs) else { return };
            if own != 1 {
                port.send(mine).expect("sent");
            }
            self.exchanged.fetch_add(1, Ordering::Release);
        }
    }
}

struct Scapy(Guard, BufReader<std::process::ChildStdout>);

impl Scapy {
    fn start(space: &Namespace) -> Self {
        let mut command = space.command(PYTHON);
        command.args(["-c", SCRIPT, "fip0", "02:00:00:00:00:02", "10.9.0.1", "02:00:00:00:00:01", "10.9.0.2"]);
        let mut child: Child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Self(Guard(child), output)
    }

    /// What it has sent, by how it is to be counted.
    fn sent(&mut self) -> BTreeMap<String, u64> {
        let mut line = String::new();
        self.1.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("scapy: {error}: {line}"))
    }

    fn go_on(&mut self) {
        self.0.0.stdin.as_mut().expect("its input").write_all(b"\n").expect("it reads");
    }
}

/// Frames of `h` that were sent, and those refused, by reason, once there are so many in all.
fn counted(daemon: &Daemon, all: u64) -> (u64, BTreeMap<String, u64>) {
    let look = || {
        let of_h = stat(daemon, "h");
        let refused: BTreeMap<String, u64> = serde_json::from_value::<BTreeMap<String, Value>>(of_h["refused"].clone())
            .expect("counts")
            .into_iter()
            .filter_map(|(reason, count)| Some((reason, count.as_u64().filter(|count| *count > 0)?)))
            .collect();
        (of_h["sent"].as_u64().expect("a count"), refused)
    };
    eventually(&format!("each of {all} frames is counted"), || {
        let (sent, refused) = look();
        sent + refused.values().sum::<u64>() >= all
    });
    look()
}

/// What scapy reported of its malformed frames is what the counters of its port say; returns how many frames there were.
fn check_malformed(daemon: &Daemon, mut expected: BTreeMap<String, u64>) -> u64 {
    let all = expected.values().sum();
    let (sent, mut refused) = counted(daemon, all);
    let (storm, limited) = (expected.remove("storm").expect("a storm"), refused.remove("limited").unwrap_or(0));
    let taken = expected.remove("sent").expect("some are right");
    assert_eq!(refused, expected);
    // A tenth of what is allowed in a second passes at once; more on a machine that takes longer.
    assert!((1..=storm - 10).contains(&limited), "{limited} of {storm} limited");
    assert_eq!(sent, taken + storm - limited);
    all
}

#[test]
fn malformed_frames_of_scapy_are_refused_and_counted_and_cost_others_nothing() {
    let what = "malformed frames of scapy";
    let Some([space]) = Namespace::several(what, &["scapy"]) else { return };
    if !Command::new(PYTHON).args(["-c", "import scapy"]).status().is_ok_and(|status| status.success())
        || !Path::new(PYTHON).exists()
    {
        return skip(what, &format!("{PYTHON} has no scapy; install Debian's python3-scapy"));
    }
    let daemon = start(&space);
    let attach = |name| {
        let options = AttachOptions { depth: DEPTH, buffer_bytes: Some(2048), ..options(name) };
        Port::attach(&daemon.socket(), &options).expect("attached")
    };
    let (mut a, mut b) = (attach("a"), attach("b"));
    let (is_over, exchanged, strangers) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let victims = Victims { is_over: &is_over, exchanged: &exchanged, strangers: &strangers };
    std::thread::scope(|scope| {
        let _ends = Ends(&is_over);
        let threads = [scope.spawn(|| victims.exchange(&mut a, (1, 4))), scope.spawn(|| victims.exchange(&mut b, (4, 1)))];
        let goes_on = || {
            let before = exchanged.load(Ordering::Acquire);
            eventually("the victims go on", || {
                assert!(threads.iter().all(|thread| !thread.is_finished()), "one of them has failed");
                exchanged.load(Ordering::Acquire) > before + 100
            });
        };
        goes_on();
        let mut scapy = Scapy::start(&space);
        let malformed = check_malformed(&daemon, scapy.sent());
        goes_on();
        scapy.go_on();
        let fuzzed: u64 = scapy.sent().values().sum();
        let (sent, refused) = counted(&daemon, malformed + fuzzed);
        assert_eq!(sent + refused.values().sum::<u64>(), malformed + fuzzed, "each once: {sent} {refused:?}");
        goes_on();
    });
    assert!(strangers.load(Ordering::Relaxed) > 100, "what is right arrives");
    for victim in ["a", "b"] {
        let of_victim = stat(&daemon, victim);
        let refused = of_victim["refused"].as_object().expect("counts").values().filter_map(Value::as_u64).sum::<u64>();
        assert!(of_victim["dropped"] == 0 && refused == 0, "{of_victim}");
    }
}
