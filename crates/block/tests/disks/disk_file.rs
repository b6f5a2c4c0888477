//! File disks: opening and its errors, locking, resizing, the engine under load and dropped early.

use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use fipsee_block::disk::{Disk, Engine, FileDisk, FileOptions, Ticket};
use fipsee_block::wire::{CAPABILITY_DISCARD, CAPABILITY_WRITE, Operation, Status};
use fipsee_serve::Engine as _;
use fipsee_testkit::process::drop_capabilities;
use fipsee_testkit::worker::{create, disk_in_folder, file_in_folder, options, refusal};
use fipsee_testkit::{Scratch, Worker, assert_says, request, skip};
use rustix::event::epoll;

fn ticket(tag: u16) -> Ticket {
    Ticket { queue: 0, tag, started_ticks: 0 }
}

fn cut(path: &Path, length_bytes: u64) {
    std::fs::File::options().write(true).open(path).and_then(|file| file.set_len(length_bytes)).expect("cut");
}

#[test]
fn missing_file_needs_a_size() {
    let scratch = Scratch::new();
    let missing = options(&scratch.path("none"));
    assert_says(&refusal(&missing), &["none does not exist", "add size=SIZE"]);
    let read_only = FileOptions { read_only: true, size_bytes: Some(4096), ..missing.clone() };
    assert_says(&refusal(&read_only), &["ro does not create it"]);
    let nowhere = FileOptions { size_bytes: Some(4096), ..options(&scratch.path("no/such/directory")) };
    assert_says(&refusal(&nowhere), &["cannot be created", "directory exists"]);
    let odd = FileOptions { size_bytes: Some(1000), ..missing.clone() };
    assert_says(&refusal(&odd), &["1000 bytes is not a multiple", "512 bytes", "use 512 or 1024"]);
    let empty = FileOptions { size_bytes: Some(0), ..missing };
    assert_says(&refusal(&empty), &["size is 0", "at least one block"]);
    assert_eq!(std::fs::read_dir(&scratch.0).expect("list").count(), 0, "a refusal leaves no file");
}

#[test]
fn file_of_another_size_is_refused_with_both_sizes() {
    let (_scratch, path) = file_in_folder(8192);
    let with_size = |size_bytes| FileOptions { size_bytes: Some(size_bytes), ..options(&path) };
    assert_says(&refusal(&with_size(16384)), &["has 8192 bytes", "less than size=16384", "truncate -s 16384", "resize"]);
    assert_says(&refusal(&with_size(4096)), &["has 8192 bytes", "more than size=4096", "size=8192"]);
    FileDisk::open(&with_size(8192)).expect("the same size");
    cut(&path, 8200);
    assert_says(&refusal(&options(&path)), &["8200 bytes", "not a multiple", "use 8192 or 8704", "truncate -s"]);
    cut(&path, 0);
    assert_says(&refusal(&options(&path)), &["is empty", "truncate -s SIZE"]);
}

#[test]
fn path_that_is_not_a_disk_is_refused() {
    let scratch = Scratch::new();
    assert_says(&refusal(&options(&scratch.0)), &["is a directory"]);
    assert_says(&refusal(&options(Path::new("/dev/null"))), &["neither a regular file nor a block device"]);
    let path = scratch.path("disk");
    drop(create(&path, 8192));
    assert_says(&refusal(&FileOptions { block_bytes: Some(1000), ..options(&path) }), &["1000", "block=512 or block=4096"]);
}

#[test]
fn file_without_permission_is_refused_with_its_mode_and_owner() {
    let (_scratch, path) = file_in_folder(8192);
    assert_eq!(std::fs::metadata(&path).expect("stat").mode() & 0o777, 0o600, "disks are private");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o440)).expect("chmod");
    let text = std::thread::spawn(move || {
        if rustix::process::getuid().is_root() {
            drop_capabilities();
        }
        refusal(&options(&path))
    });
    let text = text.join().expect("thread");
    assert_says(&text, &["cannot be opened for reading and writing", "mode 0440", "belongs to user", "add ro"]);
}

#[test]
fn file_is_served_by_one_writer_or_many_readers() {
    let (_scratch, path, writer) = disk_in_folder(8192);
    let read_only = FileOptions { read_only: true, ..options(&path) };
    assert_says(&refusal(&options(&path)), &["is in use", "by this very process", "flock"]);
    assert_says(&refusal(&read_only), &["is in use"]);
    drop(writer);
    let readers = [FileDisk::open(&read_only).expect("a reader"), FileDisk::open(&read_only).expect("another")];
    assert_says(&refusal(&options(&path)), &["is in use"]);
    drop(readers);
    FileDisk::open(&options(&path)).expect("free again");
}

#[test]
fn read_only_disk_refuses_writes_and_resizing() {
    let (_scratch, path) = file_in_folder(8192);
    let disk = FileDisk::open(&FileOptions { read_only: true, ..options(&path) }).expect("a reader");
    assert!(!disk.info().can(CAPABILITY_WRITE));
    let mut worker = Worker::new();
    assert_eq!(worker.write(&disk, 0, &[1; 512]), Status::ReadOnly);
    assert_eq!(worker.do_range(&disk, Operation::Discard, 0, 1), Status::ReadOnly);
    assert_eq!(worker.do_range(&disk, Operation::WriteZeroes, 0, 1), Status::ReadOnly);
    assert_eq!(worker.do_range(&disk, Operation::Flush, 0, 0), Status::Ok);
    assert_eq!(worker.read(&disk, 0, 8192), Ok(vec![0; 8192]));
    assert_says(&disk.resize(32).expect_err("refused"), &["reading only", "leave out ro"]);
}

#[test]
fn resize_moves_the_end_of_file_and_disk() {
    let (_scratch, path, disk) = disk_in_folder(8192);
    let identity = disk.info().identity;
    let mut worker = Worker::new();
    assert_eq!(worker.write(&disk, 0, &[7; 8192]), Status::Ok);
    assert_eq!(worker.read(&disk, 16, 512), Err(Status::OutOfRange));
    disk.resize(32).expect("grow");
    assert_eq!((disk.info().sector_count, std::fs::metadata(&path).expect("stat").len()), (32, 16384));
    assert_eq!(worker.read(&disk, 16, 512), Ok(vec![0; 512]));
    disk.resize(8).expect("shrink");
    assert_eq!(worker.read(&disk, 8, 512), Err(Status::OutOfRange));
    assert_eq!(worker.do_range(&disk, Operation::Discard, 7, 2), Status::OutOfRange);
    disk.resize(16).expect("grow");
    assert_eq!(worker.read(&disk, 8, 4096), Ok(vec![0; 4096]), "truncated data does not come back");
    assert_says(&disk.resize(0).expect_err("refused"), &["size is 0"]);
    assert!(disk.resize(u64::MAX).is_err());
    assert_eq!(disk.info().sector_count, 16);
    drop(disk);
    assert_eq!(FileDisk::open(&options(&path)).expect("again").info().identity, identity, "a restart does not change it");
}

#[test]
fn discard_and_unmapping_zeroes_release_space() {
    let (_scratch, path, disk) = disk_in_folder(4 << 20);
    if !disk.info().can(CAPABILITY_DISCARD) {
        return skip("discard", "the temporary directory's file system has no holes");
    }
    let mut worker = Worker::new();
    let used = || std::fs::metadata(&path).expect("stat").blocks() * 512;
    assert_eq!(worker.write(&disk, 0, &vec![9; 4 << 20]), Status::Ok);
    assert_eq!(worker.do_range(&disk, Operation::Flush, 0, 0), Status::Ok);
    let full = used();
    assert!(full >= 4 << 20);
    assert_eq!(worker.do_range(&disk, Operation::Discard, 0, 2048), Status::Ok);
    let half = used();
    assert!(half + (1 << 20) <= full, "{half} of {full}");
    let mut zeroes = request(Operation::WriteZeroes, 2048, 2048);
    (zeroes.unmap, zeroes.fua) = (true, true);
    assert_eq!(worker.finish(&disk, &zeroes, &[]), Status::Ok);
    let unmapped = used();
    assert!(unmapped + (1 << 20) <= half, "{unmapped} of {half}");
    assert_eq!(std::fs::metadata(&path).expect("stat").len(), 4 << 20);
    assert_eq!(worker.read(&disk, 0, 2 << 20), Ok(vec![0; 2 << 20]));
}

#[test]
fn more_requests_than_the_queue_holds_all_finish() {
    let (_scratch, _, disk) = disk_in_folder(1 << 20);
    let mut worker = Worker::new();
    worker.engine = Engine::new(2).expect("engine");
    for tag in 0..256_u16 {
        worker.memory.write(u64::from(tag) * 4096, &[u8::try_from(tag).expect("small"); 4096]).expect("fits");
        let mut write = request(Operation::Write, u64::from(tag) * 8, 8);
        write.tag = tag;
        let span = worker.span(u64::from(tag) * 4096, 4096);
        worker.begin(&disk, &write, &[span], ticket(tag));
    }
    assert_eq!(worker.engine.in_flight(), 256);
    assert!(worker.engine.has_unsent());
    let mut seen = [0; 256];
    worker.wait(256, |ticket, status| {
        assert_eq!(status, Status::Ok);
        seen[usize::from(ticket.tag)] += 1;
    });
    assert_eq!((worker.engine.in_flight(), worker.engine.has_unsent()), (0, false));
    assert!(seen.iter().all(|count| *count == 1));
    for tag in 0..256_u16 {
        assert_eq!(worker.read(&disk, u64::from(tag) * 8, 4096), Ok(vec![u8::try_from(tag).expect("small"); 4096]));
    }
}

#[test]
fn engine_dropped_with_writes_in_flight_waits_for_them() {
    let (_scratch, path, disk) = disk_in_folder(16 << 20);
    let mut worker = Worker::new();
    worker.memory.write(0, &vec![5; 16 << 20]).expect("fits");
    for tag in 0..16_u16 {
        let span = worker.span(u64::from(tag) << 20, 1 << 20);
        let write = request(Operation::Write, u64::from(tag) << 11, 2048);
        worker.begin(&disk, &write, &[span], ticket(tag));
    }
    worker.engine.flush();
    // The disk goes first: requests in flight keep its files open.
    drop(disk);
    drop(worker);
    assert!(std::fs::read(&path).expect("read").iter().all(|byte| *byte == 5));
}

#[test]
fn sleeper_on_the_engines_descriptor_wakes_for_a_completion() {
    let (_scratch, _, disk) = disk_in_folder(1 << 20);
    let mut worker = Worker::new();
    worker.engine.start().expect("io_uring");
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
    let descriptor = worker.engine.as_fd().expect("started");
    epoll::add(&epoll, descriptor, epoll::EventData::new_u64(1), epoll::EventFlags::IN).expect("epoll");
    for round in 0..200_u64 {
        let operation = [Operation::Write, Operation::Read, Operation::Flush][usize::try_from(round % 3).expect("small")];
        let (spans, length) = if operation == Operation::Flush { (vec![], 0) } else { (vec![worker.span(0, 65536)], 128) };
        worker.begin(&disk, &request(operation, 0, length), &spans, ticket(3));
        worker.engine.flush();
        while worker.engine.poll(usize::MAX, &mut |_, status| assert_eq!(status, Status::Ok)) == 0 {
            assert!(!worker.engine.has_unsent());
            let mut events = Vec::with_capacity(1);
            // Without a timeout: a lost wake-up hangs the test.
            match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => panic!("epoll: {errno}"),
            }
        }
    }
}

#[test]
fn one_request_may_have_256_spans_and_16_mib() {
    let (_scratch, path, disk) = disk_in_folder(17 << 20);
    let mut worker = Worker::new();
    let spans: Vec<_> = (0..256).map(|index| worker.span(index * 65536, 65536)).collect();
    worker.memory.write(0, &vec![3; 16 << 20]).expect("fits");
    assert_eq!(worker.finish(&disk, &request(Operation::Write, 1, 32768), &spans), Status::Ok);
    let mut last = [0; 1];
    let file = std::fs::File::open(&path).expect("open");
    file.read_exact_at(&mut last, 511 + (16 << 20)).expect("read");
    assert_eq!(last, [3]);
    let short = &spans[..255];
    assert_eq!(worker.finish(&disk, &request(Operation::Write, 0, 32768), short), Status::Invalid);
}

#[test]
fn neighbouring_sectors_written_at_once_both_stay() {
    const PAGES: u16 = 64;
    let (_scratch, _, disk) = disk_in_folder(u64::from(PAGES) * 4096);
    let mut worker = Worker::new();
    worker.engine = Engine::new(256).expect("engine");
    assert_eq!(worker.write(&disk, 0, &vec![0; usize::from(PAGES) * 4096]), Status::Ok);
    for round in 1..=60_u8 {
        worker.memory.write(0, &[round; 4096]).expect("fits");
        for tag in 0..PAGES * 2 {
            // The first sector from memory aligned for direct I/O, the second from unaligned memory.
            let (page, second) = (u64::from(tag / 2), u64::from(tag % 2));
            let span = worker.span(second, 512);
            let write = request(Operation::Write, page * 8 + second, 1);
            worker.begin(&disk, &write, &[span], ticket(tag));
        }
        worker.wait(usize::from(PAGES) * 2, |_, status| assert_eq!(status, Status::Ok));
        assert_eq!(worker.do_range(&disk, Operation::Flush, 0, 0), Status::Ok);
        let bytes = worker.read(&disk, 0, usize::from(PAGES) * 4096).expect("read");
        for page in bytes.chunks(4096) {
            assert!(page[..1024].iter().all(|byte| *byte == round), "round {round}");
        }
    }
}

#[test]
fn another_reader_of_the_file_causes_no_error() {
    const PAGES: u16 = 64;
    let (_scratch, path, disk) = disk_in_folder(u64::from(PAGES) * 4096);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut copies = 0;
            while !ended.load(Ordering::Relaxed) {
                copies += usize::from(std::fs::read(&path).expect("read").len() == usize::from(PAGES) * 4096);
            }
            copies
        });
        let mut worker = Worker::new();
        worker.engine = Engine::new(256).expect("engine");
        for round in 1..=200_u8 {
            worker.memory.write(0, &[round; 4096]).expect("fits");
            for tag in 0..PAGES {
                // Whole pages and single sectors in turn.
                let (sector, length) = (u64::from(tag) * 8, if tag % 2 == 0 { 4096 } else { 512 });
                let span = worker.span(0, length);
                let mut write = request(Operation::Write, sector, length / 512);
                write.fua = tag % 16 == 1;
                worker.begin(&disk, &write, &[span], ticket(tag));
            }
            worker.wait(usize::from(PAGES), |_, status| assert_eq!(status, Status::Ok));
            assert_eq!(worker.do_range(&disk, Operation::Flush, 0, 0), Status::Ok, "round {round}");
            let bytes = worker.read(&disk, 0, usize::from(PAGES) * 4096).expect("read");
            assert!(bytes.chunks(4096).all(|page| page[..512].iter().all(|byte| *byte == round)), "round {round}");
        }
        ended.store(true, Ordering::Relaxed);
        assert!(reader.join().expect("the reader") > 0);
    });
}

/// More buffers than an engine may have: requests wait for one, and each other, and all end.
#[test]
fn requests_from_odd_memory_beyond_the_engines_buffers_all_finish() {
    const LENGTH: u64 = 256 << 10;
    let (_scratch, _, disk) = disk_in_folder(LENGTH * 200);
    if disk.direct_unit_bytes().is_none() {
        return skip("buffers of direct I/O", "the temporary directory's file system has none");
    }
    let mut worker = Worker::new();
    worker.engine = Engine::new(256).expect("engine");
    let pattern: Vec<u8> = (0..LENGTH).map(|index| u8::try_from(index % 253).expect("small")).collect();
    worker.memory.write(4, &pattern).expect("fits");
    for tag in 0..200_u16 {
        let write = request(Operation::Write, u64::from(tag) * LENGTH / 512, LENGTH / 512);
        let span = worker.span(4, LENGTH);
        worker.begin(&disk, &write, &[span], ticket(tag));
    }
    worker.wait(200, |_, status| assert_eq!(status, Status::Ok));
    for tag in 0..200 {
        assert!(worker.read(&disk, tag * LENGTH / 512, pattern.len()).expect("read") == pattern, "request {tag}");
    }
}

#[test]
fn a_recreated_file_is_another_disk() {
    let scratch = Scratch::new();
    let path = scratch.path("disk");
    let first = create(&path, 8192).info().identity;
    // Until the file system reuses the inode number.
    let numbers: Vec<_> = (0..8)
        .map(|_| {
            std::fs::remove_file(&path).expect("it was there");
            let identity = create(&path, 8192).info().identity;
            assert_ne!(identity, first);
            identity
        })
        .collect();
    assert_eq!(FileDisk::open(&options(&path)).expect("again").info().identity, numbers[7]);
}
