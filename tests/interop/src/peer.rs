//! The C peer in a process of its own, and the Rust end of the pair of rings that it shares with us.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use fipsee_ring::Message;
use fipsee_ring::cpu::StoreVariant;
use fipsee_ring::doorbell::EventDoorbell;
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::region::Region;
use fipsee_ring::ring::{Cursor, Reader};
use fipsee_ring::tuning::{Choices, Tuning};
use fipsee_ring::wait::{Backoff, Next, WaitMode};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};

const SLOTS_OFFSET_BYTES: u64 = 4096;
/// Looks without a message between two checks whether the peer still runs.
const LOOKS_PER_LIVENESS_CHECK: u32 = 4096;

/// How one run is set up. "To C" is the ring that Rust writes.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// What the C program does.
    pub role: &'static str,
    pub slots: u32,
    /// Start of each ring: index, stamp.
    pub to_c: (u32, u32),
    pub from_c: (u32, u32),
    pub count: u32,
    pub wait: WaitMode,
    pub burst: u32,
    pub store: StoreVariant,
    pub choices: Choices,
    /// The C program with address and undefined-behaviour sanitizers.
    pub sanitized: bool,
}

impl Setup {
    /// The choices of the Rust side. Its stores are set separately.
    pub fn tuning(&self) -> Tuning {
        Tuning::default().with_choices(self.choices)
    }
}

/// The peer process ended, or lost a wake-up so that its alarm ended it.
#[derive(Debug)]
pub struct PeerGone(pub ExitStatus);

/// A running C peer.
#[derive(Debug)]
pub struct Peer {
    pub region: Arc<Region>,
    pub reader: Reader<MappedRing>,
    setup: Setup,
    our_doorbell: OwnedFd,
    their_doorbell: EventDoorbell,
    process: OwnedFd,
    child: Child,
}

impl Peer {
    pub fn start(setup: Setup) -> Self {
        let ring_bytes = u64::from(setup.slots) * 64;
        let region = Region::create("interop", SLOTS_OFFSET_BYTES + 2 * ring_bytes).expect("memory for the rings");
        let region = Arc::new(region);
        let from_c = MappedRing::new(&region, SLOTS_OFFSET_BYTES + ring_bytes, setup.slots, 128).expect("the ring fits");
        let their_doorbell = EventDoorbell::new().expect("a descriptor");
        let our_doorbell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("a descriptor");
        // Duplicates without close-on-exec, open only while the child starts. Other tests' children may inherit them
        // too, which does no harm: no process waits for their hang-up.
        let inherited: Vec<OwnedFd> = [region.as_fd(), their_doorbell.as_fd(), our_doorbell.as_fd()]
            .into_iter()
            .map(|fd| rustix::io::dup(fd).expect("a descriptor"))
            .collect();
        let programs = [env!("FIPSEE_INTEROP_PEER"), env!("FIPSEE_INTEROP_SANITIZED_PEER")];
        let mut command = Command::new(programs[usize::from(setup.sanitized)]);
        command.arg(setup.role).stdin(Stdio::null());
        command.args(inherited.iter().map(|fd| fd.as_raw_fd().to_string()));
        let wait = match setup.wait {
            WaitMode::Pause => 0,
            WaitMode::Adaptive => 1,
            WaitMode::Sleep => 2,
            other => panic!("the C peer knows no wait mode {other}"),
        };
        let numbers = [setup.slots, setup.to_c.0, setup.to_c.1, setup.from_c.0, setup.from_c.1, setup.count, wait, setup.burst];
        let numbers = numbers.into_iter().chain([setup.choices.word()]);
        command.args(numbers.map(|number| number.to_string()));
        let child = command.spawn().expect("the C peer starts");
        let pid = Pid::from_child(&child);
        let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).expect("a descriptor of the process");
        let reader = Reader::new(from_c, Cursor::at(setup.from_c.0, setup.from_c.1), &setup.tuning());
        Self { region, reader, setup, our_doorbell, their_doorbell, process, child }
    }

    /// The memory and start of the ring to C, for one of the writers.
    pub fn to_c(&self) -> (MappedRing, Cursor) {
        let ring = MappedRing::new(&self.region, SLOTS_OFFSET_BYTES, self.setup.slots, 0).expect("the ring fits");
        (ring.with_store(self.setup.store), Cursor::at(self.setup.to_c.0, self.setup.to_c.1))
    }

    pub fn ring(&self) {
        self.their_doorbell.ring();
    }

    /// Give the peer the CPU while the ring is full.
    pub fn let_it_run(&mut self) -> Result<(), PeerGone> {
        std::thread::yield_now();
        match self.child.try_wait().expect("the child is ours") {
            Some(status) => Err(PeerGone(status)),
            None => Ok(()),
        }
    }

    /// Wait for the next message, asleep if the mode says so. There is no timeout that could hide a lost wake-up: both
    /// sides would sleep, the alarm would end the peer, and that is reported.
    pub fn wait_for_message(&mut self) -> Result<(), PeerGone> {
        let mut backoff = Backoff::new(self.setup.wait, Duration::from_micros(20));
        let mut looks = 0_u32;
        while !self.reader.has_message() {
            if backoff.step(false) == Next::Look {
                looks += 1;
                if looks.is_multiple_of(LOOKS_PER_LIVENESS_CHECK) {
                    self.check_alive()?;
                }
                continue;
            }
            self.reader.release_all();
            if !self.reader.arm_and_work_remains() {
                self.sleep()?;
            }
            self.reader.disarm();
            backoff.reset();
        }
        Ok(())
    }

    fn check_alive(&mut self) -> Result<(), PeerGone> {
        match self.child.try_wait().expect("the child is ours") {
            Some(status) if !self.reader.has_message() => Err(PeerGone(status)),
            _ => Ok(()),
        }
    }

    fn sleep(&mut self) -> Result<(), PeerGone> {
        let mut fds = [PollFd::new(&self.our_doorbell, PollFlags::IN), PollFd::new(&self.process, PollFlags::IN)];
        while let Err(error) = rustix::event::poll(&mut fds, None) {
            assert_eq!(error, rustix::io::Errno::INTR, "cannot wait");
        }
        let rung = fds[0].revents().contains(PollFlags::IN);
        if rung {
            let mut rings = [0_u8; 8];
            rustix::io::read(&self.our_doorbell, &mut rings).expect("the doorbell was rung");
            return Ok(());
        }
        let gone = PeerGone(self.end());
        if self.reader.has_message() { Ok(()) } else { Err(gone) }
    }

    /// Wait until the peer ends by itself.
    pub fn end(&mut self) -> ExitStatus {
        self.child.wait().expect("the child is ours")
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Already ended in a passing test; in a failing one it must not outlive us.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The payload of message `sequence`; `c/peer.c` computes the same.
pub fn pattern(sequence: u32, salt: u32) -> Message {
    let mut payload = [0; 60];
    for (index, bytes) in (0_u32..).zip(payload.as_chunks_mut::<4>().0) {
        let mut mixed = sequence.wrapping_mul(0x9e37_79b1).wrapping_add(index.wrapping_mul(0x85eb_ca6b)).wrapping_add(salt);
        mixed ^= mixed >> 15;
        mixed = mixed.wrapping_mul(0x2c1b_3c6d);
        *bytes = (mixed ^ mixed >> 13).to_le_bytes();
    }
    Message::from_payload(&payload)
}

/// Is `message` number `sequence`? The stamp is the ring's.
pub fn is_pattern(message: &Message, sequence: u32, salt: u32) -> bool {
    message.to_bytes()[..60] == pattern(sequence, salt).to_bytes()[..60]
}
