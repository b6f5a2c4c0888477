//! Packed messages on a guest's ring, of which a visit takes a part: what is left does not keep the queue from being handed over.

use fipsee_block::disk::MemoryDisk;
use fipsee_block::packed::{Short, pack};
use fipsee_block::wire::Segment;
use fipsee_ring::Message;
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::ring::{Reader, Writer};
use fipsee_serve::Turn;

use crate::common::driver::DATA;
use crate::common::{Fixture, Options, attach_ring, memory_disk};

/// A guest that publishes three reads in a message whenever none is left.
struct Guest {
    fixture: Fixture<MemoryDisk>,
    requests: Writer<MappedRing>,
    completions: Reader<MappedRing>,
    visits: usize,
}

impl Guest {
    fn new() -> Self {
        let mut fixture = Fixture::new(memory_disk(), &Options::default());
        let (requests, completions) = attach_ring(&mut fixture);
        Self { fixture, requests, completions, visits: 0 }
    }

    /// A visit that takes one request of the ring.
    fn visit(&mut self) {
        if self.visits.is_multiple_of(3) {
            let offset_sectors = u32::try_from(DATA / 512).expect("in the first region");
            let read = |tag| Short::new(false, tag, 0, Segment { offset_sectors, length_sectors: 8, region: 0 });
            self.requests.publish(&pack([&read(0), &read(1), &read(2)]));
        }
        let turn = Turn { alone: false, requests: u32::MAX, units: 1 };
        let taken = self.fixture.server.visit(&self.fixture.disk, &mut self.fixture.engine, turn);
        assert!(taken.requests > 0);
        self.visits += 1;
    }

    fn begins_deferred(&mut self) -> bool {
        self.fixture.server.begin_deferred(&self.fixture.disk, &mut self.fixture.engine)
    }

    fn answers(&mut self) -> usize {
        let (mut message, mut count) = (Message::ZERO, 0);
        while self.completions.receive(&mut message) {
            count += usize::from(message.to_bytes()[0]);
        }
        count
    }
}

#[test]
fn what_is_left_of_a_message_is_served_before_a_queue_is_handed_over() {
    let mut guest = Guest::new();
    guest.visit();
    assert!(guest.fixture.server.has_work() && guest.fixture.server.state().is_none());
    assert!(guest.begins_deferred() && !guest.begins_deferred());
    assert!(guest.fixture.server.state().is_some());
    assert_eq!(guest.answers(), 3);
}

/// Otherwise no daemon could take over from this one.
#[test]
fn what_is_left_of_a_message_does_not_keep_a_queue_that_is_over_from_being_handed_over() {
    let mut guest = Guest::new();
    guest.fixture.driver.stage(16);
    guest.fixture.driver.publish();
    // The virtqueue is looked at now and then.
    while guest.fixture.fault().is_empty() {
        guest.visit();
        guest.answers();
    }
    assert!(guest.fixture.server.state().is_none(), "something is left");
    assert!(!guest.begins_deferred());
    assert!(guest.fixture.server.state().is_some());
    assert_eq!(guest.answers(), 0);
}
