//! The asking side: sends bursts, checks and times the answers.

use std::os::fd::AsFd;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fipsee_ring::clock;
use fipsee_ring::layout::{COLD_BYTES, SLOT_BYTES};
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::region::Region;
use fipsee_ring::ring::{Cursor, Reader, Writer};
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_ring::{Message, PeerFault};
use hdrhistogram::Histogram;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::peer::{self, Life};
use super::{Measured, SLOT_COUNT};
use crate::error::Error;
use crate::process;

/// Word 1 of the message that tells the peer to end; sequence numbers stay below.
pub(super) const STOP: u64 = u64::MAX;
/// Bursts before the measured ones: they map pages and fill caches.
const WARM_UP_BATCHES: u32 = 2000;
/// Bursts between two looks at the clock of the wall.
const BATCHES_PER_CLOCK_CHECK: u32 = 64;
/// Empty looks between two yields: far more than a round trip takes, so that a measurement never sees one unless the
/// two sides share a CPU.
const LOOKS_PER_YIELD: u32 = 4096;
/// Yields between two questions to the kernel whether the peer lives.
const YIELDS_PER_LIFE_CHECK: u32 = 16;

/// Between two empty looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Spin {
    /// A PAUSE instruction.
    Pause,
    /// Nothing.
    Bare,
    /// The CPU goes to whoever wants it: the two sides share one.
    Yield,
}

/// The two rings as one side sees them.
pub(super) struct Ends {
    pub(super) writer: Writer<MappedRing>,
    pub(super) reader: Reader<MappedRing>,
}

/// Bytes of the memory both sides map: two rings, and the cold words of both.
pub(super) const REGION_BYTES: u64 = 2 * (SLOT_COUNT as usize * SLOT_BYTES + COLD_BYTES) as u64;

/// Open the ends of the asking (`true`) or the answering side.
pub(super) fn open_ends(region: &Arc<Region>, asking: bool) -> Result<Ends, PeerFault> {
    let ring_bytes = (SLOT_COUNT as usize * SLOT_BYTES) as u64;
    let ring = |index: u64| MappedRing::new(region, index * ring_bytes, SLOT_COUNT, 2 * ring_bytes + index * COLD_BYTES as u64);
    let (calls, answers) = (ring(0)?, ring(1)?);
    let start = Cursor::at_start(0);
    Ok(match asking {
        true => Ends { writer: Writer::new(calls, start), reader: Reader::new(answers, start) },
        false => Ends { writer: Writer::new(answers, start), reader: Reader::new(calls, start) },
    })
}

/// Look until a message came; `is_alive` is asked now and then. `false`: the other side is gone.
#[inline(always)]
pub(super) fn receive(reader: &mut Reader<MappedRing>, into: &mut Message, spin: Spin, is_alive: &impl Fn() -> bool) -> bool {
    let mut looks = 0;
    while !reader.receive(into) {
        looks += 1;
        match spin {
            Spin::Pause => core::hint::spin_loop(),
            Spin::Bare => {}
            Spin::Yield => std::thread::yield_now(),
        }
        if looks == LOOKS_PER_YIELD * YIELDS_PER_LIFE_CHECK {
            looks = 0;
            if !is_alive() {
                return reader.receive(into);
            }
        }
        if looks % LOOKS_PER_YIELD == LOOKS_PER_YIELD - 1 {
            std::thread::yield_now();
        }
    }
    true
}

/// The answer to a message: every bit of the payload turned over, so that a message cannot be taken for its answer.
#[inline(always)]
pub(super) fn answer_to(message: &Message) -> Message {
    Message::from_words(message.words().map(|word| !word))
}

/// Message `sequence`: 60 bytes that differ from those of every other.
fn call(sequence: u64) -> Message {
    let mixed = sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Message::from_words([
        sequence,
        0,
        mixed,
        !mixed,
        mixed.rotate_left(17),
        sequence.rotate_left(32),
        mixed ^ sequence,
        mixed >> 32,
    ])
}

/// Is `answer` the answer to `call`, in all 60 bytes?
fn is_answer(answer: &Message, call: &Message) -> bool {
    let expected = answer_to(call);
    let half = |message: &Message| message.word(7) & 0xffff_ffff;
    answer.words()[..7] == expected.words()[..7] && half(answer) == half(&expected)
}

enum Other {
    Process { child: Child, socket: Seqpacket },
    Thread { thread: JoinHandle<()>, gone: Arc<AtomicBool> },
}

/// Two rings with the answering side at work on the other end.
pub(super) struct Exchange {
    ends: Ends,
    other: Option<Other>,
    spin: Spin,
    sequence: u64,
}

impl Exchange {
    /// Start the answering side, on the second of `cpus`, and stay on the first.
    pub(super) fn start(threads: bool, cpus: Option<[usize; 2]>, spin: Spin) -> Result<Self, Error> {
        let region = Region::create("fipsee-ping", REGION_BYTES).map_err(|error| Error::io("create shared memory", &error))?;
        let region = Arc::new(region);
        let ends = open_ends(&region, true).map_err(|fault| fault.to_string())?;
        let peer_cpu = cpus.map(|[_, peer]| peer);
        let other = if threads { start_thread(&region, peer_cpu, spin)? } else { start_process(&region, peer_cpu, spin)? };
        let exchange = Self { ends, other: Some(other), spin, sequence: 0 };
        if let Some([own, _]) = cpus {
            process::bind_to_cpu(own)?;
        }
        Ok(exchange)
    }

    /// Bursts of `queue` messages for `duration`.
    pub(super) fn measure(&mut self, queue: u32, duration: Duration) -> Result<Measured, Error> {
        let highest = clock::duration_to_ticks(Duration::from_secs(1000));
        let ticks = Histogram::<u64>::new_with_bounds(1, highest, 3);
        let mut batch_ticks = ticks.map_err(|error| format!("cannot make a histogram: {error}; report this"))?;
        let mut calls = vec![Message::ZERO; queue as usize];
        let mut answers = calls.clone();
        for _ in 0..WARM_UP_BATCHES {
            self.exchange(&mut calls, &mut answers)?;
        }
        let started = Instant::now();
        while started.elapsed() < duration {
            for _ in 0..BATCHES_PER_CLOCK_CHECK {
                batch_ticks.saturating_record(self.exchange(&mut calls, &mut answers)?);
            }
        }
        Ok(Measured { queue, batch_ticks })
    }

    /// One burst and its answers; the time from before the first store to after the last answer was copied, in ticks.
    #[inline(always)]
    fn exchange(&mut self, calls: &mut [Message], answers: &mut [Message]) -> Result<u64, Error> {
        for message in &mut *calls {
            *message = call(self.sequence);
            self.sequence += 1;
        }
        let Self { ends, other, spin, .. } = self;
        let is_alive = || is_alive(other.as_ref());
        let from = clock::ticks_fenced();
        ends.writer.publish_all(calls);
        for answer in &mut *answers {
            if !receive(&mut ends.reader, answer, *spin, &is_alive) {
                return Err(self.obituary());
            }
        }
        let to = clock::ticks_fenced();
        match calls.iter().zip(&*answers).position(|(call, answer)| !is_answer(answer, call)) {
            Some(position) => Err(format!(
                "answer {position} of a burst of {} is not the answer to its message; the ring or this machine's memory is at fault: \
                 report this with the CPU's model",
                calls.len()
            )
            .into()),
            None => Ok(to.wrapping_sub(from)),
        }
    }

    fn obituary(&mut self) -> Error {
        let how = match &mut self.other {
            Some(Other::Process { child, .. }) => {
                child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
            }
            _ => "its thread ended".to_owned(),
        };
        format!("the answering side is gone ({how}); nothing of this size was measured, repeat the command").into()
    }

    /// Tell the answering side to end, and wait for it.
    pub(super) fn stop(mut self) -> Result<(), Error> {
        self.ends.writer.publish(&Message::from_words([0, STOP, 0, 0, 0, 0, 0, 0]));
        match self.other.take() {
            Some(Other::Process { mut child, .. }) => {
                let status = child.wait().map_err(|error| Error::io("wait for the answering process", &error))?;
                if status.success() {
                    Ok(())
                } else {
                    Err(format!("the answering process failed ({status}); see its message above").into())
                }
            }
            Some(Other::Thread { thread, .. }) => thread.join().map_err(|_| "the answering thread panicked; report this".into()),
            None => Ok(()),
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        match self.other.take() {
            Some(Other::Process { mut child, .. }) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            Some(Other::Thread { thread, .. }) => {
                self.ends.writer.publish(&Message::from_words([0, STOP, 0, 0, 0, 0, 0, 0]));
                let _ = thread.join();
            }
            None => {}
        }
    }
}

fn is_alive(other: Option<&Other>) -> bool {
    match other {
        Some(Other::Process { socket, .. }) => !socket.is_hung_up(),
        Some(Other::Thread { gone, .. }) => !gone.load(Ordering::Relaxed),
        None => false,
    }
}

fn start_thread(region: &Arc<Region>, cpu: Option<usize>, spin: Spin) -> Result<Other, Error> {
    let ends = open_ends(region, false).map_err(|fault| fault.to_string())?;
    let gone = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&gone);
    let run = move || {
        let bound = cpu.map_or(Ok(()), process::bind_to_cpu);
        if bound.is_ok() {
            peer::answer_all(ends, spin, &Life::Forever);
        }
        told.store(true, Ordering::Relaxed);
    };
    let thread = std::thread::Builder::new().name("fip-ping".to_owned()).spawn(run);
    let thread = thread.map_err(|error| Error::io("start a thread", &error))?;
    Ok(Other::Thread { thread, gone })
}

fn start_process(region: &Arc<Region>, cpu: Option<usize>, spin: Spin) -> Result<Other, Error> {
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.map_err(|error| Error::io("make a pair of sockets", &error.into()))?;
    let socket = Seqpacket::from_fd(ours);
    let mut command = process::again("ping-peer");
    if let Some(cpu) = cpu {
        command.arg("--cpu").arg(cpu.to_string());
    }
    command.arg("--spin").arg(match spin {
        Spin::Pause => "pause",
        Spin::Bare => "bare",
        Spin::Yield => "yield",
    });
    let child = command.stdin(Stdio::from(theirs)).spawn().map_err(|error| Error::io("start the answering process", &error))?;
    // Closes its copy of the other end: from here on a hang-up means that the child is gone.
    drop(command);
    socket.send(b"memory", &[region.as_fd()]).map_err(|error| Error::io("hand memory to the answering process", &error))?;
    Ok(Other::Process { child, socket })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_bit_in_any_of_60_bytes_is_no_answer() {
        let call = call(7);
        let right = answer_to(&call);
        assert!(is_answer(&right, &call));
        for byte in 0..60 {
            let mut bytes = right.to_bytes();
            bytes[byte] ^= 0x10;
            assert!(!is_answer(&Message::from_bytes(&bytes), &call), "byte {byte}");
        }
        assert!(!is_answer(&call, &call));
    }
}
