//! Between the two daemons of a takeover stands the test: it forwards what they say packet by packet, and kills one of them before or
//! after a packet. So every step has its place without a trace of this in the daemon.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Child;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType};

use super::receive_with_descriptors;
use crate::common::{Daemon, TIMEOUT};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    Old,
    New,
}

/// Whom to kill, and when: at the packet of this number, before or after it is delivered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) victim: Victim,
    pub(crate) step: usize,
    pub(crate) delivered: bool,
}

/// What happened.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) killed: bool,
    /// The name of the packet at which it was.
    pub(crate) at: String,
    /// The new daemon has said that it serves.
    pub(crate) taken: bool,
}

/// Takeovers in each of which `kill_at` has somebody die one packet later, until it says that one was over before. How many there were.
pub(crate) fn kill_at_every_packet(victim: Victim, delivered: bool, kill_at: impl Fn(Plan) -> bool) -> usize {
    (0..).find(|step| !kill_at(Plan { victim, step: *step, delivered })).unwrap_or(0)
}

/// Put ourselves where new daemons ask; and where the old one hears now.
pub(crate) fn step_between(daemon: &Daemon) -> (UnixListener, PathBuf) {
    let admin = fipsee_daemon::admin::admin_path(&daemon.socket());
    let real = daemon.dir.path("real");
    std::fs::rename(&admin, &real).expect("its socket");
    (UnixListener::bind(&admin).expect("a free path"), real)
}

pub(crate) fn forward(to: &OwnedFd, bytes: &[u8], descriptors: &[OwnedFd]) {
    let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let rights: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    assert!(rights.is_empty() || control.push(SendAncillaryMessage::ScmRights(&rights)));
    // Whoever is to get it may be dead.
    let _ = rustix::net::sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
}

/// Ask the old daemon what the new one asks, and give each a line; the old one's is first.
fn introduce(stream: &UnixStream, real: &Path) -> (OwnedFd, OwnedFd, UnixStream) {
    let (request, _) = receive_with_descriptors(stream.as_fd(), RecvFlags::empty()).expect("it asks");
    let mut upstream = UnixStream::connect(real).expect("the old daemon listens");
    upstream.write_all(&request).expect("it reads");
    let (answer, line) = receive_with_descriptors(upstream.as_fd(), RecvFlags::empty()).expect("it answers");
    let old_line = line.into_iter().next().expect("a line");
    let flags = SocketFlags::CLOEXEC;
    let (new_line, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
    let answer_fd: OwnedFd = stream.try_clone().expect("a descriptor").into();
    forward(&answer_fd, &answer, &[theirs]);
    (old_line, new_line, upstream)
}

/// Stand between the two until one of them ends or is killed.
pub(crate) fn stand_between(listener: &UnixListener, real: &Path, plan: Plan, old: &mut Daemon, new: &mut Child) -> Outcome {
    let (stream, _) = listener.accept().expect("the new daemon asks");
    let (old_line, new_line, _upstream) = introduce(&stream, real);
    let mut outcome = Outcome::default();
    let mut step = 0;
    loop {
        let mut fds = [PollFd::new(&old_line, PollFlags::IN), PollFd::new(&new_line, PollFlags::IN)];
        let timeout = Timespec::try_from(TIMEOUT).expect("small");
        assert!(rustix::event::poll(&mut fds, Some(&timeout)).expect("poll") > 0, "neither says anything: {}", old.log());
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

/// Stand between the two until the new daemon has everything. Then it is refused, in a way that its word that it serves does not go
/// out any more, as when the old one has lost patience at that moment; and the old one hears that it is to go on.
pub(crate) fn refuse_at_the_end(listener: &UnixListener, real: &Path) {
    let (stream, _) = listener.accept().expect("the new daemon asks");
    let (old_line, new_line, _upstream) = introduce(&stream, real);
    loop {
        let mut fds = [PollFd::new(&old_line, PollFlags::IN), PollFd::new(&new_line, PollFlags::IN)];
        let timeout = Timespec::try_from(TIMEOUT).expect("small");
        assert!(rustix::event::poll(&mut fds, Some(&timeout)).expect("poll") > 0, "neither says anything");
        let from_new = fds[0].revents().is_empty();
        let (from, to) = if from_new { (&new_line, &old_line) } else { (&old_line, &new_line) };
        let (bytes, descriptors) = receive_with_descriptors(from.as_fd(), RecvFlags::empty()).expect("both live");
        let packet: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
        let is_end = packet["packet"] == "end";
        if is_end {
            rustix::net::shutdown(&new_line, rustix::net::Shutdown::Read).expect("a socket");
        }
        forward(to, &bytes, &descriptors);
        if is_end {
            let refused = b"{\"packet\":\"refused\",\"reason\":\"it took too long\"}";
            forward(&new_line, refused, &[]);
            forward(&old_line, refused, &[]);
            return;
        }
    }
}
