//! Networks that are served in this process, without a daemon: a thread accepts clients, the worker is the caller's.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use fipsee_net::server::{NetworkSetup, Networks, Switches};
use fipsee_ring::channel::{FEATURE_CHOICES, FEATURE_WORKER_CPU, MAX_DEPTH, MAX_POOL_BYTES};
use fipsee_ring::control::Wanted;
use fipsee_serve::session::{Client, ClientLimits, Denial, Granted, Host, Service};
use fipsee_serve::unix::UnixTransport;
use fipsee_serve::unix::listener::Listener;
use fipsee_serve::{Command, Pass, Worker, WorkerHandle};
use rustix::net::SocketType;

use crate::Scratch;

/// How often the thread that accepts looks whether it is to end.
const TICK: Duration = Duration::from_millis(20);

struct OneWorker {
    networks: Networks<()>,
    worker: WorkerHandle<()>,
    clients: u64,
}

impl Host<()> for OneWorker {
    fn next_client(&mut self) -> u64 {
        self.clients += 1;
        self.clients
    }

    fn limits(&self) -> ClientLimits {
        ClientLimits { max_depth: MAX_DEPTH, max_pool_bytes: MAX_POOL_BYTES, max_memory_bytes: 0, ..ClientLimits::default() }
    }

    fn max_clients(&self) -> (usize, Option<usize>) {
        (16, None)
    }

    fn features(&self) -> u64 {
        FEATURE_CHOICES | FEATURE_WORKER_CPU
    }

    fn attach(&mut self, client: &Client<'_>, wanted: &Wanted) -> Result<Granted<()>, Denial> {
        self.networks.attach(client, wanted)
    }

    fn command(&mut self, _worker: usize, command: Command<()>) {
        self.worker.mailbox.send(command);
    }
}

const ACCEPT: u8 = 0;
/// Clients are gone, and what is left of them is to be removed.
const FINISH: u8 = 1;
const ABANDON: u8 = 2;

/// The thread that accepts clients. It ends with this.
pub struct Accepting {
    folder: Scratch,
    stage: Arc<AtomicU8>,
    thread: Option<JoinHandle<()>>,
}

impl Accepting {
    /// Clients may attach to ports of these networks, whose queues `worker` gets. The thread calls `first` before anything else.
    pub fn start(
        setups: Vec<NetworkSetup>,
        worker: &WorkerHandle<()>,
        first: impl FnOnce() + Send + 'static,
    ) -> Result<Self, String> {
        let (folder, stage) = (Scratch::new(), Arc::new(AtomicU8::new(ACCEPT)));
        let listener = Listener::bind(&folder.path("s"), SocketType::SEQPACKET, 0o600)?;
        let networks = Networks::new(Switches::new(setups), vec![worker.clone()], Arc::new(|_, _| {}));
        let (host, until) = (OneWorker { networks, worker: worker.clone(), clients: 0 }, Arc::clone(&stage));
        let accept = move || {
            first();
            let mut clients = UnixTransport::new(host).expect("a transport");
            clients.listen(listener.socket()).expect("a socket");
            loop {
                match until.load(Ordering::Relaxed) {
                    ABANDON => break,
                    FINISH if clients.sessions.is_empty() => break,
                    _ => _ = clients.turn(listener.socket(), Some(TICK)),
                }
            }
        };
        Ok(Self { folder, stage, thread: Some(std::thread::spawn(accept)) })
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path("s")
    }

    /// All clients are gone: wait until nothing of them is left, at the worker, which another thread drives, either.
    pub fn finish(mut self) -> Result<(), String> {
        self.stage.store(FINISH, Ordering::Relaxed);
        let thread = self.thread.take();
        thread.map_or(Ok(()), JoinHandle::join).map_err(|_| "the thread that accepts clients has failed".to_owned())
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.stage.store(ABANDON, Ordering::Relaxed);
        self.thread.take().into_iter().for_each(|thread| _ = thread.join());
    }
}

/// Drive the worker until nothing is left to do.
pub fn settle(worker: &mut Worker<()>) {
    // The second pass visits what the first has woken.
    let mut idle = 0;
    while idle < 4 {
        idle = if worker.pass() == Pass::Worked { 0 } else { idle + 1 };
    }
}

/// Drive the worker while another thread acts.
pub fn driving<T: Send>(worker: &mut Worker<()>, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let acting = scope.spawn(act);
        while !acting.is_finished() {
            worker.pass();
        }
        acting.join().expect("no panic")
    })
}
