//! What the steps of a worker and of its clients cost: a real worker on its CPU serves real queues of disks, whose clients are
//! driven from the other CPU, all in this process, so that each step can be timed where it happens.

use std::any::Any;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use fipsee::load::count_f64;
use fipsee_block::client::{AttachOptions, Disk};
use fipsee_block::disk::{AnyDisk, Disk as _, DiskSpec, Engine};
use fipsee_block::server::{DiskQueue, QueueServer, QueueSetup};
use fipsee_block::wire::PROFILE;
use fipsee_measure::cpus::Cpus;
use fipsee_ring::channel::{ClientQueue, RegionLayout, ServerQueue};
use fipsee_ring::clock;
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::handshake::AttachedChannel;
use fipsee_ring::memory::RegionTable;
use fipsee_ring::region::Region;
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_ring::wait::{Backoff, DEFAULT_LOOK, WaitMode};
use fipsee_serve::{Command, Pass, Queue, QueueName, Share, Taken, Turn, Worker, WorkerHandle, WorkerPlacement};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde_json::{Value, json};

use super::crowd::{Crowd, Shape};
use crate::place::bind_to;

/// Numbers of queues at which costs are measured; between two of them they are interpolated.
pub(super) const QUEUES: [usize; 4] = [1, 10, 100, 1000];
/// In two measurements so many requests are in flight in each queue: their difference is the cost of one more in a visit.
const DEPTHS: [u32; 2] = [1, 8];
/// Nanoseconds: what is less than the cost of a time stamp cannot be timed by one, and no step takes no time.
const LEAST: f64 = 1.0;
const LONGEST_STEP: Duration = Duration::from_micros(100);
/// Passes that find nothing after which a worker yields in each pause: the pauses before are timed.
const PAUSES: u32 = 256;
/// Empty visits after which a queue is idle, with some to spare.
const PASSES_TO_IDLE: u32 = 1100;
const TIMED_PASSES: u32 = 20_000;

/// In nanoseconds, with so many queues on each side.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Costs {
    pub(super) queues: f64,
    /// Of having a queue visited, without the visit: choosing it, and its part of the pass; of the pause after a pass that found
    /// nothing.
    pub(super) turn: f64,
    pub(super) pause: f64,
    /// Of one idle queue.
    pub(super) sample: f64,
    /// Of a visit that finds nothing; of one that finds something, without its requests; of each request.
    pub(super) empty_visit: f64,
    pub(super) visit: f64,
    pub(super) request: f64,
    /// The client's: a look that finds nothing; one that finds something, and publishes again; each completion.
    pub(super) look: f64,
    pub(super) take: f64,
    pub(super) completion: f64,
}

/// Steps of one kind or the other, by what they found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Steps {
    empty_ticks: u64,
    empty: u64,
    full_ticks: u64,
    full: u64,
    requests: u64,
}

impl Steps {
    /// Not one during which the CPU was taken away.
    pub(super) fn add(&mut self, ticks: u64, requests: u64) {
        if is_disturbed(ticks) {
            return;
        }
        if requests == 0 {
            self.empty_ticks += ticks;
            self.empty += 1;
        } else {
            self.full_ticks += ticks;
            self.full += 1;
            self.requests += requests;
        }
    }

    const fn count(&self) -> u64 {
        self.empty + self.full
    }

    /// Nanoseconds of an empty step and of a full one, without a time stamp, and how many requests a full one had.
    fn means(&self, stamp_ns: f64) -> (f64, f64, f64) {
        let mean = |ticks: u64, count: u64| (ns(ticks) / count_f64(count.max(1)) - stamp_ns).max(LEAST);
        let requests = count_f64(self.requests) / count_f64(self.full.max(1));
        (mean(self.empty_ticks, self.empty), mean(self.full_ticks, self.full), requests)
    }
}

/// No step takes as long: another thread had the CPU meanwhile.
fn is_disturbed(ticks: u64) -> bool {
    static LONGEST_TICKS: LazyLock<u64> = LazyLock::new(|| clock::duration_to_ticks(LONGEST_STEP));
    ticks > *LONGEST_TICKS
}

fn ns(ticks: u64) -> f64 {
    count_f64(ticks) * 1e9 / count_f64(clock::ticks_per_second())
}

/// The visits of a worker.
#[derive(Clone, Copy, Debug, Default)]
struct Visits {
    steps: Steps,
    /// Of all, also of those that were disturbed.
    ticks: u64,
    count: u64,
}

thread_local! {
    /// Of the worker of this thread.
    static VISITS: Cell<Visits> = Cell::default();
}

/// A queue whose visits are timed.
struct Timed(DiskQueue);

impl Queue<Engine> for Timed {
    fn end(&self) -> Option<&ServerQueue> {
        self.0.end()
    }

    fn end_mut(&mut self) -> Option<&mut ServerQueue> {
        self.0.end_mut()
    }

    fn visit(&mut self, engine: &mut Engine, turn: Turn) -> Taken {
        let started = clock::ticks();
        let taken = self.0.visit(engine, turn);
        let mut visits = VISITS.get();
        let ticks = clock::ticks().wrapping_sub(started);
        visits.steps.add(ticks, taken.requests.into());
        visits.ticks += ticks;
        visits.count += 1;
        VISITS.set(visits);
        taken
    }

    fn has_work(&self) -> bool {
        Queue::<Engine>::has_work(&self.0)
    }

    fn flush(&mut self) {
        Queue::<Engine>::flush(&mut self.0);
    }

    fn moved(&mut self, id: u32) {
        Queue::<Engine>::moved(&mut self.0, id);
    }

    fn saved_state(&mut self, own: bool) -> Option<Box<dyn Any + Send>> {
        self.0.saved_state(own)
    }
}

/// A channel without a socket: what the worker is to do for it, and the client's end.
fn channel(disk: &Arc<AnyDisk>, number: u32, shape: Shape, share: &Share) -> Result<(Command<Engine>, AttachedChannel), String> {
    let failed = |what: &'static str| move |error: std::io::Error| format!("cannot make {what}: {error}");
    let layout = RegionLayout::plan(&PROFILE, 1, shape.depth, shape.bytes, number);
    let region = Arc::new(Region::create("fipsee-bench", layout.region_bytes).map_err(failed("memory"))?);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (control, _) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|error| format!("cannot make a pair of sockets: {error}"))?;
    let doorbell = EventDoorbell::new().map_err(failed("an eventfd"))?;
    let (ours, theirs) = SocketDoorbell::pair().map_err(failed("a doorbell"))?;
    let (geometry, info) = (&layout.queues[0], disk.info());
    let server = ServerQueue::open(&region, geometry, doorbell.clone(), ours, &geometry.tuning());
    let server = server.map_err(|fault| fault.to_string())?;
    let client = ClientQueue::open(&region, geometry, doorbell, theirs, &geometry.tuning()).map_err(|fault| fault.to_string())?;
    let memory =
        RegionTable::of_pool(&region, layout.pool_offset_bytes, layout.pool_bytes).map_err(|fault| format!("{fault:?}"))?;
    let (depth, disk) = (geometry.depth, Arc::clone(disk));
    let make = move |id| {
        let setup = QueueSetup { depth, info, read_only: true, memory, counters: Arc::default() };
        Ok(Timed(DiskQueue::new(QueueServer::new(server, id, setup), disk)))
    };
    let name = QueueName { client: number.into(), index: 0 };
    let service_info = info.to_bytes();
    let attached = AttachedChannel { control: Seqpacket::from_fd(control), region, layout, service_info, queues: vec![client] };
    Ok((Command::add(name, share.clone(), make, |_| {}), attached))
}

/// A worker of the calling thread.
fn worker() -> Result<(Worker<Engine>, WorkerHandle<Engine>), String> {
    let engine = Engine::new(16).map_err(|error| format!("cannot make an engine: {error}"))?;
    Worker::new(WorkerPlacement::default(), Backoff::new(WaitMode::Adaptive, DEFAULT_LOOK), engine)
        .map_err(|error| format!("cannot make a worker: {error}"))
}

fn join(
    crowd: &mut Crowd,
    handle: &WorkerHandle<Engine>,
    disk: &Arc<AnyDisk>,
    (queues, shape): (usize, Shape),
) -> Result<(), String> {
    let share = Share::own("user");
    for number in (0_u32..).take(queues) {
        let (command, attached) = channel(disk, number, shape, &share)?;
        handle.mailbox.send(command);
        let options = AttachOptions { depth: shape.depth, pool_bytes: shape.bytes, ..AttachOptions::new("m") };
        let (disk, queues) = Disk::over(attached, &options).map_err(|error| error.to_string())?;
        let buffer = disk.allocate(shape.bytes).map_err(|error| error.to_string())?;
        crowd.join_with((disk, queues, buffer), shape);
    }
    Ok(())
}

/// What passes, without their visits, pauses and visits took.
#[derive(Clone, Copy, Debug, Default)]
struct WorkerTimes {
    passes: Steps,
    /// Visits of these passes, whose time stamps are part of them.
    stamped: u64,
    pauses: Steps,
    visits: Steps,
}

impl WorkerTimes {
    fn turn_ns(&self, stamp_ns: f64) -> f64 {
        let (passes, visits) = (count_f64(self.passes.count()), count_f64(self.stamped.max(1)));
        ((self.passes.means(0.0).0 - stamp_ns) * passes / visits - stamp_ns).max(LEAST)
    }
}

/// Serve until it is to stop. Nothing is counted before `counts`.
fn serve(worker: &mut Worker<Engine>, counts: &AtomicBool, stops: &AtomicBool) -> WorkerTimes {
    let (mut times, mut counted, mut idle) = (WorkerTimes::default(), false, 0);
    while !stops.load(Ordering::Relaxed) {
        if !counted && counts.load(Ordering::Relaxed) {
            (times, counted) = (WorkerTimes::default(), true);
            VISITS.set(Visits::default());
        }
        let (before, started) = (VISITS.get(), clock::ticks());
        let pass = worker.pass();
        let (ended, visits) = (clock::ticks(), VISITS.get());
        let without_visits = ended.wrapping_sub(started).saturating_sub(visits.ticks - before.ticks);
        if !is_disturbed(without_visits) {
            times.passes.add(without_visits, 0);
            times.stamped += visits.count - before.count;
        }
        if pass == Pass::Idle {
            worker.rest(None);
            idle += 1;
            if idle <= PAUSES {
                times.pauses.add(clock::ticks().wrapping_sub(ended), 0);
            }
        } else {
            worker.worked();
            idle = 0;
        }
    }
    times.visits = VISITS.get().steps;
    times
}

/// Worker and clients at work for so long, with so many queues.
fn under_load(disk: &Arc<AnyDisk>, queues: usize, shape: Shape, seconds: f64) -> Result<(WorkerTimes, Steps), String> {
    let (counts, stops) = (AtomicBool::new(false), AtomicBool::new(false));
    let cpus = Cpus::choose();
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (counts, stops) = (&counts, &stops);
        let serving = scope.spawn(move || {
            bind_to(cpus.server);
            let (mut worker, handle) = worker()?;
            let _ = sender.send(handle);
            Ok::<_, String>(serve(&mut worker, counts, stops))
        });
        let handle = receiver.recv().map_err(|_| "the worker could not start; its error is above".to_owned())?;
        let for_clients = handle.clone();
        let clients = move || {
            bind_to(cpus.client);
            let mut crowd = Crowd::new();
            join(&mut crowd, &for_clients, disk, (queues, shape))?;
            crowd.run_timed(Duration::from_secs_f64(seconds / 4.0))?;
            counts.store(true, Ordering::Relaxed);
            crowd.run_timed(Duration::from_secs_f64(seconds))
        };
        let steps = scope.spawn(clients).join().unwrap_or_else(|_| Err("the clients' thread panicked".to_owned()));
        stops.store(true, Ordering::Relaxed);
        // It may have fallen asleep.
        handle.mailbox.send(Command::Stop);
        let times = serving.join().unwrap_or_else(|_| Err("the worker's thread panicked".to_owned()));
        Ok((times?, steps?))
    })
}

fn passes(worker: &mut Worker<Engine>, count: u32) {
    for _ in 0..count {
        let _ = worker.pass();
    }
}

/// Nanoseconds of a sample of one of so many idle queues.
fn sample(disk: &Arc<AnyDisk>, queues: usize, shape: Shape) -> Result<f64, String> {
    let (mut worker, handle) = worker()?;
    let time = |worker: &mut Worker<Engine>| {
        let started = Instant::now();
        passes(worker, TIMED_PASSES);
        started.elapsed().as_secs_f64() * 1e9 / f64::from(TIMED_PASSES)
    };
    let without = time(&mut worker);
    let mut crowd = Crowd::silent();
    join(&mut crowd, &handle, disk, (queues, shape))?;
    passes(&mut worker, PASSES_TO_IDLE);
    let per_pass = count_f64(SAMPLES_PER_PASS.min(queues) as u64);
    Ok(((time(&mut worker) - without) / per_pass).max(LEAST))
}

/// Idle queues that a worker looks at in a pass (decision 0004).
pub(super) const SAMPLES_PER_PASS: usize = 4;

/// Nanoseconds from one time stamp to the next.
fn stamp_ns() -> f64 {
    let mut stamps: Vec<u64> = (0..10_001).map(|_| clock::ticks()).collect();
    stamps.sort_unstable();
    let whole = stamps.last().zip(stamps.first()).map_or(0, |(last, first)| last.wrapping_sub(*first));
    ns(whole) / 10_000.0
}

/// The costs of a disk at each number of queues.
pub(super) fn measure(spec: &str, bytes: u64, queues: &[usize], seconds: f64) -> Result<Vec<Costs>, String> {
    let disk = Arc::new(DiskSpec::parse(&format!("m={spec}"))?.open()?);
    let stamp_ns = stamp_ns();
    let at = |queues: usize| {
        let shape = |depth| Shape { queues: 1, depth, bytes };
        let [one, more] = DEPTHS.map(|depth| under_load(&disk, queues, shape(depth), seconds));
        let ((one, one_steps), (more, more_steps)) = (one?, more?);
        let (empty_visit, visit, request) = split(&one.visits, &more.visits, stamp_ns);
        let (look, take, completion) = split(&one_steps, &more_steps, stamp_ns);
        Ok(Costs {
            queues: count_f64(queues as u64),
            turn: one.turn_ns(stamp_ns),
            pause: one.pauses.means(stamp_ns).0,
            sample: sample(&disk, queues, shape(1))?,
            empty_visit,
            visit,
            request,
            look,
            take,
            completion,
        })
    };
    queues.iter().map(|queues| at(*queues)).collect()
}

/// Of steps with few and with many requests: an empty one, a full one without its requests, a request.
fn split(few: &Steps, many: &Steps, stamp_ns: f64) -> (f64, f64, f64) {
    let ((empty, few_ns, few_requests), (_, many_ns, many_requests)) = (few.means(stamp_ns), many.means(stamp_ns));
    let differ = many_requests - few_requests;
    let request = if differ > 0.5 { ((many_ns - few_ns) / differ).clamp(0.0, few_ns / few_requests.max(1.0)) } else { 0.0 };
    (empty, few_ns - request * few_requests, request)
}

impl Costs {
    /// Those for any number of queues: between two that were measured in proportion to the logarithm, beyond the ends as there.
    pub(super) fn at(measured: &[Self], queues: f64) -> Self {
        let above = measured.iter().position(|costs| costs.queues >= queues);
        match (above, measured) {
            (Some(0), [first, ..]) => Self { queues, ..*first },
            (None, [.., last]) => Self { queues, ..*last },
            (Some(index), _) => {
                let (low, high) = (&measured[index - 1], &measured[index]);
                let share = (queues / low.queues).ln() / (high.queues / low.queues).ln();
                let between = |of: fn(&Self) -> f64| of(low) + (of(high) - of(low)) * share;
                Self {
                    queues,
                    turn: between(|costs| costs.turn),
                    pause: between(|costs| costs.pause),
                    sample: between(|costs| costs.sample),
                    empty_visit: between(|costs| costs.empty_visit),
                    visit: between(|costs| costs.visit),
                    request: between(|costs| costs.request),
                    look: between(|costs| costs.look),
                    take: between(|costs| costs.take),
                    completion: between(|costs| costs.completion),
                }
            }
            (None, []) => Self::default(),
        }
    }

    pub(super) fn to_json(self) -> Value {
        let Self { queues, turn, pause, sample, empty_visit, visit, request, look, take, completion } = self;
        json!({
            "queues": queues, "turn_ns": turn, "pause_ns": pause, "sample_ns": sample, "empty_visit_ns": empty_visit,
            "visit_ns": visit, "request_ns": request, "look_ns": look, "take_ns": take, "completion_ns": completion,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_between_two_measured_ones_are_in_between() {
        let at = |queues, visit| Costs { queues, visit, ..Costs::default() };
        let measured = [at(1.0, 100.0), at(100.0, 300.0)];
        let visit = |queues| Costs::at(&measured, queues).visit;
        assert!((visit(10.0) - 200.0).abs() < 1e-9 && visit(0.5) == 100.0 && visit(5000.0) == 300.0);
    }

    #[test]
    fn a_request_costs_what_one_more_of_it_costs() {
        let steps = |full_ticks, full, requests| Steps { full_ticks, full, requests, ..Steps::default() };
        let ticks_per_ns = count_f64(clock::ticks_per_second()) / 1e9;
        let (few, many) = (steps(1_000_000, 1000, 1000), steps(3_000_000, 1000, 5000));
        let (_, visit, request) = split(&few, &many, 0.0);
        assert!((request * ticks_per_ns - 500.0).abs() < 1.0 && (visit * ticks_per_ns - 500.0).abs() < 1.0, "{visit} {request}");
    }
}
