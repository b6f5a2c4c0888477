//! Either daemon is killed at each step of a takeover: afterwards exactly one serves.

use std::time::Duration;

use fipsee_block::client::{Disk, Error, Queue, ReconnectPolicy};
use fipsee_block::wire::Status;
use fipsee_testkit::takeover::between::{Plan, Victim, forward_until_killed, intercept};
use fipsee_testkit::{Daemon, bytes_of, eventually, finish_one, stamp};

const POLICY: ReconnectPolicy = ReconnectPolicy {
    give_up_after: Duration::from_secs(30),
    pause_first: Duration::from_millis(1),
    pause_max: Duration::from_millis(20),
};

/// A client that reads back its writes, across every failure.
struct ReconnectingClient {
    disk: Disk,
    queues: Vec<Queue>,
    version: u64,
    reconnects: u32,
}

impl ReconnectingClient {
    fn new(daemon: &Daemon) -> Self {
        let (disk, queue) = daemon.client(&Daemon::options("f"));
        Self { disk, queues: vec![queue], version: 0, reconnects: 0 }
    }

    fn round(&mut self) {
        let buffer = self.disk.allocate(4096).expect("a pool");
        if self.version > 0 {
            self.request(|queue| queue.read(8, buffer.segment(0, 4096), 0).expect("room"));
            assert!(bytes_of(&buffer) == stamp(4096, 5, self.version), "the last write");
        }
        self.version += 1;
        buffer.fill(0, &stamp(4096, 5, self.version));
        self.request(|queue| queue.write(8, buffer.segment(0, 4096), true, 0).expect("room"));
    }

    fn request(&mut self, stage: impl Fn(&mut Queue)) {
        stage(&mut self.queues[0]);
        self.queues[0].submit();
        let mut status = None;
        while status.is_none() {
            match self.queues[0].wait(&mut |completion| status = Some(completion.status)) {
                Ok(_) => {}
                Err(Error::Disconnected) => {
                    self.reconnects += 1;
                    self.disk.reconnect(&mut self.queues, &POLICY, &mut |_| {}).expect("a daemon serves");
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(status, Some(Status::Ok));
    }
}

/// One takeover in which one daemon is killed; `false`: it was over before that step.
fn kill_at(plan: Plan) -> bool {
    let mut daemon = Daemon::start(&["--disk", "f=file:{dir}/disk,size=1M"]);
    let mut reconnecting = ReconnectingClient::new(&daemon);
    reconnecting.round();
    let (listener, real) = intercept(&daemon);
    let mut new = daemon.launch_takeover(&[]);
    let outcome = forward_until_killed(&listener, &real, plan, &mut daemon, &mut new);
    drop(listener);
    if !outcome.killed {
        assert!(outcome.taken, "{}", daemon.log());
        daemon.await_exit();
        daemon.replace(new);
        reconnecting.round();
        assert_eq!(reconnecting.reconnects, 0);
        return false;
    }
    let new_serves = plan.victim == Victim::Old;
    if new_serves {
        // The new daemon serves what it has received in full, or starts afresh.
        daemon.replace(new);
    }
    let context = format!("{plan:?} at {}: {}", outcome.at, daemon.log());
    if plan.victim == Victim::New && outcome.taken {
        // The new daemon served when it was killed, and the old one no longer does: as after any crash of a daemon.
        daemon.await_exit();
        return true;
    }
    for _ in 0..3 {
        reconnecting.round();
    }
    if plan.victim == Victim::New || outcome.at == "taken" {
        assert_eq!(reconnecting.reconnects, 0, "the client must not notice: {context}");
    }
    // Exactly one: a new client finds what the other client wrote, and no other daemon has the socket or the disk.
    eventually("the daemon can be attached to", || Disk::attach(&daemon.socket(), &Daemon::options("f")).is_ok());
    let (disk, mut queue) = daemon.client(&Daemon::options("f"));
    let buffer = disk.allocate(4096).expect("a pool");
    queue.read(8, buffer.segment(0, 4096), 0).expect("room");
    assert_eq!(finish_one(&mut queue), Status::Ok);
    assert!(bytes_of(&buffer) == stamp(4096, 5, reconnecting.version), "{context}");
    true
}

// Greeting, two sockets, a disk, two packets about being prepared, client, queue, end, taken.
fipsee_testkit::deaths_at_every_packet! { kill_at, 9 }
