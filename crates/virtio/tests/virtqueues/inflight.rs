//! Requests in flight when the daemon ended are executed by its successor, in order, each exactly once.

use std::os::fd::OwnedFd;

use crate::common::driver::DATA;
use crate::common::{Driver, Fixture, HeldDisk, IN, Memory as _, OK, OUT, Options, Ram, Random, readable, rings, writable};
use fipsee_virtio::core::inflight::InflightArea;
use rustix::io::{pread, pwrite};

const SIZE: u16 = 64;

/// A device with an inflight area, which the test keeps as a hypervisor does.
struct Kept {
    file: OwnedFd,
    length_bytes: u64,
}

impl Kept {
    fn new() -> Self {
        let (area, file) = InflightArea::create(2, SIZE).expect("an area");
        Self { file, length_bytes: area.length_bytes() }
    }

    fn area(&self) -> InflightArea {
        InflightArea::from_peer(self.file.try_clone().expect("a descriptor"), self.length_bytes, 0, 2, SIZE).expect("the area")
    }

    /// A device on these rings; `next_available` as QEMU gives it after a back end that went away: the used index.
    fn serve(&self, driver: Driver, disk: HeldDisk) -> Fixture<HeldDisk> {
        let start = driver.used_index();
        let options = Options { size: SIZE, start, ..Options::default() };
        Fixture::serve(disk, &options, driver, |setup| setup.queue.inflight = self.area().queue(1)).expect("good rings")
    }

    fn first(&self) -> Fixture<HeldDisk> {
        self.serve(Driver::new(Ram::new(), SIZE, true, 0), HeldDisk::new())
    }

    /// The daemon was killed; another one starts. The disk loses the requests it held and keeps its contents.
    fn crash(&self, fixture: Fixture<HeldDisk>) -> Fixture<HeldDisk> {
        let Fixture { driver, server, disk, .. } = fixture;
        drop(server);
        self.serve(driver, HeldDisk::over(disk.inner))
    }

    /// Two bytes of the part of queue 1.
    fn read_u16(&self, offset: u64) -> u16 {
        let mut bytes = [0; 2];
        pread(&self.file, &mut bytes, self.length_bytes / 2 + offset).expect("within the area");
        u16::from_le_bytes(bytes)
    }

    fn write_u16(&self, offset: u64, value: u16) {
        pwrite(&self.file, &value.to_le_bytes(), self.length_bytes / 2 + offset).expect("within the area");
    }

    fn is_in_flight(&self, head: u16) -> bool {
        self.read_u16(16 + 16 * u64::from(head)) & 0xff != 0
    }
}

fn offer(fixture: &mut Fixture<HeldDisk>, sector: u64) -> u16 {
    fixture.offer(OUT, sector, &[readable(DATA, 512)])
}

/// The area, and a device that holds writes of the first `count` sectors.
fn in_flight(count: u64) -> (Kept, Fixture<HeldDisk>) {
    let kept = Kept::new();
    let mut fixture = kept.first();
    (0..count).for_each(|sector| _ = offer(&mut fixture, sector));
    fixture.visit();
    (kept, fixture)
}

fn sectors(fixture: &Fixture<HeldDisk>) -> Vec<u64> {
    fixture.disk.seen().iter().map(|(_, sector, _)| *sector).collect()
}

#[test]
fn what_was_in_flight_is_resubmitted_in_order_before_what_is_new() {
    let kept = Kept::new();
    let mut fixture = kept.first();
    let heads: Vec<u16> = (10..15).map(|sector| offer(&mut fixture, sector)).collect();
    fixture.visit();
    fixture.release(0);
    fixture.server.flush();
    // The driver uses the free head again: its number is smaller than those of older requests.
    assert_eq!(fixture.driver.take_used(), Some((heads[0], 1)));
    let again = offer(&mut fixture, 20);
    assert_eq!(again, heads[0]);
    fixture.visit();
    let unseen = offer(&mut fixture, 30);
    assert!(kept.is_in_flight(again) && !kept.is_in_flight(unseen));

    let mut fixture = kept.crash(fixture);
    assert!(fixture.server.has_work());
    while fixture.server.has_work() {
        fixture.visit();
    }
    assert_eq!(sectors(&fixture), [11, 12, 13, 14, 20, 30]);
    while fixture.disk.held() > 0 {
        fixture.release(0);
        fixture.server.flush();
    }
    for head in heads[1..].iter().chain([&again, &unseen]) {
        assert_eq!(fixture.driver.take_used(), Some((*head, 1)));
        assert_eq!(fixture.driver.status(*head), OK);
        assert!(!kept.is_in_flight(*head));
    }
    assert_eq!(fixture.driver.take_used(), None);
    assert_eq!(fixture.server.stop(), fixture.driver.next_available);
}

/// GET_VRING_BASE just after a crash: what was in flight is neither used nor available, so no other server would execute it.
#[test]
fn a_queue_that_is_to_stop_submits_what_was_in_flight_again() {
    let kept = Kept::new();
    let mut fixture = kept.first();
    let head = offer(&mut fixture, 7);
    fixture.visit();
    let mut fixture = kept.crash(fixture);
    assert!(fixture.server.begin_deferred(&fixture.disk, &mut fixture.engine));
    assert_eq!((sectors(&fixture), fixture.server.in_flight()), (vec![7], 1));
    fixture.release(0);
    fixture.server.flush();
    assert!(!fixture.server.begin_deferred(&fixture.disk, &mut fixture.engine));
    assert_eq!(fixture.driver.take_used(), Some((head, 1)));
    assert_eq!(fixture.server.stop(), fixture.driver.next_available);
}

/// The daemon was killed between a publication and its interrupt.
#[test]
fn a_guest_is_interrupted_when_its_queue_is_served_again() {
    let kept = Kept::new();
    let fixture = kept.first();
    assert_eq!(rings(&fixture.call), 0, "nothing was published");
    let fixture = kept.crash(fixture);
    assert_eq!(rings(&fixture.call), 1);
}

#[test]
fn resubmitted_requests_stay_in_order_when_the_successor_goes_too() {
    let (kept, mut fixture) = in_flight(12);
    for _ in 0..5 {
        fixture = kept.crash(fixture);
        fixture.visit();
        assert_eq!(sectors(&fixture), (0..12).collect::<Vec<_>>());
    }
}

#[test]
fn a_batch_that_was_published_and_not_cleared_is_not_done_again() {
    let kept = Kept::new();
    let mut fixture = kept.first();
    let heads: Vec<u16> = (0..6).map(|sector| offer(&mut fixture, sector)).collect();
    fixture.visit();
    // The youngest first: the remaining ones are not those after the used index in the available ring.
    for _ in 0..4 {
        fixture.release(2);
    }
    fixture.server.flush();
    assert_eq!((fixture.driver.used_index(), kept.read_u16(14)), (4, 4));
    // The state between publishing the used index and clearing the entries.
    kept.write_u16(14, 0);
    for head in &heads[2..] {
        kept.write_u16(16 + 16 * u64::from(*head), 1);
    }
    let mut fixture = kept.crash(fixture);
    assert_eq!(kept.read_u16(14), 4);
    fixture.visit();
    assert_eq!(sectors(&fixture), [0, 1]);
}

#[test]
fn a_batch_that_was_not_published_is_done_again() {
    let (kept, mut fixture) = in_flight(3);
    fixture.release(0);
    // Finished, and gone before `flush`.
    let mut fixture = kept.crash(fixture);
    fixture.visit();
    assert_eq!(sectors(&fixture), [0, 1, 2]);
}

#[test]
fn an_area_of_rings_that_are_no_more_is_forgotten() {
    let (kept, fixture) = in_flight(3);
    drop(fixture);
    // The guest was reset: the rings start afresh.
    let mut fixture = kept.first();
    assert!(!fixture.server.has_work());
    offer(&mut fixture, 40);
    fixture.visit();
    assert_eq!(sectors(&fixture), [40]);
    // An orderly stop leaves nothing, wherever the indices were.
    fixture.release(0);
    assert_eq!(fixture.server.stop(), 1);
    let mut fixture = kept.first();
    offer(&mut fixture, 41);
    fixture.visit();
    assert_eq!(sectors(&fixture), [41]);
}

#[test]
fn areas_that_cannot_be_are_refused_or_forgotten() {
    let kept = Kept::new();
    let file = || kept.file.try_clone().expect("a descriptor");
    for (length_bytes, offset_bytes, queues) in
        [(kept.length_bytes - 1, 0, 2), (kept.length_bytes, 0, 3), (kept.length_bytes, 4, 2)]
    {
        let refused = InflightArea::from_peer(file(), length_bytes, offset_bytes, queues, SIZE).map(|_| ());
        let text = refused.expect_err("too small or odd").to_string();
        assert!(text.contains("GET_INFLIGHT_FD"), "{text}");
    }
    let text = InflightArea::from_peer(file(), 1 << 40, 0, 2, SIZE).map(|_| ()).expect_err("too short a file").to_string();
    assert!(text.contains("hand over a file of the full length"), "{text}");
    assert!(kept.area().queue(2).is_none());
    // Another program's version.
    kept.write_u16(8, 7);
    let options = Options { size: SIZE, ..Options::default() };
    let driver = Driver::new(Ram::new(), SIZE, true, 0);
    let refused = Fixture::serve(HeldDisk::new(), &options, driver, |setup| setup.queue.inflight = kept.area().queue(1));
    assert!(refused.err().is_some_and(|text| text.contains("version 7")));
    // A queue that is larger than the area's.
    let driver = Driver::new(Ram::new(), 128, true, 0);
    let options = Options { size: 128, ..Options::default() };
    let refused = Fixture::serve(HeldDisk::new(), &options, driver, |setup| setup.queue.inflight = kept.area().queue(0));
    assert!(refused.err().is_some_and(|text| text.contains("64 descriptors, not 128")));
    // Random bytes: served, one way or the other.
    for seed in 0..500 {
        let bytes = Random(seed).bytes(usize::try_from(kept.length_bytes).expect("small"));
        pwrite(&kept.file, &bytes, 0).expect("within the area");
        kept.write_u16(8, 1);
        kept.write_u16(10, SIZE);
        let mut fixture = kept.first();
        offer(&mut fixture, 1);
        fixture.visit();
        assert_eq!(sectors(&fixture), [1], "seed {seed}");
    }
}

/// What was written, of the requests that were answered; how many they are.
fn take_answers(fixture: &mut Fixture<HeldDisk>, open: &mut [Option<(u64, u8)>], written: &mut [u8]) -> u32 {
    let mut count = 0;
    while let Some((head, _)) = fixture.driver.take_used() {
        assert_eq!(fixture.driver.status(head), OK);
        let (sector, byte) = open[usize::from(head)].take().expect("answered once");
        written[usize::try_from(sector).expect("small")] = byte;
        count += 1;
    }
    count
}

#[test]
fn through_any_number_of_crashes_every_request_is_answered_exactly_once_and_no_write_is_lost() {
    let kept = Kept::new();
    let mut random = Random(77);
    let mut fixture = kept.first();
    // By head: what its request writes.
    let mut open: Vec<Option<(u64, u8)>> = vec![None; usize::from(SIZE)];
    let mut written = vec![0; 64];
    let (mut crashes, mut answered) = (0, 0);
    while answered < 20_000 {
        match random.below(20) {
            0..8 if open.iter().filter(|slot| slot.is_some()).count() < 16 => {
                let sector = random.below(64);
                // Two writes of one sector at a time have no order.
                if open.iter().flatten().all(|(other, _)| *other != sector) {
                    let byte = random.number().to_le_bytes()[0];
                    let place = fixture.driver.own_area() + 4096;
                    fixture.driver.ram.write(place, &[byte; 512]);
                    let head = fixture.offer(OUT, sector, &[readable(place, 512)]);
                    open[usize::from(head)] = Some((sector, byte));
                }
            }
            0..12 => drop(fixture.visit()),
            12..18 if fixture.disk.held() > 0 => {
                let older = usize::try_from(random.below(fixture.disk.held() as u64)).expect("small");
                fixture.release(older);
            }
            18 if random.below(8) == 0 => {
                crashes += 1;
                fixture = kept.crash(fixture);
            }
            _ => fixture.server.flush(),
        }
        answered += take_answers(&mut fixture, &mut open, &mut written);
    }
    assert!(crashes > 100, "{crashes} crashes");
    while open.iter().any(Option::is_some) {
        fixture.visit();
        while fixture.disk.held() > 0 {
            fixture.release(0);
        }
        fixture.server.flush();
        take_answers(&mut fixture, &mut open, &mut written);
    }
    for (sector, byte) in (0..).zip(&written) {
        fixture.begin(IN, sector, &[writable(DATA, 512)]);
        fixture.release(0);
        fixture.server.flush();
        assert!(fixture.driver.take_used().is_some());
        assert_eq!(fixture.driver.ram.read(DATA, 512), vec![*byte; 512], "sector {sector}");
    }
}
