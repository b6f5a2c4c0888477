//! A full file system below a sparse disk.

use std::path::PathBuf;
use std::process::Command;

use fipsee_block::client::{DiskError, Error};
use fipsee_block::wire::Status;
use fipsee_testkit::{CorrectClient, Daemon, Scratch, assert_says, eventually, is_root, skip, stamp};

#[test]
fn full_file_system_fails_the_write_with_no_space_and_freeing_some_makes_it_succeed() {
    if !is_root() {
        return skip("disk full", "only root can mount a small file system");
    }
    let may = Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        return skip("disk full", "unshare(1) of util-linux cannot make a mount namespace and mount a tmpfs");
    }
    let mount = "mkdir {dir}/small && mount -t tmpfs -o size=8m tmpfs {dir}/small && exec \"$@\"";
    let prefix = ["unshare", "-m", "sh", "-c", mount, "sh"];
    let disks = ["--disk", "f=file:{dir}/small/disk,size=64M", "--disk", "a=memory:1M"];
    let daemon = Daemon::start_in(Scratch::new(), &prefix, &disks);
    let mut correct_client = CorrectClient::new(&daemon, "a");
    // The small file system as the daemon sees it.
    let seen = format!("/proc/{}/root{}", daemon.pid(), daemon.dir.path("small").display());
    let ballast = PathBuf::from(seen).join("ballast");
    std::fs::write(&ballast, vec![1; 4 << 20]).expect("half of the space");

    let mut client = daemon.blocking("f");
    let data = stamp(6 << 20, 1, 1);
    let error = client.write_at(&data, 16 << 20).expect_err("4 MiB are left for 6");
    assert!(matches!(error, Error::Service(DiskError::Request(Status::NoSpace))), "{error}");
    assert_says(&error.to_string(), &["no space left where the disk is stored", "free some, the request can be repeated"]);
    correct_client.check();
    let path = daemon.dir.path("small/disk").display().to_string();
    let is_logged =
        |line: &str| ["disk error", "disk=\"f\"", "\"write\"", "ENOSPC", &path].iter().all(|piece| line.contains(piece));
    eventually("the error is in the log", || daemon.log().lines().any(is_logged));
    let error = client.write_at(&data, 16 << 20).expect_err("still full");
    assert!(matches!(error, Error::Service(DiskError::Request(Status::NoSpace))), "{error}");
    let mut zeroes = vec![1; 64 << 10];
    client.read_at(&mut zeroes, 0).expect("reading goes on");
    assert!(zeroes.iter().all(|byte| *byte == 0), "a hole");

    std::fs::remove_file(&ballast).expect("space is free again");
    client.write_at(&data, 16 << 20).expect("the repeated write");
    client.flush().expect("flushed");
    let mut read = vec![0; data.len()];
    client.read_at(&mut read, 16 << 20).expect("read");
    assert!(read == data, "the repeated write is on the disk");
    correct_client.check();
}
