//! The test is a proxy between the two daemons of a takeover: it forwards their packets one by one, and kills one of them before
//! or after a packet. So every step is covered without test code in the daemon.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Child;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::receive_with_descriptors;
use crate::{Daemon, TIMEOUT, packets};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    Old,
    New,
}

/// The daemon to kill, and when: at the packet of this number, before or after it is delivered.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub victim: Victim,
    pub step: usize,
    pub delivered: bool,
}

/// The outcome.
#[derive(Debug, Default)]
pub struct Outcome {
    pub killed: bool,
    /// The name of the packet at which the daemon was killed.
    pub at: String,
    /// The new daemon has said that it serves.
    pub taken: bool,
}

/// Takeovers in each of which `kill_at` kills one packet later, until it returns that one was over before: after so many packets
/// at least.
pub fn kill_at_every_packet(victim: Victim, delivered: bool, kill_at: impl Fn(Plan) -> bool, packets: usize) {
    let step = (0..).find(|step| !kill_at(Plan { victim, step: *step, delivered })).unwrap_or(0);
    assert!(step >= packets, "{step} packets");
}

/// Tests in which either daemon is killed before and after each packet of a takeover.
#[macro_export]
macro_rules! deaths_at_every_packet {
    ($kill_at:path, $packets:literal) => {
        $crate::deaths_at_every_packet! { $kill_at, $packets,
            old_daemon_dies_before_a_packet_arrives Old false,
            old_daemon_dies_after_a_packet_arrived Old true,
            new_daemon_dies_before_a_packet_arrives New false,
            new_daemon_dies_after_a_packet_arrived New true,
        }
    };
    ($kill_at:path, $packets:literal, $($test:ident $victim:ident $delivered:literal,)+) => {
        $(#[test]
        fn $test() {
            let victim = $crate::takeover::between::Victim::$victim;
            $crate::takeover::between::kill_at_every_packet(victim, $delivered, $kill_at, $packets);
        })+
    };
}

/// Listen at the old daemon's admin path, and move the old daemon's socket.
pub fn intercept(daemon: &Daemon) -> (UnixListener, PathBuf) {
    let admin = fipsee_daemon::admin::admin_path(&daemon.socket());
    let real = daemon.dir.path("real");
    std::fs::rename(&admin, &real).expect("its socket");
    (UnixListener::bind(&admin).expect("a free path"), real)
}

pub fn forward(to: &OwnedFd, bytes: &[u8], descriptors: &[OwnedFd]) {
    let rights: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    // The receiver may be dead.
    let _ = packets::send(to, bytes, &rights);
}

/// The connections to both daemons of a takeover.
struct Lines {
    old: OwnedFd,
    new: OwnedFd,
    _streams: [UnixStream; 2],
}

impl Lines {
    /// Forward the new daemon's request to the old one, and the answer.
    fn connect(listener: &UnixListener, real: &Path) -> Self {
        let (stream, _) = listener.accept().expect("the new daemon asks");
        let (request, _) = receive_with_descriptors(&stream).expect("it asks");
        let mut upstream = UnixStream::connect(real).expect("the old daemon listens");
        upstream.write_all(&request).expect("it reads");
        let (answer, line) = receive_with_descriptors(&upstream).expect("it answers");
        let old = line.into_iter().next().expect("a line");
        let flags = SocketFlags::CLOEXEC;
        let (new, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
        packets::send(&stream, &answer, &[theirs.as_fd()]).expect("it reads");
        Self { old, new, _streams: [stream, upstream] }
    }

    /// The next packet of either: its name, and its delivery. `None`: that one has ended.
    fn receive(&self) -> Option<(String, impl FnOnce())> {
        let mut fds = [PollFd::new(&self.old, PollFlags::IN), PollFd::new(&self.new, PollFlags::IN)];
        let timeout = Timespec::try_from(TIMEOUT).expect("small");
        assert!(rustix::event::poll(&mut fds, Some(&timeout)).expect("poll") > 0, "neither sends anything");
        let (from, to) = if fds[0].revents().is_empty() { (&self.new, &self.old) } else { (&self.old, &self.new) };
        let (bytes, descriptors) = receive_with_descriptors(from)?;
        let packet: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
        let name = packet["packet"].as_str().expect("a name").to_owned();
        Some((name, move || forward(to, &bytes, &descriptors)))
    }
}

/// Forward between the two until one of them ends or is killed.
pub fn forward_until_killed(listener: &UnixListener, real: &Path, plan: Plan, old: &mut Daemon, new: &mut Child) -> Outcome {
    let lines = Lines::connect(listener, real);
    let mut outcome = Outcome::default();
    for step in 0.. {
        let Some((name, deliver)) = lines.receive() else { break };
        outcome.taken |= name == "taken";
        let is_it = step == plan.step;
        // A sent packet arrives even if its sender dies: only here can it be held back, as if its sender had died before. But a
        // daemon that has sent that it serves does serve.
        if !is_it || plan.delivered || outcome.taken && plan.victim == Victim::New {
            deliver();
        } else {
            drop(deliver);
        }
        if is_it {
            (outcome.at, outcome.killed) = (name, true);
            match plan.victim {
                Victim::Old => old.kill_9(),
                Victim::New => {
                    new.kill().expect("a child can be killed");
                    new.wait().expect("a child can be awaited");
                }
            }
            break;
        }
    }
    outcome
}

/// Forward between the two until the new daemon has everything. Then it is refused before it can send that it serves, as when the
/// old one times out at that moment; and the old one goes on.
pub fn refuse_at_the_end(listener: &UnixListener, real: &Path) {
    let lines = Lines::connect(listener, real);
    let mut is_end = false;
    while !is_end {
        let (name, deliver) = lines.receive().expect("both processes are alive");
        is_end = name == "end";
        if is_end {
            rustix::net::shutdown(&lines.new, rustix::net::Shutdown::Read).expect("a socket");
        }
        deliver();
    }
    for line in [&lines.new, &lines.old] {
        forward(line, b"{\"packet\":\"refused\",\"reason\":\"it took too long\"}", &[]);
    }
}
