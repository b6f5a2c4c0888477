//! No frame allocates memory, neither at its client nor in the worker, whatever becomes of it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fipsee_net::frame::Mac;
use fipsee_net::server::{NetworkSetup, Networks, PortSetup, Switches};
use fipsee_net::switch::{Learning, Rules};
use fipsee_net::{AttachOptions, Error, Port};
use fipsee_ring::channel::{FEATURE_CHOICES, MAX_DEPTH, MAX_POOL_BYTES};
use fipsee_ring::control::Wanted;
use fipsee_ring::wait::{Backoff, WaitMode};
use fipsee_serve::session::{Client, ClientLimits, Denial, Granted, Host, Service};
use fipsee_serve::unix::UnixTransport;
use fipsee_serve::unix::listener::Listener;
use fipsee_serve::{Command, Pass, Worker, WorkerHandle, WorkerPlacement};
use fipsee_testkit::Scratch;
use rustix::net::SocketType;

/// The system's allocator, which counts for each thread how often it is asked for memory.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all of it is the system's allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: by the caller.
        unsafe { System.dealloc(memory, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often `act` asks for memory.
fn allocations<T>(act: impl FnOnce() -> T) -> (u64, T) {
    let before = COUNT.get();
    let result = act();
    (COUNT.get() - before, result)
}

/// Serves the ports of one network, by a worker of the caller's.
struct Serving {
    networks: Networks<()>,
    worker: WorkerHandle<()>,
    clients: u64,
}

impl Host<()> for Serving {
    fn next_client(&mut self) -> u64 {
        self.clients += 1;
        self.clients
    }

    fn limits(&self) -> ClientLimits {
        ClientLimits { max_queues: 2, max_depth: MAX_DEPTH, max_pool_bytes: MAX_POOL_BYTES, max_memory_bytes: 0 }
    }

    fn max_clients(&self) -> (usize, Option<usize>) {
        (8, None)
    }

    fn features(&self) -> u64 {
        FEATURE_CHOICES
    }

    fn attach(&mut self, client: &Client<'_>, wanted: &Wanted) -> Result<Granted<()>, Denial> {
        self.networks.attach(client, wanted)
    }

    fn command(&mut self, _worker: usize, command: Command<()>) {
        self.worker.mailbox.send(command);
    }
}

const PORTS: u8 = 3;
const MTU: u16 = 1500;

fn mac(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, number])
}

fn host(worker: &WorkerHandle<()>) -> Serving {
    let port = |number| {
        let rules = Rules { any_source: number == 2, flood_limit: 1_000_000_000, ..Rules::new(mac(number)) };
        PortSetup { name: number.to_string(), rules, allow: Box::new(|_| true), reserved: None }
    };
    let (name, learning, ports) = ("lan".to_owned(), Learning::default(), (0..PORTS).map(port).collect());
    let switches = Switches::new(vec![NetworkSetup { name, mtu: MTU, learning, ports }]);
    let networks = Networks::new(switches, vec![worker.clone()], Arc::new(|_, _| {}));
    Serving { networks, worker: worker.clone(), clients: 0 }
}

/// Until nothing is left to do.
fn settle(worker: &mut Worker<()>) {
    let mut idle = 0;
    while idle < 4 {
        idle = if worker.pass() == Pass::Worked { 0 } else { idle + 1 };
    }
}

/// Attach while the worker, which has to take the queues, is driven.
fn attach(worker: &mut Worker<()>, socket: &Path, number: u8, buffer_bytes: Option<u32>) -> Port {
    let options = AttachOptions { depth: 32, buffer_bytes, ..AttachOptions::new(&format!("lan/{number}")) };
    std::thread::scope(|scope| {
        let attaching = scope.spawn(|| Port::attach(socket, &options).expect("a port"));
        while !attaching.is_finished() {
            worker.pass();
        }
        attaching.join().expect("a port")
    })
}

/// Send as many such frames as there is room for, have them forwarded, and take what comes; how often each side asked for memory.
fn exchange(worker: &mut Worker<()>, ports: &mut [Port], from: usize, frame: &[u8], inbox: &mut Vec<u8>) -> (u64, u64, u64) {
    let (client, ()) = allocations(|| {
        while match ports[from].stage(frame) {
            Ok(()) => true,
            Err(Error::Full) => false,
            Err(error) => panic!("{error}"),
        } {}
        ports[from].submit();
    });
    let (served, ()) = allocations(|| settle(worker));
    let (taken, frames) = allocations(|| {
        let mut frames = 0;
        for port in &mut *ports {
            port.reap().expect("an answer");
            while port.receive(inbox).expect("a frame") {
                frames += 1;
            }
        }
        frames
    });
    (client + taken, served, frames)
}

/// Ends the thread that accepts, however the test ends.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn no_frame_allocates() {
    let (mut worker, handle) =
        Worker::new(WorkerPlacement::default(), Backoff::new(WaitMode::Sleep, std::time::Duration::ZERO), ()).expect("a worker");
    let (folder, is_over) = (Scratch::new(), AtomicBool::new(false));
    let socket = folder.path("s");
    let listener = Listener::bind(&socket, SocketType::SEQPACKET, 0o600).expect("a socket");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut clients = UnixTransport::new(host(&handle)).expect("a transport");
            clients.listen(listener.socket()).expect("a socket");
            while !is_over.load(Ordering::Relaxed) {
                let _ = clients.turn(listener.socket(), Some(std::time::Duration::from_millis(5)));
            }
        });
        let _end = End(&is_over);
        // The last one fills several buffers with a long frame.
        let buffers = [None, None, Some(256)];
        let mut ports: Vec<Port> =
            (0..PORTS).zip(buffers).map(|(number, bytes)| attach(&mut worker, &socket, number, bytes)).collect();
        // What it does for new queues is no frame's.
        settle(&mut worker);
        let mut inbox = Vec::with_capacity(usize::from(MTU) + 18);
        let frame = |to: Mac, from: Mac, length: usize| {
            let mut frame = [&to.0[..], &from.0, &[8, 0]].concat();
            frame.resize(length, 7);
            frame
        };
        let (unknown, foreign) = (mac(0x77), mac(0x55));
        let mut received = 0;
        // The first time, lists of the worker's queues grow.
        for (index, length) in [64, 14, 56, 57, 64, 1514].into_iter().enumerate() {
            let sent = [
                (0, frame(mac(1), mac(0), length)),
                (1, frame(mac(2), mac(1), length)),
                (0, frame(Mac::BROADCAST, mac(0), length)),
                (0, frame(unknown, mac(0), length)),
                // Refused, learned, back to what was learned.
                (0, frame(mac(1), foreign, length)),
                (2, frame(mac(1), foreign, length)),
                (1, frame(foreign, mac(1), length)),
            ];
            for (from, frame) in &sent {
                let (client, served, frames) = exchange(&mut worker, &mut ports, *from, frame, &mut inbox);
                assert!(
                    index == 0 || (client, served) == (0, 0),
                    "{client} and {served} times memory for {length} bytes from port {from}, by the client and the worker"
                );
                received += frames;
            }
        }
        assert!(received > 500, "only {received} frames were received");
    });
}
