//! The service in a confined daemon: attach, calls and a stream, over to another daemon in the middle of both, refusals.

use std::convert::Infallible;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

use fipsee_ring::control::{ACCESS_READ, Control, RefusalCode, Wanted};
use fipsee_ring::error::Error;
use fipsee_ring::handshake::{AttachedChannel, ask, attach};
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::region::Region;
use fipsee_ring::ring::{Cursor, StreamError, StreamWriter};
use fipsee_ring::tuning::Tuning;
use fipsee_ring::{Message, clock};
use fipsee_service::{DEPTH, PROFILE, QUEUES, SERVICE_SUMS};
use fipsee_testkit::daemon::Launch;
use fipsee_testkit::{Daemon, Scratch, TIMEOUT, eventually};

fn start(more: &[&str]) -> Daemon {
    let arguments = [&["--disk", "d=memory:1M", "--workers", "2"], more].concat();
    let (program, arguments) = (vec![env!("CARGO_BIN_EXE_fipsee-service").to_owned()], arguments.into_iter().map(str::to_owned));
    Daemon::launch(Scratch::new(), Launch { program, arguments: arguments.collect(), own_group: false, ends_with_us: false })
        .expect("it serves")
}

/// Of every thread: 2 where system calls are filtered.
fn filters(daemon: &Daemon) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("a live process");
    let status = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("status")).ok());
    status.filter_map(|text| Some(text.lines().find_map(|line| line.strip_prefix("Seccomp:"))?.trim().to_owned())).collect()
}

fn wanted(name: &str) -> Wanted {
    Wanted { service: SERVICE_SUMS, queue_count: QUEUES, depth: DEPTH, flags: 0, pool_bytes: 0, name: name.to_owned() }
}

/// Both ends of the service as a client has them.
struct Client {
    attached: AttachedChannel,
    stream: StreamWriter<MappedRing>,
    sum: u64,
}

impl Client {
    fn attach(socket: &Path) -> Self {
        let attached = attach::<Infallible>(socket, 0, &PROFILE, wanted("sums")).expect("attached");
        let geometry = attached.layout.queues[1];
        let ring = geometry.request_ring(&attached.region, &geometry.tuning()).expect("it fits");
        let stream = StreamWriter::new(ring, Cursor::at_start(geometry.request_start), &Tuning::default());
        Self { attached, stream, sum: 0 }
    }

    fn add(&mut self, number: u64) {
        let mut message = Message::ZERO;
        message.set_word(0, number);
        let deadline = Instant::now() + TIMEOUT;
        while let Err(error) = self.stream.try_publish(&message) {
            assert_eq!(error, StreamError::Full);
            assert!(Instant::now() < deadline, "the stream does not move");
            std::thread::yield_now();
        }
        self.sum += number;
        if self.stream.reader_needs_doorbell() {
            self.attached.queues[1].daemon_doorbell.ring();
        }
    }

    /// The sum so far.
    fn call(&mut self, number: u64) -> u64 {
        let (sum, refused) = self.ask(number, 0);
        assert_eq!(refused, 0, "the system call that the service has declared");
        sum
    }

    /// The sum so far, and the error of the system call: 0 for the one that the service has declared, 1 for another.
    fn ask(&mut self, number: u64, system_call: u64) -> (u64, u64) {
        let queue = &mut self.attached.queues[0];
        let (mut message, deadline) = (Message::ZERO, clock::ticks() + clock::duration_to_ticks(TIMEOUT));
        message.set_word(0, number);
        message.set_word(1, system_call);
        queue.requests.publish(&message).expect("a free slot");
        if queue.requests.reader_needs_doorbell() {
            queue.daemon_doorbell.ring();
        }
        while !queue.completions.receive(&mut message) {
            assert!(clock::ticks() < deadline, "no answer");
            if !queue.completions.arm_and_work_remains() {
                queue.sleep(Some(deadline)).expect("poll");
                assert!(queue.woken(), "the daemon is gone");
            }
        }
        queue.completions.disarm();
        queue.requests.answered();
        assert_eq!(message.word(0), number, "the answer to another call");
        (message.word(1), message.word(2))
    }

    /// Everything that was added has arrived, once.
    fn await_sum(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let sum = self.call(7);
            if sum == self.sum {
                return;
            }
            assert!(sum < self.sum, "something came twice: {sum} of {}", self.sum);
            assert!(Instant::now() < deadline, "something is lost: {sum} of {}", self.sum);
        }
    }
}

#[test]
fn calls_and_streams_outlive_daemons_which_are_confined() {
    let mut daemon = start(&[]);
    let mut clients = [Client::attach(&daemon.socket()), Client::attach(&daemon.socket())];
    for round in 0..6 {
        for number in 0..1000 {
            clients.iter_mut().for_each(|client| client.add(number + round));
        }
        assert!(filters(&daemon).iter().all(|mode| mode == "2"), "every thread is confined: {:?}", filters(&daemon));
        let next = daemon.launch_takeover(&[]);
        // In the middle of the takeover, as it comes.
        let (mut number, deadline) = (0, Instant::now() + TIMEOUT);
        while !daemon.has_ended() {
            number += 1;
            assert!(Instant::now() < deadline, "the first daemon does not end");
            clients.iter_mut().for_each(|client| client.add(number));
            assert!(clients[0].call(number) <= clients[0].sum);
        }
        daemon.replace(next);
        clients.iter_mut().for_each(Client::await_sum);
    }
    // One that is killed costs its own channel only.
    let [gone, mut left] = clients;
    drop(gone);
    left.add(1);
    left.await_sum();
}

/// In one state: the workers have so many queues.
fn await_queues(daemon: &Daemon, what: &str, is_so: impl Fn(&[u64]) -> bool) {
    eventually(what, || is_so(&daemon.queue_counts()));
}

#[test]
fn queues_of_calls_and_streams_go_from_worker_to_worker_and_nothing_is_lost_or_comes_twice() {
    let mut daemon = start(&[]);
    let mut clients = [(); 3].map(|()| Client::attach(&daemon.socket()));
    let set = |daemon: &Daemon, workers: &str| {
        let answer = daemon.admin(&serde_json::json!({ "method": "workers.set", "workers": workers }));
        assert_eq!(answer["mode"], workers);
    };
    await_queues(&daemon, "every queue has a worker", |counts| counts.iter().sum::<u64>() == 6);
    for round in 0..20 {
        set(&daemon, "1");
        let deadline = Instant::now() + TIMEOUT;
        let mut number = 0;
        // In the middle of the moves, as they come.
        while daemon.queue_counts() != [6, 0] {
            assert!(Instant::now() < deadline, "the second worker keeps queues: {:?}", daemon.queue_counts());
            for client in &mut clients {
                number += 1;
                client.add(number);
                assert!(client.call(number) <= client.sum, "something came twice");
            }
        }
        set(&daemon, "2");
        await_queues(&daemon, "the other one has its part again", |counts| counts == [3, 3]);
        if round == 10 {
            daemon.take_over();
        }
        clients.iter_mut().for_each(Client::await_sum);
    }
}

#[test]
fn what_the_service_declares_is_let_through_and_shown_and_nothing_else_is() {
    let daemon = start(&["--confine", "required"]);
    let mut client = Client::attach(&daemon.socket());
    assert_eq!(client.ask(1, 0), (0, 0), "getpriority, which it has declared");
    assert_eq!(client.ask(2, 1), (0, u64::from(libc::EPERM.unsigned_abs())), "getsid, which it has not");
    let stat = daemon.admin(&serde_json::json!({ "method": "stat" }));
    assert_eq!(stat["sums"]["calls"], 2, "{stat}");
    assert_eq!((stat["queues"].as_array().map(Vec::len), stat["workers"].as_array().map(Vec::len)), (Some(0), Some(2)), "{stat}");
}

#[test]
fn what_the_service_does_not_have_is_refused() {
    let daemon = start(&[]);
    for (code, wanted) in [
        (RefusalCode::UnknownName, wanted("products")),
        (RefusalCode::UnknownName, Wanted { queue_count: 1, ..wanted("sums") }),
        (RefusalCode::Malformed, Wanted { service: SERVICE_SUMS + 1, ..wanted("sums") }),
        (RefusalCode::Malformed, Wanted { depth: 0, ..wanted("sums") }),
    ] {
        let refused = attach::<Infallible>(&daemon.socket(), 0, &PROFILE, wanted);
        assert!(matches!(&refused, Err(Error::Refused { code: found, .. }) if *found == code), "{refused:?}");
    }
    let mut client = Client::attach(&daemon.socket());
    let memory = Region::create("memory", 4096).expect("memory");
    let register = Control::Register { region: 1, access: ACCESS_READ, length_bytes: 4096 };
    let refused = ask::<Infallible>(&client.attached.control, &register, &[memory.as_fd()], "REGISTER");
    assert!(matches!(refused, Err(Error::Refused { code: RefusalCode::BadMemory, .. })), "{refused:?}");
    client.add(5);
    client.await_sum();
}
