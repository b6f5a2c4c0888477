//! Memory and null disks: what the model test does not cover.

use fipsee_block::disk::{AnyDisk, Disk, FileDisk, MemoryDisk, MemoryOptions, NullDisk, NullOptions};
use fipsee_block::wire::{CAPABILITY_WRITE, Operation, Status};
use fipsee_testkit::{Scratch, Worker, assert_says, request, skip};

use crate::open;

fn memory(size_bytes: u64, max_bytes: Option<u64>) -> MemoryDisk {
    MemoryDisk::new(&MemoryOptions { size_bytes, max_bytes, ..Default::default() }).expect("a memory disk")
}

#[test]
fn shrunk_memory_disk_grows_back_with_zeroes() {
    let disk = memory(1 << 20, None);
    let mut worker = Worker::new();
    assert_eq!(worker.write(&disk, 0, &vec![5; 1 << 20]), Status::Ok);
    disk.resize(3).expect("shrink");
    assert_eq!(worker.read(&disk, 3, 512), Err(Status::OutOfRange));
    assert_eq!(worker.write(&disk, 2, &[5; 1024]), Status::OutOfRange);
    assert_eq!(worker.do_range(&disk, Operation::Discard, 0, 4), Status::OutOfRange);
    disk.resize(2048).expect("back to its size");
    let bytes = worker.read(&disk, 0, 1 << 20).expect("read");
    assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == if at < 1536 { 5 } else { 0 }));
    assert_says(&disk.resize(2049).expect_err("refused"), &["can grow to 1048576 bytes", "not to 1049088", "max=1049088"]);
    assert_says(&disk.resize(0).expect_err("refused"), &["size is 0"]);
}

#[test]
fn memory_disk_grows_up_to_its_max() {
    let disk = memory(65536, Some(1 << 30));
    let mut worker = Worker::new();
    disk.resize(1 << 21).expect("grow");
    assert_eq!(worker.write(&disk, (1 << 21) - 1, &[1; 512]), Status::Ok);
    assert_eq!(worker.read(&disk, (1 << 21) - 1, 512), Ok(vec![1; 512]));
    assert!(disk.resize((1 << 21) + 1).is_err());
}

#[test]
fn memory_disk_grows_within_the_memory_of_the_machine() {
    let text = std::fs::read_to_string("/proc/meminfo").expect("a Linux system");
    let all = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")).expect("it has memory");
    let sectors = 2 * all.parse::<u64>().expect("a number");
    let options = MemoryOptions { size_bytes: 1 << 20, max_bytes: Some(sectors << 11), ..Default::default() };
    let disk = MemoryDisk::new(&options).expect("a memory disk");
    assert_says(&disk.resize(sectors + 8).expect_err("refused"), &["is more than the", "of memory that", "add overcommit"]);
    assert_eq!(disk.info().sector_count, 2048, "a refused resize changes nothing");
    disk.resize(4096).expect("grow");
    let disk = MemoryDisk::new(&MemoryOptions { overcommit: true, ..options }).expect("a memory disk");
    disk.resize(sectors + 8).expect("as it was asked for");
}

#[test]
fn two_workers_and_a_resizer_share_a_memory_disk() {
    let disk = memory(4 << 20, None);
    std::thread::scope(|scope| {
        for number in 1..3_u8 {
            let disk = &disk;
            scope.spawn(move || {
                let mut worker = Worker::new();
                for round in 0..2000_u64 {
                    let sector = round * 37 % 8000;
                    let status = worker.write(disk, sector, &[number; 4096]);
                    assert!(matches!(status, Status::Ok | Status::OutOfRange), "{status:?}");
                    if let Ok(bytes) = worker.read(disk, sector, 4096) {
                        assert!(bytes.iter().all(|byte| *byte < 3));
                    }
                }
            });
        }
        for round in 0..500 {
            disk.resize(if round % 2 == 0 { 8 } else { 8192 }).expect("resize");
        }
    });
}

#[test]
fn huge_disk_beyond_the_pool_says_how_many_pages_are_missing() {
    // 64 TiB of huge pages: no machine that runs tests has them.
    let options = MemoryOptions { size_bytes: 64 << 40, huge: true, ..Default::default() };
    let text = MemoryDisk::new(&options).map(|_| ()).expect_err("refused");
    if text.contains("has no huge pages") {
        return skip("the count of missing huge pages", &text);
    }
    assert_says(&text, &["needs 33554432 huge pages of 2 MiB", "are free", "vm.nr_hugepages"]);
}

#[test]
fn huge_disk_serves_from_the_pool() {
    let options = MemoryOptions { size_bytes: 3 << 20, huge: true, ..Default::default() };
    let disk = match MemoryDisk::new(&options) {
        Ok(disk) => disk,
        Err(why) => return skip("a disk in huge pages", &why),
    };
    let mut worker = Worker::new();
    assert_eq!(worker.write(&disk, 0, &vec![8; 3 << 20]), Status::Ok);
    assert_eq!(worker.do_range(&disk, Operation::Discard, 1, 4096), Status::Ok);
    let bytes = worker.read(&disk, 0, 3 << 20).expect("read");
    assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == if (512..512 + (2 << 20)).contains(&at) { 0 } else { 8 }));
    disk.resize(1).expect("shrink");
    disk.resize(6144).expect("grow");
    assert_eq!(worker.read(&disk, 6143, 512), Ok(vec![0; 512]));
}

#[test]
fn memory_options_that_contradict_are_refused() {
    let refusal = |options: &MemoryOptions| MemoryDisk::new(options).map(|_| ()).expect_err("refused");
    let sized = |size_bytes| MemoryOptions { size_bytes, ..Default::default() };
    assert_says(&refusal(&sized(0)), &["size is 0"]);
    assert_says(&refusal(&sized(513)), &["513 bytes is not a multiple", "use 512 or 1024"]);
    assert_says(&refusal(&MemoryOptions { max_bytes: Some(512), ..sized(1024) }), &["max=512 is less", "1024 bytes"]);
    assert_says(&refusal(&MemoryOptions { max_bytes: Some(1025), ..sized(1024) }), &["max: ", "1025 bytes is not a multiple"]);
    assert_says(&refusal(&MemoryOptions { huge: true, thp: true, ..sized(1024) }), &["huge and thp exclude"]);
    assert_says(&refusal(&MemoryOptions { block_bytes: Some(1024), ..sized(1024) }), &["block=512 or block=4096"]);
    assert_says(
        &refusal(&MemoryOptions { overcommit: true, ..sized(1 << 62) }),
        &["cannot reserve 4611686018427387904 bytes", "ulimit -v"],
    );
    assert_says(&refusal(&sized(1 << 63)), &["more than a disk can have"]);
}

#[test]
fn spans_that_do_not_hold_the_request_are_refused() {
    let disk = memory(65536, None);
    let mut worker = Worker::new();
    let span = worker.span(0, 1024);
    assert_eq!(worker.finish(&disk, &request(Operation::Read, 0, 1), &[span]), Status::Invalid);
    assert_eq!(worker.finish(&disk, &request(Operation::Write, 0, 3), &[span]), Status::Invalid);
    assert_eq!(worker.finish(&disk, &request(Operation::Read, u64::MAX, 2), &[span]), Status::OutOfRange);
}

#[test]
fn identity_of_memory_is_new_and_of_null_is_its_name() {
    assert_ne!(memory(512, None).info().identity, memory(512, None).info().identity);
    let null = |name| NullDisk::new(name, &NullOptions { size_bytes: 512, ..Default::default() }).expect("null").info().identity;
    assert_eq!(null("a"), null("a"));
    assert_ne!(null("a"), null("b"));
}

#[test]
fn null_disk_leaves_the_buffer_and_changes_size() {
    let disk = NullDisk::new("n", &NullOptions { size_bytes: 1 << 40, ..Default::default() }).expect("null");
    let mut worker = Worker::new();
    assert_eq!(worker.write(&disk, 0, &[1; 512]), Status::Ok);
    assert_eq!(worker.read(&disk, 0, 512), Ok(vec![0xee; 512]), "the test's own filling");
    assert_eq!(worker.do_range(&disk, Operation::WriteZeroes, 0, 8 << 20), Status::Ok);
    disk.resize(8).expect("any size");
    assert_eq!(disk.info().sector_count, 8);
    assert_says(&disk.resize(0).expect_err("refused"), &["size is 0"]);
}

#[test]
fn ro_makes_any_kind_refuse_writes() {
    let scratch = Scratch::new();
    let path = scratch.path("disk");
    std::fs::write(&path, [0; 4096]).expect("written");
    for kind in ["null:4K".to_owned(), "memory:4K".to_owned(), format!("file:{}", path.display())] {
        let disk = open(&format!("a={kind},ro"));
        assert!(!disk.info().can(CAPABILITY_WRITE), "{kind}");
        let mut worker = Worker::new();
        assert_eq!(worker.write(&disk, 0, &[1; 512]), Status::ReadOnly, "{kind}");
        assert_eq!(worker.do_range(&disk, Operation::Discard, 0, 8), Status::ReadOnly, "{kind}");
        assert_eq!(worker.do_range(&disk, Operation::Flush, 0, 0), Status::Ok, "{kind}");
    }
}

#[test]
fn disks_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<AnyDisk>();
    shared::<FileDisk>();
}
