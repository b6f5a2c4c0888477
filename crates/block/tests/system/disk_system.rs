//! File disks and the programs of the system: locks of other processes, loop devices, file systems with limits. One at a time.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;

use fipsee_block::disk::faults::Fault;
use fipsee_block::disk::{DirectMode, Disk, Engine, FileDisk, FileOptions, Ticket};
use fipsee_block::wire::{CAPABILITY_DISCARD, CAPABILITY_WRITE, Operation, Status};
use fipsee_testkit::process::threads_are;
use fipsee_testkit::system::Loop;
use fipsee_testkit::worker::{create, file_in_folder, options, refusal};
use fipsee_testkit::{Scratch, Worker, alone, assert_says, await_word, eventually, packets, request, skip};
use rustix::io::Errno;
use rustix::thread::UnshareFlags;

/// As after a daemon was killed whose requests the kernel still has: flock(1) took the lock and ended, and the open file is in
/// a message not yet received.
#[test]
fn lock_of_a_process_that_is_gone_is_waited_for() {
    let _alone = alone();
    let (_scratch, path) = file_in_folder(8192);
    let file = std::fs::File::options().read(true).write(true).open(&path).expect("open");
    match Command::new("flock").arg("0").stdin(file.try_clone().expect("a descriptor")).status() {
        Ok(status) => assert!(status.success(), "flock: {status}"),
        Err(error) => return skip("lock of a process that is gone", &format!("flock(1) is needed: {error}")),
    }
    let (sender, receiver) = std::os::unix::net::UnixStream::pair().expect("a pair");
    packets::send(&sender, b"x", &[file.as_fd()]).expect("sent");
    drop(file);
    let (begins, begun) = channel();
    let wait = move || {
        begins.send(()).expect("waited for");
        FileDisk::open(&options(&path)).map(drop)
    };
    let waiting = std::thread::Builder::new().name("opener".to_owned()).spawn(wait).expect("a thread");
    begun.recv().expect("it begins");
    eventually("the lock is waited for", || waiting.is_finished() || threads_are(std::process::id(), "opener", 'S'));
    assert!(!waiting.is_finished(), "it does not wait: {:?}", waiting.join());
    drop((sender, receiver));
    waiting.join().expect("no panic").expect("open once the lock is released");
}

fn range(kind: i32, start: i64, length: i64) -> libc::flock {
    let kind = i16::try_from(kind).expect("a small number");
    libc::flock { l_type: kind, l_whence: 0, l_start: start, l_len: length, l_pid: 0 }
}

/// Lock a range for an open file, as QEMU does.
fn lock_range(file: &std::fs::File, kind: i32, start: i64, length: i64) -> std::io::Result<()> {
    let lock = range(kind, start, length);
    // SAFETY: the descriptor is open, and the structure is whole.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Does another open file have a lock there?
fn is_locked(file: &std::fs::File, start: i64) -> bool {
    let mut lock = range(libc::F_WRLCK, start, 1);
    // SAFETY: the descriptor is open, and the structure is whole and ours alone.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) }, 0);
    i32::from(lock.l_type) != libc::F_UNLCK
}

fn qemu_opens(path: &Path, does: &[i64], excludes: &[i64]) -> Option<std::fs::File> {
    let file = std::fs::File::options().read(true).write(true).open(path).expect("open");
    let mut own = does.iter().map(|bit| 100 + bit).chain(excludes.iter().map(|bit| 200 + bit));
    let mut of_others = does.iter().map(|bit| 200 + bit).chain(excludes.iter().map(|bit| 100 + bit));
    let has_them = own.all(|byte| lock_range(&file, libc::F_RDLCK, byte, 1).is_ok());
    (has_them && !of_others.any(|byte| is_locked(&file, byte))).then_some(file)
}

#[test]
fn image_that_qemu_has_open_is_refused_and_ours_is_refused_to_qemu() {
    let _alone = alone();
    let (_scratch, path) = file_in_folder(8192);
    let read_only = FileOptions { read_only: true, ..options(&path) };
    // As QEMU does for an image that it writes, and for one that it only reads.
    let writes = || qemu_opens(&path, &[0, 1, 3], &[1, 3]);
    let reads = || qemu_opens(&path, &[0], &[1, 3]);

    let writer = writes().expect("it is free");
    assert_says(&refusal(&options(&path)), &["is in use", "by this very process", "fcntl(2)", "as QEMU", "stop that program"]);
    assert_says(&refusal(&read_only), &["is in use", "by this very process", "fcntl(2)"]);
    drop(writer);
    let reader = reads().expect("it is free");
    assert_says(&refusal(&options(&path)), &["is in use", "fcntl(2)"]);
    let readers = [FileDisk::open(&read_only).expect("one more reader"), FileDisk::open(&read_only).expect("and one")];
    drop(reader);

    assert!(writes().is_none(), "two readers have it");
    drop(reads().expect("one more reader"));
    drop(readers);
    let disk = FileDisk::open(&options(&path)).expect("a writer");
    assert!(writes().is_none() && reads().is_none(), "a writer has it");
    drop(disk);
    drop(writes().expect("it is free"));
}

#[test]
fn range_locked_by_another_process_is_a_refusal_that_names_it() {
    let _alone = alone();
    let (_scratch, path) = file_in_folder(8192);
    let file = std::fs::File::options().read(true).write(true).open(&path).expect("open");
    lock_range(&file, libc::F_WRLCK, 4096, 10).expect("locked");
    // The lock is the open file's, and so that of the child once we have closed it.
    let mut child = Command::new("sleep").arg("1000").stdin(file).spawn().expect("a process");
    let by = format!("by process {} (sleep)", child.id());
    let texts = [refusal(&options(&path)), refusal(&FileOptions { read_only: true, ..options(&path) })];
    child.kill().expect("killed");
    FileDisk::open(&options(&path)).expect("a process that is killed is waited for");
    child.wait().expect("its end");
    texts.iter().for_each(|text| assert_says(text, &["is in use", &by]));
}

#[test]
fn lock_holder_in_another_process_is_named() {
    let _alone = alone();
    let (_scratch, path) = file_in_folder(8192);
    let holder = Command::new("flock")
        .arg(&path)
        .args(["sh", "-c", "echo locked; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut holder = match holder {
        Ok(holder) => holder,
        Err(error) => return skip("lock of another process", &format!("flock(1) of util-linux is needed: {error}")),
    };
    await_word(&mut holder, "locked");
    let text = refusal(&options(&path));
    drop(holder.stdin.take());
    holder.wait().expect("it ends");
    assert_says(&text, &[&format!("by process {}", holder.id())]);
}

#[test]
fn block_device_is_a_disk_of_its_own_size() {
    let _alone = alone();
    let scratch = Scratch::new();
    let image = scratch.path("image");
    std::fs::File::create(&image).expect("create").set_len(4 << 20).expect("size");
    match Loop::new(&image, 4096, false) {
        Ok(device) => check_device(device.path()),
        Err(reason) => return skip("block device", &reason),
    }
    let bytes = std::fs::read(&image).expect("read");
    assert!(bytes[8192..12288].iter().all(|byte| *byte == 6));
    assert!(bytes[12288..usize::try_from(SMALL_START * 512).expect("small")].iter().all(|byte| *byte == 0));
}

fn check_device(device: &Path) {
    let disk = FileDisk::open(&options(device)).expect("a device");
    let info = disk.info();
    assert_eq!((info.size_bytes(), info.block_bytes), (4 << 20, 4096));
    assert_eq!(disk.direct_unit_bytes(), Some(4096));
    assert!(info.can(CAPABILITY_WRITE | CAPABILITY_DISCARD));
    assert_says(&refusal(&options(device)), &["is in use"]);
    let mut worker = Worker::new();
    assert_eq!(worker.write(&disk, 16, &vec![6; 65536]), Status::Ok);
    assert_eq!(worker.do_range(&disk, Operation::WriteZeroes, 24, 56), Status::Ok);
    assert_eq!(worker.do_range(&disk, Operation::Discard, 80, 64), Status::Ok);
    assert_eq!(worker.do_range(&disk, Operation::Flush, 0, 0), Status::Ok);
    assert_eq!(worker.read(&disk, 24, 4096), Ok(vec![0; 4096]));
    disk.resize(8192).expect("its own size");
    assert_says(&disk.resize(16384).expect_err("refused"), &["has 4194304 bytes", "resize the device first"]);
    drop(disk);
    check_small_blocks(device);
}

/// First sector of the next test.
const SMALL_START: u64 = 4096;

/// Blocks of 512 bytes on a device that takes 4096: two threads write sectors of the same units, each by a read-modify-write.
fn check_small_blocks(device: &Path) {
    const UNITS: u64 = 16;
    const ROUNDS: u8 = 60;
    let disk = FileDisk::open(&FileOptions { block_bytes: Some(512), ..options(device) }).expect("small blocks");
    assert_eq!((disk.info().block_bytes, disk.direct_unit_bytes()), (512, Some(4096)));
    let write_own = &|own: u64| {
        let mut worker = Worker::new();
        worker.engine = Engine::new(256).expect("engine");
        for round in 1..=ROUNDS {
            worker.memory.write(0, &[round; 512]).expect("fits");
            for tag in 0..u16::try_from(UNITS * 4).expect("small") {
                let sector = SMALL_START + u64::from(tag) * 2 + own;
                let span = worker.span(0, 512);
                let ticket = Ticket { queue: 0, tag, started_ticks: 0 };
                let write = request(Operation::Write, sector, 1);
                worker.begin(&disk, &write, &[span], ticket);
            }
            worker.wait(usize::try_from(UNITS * 4).expect("small"), |_, status| assert_eq!(status, Status::Ok));
            for sector in (SMALL_START..SMALL_START + UNITS * 8).filter(|sector| sector % 2 == own) {
                let got = worker.read(&disk, sector, 512).expect("read");
                assert!(got.iter().all(|byte| *byte == round), "sector {sector}, round {round}: {}", got[0]);
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|own| scope.spawn(move || write_own(own)));
        threads.into_iter().for_each(|thread| thread.join().expect("no sector was lost"));
    });
}

/// Mount a file system visible only to this thread and its children, and test in it.
fn within_mount(kind: &'static str, mount_options: &'static str, check: fn(&Path)) {
    let _alone = alone();
    let scratch = Scratch::new();
    let directory = scratch.0.clone();
    let run = move || {
        // SAFETY: the descriptor table stays shared; only the view of mounts becomes this thread's own.
        if let Err(errno) = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) } {
            return Err(format!("a mount namespace of its own is needed (root): {errno}"));
        }
        let mount = |arguments: &[&str]| match Command::new("mount").args(arguments).arg(&directory).output() {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(format!("mount: {}", String::from_utf8_lossy(&output.stderr))),
            Err(error) => Err(format!("mount(8) is needed: {error}")),
        };
        let private = Command::new("mount").args(["--make-rprivate", "/"]).status();
        if !private.is_ok_and(|status| status.success()) {
            return Err("mount --make-rprivate / failed".into());
        }
        mount(&["-t", kind, "-o", mount_options, "none"])?;
        check(&directory);
        Ok(())
    };
    match std::thread::spawn(run).join() {
        Ok(Ok(())) => {}
        Ok(Err(why)) => skip(&format!("disk on a {kind} of its own"), &why),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

#[test]
fn full_file_system_answers_no_space_and_recovers() {
    within_mount("tmpfs", "size=1M", |directory| {
        let disk = create(&directory.join("disk"), 4 << 20);
        let mut worker = Worker::new();
        assert_eq!(worker.write(&disk, 0, &vec![1; 512 << 10]), Status::Ok);
        assert_eq!(worker.write(&disk, 1024, &vec![2; 2 << 20]), Status::NoSpace);
        let reports: Vec<_> = disk.faults().expect("a file can fail").drain().collect();
        let [report] = reports[..] else { panic!("{reports:?}") };
        assert_eq!((report.fault, report.operation), (Fault::Failed(Some(Errno::NOSPC)), "write"));
        assert!(report.sector.is_some_and(|sector| (1024..1024 + 4096).contains(&sector)), "{report:?}");
        assert_eq!(worker.read(&disk, 0, 512 << 10), Ok(vec![1; 512 << 10]), "what was there is still there");
        assert_eq!(worker.do_range(&disk, Operation::Discard, 0, 8192), Status::Ok);
        assert_eq!(worker.write(&disk, 1024, &vec![3; 512 << 10]), Status::Ok, "the request can be repeated");
        assert_eq!(worker.read(&disk, 1024, 512 << 10), Ok(vec![3; 512 << 10]));
    });
}

#[test]
fn file_system_without_direct_io_or_holes_still_serves() {
    within_mount("ramfs", "mode=700", |directory| {
        let path = directory.join("disk");
        let disk = create(&path, 1 << 20);
        assert_eq!(disk.direct_unit_bytes(), None);
        assert!(!disk.info().can(CAPABILITY_DISCARD));
        let mut worker = Worker::new();
        assert_eq!(worker.write(&disk, 0, &vec![1; 65536]), Status::Ok);
        assert_eq!(worker.do_range(&disk, Operation::Discard, 0, 8), Status::Unsupported);
        assert_eq!(worker.do_range(&disk, Operation::WriteZeroes, 1, 9), Status::Ok, "written out");
        let bytes = worker.read(&disk, 0, 65536).expect("read");
        let edges = (512, 10 * 512);
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == u8::from(at < edges.0 || at >= edges.1)));
        drop(disk);
        let direct = FileOptions { direct: DirectMode::On, ..options(&path) };
        assert_says(&refusal(&direct), &["refuses O_DIRECT", "direct=auto"]);
    });
}

#[test]
fn read_only_file_system_asks_for_ro() {
    within_mount("tmpfs", "size=1M", |directory| {
        drop(create(&directory.join("disk"), 65536));
        let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(directory).status();
        assert!(remounted.expect("mount ran").success());
        assert_says(&refusal(&options(&directory.join("disk"))), &["file system is read-only", "add ro"]);
        FileDisk::open(&FileOptions { read_only: true, ..options(&directory.join("disk")) }).expect("with ro");
    });
}
