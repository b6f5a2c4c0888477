//! fio's verify jobs, and a long run that must not grow.

use std::path::Path;
use std::process::Command;

use fipsee_acceptance::{has_program, run};

use super::support::{Mount, daemon};

fn fio(file: &Path) -> Command {
    let mut command = Command::new("fio");
    command.arg(format!("--filename={}", file.display())).arg("--allow_file_create=0");
    // It leaves a file of its own state behind.
    command.current_dir(file.parent().expect("a directory"));
    command
}

/// Four jobs at the same time, each with its own size of request and part of the disk.
const JOBS: [&str; 4] = [
    "--name=sectors --bs=512 --size=1m",
    "--name=pages --bs=4k --size=8m --offset=8m",
    "--name=long --bs=4m --size=16m --offset=16m",
    "--name=mixed --bsrange=512-4m --size=16m --offset=32m",
];

#[test]
fn fio_reads_what_it_wrote_on_every_disk_in_every_way() {
    let disks = ["a=memory:48M", "b=file:{dir}/b.img,size=48M", "c=memory:48M,block=4096"];
    let Some(daemon) = daemon("fio", &disks) else { return };
    if !has_program("fio", "fio") {
        return;
    }
    for (disk, arguments) in [("a", &[][..]), ("a", &["--cache=kernel"][..]), ("b", &["--threads=2"][..]), ("c", &[][..])] {
        let mut mount = Mount::new(&daemon, disk, arguments);
        let ways = [
            ["--ioengine=psync", "--direct=1", "--iodepth=1"],
            ["--ioengine=psync", "--direct=0", "--iodepth=1"],
            ["--ioengine=libaio", "--direct=1", "--iodepth=32"],
            ["--ioengine=libaio", "--direct=0", "--iodepth=32"],
        ];
        for way in ways {
            let mut command = fio(&mount.file);
            command.args(["--rw=randwrite", "--verify=crc32c", "--verify_fatal=1", "--fsync=256", "--end_fsync=1"]).args(way);
            run(command.args(JOBS.iter().flat_map(|job| job.split(' '))));
        }
        mount.unmount();
    }
}

/// Resident memory in KiB, descriptors.
fn footprint(pid: u32) -> (u64, usize) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a process has memory");
    let digits: String = line.chars().filter(char::is_ascii_digit).collect();
    (digits.parse().expect("a number"), std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the process runs").count())
}

#[test]
fn memory_and_descriptors_do_not_grow_over_half_a_million_requests() {
    let Some(daemon) = daemon("flat", &["a=memory:64M"]) else { return };
    if !has_program("flat", "fio") {
        return;
    }
    let mut mount = Mount::new(&daemon, "a", &[]);
    let load = |requests: &str| {
        let job = ["--name=job", "--rw=randrw", "--bs=4k", "--size=64m", "--io_size=100g", "--norandommap", "--direct=1"];
        let depth = ["--ioengine=libaio", "--iodepth=32"];
        run(fio(&mount.file).args(job).args(depth).arg(format!("--number_ios={requests}")));
    };
    load("20000");
    let (before_kib, before_fds) = footprint(mount.pid());
    let (daemon_before_kib, daemon_before_fds) = footprint(daemon.pid());
    load("500000");
    let (after_kib, after_fds) = footprint(mount.pid());
    let (daemon_after_kib, daemon_after_fds) = footprint(daemon.pid());
    assert_eq!((after_fds, daemon_after_fds), (before_fds, daemon_before_fds));
    // Eight bytes for each request would be as much.
    assert!(after_kib <= before_kib + (4 << 10), "the mount grew from {before_kib} to {after_kib} KiB");
    // The disk's own memory is touched by then.
    assert!(daemon_after_kib <= daemon_before_kib + (64 << 10), "{daemon_before_kib} to {daemon_after_kib} KiB");
    mount.unmount();
}
