//! File disks and the programs of the system: locks of other processes, loop devices, file systems with limits.
//!
//! Apart from the other tests, and one at a time: between fork and exec a child holds copies of all descriptors, and so
//! of the locks that another test has just let go.

mod disk_common;

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use disk_common::{Scratch, Worker, expect_parts};
use fipsee_block::disk::{DirectMode, Disk, FileDisk, FileOptions};
use fipsee_block::wire::{CAPABILITY_DISCARD, CAPABILITY_WRITE, Operation, Status};
use rustix::thread::UnshareFlags;

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn options(path: &Path) -> FileOptions {
    FileOptions { path: path.into(), ..Default::default() }
}

fn create(path: &Path, size_bytes: u64) -> FileDisk {
    FileDisk::open(&FileOptions { size_bytes: Some(size_bytes), ..options(path) }).expect("a new file disk")
}

fn refusal(options: &FileOptions) -> String {
    FileDisk::open(options).map(|_| ()).expect_err("refused")
}

/// As after the death of a daemon whose requests the kernel still has: flock(1) took the lock and is gone, the shell has it.
#[test]
fn lock_of_a_process_that_is_gone_is_waited_for() {
    let _alone = alone();
    let scratch = Scratch::temporary();
    let path = scratch.path("disk");
    drop(create(&path, 8192));
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec 9<>\"$0\" && flock 9 && echo locked && read -r line"]).arg(&path);
    let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
    let mut said = [0; 7];
    shell.stdout.take().expect("its output").read_exact(&mut said).expect("it has the lock");
    let input = shell.stdin.take();
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        drop(input);
        shell.wait().expect("its end");
    });
    FileDisk::open(&options(&path)).expect("open once the lock is let go");
    release.join().expect("the release");
}

#[test]
fn lock_holder_in_another_process_is_named() {
    let _alone = alone();
    let scratch = Scratch::temporary();
    let path = scratch.path("disk");
    drop(create(&path, 8192));
    let holder = Command::new("flock")
        .arg(&path)
        .args(["sh", "-c", "echo locked; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut holder = match holder {
        Ok(holder) => holder,
        Err(error) => return disk_common::skip(&format!("lock of another process: flock(1) of util-linux is needed: {error}")),
    };
    let mut line = String::new();
    let output = holder.stdout.take().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).expect("a line");
    assert_eq!(line, "locked\n");
    let text = refusal(&options(&path));
    drop(holder.stdin.take());
    holder.wait().expect("it ends");
    expect_parts(&text, &[&format!("by process {}", holder.id())]);
}

#[test]
fn block_device_is_a_disk_of_its_own_size() {
    let _alone = alone();
    let scratch = Scratch::temporary();
    let image = scratch.path("image");
    std::fs::File::create(&image).expect("create").set_len(4 << 20).expect("size");
    let output = match Command::new("losetup").args(["--find", "--show", "--sector-size", "4096"]).arg(&image).output() {
        Ok(output) if output.status.success() => output,
        Ok(output) => return disk_common::skip(&format!("block device: losetup: {}", String::from_utf8_lossy(&output.stderr))),
        Err(error) => return disk_common::skip(&format!("block device: losetup of util-linux is needed: {error}")),
    };
    let device = String::from_utf8(output.stdout).expect("text").trim().to_owned();
    let checked = std::panic::catch_unwind(|| check_device(Path::new(&device)));
    let detached = Command::new("losetup").args(["--detach", &device]).status();
    assert!(detached.expect("losetup ran").success());
    checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let bytes = std::fs::read(&image).expect("read");
    assert!(bytes[8192..12288].iter().all(|byte| *byte == 6));
    assert!(bytes[12288..].iter().all(|byte| *byte == 0));
}

fn check_device(device: &Path) {
    let disk = FileDisk::open(&options(device)).expect("a device");
    let info = disk.info();
    assert_eq!((info.size_bytes(), info.block_bytes), (4 << 20, 4096));
    assert!(disk.is_direct() && info.can(CAPABILITY_WRITE | CAPABILITY_DISCARD));
    expect_parts(&refusal(&options(device)), &["is in use"]);
    let mut worker = Worker::new();
    assert_eq!(worker.write(&disk, 16, &vec![6; 65536]), Status::Ok);
    assert_eq!(worker.do_range(&disk, Operation::WriteZeroes, 24, 56), Status::Ok);
    assert_eq!(worker.do_range(&disk, Operation::Discard, 80, 64), Status::Ok);
    assert_eq!(worker.do_range(&disk, Operation::Flush, 0, 0), Status::Ok);
    assert_eq!(worker.read(&disk, 24, 4096), Ok(vec![0; 4096]));
    disk.resize(8192).expect("its own size");
    expect_parts(&disk.resize(16384).expect_err("refused"), &["has 4194304 bytes", "resize the device first"]);
    drop(disk);
    let small = FileOptions { block_bytes: Some(512), ..options(device) };
    expect_parts(&refusal(&small), &["blocks of 4096 bytes", "block=512 is too small"]);
}

/// Mount a file system that only this thread and its children see, and test in it.
fn within_mount(kind: &'static str, mount_options: &'static str, check: fn(&Path)) {
    let _alone = alone();
    let scratch = Scratch::temporary();
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
        Ok(Err(why)) => disk_common::skip(&format!("disk on a {kind} of its own: {why}")),
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
        assert!(!disk.is_direct());
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
        expect_parts(&refusal(&direct), &["refuses O_DIRECT", "direct=auto"]);
    });
}

#[test]
fn read_only_file_system_asks_for_ro() {
    within_mount("tmpfs", "size=1M", |directory| {
        drop(create(&directory.join("disk"), 65536));
        let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(directory).status();
        assert!(remounted.expect("mount ran").success());
        expect_parts(&refusal(&options(&directory.join("disk"))), &["file system is read-only", "add ro"]);
        FileDisk::open(&FileOptions { read_only: true, ..options(&directory.join("disk")) }).expect("with ro");
    });
}
