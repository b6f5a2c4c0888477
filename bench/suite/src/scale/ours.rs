//! The clients of the report's tables on our daemon: each reads random sectors, one at a time.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use fipsee_block::client::{AttachOptions, Buffer, Disk, Queue};
use fipsee_measure::cpus::Cpus;
use fipsee_ring::clock;
use fipsee_ring::wait::WaitMode;

use super::figures::ClientTimes;
use crate::generator::Random;
use crate::place::{on, on_both};

const SECTOR_BYTES: usize = 512;
/// Longer than this no answer is waited for.
const TIMEOUT: Duration = Duration::from_secs(20);
const PASSES_PER_CHECK: u32 = 1 << 16;
const STACK_BYTES: usize = 128 << 10;

/// How the clients reach the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// All through one queue with as many slots as the row says, as the report's client threads through one ring; one thread.
    OneQueue,
    /// A connection each; one thread.
    Connections,
    /// A connection and a thread each, which sleeps until its answer is there.
    Threads,
}

/// A load: slots, clients, requests of all together.
pub(super) type Load = (u32, usize, usize);

pub(super) fn run(socket: &Path, disk: &str, (slots, clients, requests): Load, reach: Reach) -> Result<Vec<ClientTimes>, String> {
    let share = |client: usize| requests / clients + usize::from(client < requests % clients);
    let (cpus, driver) = (Cpus::choose(), |connections| Driver::attach(socket, disk, connections, clients, share)?.run());
    match reach {
        Reach::OneQueue => on(cpus.client, || driver((1, slots))),
        Reach::Connections => on(cpus.client, || driver((clients, 1))),
        // They sleep, so that the scheduler has a choice, as it has with the threads of the report's clients.
        Reach::Threads => on_both(cpus, || threads(socket, disk, clients, share)),
    }
}

fn attach(socket: &Path, disk: &str, depth: u32, clients: usize, wait: WaitMode) -> Result<(Disk, Queue, Buffer), String> {
    let pool_bytes = (clients * SECTOR_BYTES) as u64;
    let options = AttachOptions { depth, wait, pool_bytes: pool_bytes.max(4096), read_only: true, ..AttachOptions::new(disk) };
    let (disk, mut queues) = Disk::attach(socket, &options).map_err(|error| format!("cannot attach: {error}"))?;
    let queue = queues.pop().ok_or("no queue")?;
    if queue.depth() < depth as usize {
        return Err(format!("the daemon granted a depth of {} instead of {depth}", queue.depth()));
    }
    let buffer = disk.allocate(pool_bytes).map_err(|error| error.to_string())?;
    Ok((disk, queue, buffer))
}

/// What the files hold at this offset (`files::noise`).
const fn content(offset: u64) -> u8 {
    let index = (offset % (1 << 20)) as u32;
    (index.wrapping_mul(2_654_435_761) >> 24) as u8
}

fn check(buffer: &Buffer, place: u64, sector: u64) -> Result<(), String> {
    let mut data = [0; SECTOR_BYTES];
    buffer.copy_to(place, &mut data);
    let start = sector * SECTOR_BYTES as u64;
    let expected = [content(start), content(start + SECTOR_BYTES as u64 - 1)];
    if [data[0], data[SECTOR_BYTES - 1]] == expected { Ok(()) } else { Err(format!("wrong data of sector {sector}")) }
}

/// A client that has no thread of its own.
struct Client {
    random: Random,
    left: usize,
    sector: u64,
    wanted_ticks: u64,
    times: ClientTimes,
}

struct Connection {
    disk: Disk,
    queue: Queue,
    buffer: Buffer,
    /// Clients whose request has no slot yet.
    waiting: VecDeque<usize>,
}

/// One thread that has all clients. Client n uses connection n modulo the connections.
struct Driver {
    connections: Vec<Connection>,
    clients: Vec<Client>,
}

impl Driver {
    fn attach(
        socket: &Path,
        disk: &str,
        (connections, depth): (usize, u32),
        clients: usize,
        share: impl Fn(usize) -> usize,
    ) -> Result<Self, String> {
        let connect = |number: usize| {
            let waiting: VecDeque<usize> = (number..clients).step_by(connections).collect();
            let (disk, queue, buffer) = attach(socket, disk, depth, waiting.len(), WaitMode::Adaptive)?;
            Ok::<_, String>(Connection { disk, queue, buffer, waiting })
        };
        let client = |number: usize| Client {
            random: Random(number as u64 + 1),
            left: share(number),
            sector: 0,
            wanted_ticks: 0,
            times: ClientTimes::default(),
        };
        let mut driver = Self {
            connections: (0..connections).map(connect).collect::<Result<_, _>>()?,
            clients: (0..clients).map(client).collect(),
        };
        let has_requests = |client: &usize| driver.clients[*client].left > 0;
        driver.connections.iter_mut().for_each(|connection| connection.waiting.retain(has_requests));
        Ok(driver)
    }

    fn run(mut self) -> Result<Vec<ClientTimes>, String> {
        let started_ticks = clock::ticks();
        self.clients.iter_mut().for_each(|client| client.wanted_ticks = started_ticks);
        let mut unfinished = self.clients.iter().filter(|client| client.left > 0).count();
        let (mut passes, mut since) = (0_u32, Instant::now());
        while unfinished > 0 {
            let before = unfinished;
            let stride = self.connections.len() as u64;
            for connection in &mut self.connections {
                unfinished -= connection.turn(&mut self.clients, stride, started_ticks)?;
            }
            passes = if unfinished < before { 0 } else { passes.wrapping_add(1) };
            if passes == 0 {
                since = Instant::now();
            } else if passes.is_multiple_of(PASSES_PER_CHECK) && since.elapsed() > TIMEOUT {
                return Err(format!("{unfinished} clients have no answer after {TIMEOUT:?}"));
            }
        }
        Ok(self.clients.into_iter().map(|client| client.times).collect())
    }
}

impl Connection {
    /// Take answers and ask for more; how many clients are finished. Client n has place n / `stride` of the buffer.
    fn turn(&mut self, clients: &mut [Client], stride: u64, started_ticks: u64) -> Result<usize, String> {
        let Self { disk, queue, buffer, waiting } = self;
        let sectors = disk.info().sector_count;
        let place = |number: usize| number as u64 / stride * SECTOR_BYTES as u64;
        let (mut finished, mut wrong) = (0, None);
        let reaped = queue.reap(&mut |completion| {
            let number = usize::try_from(completion.token).unwrap_or(usize::MAX);
            let Some(client) = clients.get_mut(number) else { return };
            let now = clock::ticks();
            if let Err(error) = check(buffer, place(number), client.sector) {
                wrong = Some(error);
            }
            client.times.latencies_ns.push(clock::ticks_to_ns(now.wrapping_sub(client.wanted_ticks)));
            client.left -= 1;
            if client.left > 0 {
                client.wanted_ticks = clock::ticks();
                waiting.push_back(number);
            } else {
                client.times.elapsed_ns = clock::ticks_to_ns(now.wrapping_sub(started_ticks));
                finished += 1;
            }
        });
        reaped.map_err(|error| error.to_string())?;
        if let Some(error) = wrong {
            return Err(error);
        }
        while queue.free() > 0
            && let Some(number) = waiting.pop_front()
        {
            let client = &mut clients[number];
            client.sector = client.random.below(sectors);
            let segment = buffer.segment(place(number), SECTOR_BYTES as u64);
            queue.read(client.sector, segment, number as u64).map_err(|_| "a queue with room is full".to_owned())?;
        }
        queue.submit();
        Ok(finished)
    }
}

/// Every client has a thread, which sleeps while it waits. Clients leave when all have ended, as they come before any begins.
fn threads(socket: &Path, disk: &str, clients: usize, share: impl Fn(usize) -> usize) -> Result<Vec<ClientTimes>, String> {
    let connect = |_| attach(socket, disk, 1, 1, WaitMode::Sleep);
    let mut connected = (0..clients).map(connect).collect::<Result<Vec<_>, _>>()?;
    // When all have started, so that none runs before. No barrier: if one cannot be started, the others must still end.
    let gate = RwLock::new(0);
    std::thread::scope(|scope| {
        let (mut started_ticks, gate) = (gate.write().unwrap_or_else(PoisonError::into_inner), &gate);
        let spawn = |(number, connection)| {
            let requests = share(number);
            let work = move || {
                let started_ticks = *gate.read().unwrap_or_else(PoisonError::into_inner);
                one_thread(connection, started_ticks, number as u64 + 1, requests)
            };
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work);
            thread.map_err(|error| format!("cannot start a thread for each of {clients} clients: {error}"))
        };
        let threads: Vec<_> = connected.iter_mut().enumerate().map(spawn).collect::<Result<_, _>>()?;
        *started_ticks = clock::ticks();
        drop(started_ticks);
        let end = |thread: std::thread::ScopedJoinHandle<'_, Result<ClientTimes, String>>| {
            thread.join().unwrap_or_else(|_| Err("a client's thread panicked".to_owned()))
        };
        threads.into_iter().map(end).collect()
    })
}

fn one_thread(
    (disk, queue, buffer): &mut (Disk, Queue, Buffer),
    started_ticks: u64,
    seed: u64,
    requests: usize,
) -> Result<ClientTimes, String> {
    let (mut random, mut times) = (Random(seed), ClientTimes::default());
    let sectors = disk.info().sector_count;
    for _ in 0..requests {
        let (sector, wanted_ticks) = (random.below(sectors), clock::ticks());
        queue.read(sector, buffer.segment(0, SECTOR_BYTES as u64), 0).map_err(|_| "a queue with room is full".to_owned())?;
        while queue.outstanding() > 0 {
            let answered = queue.wait_timeout(TIMEOUT, &mut |_| {}).map_err(|error| error.to_string())?;
            if answered == 0 {
                return Err(format!("a client has no answer after {TIMEOUT:?}"));
            }
        }
        check(buffer, 0, sector)?;
        times.latencies_ns.push(clock::ticks_to_ns(clock::ticks().wrapping_sub(wanted_ticks)));
    }
    times.elapsed_ns = clock::ticks_to_ns(clock::ticks().wrapping_sub(started_ticks));
    Ok(times)
}
