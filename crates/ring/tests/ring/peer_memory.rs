//! Memory that a peer hands over is taken only when no later act of the peer can make us crash.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use fipsee_ring::PeerFault;
use fipsee_ring::channel::{FEATURES, Profile, RegionLayout};
use fipsee_ring::handshake::Grant;
use fipsee_ring::region::{Access, MAX_REGION_BYTES, Region, RegionError};
use rustix::fs::{MemfdFlags, SealFlags};

const PAGE: u64 = 4096;

fn memory_file(length_bytes: u64, seals: SealFlags) -> OwnedFd {
    let file = rustix::fs::memfd_create("peer", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd_create");
    rustix::fs::ftruncate(&file, length_bytes).expect("ftruncate");
    rustix::fs::fcntl_add_seals(&file, seals).expect("seals");
    file
}

fn refusal(file: OwnedFd, length_bytes: u64, access: Access) -> PeerFault {
    match Region::from_peer(file, length_bytes, access) {
        Err(RegionError::Fault(fault)) => fault,
        Err(RegionError::Io(error)) => panic!("the machine refused: {error}"),
        Ok(region) => panic!("accepted {} bytes", region.length_bytes()),
    }
}

fn reason(file: OwnedFd, access: Access) -> &'static str {
    match refusal(file, PAGE, access) {
        PeerFault::UnsafeMemory { why } => why,
        other => panic!("another fault: {other}"),
    }
}

#[test]
fn sealed_memory_is_shared_both_ways() {
    let ours = Region::create("ours", 3 * PAGE).expect("a region");
    let handed_over = rustix::io::dup(&ours).expect("dup");
    let theirs = Region::from_peer(handed_over, 2 * PAGE, Access::ReadWrite).expect("sealed memory is taken");
    ours.write(2 * PAGE - 4, b"here").expect("inside");
    let mut bytes = [0; 4];
    theirs.read(2 * PAGE - 4, &mut bytes).expect("inside");
    assert_eq!(&bytes, b"here");
    theirs.write(0, b"back").expect("inside");
    ours.read(0, &mut bytes).expect("inside");
    assert_eq!(&bytes, b"back");
    assert!(theirs.read(2 * PAGE - 3, &mut bytes).is_err(), "beyond what was asked for, though the file is longer");
}

#[test]
fn regions_of_ours_cannot_shrink_or_grow() {
    let region = Region::create("ours", 1).expect("a region");
    assert_eq!(region.length_bytes(), PAGE, "whole pages");
    for length_bytes in [0, PAGE - 1, 2 * PAGE] {
        assert_eq!(rustix::fs::ftruncate(&region, length_bytes), Err(rustix::io::Errno::PERM), "resized to {length_bytes}");
    }
    assert!(rustix::fs::fcntl_add_seals(&region, SealFlags::WRITE).is_err(), "a peer could seal it against us");
    for length_bytes in [0, u64::MAX] {
        let error = Region::create("none", length_bytes).expect_err("no such region");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{length_bytes} bytes");
    }
}

#[test]
fn memory_that_can_shrink_is_refused() {
    for seals in [SealFlags::empty(), SealFlags::GROW, SealFlags::GROW | SealFlags::SEAL] {
        let why = reason(memory_file(PAGE, seals), Access::Read);
        assert!(why.contains("F_SEAL_SHRINK"), "{why}");
    }
}

#[test]
fn memory_sealed_against_writing_is_taken_for_reading_only() {
    for seal in [SealFlags::WRITE, SealFlags::FUTURE_WRITE] {
        let why = reason(memory_file(PAGE, SealFlags::SHRINK | seal), Access::ReadWrite);
        assert!(why.contains("sealed against writing"), "{why}");
        let region = Region::from_peer(memory_file(PAGE, SealFlags::SHRINK | seal), PAGE, Access::Read).expect("readable");
        let fault = region.write(0, b"x").expect_err("mapped for reading");
        assert!(fault.to_string().contains("reading only"), "{fault}");
    }
}

#[test]
fn files_that_are_not_memory_are_refused() {
    let plain = File::open(std::env::current_exe().expect("we run")).expect("our own program");
    let null = File::open("/dev/zero").expect("/dev/zero");
    let (pipe, _other_end) = std::io::pipe().expect("a pipe");
    for file in [plain.into(), null.into(), pipe.into()] {
        let why = reason(file, Access::Read);
        assert!(why.contains("not a memory file"), "{why}");
    }
}

#[test]
fn memory_of_the_wrong_length_is_refused() {
    for (file_bytes, length_bytes) in [
        (PAGE, 0),
        (0, PAGE),
        (PAGE, PAGE + 1),
        (PAGE, 2 * PAGE),
        (PAGE, u64::MAX),
        (PAGE, MAX_REGION_BYTES + 1),
        (MAX_REGION_BYTES + PAGE, MAX_REGION_BYTES + PAGE),
    ] {
        let fault = refusal(memory_file(file_bytes, SealFlags::SHRINK), length_bytes, Access::ReadWrite);
        assert!(matches!(fault, PeerFault::OutOfRegion { length_bytes: named, .. } if named == length_bytes), "{fault}");
    }
}

#[test]
fn memory_on_hugetlbfs_is_refused() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let file = match rustix::fs::memfd_create("huge", flags) {
        Ok(file) => file,
        Err(error) => {
            return crate::common::skip("memory on hugetlbfs", &format!("this kernel makes no such memory file: {error}"));
        }
    };
    rustix::fs::ftruncate(&file, 2 << 20).expect("ftruncate");
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).expect("seals");
    let why = reason(file, Access::Read);
    assert!(why.contains("hugetlbfs"), "{why}");
}

#[test]
fn places_outside_a_region_are_refused() {
    let region = Region::create("ours", PAGE).expect("a region");
    for (offset_bytes, length_bytes) in [(0, PAGE), (PAGE, 0), (PAGE - 1, 1)] {
        assert!(region.pointer("it", offset_bytes, length_bytes).is_ok(), "{offset_bytes} + {length_bytes}");
    }
    for (offset_bytes, length_bytes) in
        [(0, PAGE + 1), (PAGE, 1), (PAGE + 1, 0), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX), (1 << 63, 1 << 63)]
    {
        assert!(region.pointer("it", offset_bytes, length_bytes).is_err(), "{offset_bytes} + {length_bytes}");
    }
}

/// Which of its pages are in our page table.
fn entered(region: &Region) -> Vec<bool> {
    let map = File::open("/proc/self/pagemap").expect("a page map");
    let first = region.base().as_ptr().addr() as u64 / PAGE;
    let is_present = |page| {
        let mut entry = [0; 8];
        map.read_exact_at(&mut entry, (first + page) * 8).expect("an entry for each page");
        u64::from_le_bytes(entry) >> 63 == 1
    };
    (0..region.length_bytes() / PAGE).map(is_present).collect()
}

#[test]
fn populated_pages_take_no_fault_on_either_side() {
    let ours = Region::create("ours", 4 * PAGE).expect("a region");
    let theirs = Region::from_peer(rustix::io::dup(&ours).expect("dup"), 4 * PAGE, Access::ReadWrite).expect("sealed");
    assert_eq!((entered(&ours), entered(&theirs)), (vec![false; 4], vec![false; 4]));
    ours.populate(2 * PAGE);
    assert_eq!((&entered(&ours)[..2], entered(&theirs)), (&[true; 2][..], vec![false; 4]));
    theirs.populate(u64::MAX);
    assert_eq!(entered(&theirs), [true; 4], "as much as there is");
}

#[test]
fn rings_and_the_beginning_of_the_pool_are_populated_for_a_client() {
    const PROFILE: Profile = Profile { features: FEATURES, event_credits: 2, flags: &[] };
    let layout = RegionLayout::plan(&PROFILE, 2, 64, 1 << 20, 0);
    let first = layout.pool_offset_bytes / PAGE + 4;
    let grant = Grant::new(layout, |_| {}).expect("memory");
    let entered = entered(&grant.region);
    assert!((0..first).zip(&entered).all(|(_, is_entered)| *is_entered), "{first} of {entered:?}");
    assert_eq!(entered.last(), Some(&false), "not the whole pool");
    let small = RegionLayout::plan(&PROFILE, 1, 1, PAGE, 0);
    assert_eq!(small.populated_bytes(), small.region_bytes);
    let far = RegionLayout { pool_offset_bytes: 1 << 40, ..small };
    assert_eq!(far.populated_bytes(), 1 << 21, "a peer's layout may say anything");
}
