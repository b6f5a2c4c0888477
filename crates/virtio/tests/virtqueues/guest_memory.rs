//! Guest memory: regions anywhere, and files that are truncated while mapped.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;

use fipsee_virtio::core::memory::{GuestMemory, GuestRegion, RegionDescription};
use rustix::fs::MemfdFlags;

use crate::common::driver::DATA;
use crate::common::ram::{BASE, END, LENGTH, SECOND, SECOND_LENGTH, USER_OFFSET, region};
use crate::common::{Driver, Fixture, IN, Memory as _, OK, OUT, Options, Ram, memory_disk, readable, rings, writable};

fn file(length_bytes: u64) -> OwnedFd {
    let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).expect("memfd");
    rustix::fs::ftruncate(&file, length_bytes).expect("ftruncate");
    file
}

fn map(guest_address: u64, length_bytes: u64, file_offset_bytes: u64, file: OwnedFd) -> std::io::Result<Arc<GuestRegion>> {
    GuestRegion::map(RegionDescription { guest_address, length_bytes, user_address: guest_address, file_offset_bytes }, file)
}

#[test]
fn addresses_are_found_in_every_region_and_nowhere_else() {
    let ram = Ram::new();
    let memory = ram.memory();
    for (address, length, is_there) in [
        (BASE, 1, true),
        (BASE - 1, 1, false),
        (BASE - 1, 2, false),
        (BASE, LENGTH, true),
        (SECOND - 1, 1, true),
        (SECOND - 1, 2, false),
        (SECOND, SECOND_LENGTH, true),
        (SECOND, SECOND_LENGTH + 1, false),
        (END - 1, 1, true),
        (END, 1, false),
        (0, u64::MAX, false),
        (u64::MAX, 1, false),
        (u64::MAX, u64::MAX, false),
    ] {
        assert_eq!(memory.host(address, length).is_some(), is_there, "{address:#x}, {length} bytes");
    }
    ram.write(SECOND + 5, &[42]);
    let place = memory.host(SECOND + 5, 1).expect("there");
    // SAFETY: one byte of mapped memory.
    assert_eq!(unsafe { place.as_ptr().read_volatile() }, 42, "offsets in the file need not be pages");
    let mut pieces = Vec::new();
    assert!(memory.pieces(SECOND - 10, 30, &mut |place, length| pieces.push((place, length))));
    assert_eq!(pieces, [(memory.host(SECOND - 10, 10).expect("there"), 10), (memory.host(SECOND, 20).expect("there"), 20)]);
    for (address, length) in [(BASE - 1, 2), (END - 1, 2), (u64::MAX - 1, 5), (u64::MAX, 1)] {
        assert!(!memory.pieces(address, length, &mut |_, _| panic!("nothing is handed over")));
    }
    assert_eq!(memory.guest_address(USER_OFFSET + BASE + 7), Some(BASE + 7));
    assert_eq!(memory.guest_address(USER_OFFSET + END), None);
}

#[test]
fn regions_that_cannot_be_are_refused() {
    for (guest_address, length_bytes, offset_bytes, says) in [
        (0, 0, 0, "is empty"),
        (0, 4097, 0, "needs 4097 bytes of a file that has 4096"),
        (0, 4096, 1, "needs 4097 bytes"),
        (0, 4096, u64::MAX, "ends beyond any file"),
        (u64::MAX, 4096, 0, "wraps around"),
    ] {
        let text = map(guest_address, length_bytes, offset_bytes, file(4096)).map(|_| ()).expect_err("refused").to_string();
        assert!(text.contains(says), "{text}");
    }
    let (a, b) = (map(0, 8192, 0, file(8192)).expect("good"), map(8191, 1, 0, file(1)).expect("good"));
    let text = GuestMemory::new(vec![b, a]).map(|_| ()).expect_err("refused").to_string();
    assert!(text.contains("overlap"), "{text}");
}

#[test]
fn truncated_memory_stops_its_queue_before_anything_false_is_published() {
    let mut healthy = Fixture::new(memory_disk(), &Options::default());
    for (what, kind, address) in [("data to write", IN, SECOND), ("data to read", OUT, SECOND)] {
        let mut fixture = Fixture::new(memory_disk(), &Options::default());
        let data = if kind == IN { writable(address, 4096) } else { readable(address, 4096) };
        assert_eq!(fixture.request(kind, 0, &[data]).0, OK, "{what}");
        fixture.offer(kind, 0, &[data]);
        rustix::fs::ftruncate(&fixture.driver.ram.regions[1].file, 0).expect("cut");
        fixture.visit();
        assert!(fixture.fault().contains("truncated"), "{what}: {}", fixture.fault());
        assert_eq!(fixture.driver.used_index(), 1, "{what}: nothing is answered");
        assert_eq!(rings(&fixture.error), 1, "{what}");
        assert!(fixture.driver.ram.memory().is_broken());
        let again = Driver::new(Ram::new(), 16, true, 0);
        fixture.server.set_memory(again.ram.memory(), fixture.driver.addresses()).expect("the rings are there");
        assert_eq!(fixture.visit(), 0, "{what}: it stays stopped");
    }
    assert_eq!(healthy.request(IN, 0, &[writable(DATA, 512)]).0, OK, "the neighbour continues");
    assert!(!healthy.driver.ram.memory().is_broken());
    // Rings, header and status, too.
    let mut fixture = Fixture::new(memory_disk(), &Options::default());
    fixture.offer(IN, 0, &[writable(SECOND, 512)]);
    rustix::fs::ftruncate(&fixture.driver.ram.regions[0].file, 0).expect("cut");
    fixture.server.flush();
    assert_eq!(fixture.visit(), 0, "the available ring is empty now");
    // Once the ring has advanced, its zeroed index looks like a jump; the message names the truncation.
    let mut fixture = Fixture::new(memory_disk(), &Options::default());
    assert_eq!(fixture.request(IN, 0, &[writable(SECOND, 512)]).0, OK);
    rustix::fs::ftruncate(&fixture.driver.ram.regions[0].file, 0).expect("cut");
    fixture.visit();
    assert!(fixture.fault().contains("truncated"), "{}", fixture.fault());
    // Memory that broke before the queue came is refused.
    let memory = fixture.driver.ram.memory();
    let refused = Fixture::serve(memory_disk(), &Options::default(), Driver::new(Ram::new(), 16, true, 0), |setup| {
        setup.queue.memory = memory
    });
    assert!(refused.err().is_some_and(|text| text.contains("truncated")));
}

#[test]
fn a_hole_in_the_middle_of_a_region_affects_only_what_is_behind_it() {
    let ram = Ram::of(vec![region(BASE, 64 * 4096, 0)]);
    ram.write(BASE, &[1; 16]);
    let memory = ram.memory();
    rustix::fs::ftruncate(&ram.regions[0].file, 32 * 4096).expect("cut");
    for (page, expected) in [(40, 0), (33, 0), (0, 1), (63, 0), (32, 0)] {
        let place = memory.host(BASE + page * 4096, 1).expect("there").as_ptr();
        // SAFETY: mapped; what is missing is replaced.
        assert_eq!(unsafe { place.read_volatile() }, expected, "page {page}");
        // SAFETY: as above.
        unsafe { place.write_volatile(expected) };
    }
    assert!(memory.is_broken());
}

/// As a process of its own.
pub(crate) fn fault_outside_guest_memory() {
    let _ram = Ram::new();
    let other = file(4096);
    let access = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    // SAFETY: a fresh mapping.
    let place = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, access, rustix::mm::MapFlags::SHARED, &other, 0) };
    rustix::fs::ftruncate(&other, 0).expect("cut");
    // SAFETY: it is not: that is the test.
    unsafe { place.expect("mmap").cast::<u8>().read_volatile() };
}

/// Faults outside guest memory end the process, as without the handler: by SIGBUS.
#[test]
fn other_faults_are_not_hidden() {
    let status = fipsee_testkit::child::command("fault_outside_guest_memory").status().expect("it runs");
    assert_eq!(status.signal(), Some(rustix::process::Signal::BUS.as_raw()), "{status}");
}
