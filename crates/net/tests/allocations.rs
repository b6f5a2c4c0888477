//! No frame allocates memory, neither at its client nor in the worker, whatever becomes of it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use fipsee_net::frame::Mac;
use fipsee_net::server::{NetworkSetup, PortSetup};
use fipsee_net::switch::{Learning, Rules};
use fipsee_net::{AttachOptions, Error, Port};
use fipsee_ring::wait::{Backoff, WaitMode};
use fipsee_serve::{Worker, WorkerPlacement};
use fipsee_testkit::networks::{Accepting, driving, settle};

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

const PORTS: u8 = 3;
const MTU: u16 = 1500;

fn mac(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, number])
}

fn network() -> NetworkSetup {
    let port = |number| {
        let rules = Rules { any_source: number == 2, flood_limit: 1_000_000_000, ..Rules::new(mac(number)) };
        PortSetup { name: number.to_string(), rules, allow: Box::new(|_| true), reserved: None }
    };
    NetworkSetup { name: "lan".to_owned(), mtu: MTU, learning: Learning::default(), ports: (0..PORTS).map(port).collect() }
}

/// Send as many such frames as there is room for, have them forwarded, and take what comes; how often each side asked for memory.
fn exchange(
    worker: &mut Worker<()>,
    ports: &mut [Port],
    from: usize,
    frame: &[u8],
    receive_buffer: &mut Vec<u8>,
) -> (u64, u64, u64) {
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
            while port.receive(receive_buffer).expect("a frame") {
                frames += 1;
            }
        }
        frames
    });
    (client + taken, served, frames)
}

#[test]
fn no_frame_allocates() {
    let (mut worker, handle) =
        Worker::new(WorkerPlacement::default(), Backoff::new(WaitMode::Sleep, std::time::Duration::ZERO), ()).expect("a worker");
    let clients = Accepting::start(vec![network()], &handle, || {}).expect("a socket");
    // The last one fills several buffers with a long frame.
    let buffers = [None, None, Some(256)];
    let attach = |(number, buffer_bytes)| {
        let options = AttachOptions { depth: 32, buffer_bytes, ..AttachOptions::new(&format!("lan/{number}")) };
        driving(&mut worker, || Port::attach(&clients.socket(), &options).expect("a port"))
    };
    let mut ports: Vec<Port> = (0..PORTS).zip(buffers).map(attach).collect();
    // What it does for new queues is no frame's.
    settle(&mut worker);
    let mut receive_buffer = Vec::with_capacity(usize::from(MTU) + 18);
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
            let (client, served, frames) = exchange(&mut worker, &mut ports, *from, frame, &mut receive_buffer);
            assert!(
                index == 0 || (client, served) == (0, 0),
                "{client} and {served} times memory for {length} bytes from port {from}, by the client and the worker"
            );
            received += frames;
        }
    }
    assert!(received > 500, "only {received} frames were received");
}
