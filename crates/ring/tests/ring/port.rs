//! The client's port: it wakes the daemon, waits, notices that it is gone, and retries as configured.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use fipsee_ring::channel::{ClientQueue, FEATURES, Profile, RegionLayout, ServerQueue};
use fipsee_ring::doorbell::{DoorbellCounts, EventDoorbell, SocketDoorbell};
use fipsee_ring::error::Error;
use fipsee_ring::notify::Policy;
use fipsee_ring::port::{Port, ReconnectEvent, ReconnectPolicy};
use fipsee_ring::region::Region;
use fipsee_ring::wait::{Backoff, WaitMode};
use fipsee_ring::{Message, clock};

fn channel(wait: WaitMode) -> (Port, ServerQueue) {
    let layout = RegionLayout::plan(&Profile { features: FEATURES, event_credits: 0, flags: &[] }, 1, 8, 0, 1);
    let region = Arc::new(Region::create("port", layout.region_bytes).expect("memory"));
    let (doorbell, (ours, theirs)) = (EventDoorbell::new().expect("an eventfd"), SocketDoorbell::pair().expect("a pair"));
    let server =
        ServerQueue::open(&region, &layout.queues[0], doorbell.clone(), ours, &layout.queues[0].tuning()).expect("it fits");
    let client = ClientQueue::open(&region, &layout.queues[0], doorbell, theirs, &layout.queues[0].tuning()).expect("it fits");
    (Port::new(client, Backoff::new(wait, Duration::ZERO)), server)
}

fn publish(port: &mut Port) {
    port.queue.requests.publish(&Message::ZERO).expect("a free slot");
    port.published();
}

/// Whether the daemon's doorbell was rung since the last time.
fn is_rung(server: &ServerQueue) -> bool {
    rustix::io::read(&server.our_doorbell, &mut [0; 8]).is_ok()
}

#[test]
fn doorbell_that_is_held_back_is_rung_when_the_caller_waits_or_its_policy_ends() {
    let policy = |text: &str| Some(text.parse::<Policy>().expect("possible"));
    let (mut port, mut server) = channel(WaitMode::Spin);
    let _ = server.requests.arm_and_work_remains();
    // More may come before the caller waits; then no more is waited for.
    port.set_policy(policy("min_completions=8,max_delay_us=1000000"));
    publish(&mut port);
    assert!(!is_rung(&server));
    port.pause::<Infallible>(None, false, || false).expect("the peer is there");
    assert!(is_rung(&server));
    let _ = server.requests.arm_and_work_remains();
    publish(&mut port);
    assert!(!is_rung(&server));
    port.set_policy(None);
    assert!(is_rung(&server));
    // The caller sleeps until a doorbell may be rung again.
    let _ = server.requests.arm_and_work_remains();
    port.set_policy(policy("max_rate=50"));
    publish(&mut port);
    assert!(is_rung(&server), "the first");
    let _ = server.requests.arm_and_work_remains();
    publish(&mut port);
    while !is_rung(&server) {
        port.pause::<Infallible>(None, false, || false).expect("the peer is there");
    }
}

#[test]
fn doorbells_are_counted_and_a_ring_without_a_completion_is_spurious() {
    let (mut port, mut server) = channel(WaitMode::Sleep);
    let mut expected = DoorbellCounts::default();
    publish(&mut port);
    assert_eq!(port.counts, expected, "the daemon is awake");
    let _ = server.requests.arm_and_work_remains();
    publish(&mut port);
    expected.doorbells = 1;
    assert_eq!(port.counts, expected);
    port.set_policy(Some("max_rate=1".parse::<Policy>().expect("possible")));
    // None was rung under this policy, so the first is rung at once.
    for suppressed in [0, 1, 2] {
        let _ = server.requests.arm_and_work_remains();
        publish(&mut port);
        (expected.doorbells, expected.suppressed) = (2, suppressed);
        assert_eq!(port.counts, expected);
    }
    port.ring_if_due(true);
    assert_eq!(port.counts, expected, "nothing was published meanwhile");
    port.set_policy(None);
    expected.doorbells = 3;
    assert_eq!(port.counts, expected);

    server.completions.publish(&Message::ZERO);
    server.client_doorbell.ring();
    let woken = |port: &mut Port| port.woken::<Infallible>().expect("the peer is there");
    woken(&mut port);
    expected.wakeups = 1;
    assert_eq!(port.counts, expected);
    woken(&mut port);
    assert_eq!(port.counts, expected, "nothing rang");
    let mut message = Message::ZERO;
    assert!(port.queue.completions.receive(&mut message));
    server.client_doorbell.ring();
    woken(&mut port);
    (expected.wakeups, expected.spurious) = (2, 1);
    assert_eq!(port.counts, expected);
    drop(server);
    assert!(matches!(port.woken::<Infallible>(), Err(Error::Disconnected)));
    assert_eq!(port.counts, expected, "a hang-up is no ring");
}

#[test]
fn a_deadline_that_has_passed_ends_the_wait() {
    for wait in [WaitMode::Spin, WaitMode::Sleep] {
        let (mut port, _server) = channel(wait);
        publish(&mut port);
        assert!(matches!(port.pause::<Infallible>(Some(0), false, || false), Ok(false)), "{wait:?}");
        let soon = clock::ticks() + clock::duration_to_ticks(Duration::from_millis(1));
        while port.pause::<Infallible>(Some(soon), true, || false).expect("the peer is there") {}
        assert!(clock::ticks() >= soon, "{wait:?}: not before its time");
    }
}

#[test]
fn a_sleeper_is_rung_and_takes_what_came_before_the_end() {
    let (mut port, mut server) = channel(WaitMode::Sleep);
    assert!(!server.requests.arm_and_work_remains());
    publish(&mut port);
    let mut message = Message::ZERO;
    assert!(server.requests.receive(&mut message), "it was published");
    let mut doorbell = [0; 8];
    assert_eq!(rustix::io::read(&server.our_doorbell, &mut doorbell).expect("it was rung"), 8);
    server.completions.publish(&message);
    drop(server.client_doorbell); // The daemon is gone.
    port.pause::<Infallible>(None, false, || true).expect("what it published still counts");
    assert!(port.queue.completions.receive(&mut message));
    port.queue.requests.answered();
    publish(&mut port);
    assert!(matches!(port.pause::<Infallible>(None, false, || true), Err(Error::Disconnected)), "nothing is left");
    assert!(matches!(port.woken::<Infallible>(), Err(Error::Disconnected)));
}

#[test]
fn polling_asks_now_and_then_whether_the_daemon_is_there() {
    let (mut port, mut server) = channel(WaitMode::Spin);
    publish(&mut port);
    let mut asked = 0;
    let mut look = |port: &mut Port| {
        port.check_liveness_now_and_then::<Infallible>(|| {
            asked += 1;
            true
        })
    };
    let looks = (0..10_000).take_while(|_| look(&mut port).is_ok()).count();
    assert!((1000..10_000).contains(&looks), "{looks} looks before it was asked");
    server.completions.publish(&Message::ZERO);
    assert!((0..10_000).all(|_| look(&mut port).is_ok()), "what was published still counts");
    assert!(asked >= 1);
}

#[test]
fn attempts_end_with_success_with_what_will_not_pass_or_with_the_time() {
    let policy = ReconnectPolicy { give_up_after: Duration::MAX, pause_first: Duration::ZERO, pause_max: Duration::ZERO };
    let run = |policy: ReconnectPolicy, mut outcomes: Vec<Result<(), u32>>| {
        let mut events = Vec::new();
        let mut hook = |event: ReconnectEvent<'_, u32>| {
            events.push(match event {
                ReconnectEvent::Lost => (0, None),
                ReconnectEvent::AttemptFailed { attempts, error } => (attempts, Some(*error)),
                ReconnectEvent::Resumed { attempts } => (attempts, None),
            });
        };
        let end = policy.keep_trying(|| outcomes.remove(0), |error| *error < 10, &mut hook);
        (end, events)
    };
    assert_eq!(run(policy, vec![Err(1), Err(2), Ok(())]), (Ok(()), vec![(0, None), (1, Some(1)), (2, Some(2)), (3, None)]));
    assert_eq!(run(policy, vec![Err(1), Err(10), Ok(())]), (Err(10), vec![(0, None), (1, Some(1)), (2, Some(10))]));
    let at_once = ReconnectPolicy { give_up_after: Duration::ZERO, pause_first: Duration::from_secs(1), ..policy };
    assert_eq!(run(at_once, vec![Err(1), Ok(())]), (Err(1), vec![(0, None), (1, Some(1))]));
}
