//! Either daemon is killed at each step of a takeover: afterwards exactly one serves.
//!
//! Between the two stands the test, which forwards what they say packet by packet, and kills one of them before or after a packet.
//! So every step has its place without a trace of this in the daemon.

mod common;
mod takeover_common;

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Child;
use std::time::Duration;

use common::{Daemon, bytes_of, eventually, finish_one, stamp};
use fipsee_block::client::{Disk, Error, Queue, ReconnectPolicy};
use fipsee_block::wire::Status;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType};
use takeover_common::receive_with_descriptors;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Old,
    New,
}

/// Whom to kill, and when: at the packet of this number, before or after it is delivered.
#[derive(Clone, Copy, Debug)]
struct Plan {
    victim: Victim,
    step: usize,
    delivered: bool,
}

/// What happened.
#[derive(Debug, Default)]
struct Outcome {
    killed: bool,
    /// The name of the packet at which it was.
    at: String,
    /// The new daemon has said that it serves.
    taken: bool,
}

const POLICY: ReconnectPolicy = ReconnectPolicy {
    give_up_after: Duration::from_secs(30),
    pause_first: Duration::from_millis(1),
    pause_max: Duration::from_millis(20),
};

fn forward(to: &OwnedFd, bytes: &[u8], descriptors: &[OwnedFd]) {
    let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let rights: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    assert!(rights.is_empty() || control.push(SendAncillaryMessage::ScmRights(&rights)));
    // Whoever is to get it may be dead.
    let _ = rustix::net::sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
}

/// Stand between the two until one of them ends or is killed.
fn stand_between(listener: &UnixListener, real: &std::path::Path, plan: Plan, old: &mut Daemon, new: &mut Child) -> Outcome {
    let (stream, _) = listener.accept().expect("the new daemon asks");
    let (request, _) = receive_with_descriptors(stream.as_fd(), RecvFlags::empty()).expect("it asks");
    let mut upstream = UnixStream::connect(real).expect("the old daemon listens");
    upstream.write_all(&request).expect("it reads");
    let (answer, line) = receive_with_descriptors(upstream.as_fd(), RecvFlags::empty()).expect("it answers");
    let old_line = line.into_iter().next().expect("a line");
    let flags = SocketFlags::CLOEXEC;
    let (new_line, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
    let answer_fd: OwnedFd = stream.try_clone().expect("a descriptor").into();
    forward(&answer_fd, &answer, &[theirs]);
    let mut outcome = Outcome::default();
    let mut step = 0;
    loop {
        let mut fds = [PollFd::new(&old_line, PollFlags::IN), PollFd::new(&new_line, PollFlags::IN)];
        let patience = Timespec::try_from(common::PATIENCE).expect("small");
        assert!(rustix::event::poll(&mut fds, Some(&patience)).expect("poll") > 0, "neither says anything: {}", old.log());
        let from_new = fds[0].revents().is_empty();
        let (from, to) = if from_new { (&new_line, &old_line) } else { (&old_line, &new_line) };
        let Some((bytes, descriptors)) = receive_with_descriptors(from.as_fd(), RecvFlags::empty()) else { return outcome };
        let packet: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
        let name = packet["packet"].as_str().expect("a name").to_owned();
        outcome.taken |= name == "taken";
        let is_it = step == plan.step;
        // What was sent is with the other, whoever dies: only here can it be held back, as if its sender had died before. But who has
        // sent that it serves, serves.
        let delivers = !is_it || plan.delivered || outcome.taken && plan.victim == Victim::New;
        if delivers {
            forward(to, &bytes, &descriptors);
        }
        drop(descriptors);
        if is_it {
            match plan.victim {
                Victim::Old => old.kill_9(),
                Victim::New => {
                    new.kill().expect("a child can be killed");
                    new.wait().expect("a child can be awaited");
                }
            }
            outcome.at = name;
            outcome.killed = true;
            return outcome;
        }
        step += 1;
    }
}

/// A client that reads what it wrote, across whatever happens.
struct Survivor {
    disk: Disk,
    queues: Vec<Queue>,
    version: u64,
    reconnects: u32,
}

impl Survivor {
    fn new(daemon: &Daemon) -> Self {
        let (disk, queue) = daemon.client(&Daemon::options("f"));
        Self { disk, queues: vec![queue], version: 0, reconnects: 0 }
    }

    fn round(&mut self) {
        let buffer = self.disk.allocate(4096).expect("a pool");
        if self.version > 0 {
            self.request(|queue| queue.read(8, buffer.segment(0, 4096), 0).expect("room"));
            assert!(bytes_of(&buffer) == stamp(4096, 5, self.version), "what was written last");
        }
        self.version += 1;
        buffer.fill(0, &stamp(4096, 5, self.version));
        self.request(|queue| queue.write(8, buffer.segment(0, 4096), true, 0).expect("room"));
    }

    fn request(&mut self, stage: impl Fn(&mut Queue)) {
        stage(&mut self.queues[0]);
        self.queues[0].submit();
        let mut status = None;
        while status.is_none() {
            match self.queues[0].wait(&mut |completion| status = Some(completion.status)) {
                Ok(_) => {}
                Err(Error::Disconnected) => {
                    self.reconnects += 1;
                    self.disk.reconnect(&mut self.queues, &POLICY, &mut |_| {}).expect("somebody serves");
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(status, Some(Status::Ok));
    }
}

/// One takeover in which somebody dies; `false`: it was over before that step.
fn kill_at(plan: Plan) -> bool {
    let mut daemon = Daemon::start(&["--disk", "f=file:{dir}/disk,size=1M"]);
    let mut survivor = Survivor::new(&daemon);
    survivor.round();
    let admin = fipsee_daemon::admin::admin_path(&daemon.socket());
    let real = daemon.dir.path("real");
    std::fs::rename(&admin, &real).expect("its socket");
    let listener = UnixListener::bind(&admin).expect("a free path");
    let mut new = daemon.launch_takeover(&[]);
    let outcome = stand_between(&listener, &real, plan, &mut daemon, &mut new);
    drop(listener);
    if !outcome.killed {
        assert!(outcome.taken, "{}", daemon.log());
        daemon.await_exit();
        daemon.replace(new);
        survivor.round();
        assert_eq!(survivor.reconnects, 0);
        return false;
    }
    let new_serves = plan.victim == Victim::Old;
    if new_serves {
        // It serves what it has been given in full, or begins anew.
        daemon.replace(new);
    }
    let context = format!("{plan:?} at {}: {}", outcome.at, daemon.log());
    if plan.victim == Victim::New && outcome.taken {
        // It was the daemon when it died, and the old one is none any more: as after any death of a daemon.
        daemon.await_exit();
        return true;
    }
    for _ in 0..3 {
        survivor.round();
    }
    if plan.victim == Victim::New || outcome.at == "taken" {
        assert_eq!(survivor.reconnects, 0, "it must not notice: {context}");
    }
    // Exactly one: whoever comes now finds what the other client wrote, and nobody else has the socket or the disk.
    eventually("it can be attached to", || Disk::attach(&daemon.socket(), &Daemon::options("f")).is_ok());
    let (disk, mut queue) = daemon.client(&Daemon::options("f"));
    let buffer = disk.allocate(4096).expect("a pool");
    queue.read(8, buffer.segment(0, 4096), 0).expect("room");
    assert_eq!(finish_one(&mut queue), Status::Ok);
    assert!(bytes_of(&buffer) == stamp(4096, 5, survivor.version), "{context}");
    true
}

fn kill_everywhere(victim: Victim, delivered: bool) {
    let mut step = 0;
    while kill_at(Plan { victim, step, delivered }) {
        step += 1;
    }
    assert!(step >= 9, "greeting, two sockets, a disk, two packets about being prepared, client, queue, end, taken: {step}");
}

#[test]
fn old_daemon_dies_before_a_packet_arrives() {
    kill_everywhere(Victim::Old, false);
}

#[test]
fn old_daemon_dies_after_a_packet_arrived() {
    kill_everywhere(Victim::Old, true);
}

#[test]
fn new_daemon_dies_before_a_packet_arrives() {
    kill_everywhere(Victim::New, false);
}

#[test]
fn new_daemon_dies_after_a_packet_arrived() {
    kill_everywhere(Victim::New, true);
}
