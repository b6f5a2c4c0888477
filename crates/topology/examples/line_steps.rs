//! What the single steps of moving a cache line between two CPUs cost, one by one and overlapped: the table of docs/how-fast.md.
//!
//! `cargo run --release -p fipsee-topology --example line_steps -- [CPU=0] [PEER=1] [REPETITIONS=4000]`
//!
//! One by one: lines at rest, in pages of their own, in an order that no prefetcher follows; the step and a locked operation on a
//! line at hand (so that a store has reached the cache), less the same on a line that this CPU owns. Overlapped: 64 neighbouring
//! lines in one go, per line. Then what a message and its answer cost a CPU that has both ends, so that no line moves, in bursts.
//! Medians, in ticks of the time-stamp counter.

use std::error::Error;
use std::hint::black_box;
use std::io;
use std::sync::Arc;

use fipsee_ring::channel::{ClientQueue, Profile, RegionLayout, ServerQueue};
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::region::Region;
use fipsee_ring::tuning::{TAKE_MANY, Tuning};
use fipsee_ring::{AtomicU32, AtomicU64, Message, Ordering, clock, cpu};
use fipsee_topology::pin;

const LINES: usize = 64;
/// Messages in a burst at most.
const MOST: u32 = 64;
/// Lines of a page, of which the steps one by one use one.
const STRIDE: usize = 64;
/// Ticks in which a line comes to rest after the peer, or a prefetch, is done with it.
const REST_TICKS: u64 = 3000;

#[repr(align(64))]
#[derive(Default)]
struct Line(AtomicU64);

/// What the peer does with lines before a step is timed.
#[derive(Clone, Copy, PartialEq)]
enum Peer {
    Nothing,
    Writes,
    Reads,
    ReadsAndWrites,
}

/// What is timed.
#[derive(Clone, Copy)]
enum Step {
    Load,
    LoadAndStore,
    Store,
    StoreAfterPrefetch,
    Locked,
}

struct Shared {
    lines: Vec<Line>,
    /// Counts orders; `u32::MAX` ends the peer.
    order: Line,
    done: Line,
    peer: AtomicU32,
    first: AtomicU32,
    stride: AtomicU32,
    count: AtomicU32,
}

impl Shared {
    fn line(&self, first: usize, stride: usize, index: usize) -> &AtomicU64 {
        &self.lines[(first + index * stride) % self.lines.len()].0
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let numbers: Vec<usize> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let number = |index: usize, usual: usize| numbers.get(index).copied().unwrap_or(usual);
    let (cpu, peer, repetitions) = (number(0, 0), number(1, 1), number(2, 4000));
    let shared = Shared {
        lines: std::iter::repeat_with(Line::default).take(LINES * STRIDE).collect(),
        order: Line::default(),
        done: Line::default(),
        peer: AtomicU32::new(0),
        first: AtomicU32::new(0),
        stride: AtomicU32::new(0),
        count: AtomicU32::new(0),
    };
    println!("CPU {cpu}, lines last used by CPU {peer}; {} ticks per second", clock::ticks_per_second());
    std::thread::scope(|scope| {
        scope.spawn(|| pin::bind(peer).map(|()| carry_out(&shared)));
        let outcome = pin::bind(cpu).map(|()| {
            report(&shared, repetitions);
            report_both_ends(repetitions)
        });
        shared.order.0.store(u64::MAX, Ordering::Release);
        outcome
    })??;
    Ok(())
}

fn report(shared: &Shared, repetitions: usize) {
    let rows = [
        ("load, the peer wrote", Peer::Writes, Step::Load),
        ("load and then store, the peer wrote", Peer::Writes, Step::LoadAndStore),
        ("store, the peer wrote", Peer::Writes, Step::Store),
        ("rewrite, the peer only read", Peer::Reads, Step::Store),
        ("rewrite, the peer wrote, too", Peer::ReadsAndWrites, Step::Store),
        ("rewrite after PREFETCHW, the peer only read", Peer::Reads, Step::StoreAfterPrefetch),
        ("rewrite after PREFETCHW, the peer wrote, too", Peer::ReadsAndWrites, Step::StoreAfterPrefetch),
        ("locked operation, the peer only read", Peer::Reads, Step::Locked),
        ("locked operation, the peer wrote, too", Peer::ReadsAndWrites, Step::Locked),
    ];
    let mut orders = 0;
    println!("{:<46}{:>8}{:>12}", "STEP", "SINGLE", "OVERLAPPED");
    for (text, peer, step) in rows {
        let mut single = |peer| timed(shared, &mut orders, peer, step, (STRIDE, 1), repetitions);
        let alone = single(peer) - single(Peer::Nothing);
        let mut together = |peer| timed(shared, &mut orders, peer, step, (1, LINES), repetitions / 4);
        let overlapped = (together(peer) - together(Peer::Nothing)) / LINES as f64;
        println!("{text:<46}{alone:>8.0}{overlapped:>12.1}");
    }
}

/// Answers as the answerer of `fipsee ping` does, on this CPU.
fn report_both_ends(repetitions: usize) -> io::Result<()> {
    let layout = RegionLayout::plan(&Profile { features: 0, event_credits: 0, flags: &[] }, 1, MOST, 0, 1);
    let region = Arc::new(Region::create("line-steps", layout.region_bytes)?);
    let (doorbell, (ours, theirs), tuning) = (EventDoorbell::new()?, SocketDoorbell::pair()?, Tuning::default());
    let open = |_| io::Error::other("the region does not hold its queue");
    let mut server = ServerQueue::open(&region, &layout.queues[0], doorbell.clone(), ours, &tuning).map_err(open)?;
    let mut client = ClientQueue::open(&region, &layout.queues[0], doorbell, theirs, &tuning).map_err(open)?;
    let (calls, mut taken) = ([Message::ZERO; MOST as usize], [Message::ZERO; TAKE_MANY as usize]);
    println!("{:<46}{:>8}", "MESSAGE AND ANSWER, ONE CPU", "EACH");
    for burst in [1, 2, 4, 8, 16, 64] {
        let mut all: Vec<u64> = (0..repetitions)
            .map(|_| {
                let from = clock::ticks_fenced();
                let _ = client.requests.publish_all(&calls[..burst]);
                black_box(client.requests.reader_needs_doorbell());
                server.requests.begin_run();
                let mut left = burst;
                while left > 0 {
                    let count = left.min(taken.len());
                    assert!(taken[..count].iter_mut().all(|into| server.requests.receive(into)), "as many are there");
                    taken[..count].iter().for_each(|call| server.completions.publish(call));
                    left -= count;
                }
                black_box(server.completions.reader_needs_doorbell());
                client.completions.begin_run();
                while client.completions.receive(&mut taken[0]) {
                    client.requests.answered();
                }
                clock::ticks_fenced() - from
            })
            .collect();
        all.sort_unstable();
        println!("{:<46}{:>8.1}", format!("bursts of {burst}"), all[all.len() / 2] as f64 / burst as f64);
    }
    Ok(())
}

/// Median ticks of `step` on `count` lines `stride` apart, after `peer` has done its part.
fn timed(shared: &Shared, orders: &mut u64, peer: Peer, step: Step, (stride, count): (usize, usize), repetitions: usize) -> f64 {
    let mut own = Line::default();
    let mut all: Vec<u64> = (0..repetitions)
        .map(|repetition| {
            // 37: every line once before the first comes again, far from the one before.
            let first = repetition * 37 % LINES * STRIDE;
            for index in 0..count {
                shared.line(first, stride, index).store(repetition as u64, Ordering::Relaxed);
            }
            locked(&mut own);
            shared.peer.store(peer as u32, Ordering::Relaxed);
            shared.first.store(word(first), Ordering::Relaxed);
            shared.stride.store(word(stride), Ordering::Relaxed);
            shared.count.store(word(count), Ordering::Relaxed);
            *orders += 1;
            shared.order.0.store(*orders, Ordering::Release);
            while shared.done.0.load(Ordering::Acquire) != *orders {
                std::hint::spin_loop();
            }
            rest();
            if matches!(step, Step::StoreAfterPrefetch) {
                for index in 0..count {
                    cpu::prefetch_for_write(shared.line(first, stride, index).as_ptr().cast());
                }
                rest();
            }
            let from = clock::ticks_fenced();
            for index in 0..count {
                carry_out_step(shared.line(first, stride, index), step);
            }
            locked(&mut own);
            clock::ticks_fenced() - from
        })
        .collect();
    all.sort_unstable();
    all[all.len() / 2] as f64
}

#[inline(always)]
fn carry_out_step(line: &AtomicU64, step: Step) {
    match step {
        Step::Load => _ = black_box(line.load(Ordering::Relaxed)),
        Step::LoadAndStore => line.store(black_box(line.load(Ordering::Relaxed)) | 1, Ordering::Relaxed),
        Step::Store | Step::StoreAfterPrefetch => line.store(1, Ordering::Relaxed),
        Step::Locked => _ = black_box(line.fetch_add(1, Ordering::Relaxed)),
    }
}

/// A locked operation on a line at hand: stores before it reach the cache first.
#[inline(always)]
fn locked(own: &mut Line) {
    black_box(&*own).0.fetch_add(1, Ordering::SeqCst);
}

fn rest() {
    let from = clock::ticks();
    while clock::ticks() - from < REST_TICKS {
        std::hint::spin_loop();
    }
}

/// Fits: there are 4096 lines.
fn word(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// The peer: does its part with the lines of each order.
fn carry_out(shared: &Shared) {
    let mut own = Line::default();
    let mut done = 0;
    loop {
        let order = shared.order.0.load(Ordering::Acquire);
        if order == done {
            std::hint::spin_loop();
            continue;
        }
        if order == u64::MAX {
            return;
        }
        let peer = shared.peer.load(Ordering::Relaxed);
        let [first, stride, count] =
            [&shared.first, &shared.stride, &shared.count].map(|word| word.load(Ordering::Relaxed) as usize);
        for index in 0..count {
            let line = shared.line(first, stride, index);
            if peer == Peer::Reads as u32 || peer == Peer::ReadsAndWrites as u32 {
                black_box(line.load(Ordering::Relaxed));
            }
            if peer == Peer::Writes as u32 || peer == Peer::ReadsAndWrites as u32 {
                line.store(order, Ordering::Relaxed);
            }
        }
        locked(&mut own);
        done = order;
        shared.done.0.store(done, Ordering::Release);
    }
}
