//! One side of a channel with a given wait mode, and the process that answers.

use std::convert::Infallible;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use fipsee_block::wire::PROFILE;
use fipsee_ring::channel::{ClientQueue, RegionLayout, ServerQueue};
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::pace::FirstLook;
use fipsee_ring::port::Port;
use fipsee_ring::region::{Access, Region};
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_ring::tuning::Tuning;
use fipsee_ring::wait::{Backoff, DEFAULT_LOOK, Next, WaitMode};
use fipsee_ring::{Message, clock, cpu};
use rustix::event::{PollFd, PollFlags};
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

use crate::error::Error;
use crate::process;

/// Word 1 of a message: answer.
pub(super) const ANSWER: u64 = 0;
/// Word 1: answer with the processor time used so far, in nanoseconds, in word 2.
pub(super) const ANSWER_WITH_CPU_TIME: u64 = 1;
/// Word 1: end.
const STOP: u64 = 2;

/// Calls outstanding; one at a time is sent.
const DEPTH: u32 = 4;
/// How long the memory may take to arrive; it is sent immediately.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(10);
/// Empty polls between two checks whether the other side is alive.
const LOOKS_PER_LIVENESS_CHECK: u32 = 4096;

/// Time on a clock that both sides share: the time-stamp counter where all CPUs count alike, else the system's nanoseconds, which
/// take longer to read.
#[inline(always)]
fn shared_time() -> u64 {
    if cpu::features().has_invariant_tsc { clock::ticks_fenced() } else { nanoseconds(ClockId::Monotonic) }
}

/// Nanoseconds since `earlier`. The counts are subtracted first: each process has measured the counter's rate for itself.
#[inline(always)]
fn ns_since(earlier: u64) -> u64 {
    let elapsed = shared_time().saturating_sub(earlier);
    if cpu::features().has_invariant_tsc { clock::ticks_to_ns(elapsed) } else { elapsed }
}

/// The name of that clock.
pub(super) fn shared_clock() -> &'static str {
    if cpu::features().has_invariant_tsc { "tsc" } else { "monotonic" }
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// The side that calls.
pub(super) struct Caller {
    port: Port,
    /// To the other process.
    socket: Seqpacket,
    sequence: u64,
}

impl Caller {
    /// Lay out a channel, hand its other end over `socket`, and wait for answers in `mode`.
    pub(super) fn new(mode: WaitMode, socket: Seqpacket) -> Result<Self, Error> {
        let layout = RegionLayout::plan(&PROFILE, 1, DEPTH, 0, 1);
        let region = Region::create("fipsee-waits", layout.region_bytes);
        let region = Arc::new(region.map_err(|error| Error::io("create shared memory", &error))?);
        layout.write_to(&region).map_err(|fault| fault.to_string())?;
        let doorbells = EventDoorbell::new().and_then(|event| Ok((event, SocketDoorbell::pair()?)));
        let (daemon_doorbell, (their_end, our_doorbell)) = doorbells.map_err(|error| Error::io("make doorbells", &error))?;
        let sent =
            socket.send(&region.length_bytes().to_le_bytes(), &[region.as_fd(), daemon_doorbell.as_fd(), their_end.as_fd()]);
        sent.map_err(|error| Error::io("hand memory to the answering process", &error))?;
        // Only the wait is measured, not the hold before it.
        let tuning = Tuning { first_look: FirstLook::AtOnce, ..layout.queues[0].tuning() };
        let queue = ClientQueue::open(&region, &layout.queues[0], daemon_doorbell, our_doorbell, &tuning);
        let port = Port::new(queue.map_err(|fault| fault.to_string())?, Backoff::new(mode, DEFAULT_LOOK));
        Ok(Self { port, socket, sequence: 0 })
    }

    /// Send a message and wait for its answer, whose words are returned.
    #[inline(always)]
    pub(super) fn call(&mut self, what: u64) -> Result<[u64; 8], Error> {
        self.sequence += 1;
        self.publish(what);
        let mut answer = Message::ZERO;
        while !self.port.queue.completions.receive(&mut answer) {
            let paused = self.port.pause::<Infallible>(None, false, || self.socket.is_hung_up());
            paused.map_err(|_| "the answering process is gone; see its message above, or repeat the command")?;
        }
        self.port.backoff.reset();
        self.port.queue.requests.answered();
        if answer.word(0) != !self.sequence {
            return Err("an answer is not the answer to its message: report this with the CPU's model".into());
        }
        Ok(*answer.words())
    }

    #[inline(always)]
    fn publish(&mut self, what: u64) {
        let message = Message::from_words([self.sequence, what, shared_time(), 0, 0, 0, 0, 0]);
        let published = self.port.queue.requests.publish(&message);
        debug_assert!(published.is_ok(), "one call at a time");
        self.port.published();
    }

    /// End the other side.
    pub(super) fn stop(&mut self) {
        self.publish(STOP);
    }
}

/// The command line of the second process, whose standard input is a socket to the first.
#[derive(Debug, clap::Args)]
pub(crate) struct PeerArguments {
    #[arg(long)]
    parent: i32,
    #[arg(long)]
    cpu: Option<usize>,
    #[arg(long)]
    wait: WaitMode,
}

/// Answer until the stop message, or until the other side is gone.
pub(crate) fn run_peer(arguments: &PeerArguments) -> Result<(), Error> {
    process::die_with_parent(arguments.parent, Signal::KILL)?;
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(|error| Error::io("take over the socket", &error))?;
    let socket = Seqpacket::from_fd(socket);
    let packet = socket.receive(MEMORY_TIMEOUT).map_err(|error| Error::io("receive the shared memory", &error))?;
    let stranger = "no memory came with the message; this subcommand is not for people";
    let [file, event, doorbell] = <[OwnedFd; 3]>::try_from(packet.descriptors).map_err(|_| stranger)?;
    let length_bytes = packet.bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let region = Region::from_peer(file, length_bytes, Access::ReadWrite).map_err(|error| error.to_string())?;
    let region = Arc::new(region);
    let layout = RegionLayout::read_from(&PROFILE, &region).map_err(|fault| fault.to_string())?;
    let (our_doorbell, client_doorbell) = (EventDoorbell::from_fd(event), SocketDoorbell::from_fd(doorbell));
    let queue = ServerQueue::open(&region, &layout.queues[0], our_doorbell, client_doorbell, &layout.queues[0].tuning())
        .map_err(|fault| fault.to_string())?;
    // The clock is calibrated before the CPU is shared.
    let _ = clock::ticks_per_second();
    if let Some(cpu) = arguments.cpu {
        process::bind_to_cpu(cpu)?;
    }
    answer_all(queue, Backoff::new(arguments.wait, DEFAULT_LOOK), &socket);
    Ok(())
}

/// Word 1 of an answer: from publishing to here, in nanoseconds; word 2: processor time if it was asked for.
fn answer_all(mut queue: ServerQueue, mut backoff: Backoff, socket: &Seqpacket) {
    let (mut message, mut looks) = (Message::ZERO, 0_u32);
    loop {
        if !queue.requests.receive(&mut message) {
            looks = looks.wrapping_add(1);
            let is_gone = match backoff.step_watching(false, || Some(queue.requests.watch())) {
                Next::Look => looks.is_multiple_of(LOOKS_PER_LIVENESS_CHECK) && queue.requests.is_over(|| socket.is_hung_up()),
                Next::Sleep => sleep(&mut queue, &mut backoff, socket),
            };
            if is_gone {
                return;
            }
            continue;
        }
        backoff.reset();
        let latency_ns = ns_since(message.word(2));
        let cpu_ns = match message.word(1) {
            ANSWER => 0,
            ANSWER_WITH_CPU_TIME => nanoseconds(ClockId::ProcessCPUTime),
            _ => return,
        };
        queue.completions.publish(&Message::from_words([!message.word(0), latency_ns, cpu_ns, 0, 0, 0, 0, 0]));
        if queue.completions.reader_needs_doorbell() {
            queue.client_doorbell.ring();
        }
    }
}

/// Sleep until the doorbell rings or the other side is gone. True: it is gone.
#[cold]
fn sleep(queue: &mut ServerQueue, backoff: &mut Backoff, socket: &Seqpacket) -> bool {
    // Before arming: the next doorbell is the one to sleep for.
    let _ = rustix::io::read(&queue.our_doorbell, &mut [0; 8]);
    let mut is_gone = false;
    if !queue.requests.arm_and_work_remains() {
        let mut fds = [PollFd::new(&queue.our_doorbell, PollFlags::IN), PollFd::new(socket, PollFlags::RDHUP)];
        is_gone = rustix::event::poll(&mut fds, None).is_ok() && !fds[1].revents().is_empty();
    }
    queue.requests.disarm();
    backoff.reset();
    is_gone && !queue.requests.has_message()
}
