//! A real worker on its CPU serves real queues of a disk, whose clients are driven from the other CPU, all in this process, so that each step
//! can be timed where it happens.

use std::any::Any;
use std::cell::Cell;
use std::fmt::Display;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fipsee_block::client::{self, AttachOptions, Disk};
use fipsee_block::disk::{AnyDisk, Disk as _, Engine};
use fipsee_block::server::{DiskQueue, QueueServer, QueueSetup};
use fipsee_block::stats::QueueCounters;
use fipsee_block::wire::{PROFILE, SECTOR_BYTES};
use fipsee_measure::cpus::Cpus;
use fipsee_ring::channel::{ClientQueue, RegionLayout, ServerQueue};
use fipsee_ring::clock;
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::handshake::AttachedChannel;
use fipsee_ring::memory::RegionTable;
use fipsee_ring::region::{Access, Region};
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_ring::wait::{Backoff, DEFAULT_LOOK, WaitMode};
use fipsee_serve::{Command, Group, Pass, Queue, QueueName, Share, Taken, Turn, Worker, WorkerHandle, WorkerPlacement};
use fipsee_topology::cache::choices_here;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::costs::{Found, Rounds};
use super::crowd::{Crowd, LONG, Shape};
use crate::place::bind_to;

thread_local! {
    /// What the worker of this thread has found in its pass. One by one: numbers that were stored apart and are loaded together wait until they
    /// have left this CPU, and with them all that was published before.
    static EMPTY: Cell<u64> = const { Cell::new(0) };
    static FULL: Cell<u64> = const { Cell::new(0) };
    static REQUESTS: Cell<u64> = const { Cell::new(0) };
}

/// A queue whose visits are counted.
struct Counted(DiskQueue);

impl Queue<Engine> for Counted {
    fn end(&self) -> Option<&ServerQueue> {
        self.0.end()
    }

    fn end_mut(&mut self) -> Option<&mut ServerQueue> {
        self.0.end_mut()
    }

    fn visit(&mut self, engine: &mut Engine, turn: Turn) -> Taken {
        let taken = self.0.visit(engine, turn);
        if taken.requests == 0 {
            EMPTY.set(EMPTY.get() + 1);
        } else {
            FULL.set(FULL.get() + 1);
            REQUESTS.set(REQUESTS.get() + u64::from(taken.requests));
        }
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

/// The memory of a channel, mapped once by each side and populated, as in two processes.
struct Mapped {
    layout: RegionLayout,
    worker: Region,
    client: Region,
}

impl Mapped {
    /// All of the worker's, then all of the clients', so that those of one side are adjacent, as in two processes: where they alternate, the page table
    /// entries of each side fill twice as many cache lines, and 300 queues of the null disk answer a tenth less.
    fn all(queues: usize, shape: Shape) -> Result<Vec<Self>, String> {
        let made = (0_u32..).take(queues).map(|number| {
            let mut layout = RegionLayout::plan(&PROFILE, 1, shape.depth, shape.bytes, number);
            // As the daemon's are.
            layout.queues[0].choices = choices_here();
            let worker = Region::create("fipsee-bench", layout.region_bytes).map_err(failed("memory"))?;
            worker.populate(layout.populated_bytes());
            Ok((layout, worker))
        });
        let made = made.collect::<Result<Vec<_>, String>>()?;
        let mapped_twice = made.into_iter().map(|(layout, worker)| {
            let file = worker.as_fd().try_clone_to_owned().map_err(failed("another descriptor of the memory"))?;
            let client = Region::from_peer(file, layout.region_bytes, Access::ReadWrite);
            let client = client.map_err(failed("another mapping of the memory"))?;
            client.populate(layout.populated_bytes());
            Ok(Self { layout, worker, client })
        });
        mapped_twice.collect()
    }
}

fn failed<E: Display>(what: &'static str) -> impl Fn(E) -> String {
    move |error| format!("cannot make {what}: {error}; raise the limit (ulimit -a shows them)")
}

/// A channel without a socket: what the worker is to do for it, and the client's end.
fn channel(
    disk: &Arc<AnyDisk>,
    number: u32,
    Mapped { layout, worker: memory, client }: Mapped,
    (share, counters): (Share, Arc<QueueCounters>),
) -> Result<(Command<Engine>, AttachedChannel), String> {
    let region = Arc::new(client);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (control, _) = pair.map_err(failed("a pair of sockets"))?;
    let doorbell = EventDoorbell::new().map_err(failed("an eventfd"))?;
    let (ours, theirs) = SocketDoorbell::pair().map_err(failed("a doorbell"))?;
    let (geometry, info) = (&layout.queues[0], disk.info());
    let client = ClientQueue::open(&region, geometry, doorbell.clone(), theirs, &geometry.tuning());
    let client = client.map_err(|fault| fault.to_string())?;
    let (geometry, disk) = (*geometry, Arc::clone(disk));
    let (pool_offset_bytes, pool_bytes) = (layout.pool_offset_bytes, layout.pool_bytes);
    // On the worker's thread: what it allocates shares no cache line with what the clients' thread writes, as in two processes.
    let make = move |id| {
        let memory = Arc::new(memory);
        let server =
            ServerQueue::open(&memory, &geometry, doorbell, ours, &geometry.tuning()).map_err(|fault| fault.to_string())?;
        let memory = RegionTable::of_pool(&memory, pool_offset_bytes, pool_bytes).map_err(|fault| format!("{fault:?}"))?;
        let setup = QueueSetup { depth: geometry.depth, info, read_only: true, memory, counters };
        Ok(Counted(DiskQueue::new(QueueServer::new(server, id, setup), disk)))
    };
    let name = QueueName { client: number.into(), index: 0 };
    let service_info = info.to_bytes();
    let attached = AttachedChannel { control: Seqpacket::from_fd(control), region, layout, service_info, queues: vec![client] };
    Ok((Command::add(name, share, make, |_| {}), attached))
}

/// A worker of the calling thread.
pub(super) fn worker() -> Result<(Worker<Engine>, WorkerHandle<Engine>), String> {
    let engine = Engine::new(16).map_err(|error| format!("cannot make an engine: {error}"))?;
    Worker::new(WorkerPlacement::default(), Backoff::new(WaitMode::Adaptive, DEFAULT_LOOK), engine)
        .map_err(|error| format!("cannot make a worker: {error}"))
}

fn over(attached: AttachedChannel, shape: Shape) -> Result<(Disk, Vec<client::Queue>), String> {
    let options = AttachOptions { depth: shape.depth, pool_bytes: shape.bytes, ..AttachOptions::new("m") };
    Disk::over(attached, &options).map_err(|error| error.to_string())
}

pub(super) fn join(
    crowd: &mut Crowd,
    handle: &WorkerHandle<Engine>,
    disk: &Arc<AnyDisk>,
    (queues, shape): (usize, Shape),
) -> Result<(), String> {
    // Connections of one user.
    let user = Arc::new(Group::new("user"));
    // Each has a histogram of 9 KiB. A daemon's are made on another thread than its worker's, and so do not keep the state of its queues apart.
    let counters: Vec<_> = (0..queues).map(|_| Arc::default()).collect();
    for ((number, mapped), counters) in (0_u32..).zip(Mapped::all(queues, shape)?).zip(counters) {
        let (command, attached) = channel(disk, number, mapped, (Share::of(Arc::clone(&user)), counters))?;
        handle.mailbox.send(command);
        let (disk, queues) = over(attached, shape)?;
        let buffer = disk.allocate(shape.bytes).map_err(|error| error.to_string())?;
        crowd.join_with((disk, queues, buffer), shape);
    }
    Ok(())
}

/// Read the whole disk once: memory that is first touched later would have its pages made while a request is timed.
pub(super) fn touch(disk: &Arc<AnyDisk>) -> Result<(), String> {
    let shape = Shape { queues: 1, depth: 1, ..LONG };
    let (mut worker, handle) = worker()?;
    let mapped = Mapped::all(1, shape)?.pop().ok_or("a disk without a channel")?;
    let (command, attached) = channel(disk, 0, mapped, (Share::own("user"), Arc::default()))?;
    handle.mailbox.send(command);
    let (client, queues) = over(attached, shape)?;
    let buffer = client.allocate(shape.bytes).map_err(|error| error.to_string())?;
    let mut queue = queues.into_iter().next().ok_or("a channel without a queue")?;
    let sectors = shape.bytes / SECTOR_BYTES;
    for first in (0..disk.info().sector_count / sectors).map(|number| number * sectors) {
        queue.read(first, buffer.segment(0, shape.bytes), 0).map_err(|_| "a queue without requests takes none")?;
        queue.submit();
        while queue.reap(&mut |_| {}).map_err(|error| error.to_string())? == 0 {
            let _ = worker.pass();
        }
    }
    Ok(())
}

/// Serve until it is to stop, and time the passes that find something. Nothing is counted before `counts`.
pub(super) fn serve(worker: &mut Worker<Engine>, counts: &AtomicBool, stops: &AtomicBool) -> Rounds {
    let (mut passes, mut counted) = (Rounds::default(), false);
    while !stops.load(Ordering::Relaxed) {
        if !counted && counts.load(Ordering::Relaxed) {
            (passes, counted) = (Rounds::default(), true);
        }
        if time_pass(worker, &mut passes) == Pass::Idle {
            worker.rest(None);
        } else {
            worker.worked();
        }
    }
    passes
}

pub(super) fn time_pass(worker: &mut Worker<Engine>, passes: &mut Rounds) -> Pass {
    [&EMPTY, &FULL, &REQUESTS].iter().for_each(|count| count.set(0));
    let started = clock::ticks();
    let pass = worker.pass();
    passes.add(clock::ticks().wrapping_sub(started), Found { empty: EMPTY.get(), full: FULL.get(), requests: REQUESTS.get() });
    pass
}

/// Serve until it is to stop, without reading the time.
pub(super) fn serve_untimed(worker: &mut Worker<Engine>, _counts: &AtomicBool, stops: &AtomicBool) {
    while !stops.load(Ordering::Relaxed) {
        if worker.pass() == Pass::Idle {
            worker.rest(None);
        } else {
            worker.worked();
        }
    }
}

/// How many queues of a disk, and for how long.
pub(super) type Load<'a> = (&'a Arc<AnyDisk>, usize, Shape, f64);

/// Worker and clients at work, each on a CPU; what `serve` and `drive` say of it.
pub(super) fn under_load<W: Send, C: Send>(
    load: Load,
    serve: fn(&mut Worker<Engine>, &AtomicBool, &AtomicBool) -> W,
    drive: fn(&mut Crowd, Duration) -> Result<C, String>,
) -> Result<(W, C), String> {
    at_work(Cpus::choose(), load, serve, drive)
}

/// Worker and clients at work by turns on the clients' CPU, and the time of their passes and rounds.
pub(super) fn on_one_cpu(load: Load) -> Result<(Rounds, Rounds), String> {
    let client = Cpus::choose().client;
    at_work(Cpus { client, server: client }, load, serve, |crowd, duration| {
        crowd.yields = true;
        crowd.run_timed(duration)
    })
}

fn at_work<W: Send, C: Send>(
    cpus: Cpus,
    (disk, queues, shape, seconds): Load,
    serve: fn(&mut Worker<Engine>, &AtomicBool, &AtomicBool) -> W,
    drive: fn(&mut Crowd, Duration) -> Result<C, String>,
) -> Result<(W, C), String> {
    let (counts, stops) = (AtomicBool::new(false), AtomicBool::new(false));
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
            drive(&mut crowd, Duration::from_secs_f64(seconds / 4.0))?;
            counts.store(true, Ordering::Relaxed);
            drive(&mut crowd, Duration::from_secs_f64(seconds))
        };
        let driven = scope.spawn(clients).join().unwrap_or_else(|_| Err("the clients' thread panicked".to_owned()));
        stops.store(true, Ordering::Relaxed);
        // It may have fallen asleep.
        handle.mailbox.send(Command::Stop);
        let served = serving.join().unwrap_or_else(|_| Err("the worker's thread panicked".to_owned()));
        Ok((served?, driven?))
    })
}
