//! What the tests of calls share: a service, sockets of their own, servers on threads.
#![allow(unreachable_pub, reason = "a module of a test program")]

use std::path::PathBuf;
use std::thread::JoinHandle;

use fipsee_call::{Call, Client, Server, ServerOptions, Service, Stopper, Worker};
use fipsee_testkit::Scratch;
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// A service with an enumeration, so that bytes can be no request.
pub struct Arithmetic;

#[derive(Clone, Copy, Debug, PartialEq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(u32)]
pub enum Operation {
    Add,
    /// Adds up this many bytes of payload.
    Sum,
    /// Fills this many bytes of payload.
    Fill,
    /// The client's number.
    WhoAmI,
    /// Panics.
    Panic,
}

#[derive(Clone, Copy, Debug, PartialEq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Request {
    pub operation: Operation,
    pub length_bytes: u32,
    pub a: u64,
    pub b: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Reply {
    pub value: u64,
    pub is_ok: bool,
    pub zero: [u8; 7],
}

impl Service for Arithmetic {
    const NAME: &str = "test.arithmetic/1";
    type Request = Request;
    type Reply = Reply;
}

/// Add two numbers.
pub fn add(a: u64, b: u64) -> Request {
    Request { operation: Operation::Add, length_bytes: 0, a, b }
}

/// A successful reply.
pub fn ok(value: u64) -> Reply {
    Reply { value, is_ok: true, zero: [0; 7] }
}

/// The handler of the service.
pub fn answer(request: Request, call: &Call<'_>) -> Reply {
    let mut bytes = vec![0_u8; usize::try_from(request.length_bytes).expect("32 bits fit").min(1 << 20)];
    let value = match request.operation {
        Operation::Add => Some(request.a.wrapping_add(request.b)),
        Operation::Sum => {
            let read = call.request_payload.read(0, &mut bytes);
            read.ok().map(|()| bytes.iter().map(|byte| u64::from(*byte)).sum())
        }
        Operation::Fill => {
            bytes.fill(u8::try_from(request.a & 0xff).expect("one byte"));
            call.reply_payload.write(0, &bytes).ok().map(|()| request.a)
        }
        Operation::WhoAmI => Some(call.client),
        Operation::Panic => panic!("asked for"),
    };
    Reply { value: value.unwrap_or(0), is_ok: value.is_some(), zero: [0; 7] }
}

/// A path for a socket, in a folder of its own.
pub struct Socket(pub PathBuf, #[expect(dead_code, reason = "removed when dropped")] Scratch);

impl Socket {
    pub fn new() -> Self {
        let folder = Scratch::new();
        Self(folder.path("s"), folder)
    }
}

/// A server of [`Arithmetic`] whose worker is the test's.
pub fn serving() -> (Socket, Server<Arithmetic>, Worker<Arithmetic>) {
    let socket = Socket::new();
    let server = Server::<Arithmetic>::bind(&socket.0).expect("a server");
    let worker = server.worker().expect("a worker");
    (socket, server, worker)
}

/// Publish calls that add 0 to each number below `count`.
pub fn publish_calls(client: &mut Client<Arithmetic>, count: u64) {
    (0..count).for_each(|a| client.start(&add(a, 0)).expect("room"));
    client.submit();
}

/// A server of [`Arithmetic`] on threads of its own.
pub struct Running {
    pub socket: Socket,
    pub stopper: Stopper,
    threads: Vec<JoinHandle<()>>,
    server: Option<Server<Arithmetic>>,
}

impl Running {
    pub fn start(options: ServerOptions, worker_count: usize) -> Self {
        let socket = Socket::new();
        let server = Server::<Arithmetic>::bind_with(&socket.0, options).expect("a server");
        let threads = (0..worker_count).map(|_| {
            let mut worker = server.worker().expect("a worker");
            std::thread::spawn(move || worker.serve(answer))
        });
        Self { stopper: server.stopper(), threads: threads.collect(), server: Some(server), socket }
    }

    pub fn default() -> Self {
        Self::start(ServerOptions::default(), 1)
    }

    pub fn with_payloads() -> Self {
        let options = ServerOptions { request_payload_bytes: 1000, reply_payload_bytes: 4096, ..Default::default() };
        Self::start(options, 1)
    }

    pub fn client(&self) -> Client<Arithmetic> {
        Client::connect(&self.socket.0).expect("connected")
    }

    pub fn default_with_client() -> (Self, Client<Arithmetic>) {
        let running = Self::default();
        let client = running.client();
        (running, client)
    }

    /// Stop in order; fails when a worker panicked.
    pub fn stop(mut self) {
        self.stopper.stop();
        for thread in self.threads.drain(..) {
            thread.join().expect("the worker ends in order");
        }
    }

    /// Hang up on all clients.
    pub fn abort(&mut self) {
        self.server = None;
    }
}
