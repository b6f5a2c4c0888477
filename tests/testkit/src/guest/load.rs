//! A guest that verifies under load, on a thread of its own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fipsee_block::wire::Operation;

use super::device::{Guest, IN, OK, OUT, Options, Sent};
use super::machine::{Upgraded, start_guest, start_with};
use super::ring::{Incoming, segment};
use crate::Daemon;
use crate::load::{Load, Turns};

const BLOCK_BYTES: u32 = 4096;

/// The path of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Virtqueue,
    /// The in-band upgrade.
    Ring,
}

/// A guest that keeps its queue full, and reads back everything that it wrote.
pub struct GuestLoad(Load);

/// One outstanding request, with a block of its own.
struct Lane {
    buffer: u64,
    sector: u64,
    turns: Turns,
    is_outstanding: bool,
}

impl Lane {
    /// Prepare the next request. True: it is a read.
    fn prepare(&mut self, guest: &Guest, number: u64) -> bool {
        self.is_outstanding = true;
        guest.ram.write(self.buffer, &self.turns.next(number));
        self.turns.is_reading
    }

    fn check(&mut self, guest: &Guest, number: u64) {
        assert!(std::mem::take(&mut self.is_outstanding), "block {number} is answered twice");
        self.turns.check(number, &guest.ram.read(self.buffer, BLOCK_BYTES as usize));
    }
}

/// The disks of [`start_every_way`].
pub const EVERY_WAY: [&str; 5] =
    ["v=memory:8M", "e=memory:8M", "r=memory:8M", "f=file:{dir}/f,size=8M,block=4096", "g=file:{dir}/g,size=8M,block=4096"];

/// A daemon with two workers and a guest under load for each path of requests, on disks in memory and in files.
pub fn start_every_way() -> (Daemon, [GuestLoad; 5]) {
    let arguments: Vec<&str> = EVERY_WAY.iter().flat_map(|disk| ["--disk", disk]).chain(["--workers", "2"]).collect();
    let daemon = start_with(&arguments);
    let options = Options { size: 256, ..Options::default() };
    let with_index = Options { event_index: true, ..options.clone() };
    let loads = [
        GuestLoad::start(&daemon, "v", &options, Way::Virtqueue, 64),
        GuestLoad::start(&daemon, "e", &with_index, Way::Virtqueue, 64),
        GuestLoad::start(&daemon, "r", &options, Way::Ring, 64),
        GuestLoad::start(&daemon, "f", &with_index, Way::Virtqueue, 8),
        GuestLoad::start(&daemon, "g", &options, Way::Ring, 8),
    ];
    (daemon, loads)
}

impl GuestLoad {
    /// Start a guest, and keep `depth` requests outstanding.
    pub fn start(daemon: &Daemon, disk: &str, options: &Options, way: Way, depth: u16) -> Self {
        let mut guest = start_guest(daemon, disk, options);
        Self(Load::on_thread(disk, move |stop, done| {
            let lane = |number: u16| {
                let buffer = guest.ram.allocate(BLOCK_BYTES.into(), BLOCK_BYTES.into());
                Lane { buffer, sector: 8 * u64::from(number), turns: Turns::default(), is_outstanding: false }
            };
            let mut lanes: Vec<Lane> = (0..depth).map(lane).collect();
            match way {
                Way::Virtqueue => over_virtqueue(&mut guest, &mut lanes, stop, done),
                Way::Ring => over_ring(&mut guest, &mut lanes, stop, done),
            }
        }))
    }

    /// As [`Load::await_progress`].
    #[track_caller]
    pub fn await_progress(&self) {
        self.0.await_progress();
    }

    /// As [`Load::finish`].
    pub fn finish(self) -> u64 {
        self.0.finish()
    }
}

/// Now and then, with requests outstanding. Where several guests and workers keep every CPU busy, the scheduler of Linux 6.18 has kept the
/// kernel's threads, which end requests of file disks, from running for two minutes (docs/guide/troubleshooting.md).
fn leave_cpus_idle(done: u64) {
    if done.is_multiple_of(64) {
        std::thread::sleep(Duration::from_millis(1)); // tidy: allow sleep, an idle CPU is what it makes
    }
}

fn over_virtqueue(guest: &mut Guest, lanes: &mut [Lane], stop: &AtomicBool, done: &AtomicU64) {
    let submit = |guest: &mut Guest, lane: &mut Lane, number: usize| -> Sent {
        let is_read = lane.prepare(guest, number as u64);
        let kind = if is_read { IN } else { OUT };
        guest.submit(0, kind, lane.sector, &[(lane.buffer, BLOCK_BYTES, is_read)])
    };
    let mut sent: Vec<Option<(usize, Sent)>> = vec![None; usize::from(guest.queues[0].size)];
    for (number, lane) in lanes.iter_mut().enumerate() {
        let one = submit(guest, lane, number);
        sent[usize::from(one.head)] = Some((number, one));
    }
    while lanes.iter().any(|lane| lane.is_outstanding) {
        let Some((head, _)) = guest.queues[0].take() else {
            assert!(guest.queues[0].sleep(), "no completion, or no doorbell for it");
            continue;
        };
        let (number, one) = sent[usize::from(head)].take().expect("sent and not answered");
        assert_eq!(guest.status(one), OK);
        lanes[number].check(guest, number as u64);
        let before = done.fetch_add(1, Ordering::Relaxed);
        if !stop.load(Ordering::Relaxed) {
            let one = submit(guest, &mut lanes[number], number);
            sent[usize::from(one.head)] = Some((number, one));
            leave_cpus_idle(before);
        }
    }
}

fn over_ring(guest: &mut Guest, lanes: &mut [Lane], stop: &AtomicBool, done: &AtomicU64) {
    let mut up = Upgraded::attach(guest, &[0], u32::try_from(lanes.len()).expect("few"));
    let submit = |guest: &Guest, up: &mut Upgraded, lane: &mut Lane, tag: u16| {
        let operation = if lane.prepare(guest, tag.into()) { Operation::Read } else { Operation::Write };
        let segment = segment(lane.buffer, BLOCK_BYTES.into());
        up.rings[0].submit_one(operation, tag, lane.sector, segment, &guest.queues[0]);
    };
    for (lane, tag) in lanes.iter_mut().zip(0..) {
        submit(guest, &mut up, lane, tag);
    }
    while lanes.iter().any(|lane| lane.is_outstanding) {
        for one in up.rings[0].wait(up.attachment, guest) {
            let Incoming::Answer(tag, 0) = one else { panic!("{one:?}") };
            let lane = &mut lanes[usize::from(tag)];
            lane.check(guest, tag.into());
            let before = done.fetch_add(1, Ordering::Relaxed);
            if !stop.load(Ordering::Relaxed) {
                submit(guest, &mut up, lane, tag);
                leave_cpus_idle(before);
            }
        }
    }
}
