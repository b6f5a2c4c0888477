//! Queues on a worker: messages, changes, quiescing, removal.

mod echo;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fipsee_ring::channel::{ClientQueue, FEATURES, Profile, RegionLayout, ServerQueue};
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::region::Region;
use fipsee_ring::ring::Cursor;
use fipsee_ring::wait::WaitMode;
use fipsee_ring::{Message, clock};
use fipsee_serve::{Command, IfAbandoned, Queue, QueueName, Quiesced, Share, When, Which, WorkerHandle, WorkerPlacement, spawn};

use crate::echo::{Echo, KEPT, LATE};

const NAME: QueueName = QueueName { client: 7, index: 0 };
/// Longer than anything takes here.
const TIMEOUT: Duration = Duration::from_secs(30);

const PROFILE: Profile = Profile { features: FEATURES, event_credits: 0, flags: &[] };

fn serve(wait: WaitMode) -> (WorkerHandle<()>, JoinHandle<()>, ClientQueue) {
    let (worker, thread) = spawn(0, WorkerPlacement::default(), wait, Duration::ZERO, || Ok(())).expect("a worker");
    let layout = RegionLayout::plan(&PROFILE, 1, 8, 0, 1);
    let region = Arc::new(Region::create("echo", layout.region_bytes).expect("memory"));
    let (doorbell, (ours, theirs)) = (EventDoorbell::new().expect("an eventfd"), SocketDoorbell::pair().expect("a pair"));
    let queue =
        ServerQueue::open(&region, &layout.queues[0], doorbell.clone(), ours, &layout.queues[0].tuning()).expect("it fits");
    let (added, served) = channel();
    let added = Box::new(move |result: Result<(), _>| added.send(result.is_ok()).expect("waited for"));
    worker.mailbox.send(Echo::add(NAME, queue, added));
    assert_eq!(served.recv_timeout(TIMEOUT), Ok(true));
    (
        worker,
        thread,
        ClientQueue::open(&region, &layout.queues[0], doorbell, theirs, &layout.queues[0].tuning()).expect("it fits"),
    )
}

fn send(client: &mut ClientQueue, value: u64) {
    let mut message = Message::ZERO;
    message.set_word(0, value);
    client.requests.publish(&message).expect("a free slot");
    if client.requests.reader_needs_doorbell() {
        client.daemon_doorbell.ring();
    }
}

fn receive(client: &mut ClientQueue) -> u64 {
    let (mut message, deadline) = (Message::ZERO, clock::ticks() + clock::duration_to_ticks(TIMEOUT));
    while !client.completions.receive(&mut message) {
        assert!(clock::ticks() < deadline, "no answer");
        if !client.completions.arm_and_work_remains() {
            client.sleep(Some(deadline)).expect("poll");
            assert!(client.woken(), "the worker is gone");
        }
    }
    client.completions.disarm();
    client.requests.answered();
    message.word(0)
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {TIMEOUT:?}: {what}");
        std::thread::yield_now();
    }
}

/// Change the queue; what comes when the change is dropped.
fn change(worker: &WorkerHandle<()>, when: When, change: fn(&mut Echo)) -> Receiver<()> {
    let (ack, done) = channel::<()>();
    let change = Box::new(move |queue: &mut dyn Queue<()>| {
        let _until_dropped = &ack;
        change((queue as &mut dyn Any).downcast_mut().expect("an echo"));
    });
    worker.mailbox.send(Command::Change { which: Which::Client(NAME.client), when, change });
    done
}

#[test]
fn messages_come_back_asleep_or_not() {
    for wait in [WaitMode::Sleep, WaitMode::Yield] {
        let (worker, thread, mut client) = serve(wait);
        for value in 0..3000 {
            send(&mut client, value);
            assert_eq!(receive(&mut client), value);
        }
        // Its stamp is what shows the next message then, or its doorbell.
        if wait == WaitMode::Sleep {
            until("the worker sleeps", || client.requests.reader_sleeps() && worker.counters.sleeps.load(Ordering::Relaxed) > 0);
        } else {
            // tidy: allow sleep, long enough for the queue to become idle, which nothing outside a worker that polls shows
            std::thread::sleep(Duration::from_millis(20));
        }
        send(&mut client, 1);
        assert_eq!(receive(&mut client), 1);
        let sleeps = worker.counters.sleeps.load(Ordering::Relaxed);
        assert!(wait == WaitMode::Sleep || sleeps == 0, "a worker that yields has slept {sleeps} times");
        stop(&worker, thread, false);
    }
}

/// A worker that sleeps, and one that polls, have a time to wake up at.
#[test]
fn answer_that_is_held_back_comes_in_time_without_another_message() {
    for wait in [WaitMode::Sleep, WaitMode::Yield] {
        let (worker, thread, mut client) = serve(wait);
        for value in LATE..LATE + 20 {
            send(&mut client, value);
            assert_eq!(receive(&mut client), value);
        }
        stop(&worker, thread, false);
    }
}

#[test]
fn change_waits_for_what_is_in_flight_and_requests_wait_for_the_change() {
    let (worker, thread, mut client) = serve(WaitMode::Sleep);
    send(&mut client, KEPT);
    send(&mut client, 1);
    assert_eq!(receive(&mut client), 1, "so the one before was taken");
    let done = change(&worker, When::Idle, |echo| assert!(echo.keeps_nothing()));
    let seen = change(&worker, When::Now, |echo| assert!(!echo.keeps_nothing()));
    assert_eq!(seen.recv_timeout(TIMEOUT), Err(RecvTimeoutError::Disconnected));
    send(&mut client, 2);
    assert_eq!(done.try_recv(), Err(TryRecvError::Empty));
    let _ = change(&worker, When::Now, Echo::answer_kept);
    assert_eq!((receive(&mut client), receive(&mut client)), (KEPT, 2));
    assert_eq!(done.recv_timeout(TIMEOUT), Err(RecvTimeoutError::Disconnected));
    stop(&worker, thread, true);
}

#[test]
fn quiesced_queue_has_a_state_and_goes_on_and_is_served_to_the_end() {
    let (worker, thread, mut client) = serve(WaitMode::Sleep);
    send(&mut client, 1);
    assert_eq!(receive(&mut client), 1);
    let workers = [worker.clone()];
    let quiesced = Quiesced::begin(&workers, Vec::new(), TIMEOUT, IfAbandoned::Resume).expect("nothing is in flight");
    let (_, completions) = *quiesced.state::<(Cursor, Cursor)>(NAME).expect("a state");
    assert_eq!(completions, client.completions.cursor());
    send(&mut client, 2);
    send(&mut client, 3);
    quiesced.resume();
    stop(&worker, thread, true);
    assert_eq!((receive(&mut client), receive(&mut client)), (2, 3));
}

#[test]
fn queue_that_is_to_go_begins_what_is_deferred() {
    let (worker, thread, _client) = serve(WaitMode::Sleep);
    // Until both commands are there: then no visit comes between them.
    let (go_on, may_go_on) = channel();
    let wait = Box::new(move |_: &mut dyn Queue<()>| may_go_on.recv_timeout(TIMEOUT).expect("both are there"));
    worker.mailbox.send(Command::Change { which: Which::Client(NAME.client), when: When::Now, change: wait });
    let _ = change(&worker, When::Now, Echo::keep_deferred);
    let (reply, removed) = channel();
    let queue = move |queue: Box<dyn Queue<()>>, _: Share| reply.send(queue.in_flight()).expect("waited for");
    worker.mailbox.send(Command::Remove { which: Which::Queue(NAME), finish: false, removed: Box::new(queue) });
    go_on.send(()).expect("waited for");
    assert_eq!(removed.recv_timeout(TIMEOUT), Ok(0));
    worker.mailbox.send(Command::Stop);
    thread.join().expect("in order");
}

/// Remove the queue, then the worker.
fn stop(worker: &WorkerHandle<()>, thread: JoinHandle<()>, finish: bool) {
    let (reply, removed) = channel();
    let which = Which::Queue(NAME);
    let queue = move |queue: Box<dyn Queue<()>>, _: Share| reply.send(queue.in_flight()).expect("waited for");
    worker.mailbox.send(Command::Remove { which, finish, removed: Box::new(queue) });
    assert_eq!(removed.recv_timeout(TIMEOUT), Ok(0));
    assert_eq!(worker.counters.queues.load(Ordering::Relaxed), 0);
    worker.mailbox.send(Command::Stop);
    thread.join().expect("in order");
}
