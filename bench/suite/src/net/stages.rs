//! Where the time of a frame goes: a worker, with the switch, in this process, and a client that is attached to it by its socket, so that
//! one time-stamp counter times both. The worker's stamps are those of fipsee-net's feature `stages`, which what ships does not have.
//!
//! A stage ends where the next begins, so that the stages of one frame sum to its time. What stamps cost is what frames take longer with them than without, in the
//! same process right after: it is less than stamps take in succession, because a thread that waits for a line makes them meanwhile. An equal part of it is subtracted from
//! each stage that begins with a stamp, but the last: what the worker does behind its last stamp is not on the way of the frame. The counter moves
//! in steps (10 ns on Zen), which most stages are shorter than, so a stage is the mean of the frames of the middle: of those half whose whole time is nearest to the
//! median. What the claim compares is the sum of the stages with the median one-way time of a frame through the daemon that ships, without stamps, in the same round.

use std::path::Path;
use std::thread::JoinHandle;

use fipsee_measure::claim::Claim;
use fipsee_measure::cpus::Cpus;
use fipsee_measure::statistics::{median, to_f64};
use fipsee_net::frame::Mac;
use fipsee_net::server::stages::{self, Stage, Stamp};
use fipsee_net::server::{NetworkSetup, PortSetup};
use fipsee_net::switch::{Learning, Rules};
use fipsee_ring::clock;
use fipsee_ring::wait::{Backoff, DEFAULT_LOOK, WaitMode};
use fipsee_serve::{Command, Pass, Worker, WorkerHandle, WorkerPlacement};
use fipsee_testkit::networks::Accepting;
use fipsee_topology::cache::choices_here;

use super::exchange::{Exchange, SMALLEST, middle_ns, ticks_to_ns, time};
use super::ports::{self, MTU, Pair, Ports};
use crate::daemon::Daemon;
use crate::parts::Part;
use crate::place::{bind_to, on};
use crate::table::{MEAN, P50, Results, Series};
use crate::{Settings, steady};

const DAEMON: &str = "stages: one way, 64 B, daemon";
const WHOLE: &str = "stages: one way, 64 B, this process";
const STAMPED: &str = "stages: one way, 64 B, this process, with stamps";
const STAGES: [&str; 6] = [
    "stage 1: the client encodes the frame",
    "stage 2: it publishes, until the worker has the message",
    "stage 3: the switch decides",
    "stage 4: the worker copies into a posted buffer",
    "stage 5: it publishes",
    "stage 6: until the client has the frame",
];
/// Those that begin with a stamp of their own thread, which delays the frame.
const STAMPED_STAGES: usize = STAGES.len() - 1;
/// Frames before those that count.
const WARM_UP: usize = 2000;
const FRAMES: usize = 20_000;

/// A network of two ports in this process, and its threads.
struct InProcess {
    clients: Accepting,
    worker: WorkerHandle<()>,
    serves: JoinHandle<Vec<Stamp>>,
}

impl InProcess {
    fn start(cpus: Cpus) -> Result<Self, String> {
        let (sender, receiver) = std::sync::mpsc::channel();
        let serves = std::thread::spawn(move || {
            bind_to(cpus.server);
            let place = WorkerPlacement { cpu: Some(cpus.server), node: None, choices: choices_here() };
            let worker = Worker::new(place, Backoff::new(WaitMode::Adaptive, DEFAULT_LOOK), ());
            let Ok((worker, handle)) = worker else { return Vec::new() };
            let _ = sender.send(handle);
            serve(worker)
        });
        let worker = receiver.recv().map_err(|_| "a worker cannot be made; raise the limit of descriptors")?;
        let clients = Accepting::start(vec![network()], &worker, move || bind_to(cpus.client))?;
        Ok(Self { clients, worker, serves })
    }

    /// The stamps of all frames; all clients are gone.
    fn end(self) -> Result<Vec<Stamp>, String> {
        // What is left of clients that are gone is removed before the worker is stopped.
        self.clients.finish()?;
        self.worker.mailbox.send(Command::Stop);
        self.serves.join().map_err(|_| "the worker has failed".to_owned())
    }
}

fn network() -> NetworkSetup {
    let port = |number: u8| PortSetup {
        name: char::from(b'a' + number).to_string(),
        rules: Rules::new(Mac([2, 0, 0, 0, 0, number])),
        allow: Box::new(|_| true),
        reserved: None,
    };
    let (name, mtu) = ("lan".to_owned(), u16::try_from(MTU).unwrap_or(u16::MAX));
    NetworkSetup { name, mtu, learning: Learning::default(), ports: (0..2).map(port).collect() }
}

fn serve(mut worker: Worker<()>) -> Vec<Stamp> {
    stages::begin(FRAMES + WARM_UP);
    loop {
        match worker.pass() {
            Pass::Worked => worker.worked(),
            Pass::Idle => worker.rest(None),
            Pass::Stopped => return stages::take(),
        }
    }
}

/// The client's times of every frame that has stamps; then, as the worker makes no more, the whole time of each without.
fn measure(path: &Path, cpus: Cpus) -> Result<(Vec<[u64; 3]>, Vec<u64>), String> {
    on(cpus.client, || {
        let mut pair = Pair::attach(path, ["a", "b"], Ports::DEPTH)?;
        let mut with = Vec::with_capacity(FRAMES + WARM_UP);
        for _ in 0..FRAMES + WARM_UP {
            with.push(pair.pass_timed(SMALLEST)?);
        }
        let mut without = Vec::with_capacity(FRAMES);
        for _ in 0..FRAMES {
            let begun = clock::ticks();
            pair.exchange(Exchange::OneWay, SMALLEST)?;
            without.push(clock::ticks().saturating_sub(begun));
        }
        Ok((with, without))
    })
}

/// For each frame, when it was at the end of each stage, and at the beginning of the first.
fn join(client: &[[u64; 3]], stamps: &[Stamp]) -> Result<Vec<[u64; 7]>, String> {
    let stages = [Stage::Taken, Stage::Decided, Stage::Copied, Stage::Published];
    let (frames, rest) = stamps.as_chunks::<4>();
    let is_whole = frames.iter().all(|frame| frame.map(|stamp| stamp.stage) == stages);
    if !is_whole || !rest.is_empty() || frames.len() != client.len() {
        return Err(format!("the worker has {} stamps of {} frames", stamps.len(), client.len()));
    }
    let of_frame = |([begun, encoded, received], frame): (&[u64; 3], &[Stamp; 4])| {
        let [taken, decided, copied, published] = frame.map(|stamp| stamp.ticks);
        [*begun, *encoded, taken, decided, copied, published, *received]
    };
    Ok(client.iter().zip(frames).map(of_frame).collect())
}

fn whole_ticks(frame: &[u64; 7]) -> u64 {
    frame[6].saturating_sub(frame[0])
}

/// Of each stage the mean, in ticks, of those half of the frames whose whole time is nearest to the median.
fn of_the_middle(frames: &[[u64; 7]]) -> [f64; 6] {
    let mut frames = frames.to_vec();
    frames.sort_unstable_by_key(whole_ticks);
    let middle = &frames[frames.len() / 4..frames.len() - frames.len() / 4];
    let total = |stage: usize| middle.iter().map(|frame| frame[stage + 1].saturating_sub(frame[stage])).sum();
    std::array::from_fn(|stage| to_f64(total(stage)) / to_f64(middle.len() as u64))
}

/// The part.
pub(super) struct Stages {
    daemon: Daemon,
    cpus: Cpus,
}

impl Stages {
    pub(super) fn are_chosen(settings: &Settings) -> bool {
        settings.chooses(DAEMON)
    }

    pub(super) fn start() -> Result<Self, String> {
        let cpus = Cpus::choose();
        Ok(Self { daemon: ports::daemon(cpus, ["a", "b"].map(str::to_owned))?, cpus })
    }

    fn once(&self, settings: &Settings, results: &mut Results) -> Result<(), String> {
        let (socket_path, seconds) = (self.daemon.socket(), settings.seconds / 5.0);
        on(self.cpus.client, || {
            let mut pair = Pair::attach(&socket_path, ["a", "b"], Ports::DEPTH)?;
            time(seconds, || pair.exchange(Exchange::OneWay, SMALLEST))?.add_to(results, DAEMON, SMALLEST);
            Ok(())
        })?;
        let here = InProcess::start(self.cpus)?;
        let client = measure(&here.clients.socket(), self.cpus);
        let (stamps, (client, without)) = (here.end()?, client?);
        let frames = join(&client, &stamps)?;
        let counted = &frames[WARM_UP..];
        results.add(STAMPED, P50, middle_ns(counted.iter().map(whole_ticks).collect()));
        let whole_ns = middle_ns(without);
        results.add(WHOLE, P50, whole_ns);
        let stages_ns = of_the_middle(counted).map(|ticks| ticks * ticks_to_ns(1));
        let cost_ns = (stages_ns.iter().sum::<f64>() - whole_ns) / to_f64(STAMPED_STAGES as u64);
        for (index, (stage, mean_ns)) in STAGES.iter().zip(stages_ns).enumerate() {
            results.add(stage, MEAN, if index < STAMPED_STAGES { mean_ns - cost_ns } else { mean_ns });
        }
        Ok(())
    }
}

impl Part for Stages {
    fn measure(&mut self, settings: &Settings, _round: usize, results: &mut Results) -> Result<(), String> {
        steady::measure(results, |results| self.once(settings, results))
    }

    fn print(&self, results: &Results) {
        println!("\nStages of a frame of 64 B, one way: mean of the middle half of the frames, and p50 of the whole, in ns\n");
        let rows = STAGES.iter().map(|stage| (stage, MEAN)).chain([&STAMPED, &WHOLE, &DAEMON].map(|name| (name, P50)));
        for (name, metric) in rows {
            println!("{name:<58} {:>8.1}", results.get(name, metric).map_or(f64::NAN, Series::median));
        }
    }

    fn claims(&self, _settings: &Settings, results: &Results) -> Vec<Claim> {
        let rounds = results.get(DAEMON, P50).map(|series| series.values.as_slice()).unwrap_or_default();
        let sum =
            |round: usize| STAGES.iter().map(|stage| results.get(stage, MEAN)?.values.get(round).copied()).sum::<Option<f64>>();
        let off = rounds.iter().enumerate().filter_map(|(round, whole)| Some((sum(round)? / whole - 1.0).abs()));
        vec![Claim::at_most(0.1, "64 B one way: how far the sum of the stages is from the daemon's p50", median(off.collect()))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_of_the_middle_sum_to_the_time_of_these_frames() {
        let frame = |slow: u64| [0, 1, 3, 3 + slow, 4 + slow, 4 + slow, 10 + slow];
        let frames = [9000, 0, 10, 20, 30, 40, 50, 0].map(frame);
        let stages = of_the_middle(&frames);
        assert_eq!(stages, [1.0, 2.0, 25.0, 1.0, 0.0, 6.0]);
    }

    #[test]
    fn stamps_of_both_sides_are_put_together_and_missing_ones_are_noticed() {
        let stages = [Stage::Taken, Stage::Decided, Stage::Copied, Stage::Published];
        let stamps: Vec<Stamp> = stages.into_iter().zip(3..).map(|(stage, ticks)| Stamp { stage, ticks }).collect();
        assert_eq!(join(&[[1, 2, 7]], &stamps), Ok(vec![[1, 2, 3, 4, 5, 6, 7]]));
        assert!(join(&[[1, 2, 7]], &stamps[..3]).is_err());
        assert!(join(&[[1, 2, 7], [8, 9, 10]], &stamps).is_err());
    }
}
