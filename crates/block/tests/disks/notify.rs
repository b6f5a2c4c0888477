//! Doorbells that a policy holds back at the server of a queue: none is lost, and what was held back is rung when the policy ends
//! or the queue is handed over.

use std::sync::Arc;
use std::time::Instant;

use fipsee_block::disk::{Disk, Engine, NullDisk, NullOptions, Submitted, Ticket};
use fipsee_block::request::Request;
use fipsee_block::server::{QueueServer, QueueSetup};
use fipsee_block::stats::QueueCounters;
use fipsee_block::wire::{BlockInfo, PROFILE, Status, request_flush};
use fipsee_ring::channel::{ClientQueue, RegionLayout};
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::handshake::Grant;
use fipsee_ring::memory::{RegionTable, Span};
use fipsee_ring::notify::{Policy, Wanted};
use fipsee_ring::ring::RingMemory;
use fipsee_ring::{Message, Ordering};
use fipsee_serve::Turn;

const SLOW: Wanted = Wanted { max_rate: Some(1), min_completions: None, max_delay_us: None, auto: false };

struct Fixture {
    server: QueueServer,
    client: ClientQueue,
    disk: NullDisk,
    engine: Engine,
    counters: Arc<QueueCounters>,
    started: Instant,
}

impl Fixture {
    fn new() -> Self {
        let disk = NullDisk::new("disk", &NullOptions { size_bytes: 1 << 20, ..NullOptions::default() }).expect("a disk");
        let mut grant = Grant::new(RegionLayout::plan(&PROFILE, 1, 8, 4096, 0), |_| {}).expect("memory");
        let geometry = grant.layout.queues[0];
        let counters = Arc::<QueueCounters>::default();
        let setup = QueueSetup {
            depth: geometry.depth,
            info: disk.info(),
            read_only: false,
            memory: RegionTable::of_pool(&grant.region, grant.layout.pool_offset_bytes, grant.layout.pool_bytes)
                .expect("a good pool"),
            counters: Arc::clone(&counters),
        };
        let server = QueueServer::new(grant.queues.pop().expect("a queue"), 0, setup);
        let (doorbell, (ours, _)) = (EventDoorbell::new().expect("a doorbell"), SocketDoorbell::pair().expect("a doorbell"));
        let client = ClientQueue::open(&grant.region, &geometry, doorbell, ours, &geometry.tuning()).expect("rings");
        let engine = Engine::new(8).expect("an engine");
        Self { server, client, disk, engine, counters, started: Instant::now() }
    }

    fn set(&mut self, wanted: Option<Wanted>) {
        self.server.set_policy(wanted.map(|wanted| Policy::new(&wanted).expect("possible")));
    }

    /// The client sleeps, and the server answers a request of it.
    fn answer(&mut self) {
        self.client.requests.publish(&request_flush(1)).expect("room");
        let _ = self.client.completions.arm_and_work_remains();
        while self.server.visit(&self.disk, &mut self.engine, Turn::whole(false)).requests > 0 {}
        let mut answer = Message::ZERO;
        assert!(self.client.completions.receive(&mut answer), "an answer");
        self.client.requests.answered();
    }

    /// As [`answer`](Self::answer), until a doorbell is held back: the first is rung, and the next, unless a second goes by.
    fn hold_back(&mut self) {
        self.set(Some(SLOW));
        while self.server.due().is_none() {
            self.answer();
        }
    }

    fn counts(&self) -> (u64, u64) {
        (self.counters.doorbells.get(), self.counters.suppressed.get())
    }

    fn is_asleep(&self) -> bool {
        self.client.completions.memory().asleep().load(Ordering::Relaxed) != 0
    }
}

/// Answers nothing: the test does.
struct Unanswered(BlockInfo);

impl Disk for Unanswered {
    const ANSWERS_AT_ONCE: bool = false;

    fn info(&self) -> BlockInfo {
        self.0
    }

    unsafe fn submit(&self, _: &Request, _: &[Span], _: Ticket, _: &mut Engine) -> Submitted {
        Submitted::Pending
    }

    fn resize(&self, _: u64) -> Result<(), String> {
        Err("not this one".to_owned())
    }
}

#[test]
fn client_whose_request_is_only_taken_goes_on_sleeping() {
    let auto = Wanted { auto: true, ..Wanted::default() };
    let patient = Wanted { min_completions: Some(8), ..Wanted::default() };
    for policy in [None, Some(SLOW), Some(auto), Some(patient)] {
        let mut fixture = Fixture::new();
        fixture.set(policy);
        let disk = Unanswered(fixture.disk.info());
        fixture.client.requests.publish(&request_flush(1)).expect("room");
        assert!(!fixture.client.completions.arm_and_work_remains());
        assert_eq!(fixture.server.visit(&disk, &mut fixture.engine, Turn::whole(false)).requests, 1);
        fixture.server.flush();
        assert_eq!((fixture.counts(), fixture.server.due(), fixture.is_asleep()), ((0, 0), None, true), "{policy:?}");
        fixture.server.finish(Ticket { queue: 0, tag: 1, started_ticks: 0 }, Status::Ok);
        fixture.server.flush();
        assert_eq!((fixture.counts(), fixture.server.due(), fixture.is_asleep()), ((1, 0), None, false), "{policy:?}: the last");
    }
}

#[test]
fn client_for_which_nothing_was_published_since_it_was_rung_goes_on_sleeping() {
    let mut fixture = Fixture::new();
    fixture.hold_back();
    fixture.server.ring_what_is_held();
    let rung = fixture.counts();
    assert!(!fixture.client.completions.arm_and_work_remains());
    // As at a time that was listed before.
    fixture.server.flush();
    assert_eq!((fixture.counts(), fixture.server.due(), fixture.is_asleep()), (rung, None, true));
}

#[test]
fn event_rings_a_sleeping_client_with_a_policy_and_without() {
    for policy in [None, Some(SLOW)] {
        let mut fixture = Fixture::new();
        fixture.set(policy);
        assert!(!fixture.client.completions.arm_and_work_remains());
        fixture.server.announce_detach();
        assert_eq!((fixture.counts().0, fixture.is_asleep()), (1, false), "{policy:?}");
    }
}

/// checks: R-2.4-7
#[test]
fn held_back_doorbell_has_a_time_and_is_rung_by_the_end_of_the_policy_and_by_a_handover() {
    let mut fixture = Fixture::new();
    fixture.answer();
    assert_eq!((fixture.counts(), fixture.server.due()), ((1, 0), None), "without a policy at once");
    fixture.hold_back();
    let (rung, suppressed) = fixture.counts();
    assert!(suppressed == 1 && fixture.is_asleep(), "its flag stays");
    assert!(rung - 1 <= fixture.started.elapsed().as_secs() + 1, "{rung}");
    fixture.set(None);
    assert_eq!((fixture.counts(), fixture.server.due()), ((rung + 1, 1), None));
    assert!(!fixture.is_asleep());
    fixture.hold_back();
    let (rung, _) = fixture.counts();
    fixture.server.ring_what_is_held();
    assert_eq!((fixture.counts().0, fixture.server.due()), (rung + 1, None));
}

#[test]
fn client_that_woke_by_itself_is_not_rung_and_keeps_nothing_due() {
    let mut fixture = Fixture::new();
    fixture.hold_back();
    let (rung, _) = fixture.counts();
    fixture.client.completions.disarm();
    fixture.server.flush();
    assert_eq!((fixture.counts().0, fixture.server.due()), (rung, None));
}

#[test]
fn doorbell_without_a_request_counts_as_spurious() {
    let mut fixture = Fixture::new();
    fixture.server.count_doorbell();
    fixture.client.requests.publish(&request_flush(1)).expect("room");
    fixture.server.count_doorbell();
    assert_eq!(fixture.counters.spurious.get(), 1);
}
