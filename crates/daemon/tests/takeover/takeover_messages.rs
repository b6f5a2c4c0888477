//! Messages of clients during a takeover are read once and answered once, by either daemon.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use fipsee_block::client::AttachOptions;
use fipsee_block::wire::Status;
use fipsee_testkit::load::Load;
use fipsee_testkit::{Daemon, eventually, finish_one, stamp};

/// A task that is repeated, and must succeed each time.
struct RepeatedTask {
    what: &'static str,
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl RepeatedTask {
    fn start(what: &'static str, mut round: impl FnMut(u64) + Send + 'static) -> Self {
        let (stop, rounds) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&rounds));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                round(counted.fetch_add(1, Ordering::Relaxed));
            }
        });
        Self { what, stop, rounds, thread }
    }

    #[track_caller]
    fn await_progress(&self) {
        let before = self.rounds.load(Ordering::Relaxed);
        eventually(&format!("{} goes on", self.what), || {
            assert!(!self.thread.is_finished(), "{} failed; see above", self.what);
            self.rounds.load(Ordering::Relaxed) > before + 2
        });
    }

    fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("every repetition succeeded");
    }
}

/// checks: R-4.8-4
#[test]
fn control_messages_that_come_meanwhile_are_answered_once() {
    let mut daemon = Daemon::start(&["--disk", "m=memory:16M", "--disk", "w=memory:16M", "--workers", "2"]);
    let load = Load::start(&daemon, "w", 16);
    let (disk, mut queue) = daemon.client(&Daemon::options("m"));
    let memory = RepeatedTask::start("registering memory", move |round| {
        let memory = disk.create_memory(1 << 16).expect("registered");
        let buffer = memory.buffer(0, 4096).expect("inside");
        buffer.fill(0, &stamp(4096, 1, round));
        queue.write(0, buffer.segment(0, 4096), false, 0).expect("room");
        assert_eq!(finish_one(&mut queue), Status::Ok);
        disk.unregister(&memory).expect("unregistered");
        queue.read(0, buffer.segment(0, 4096), 0).expect("room");
        assert_eq!(finish_one(&mut queue), Status::BadMemory, "what was unregistered with one daemon is so with the next");
    });
    let socket = daemon.socket();
    let attaching = RepeatedTask::start("attaching", move |round| {
        let options = AttachOptions { queue_count: 1 + u16::try_from(round % 3).unwrap_or(0), ..Daemon::options("m") };
        let (disk, mut queues) = fipsee_block::client::Disk::attach(&socket, &options).expect("attached");
        let buffer = disk.allocate(4096).expect("a pool");
        for queue in &mut queues {
            queue.read(8, buffer.segment(0, 4096), 0).expect("room");
            assert_eq!(finish_one(queue), Status::Ok);
        }
        disk.detach(queues).expect("in order");
    });
    for _ in 0..20 {
        load.await_progress();
        [&memory, &attaching].into_iter().for_each(RepeatedTask::await_progress);
        daemon.take_over();
    }
    memory.finish();
    attaching.finish();
    load.finish();
    eventually("all clients are gone", || daemon.attached_count("m") + daemon.attached_count("w") == 0);
}
