//! A locked memory disk under a limit, in a process of its own: limits are the process's.

use std::process::Stdio;

use fipsee_block::disk::{Disk, MemoryDisk, MemoryOptions};
use fipsee_testkit::process::drop_capabilities;
use fipsee_testkit::{alone, assert_says, child};
use rustix::process::{Resource, Rlimit, setrlimit};

#[test]
fn locked_disk_above_the_limit_is_refused_with_the_remedy() {
    let _alone = alone();
    let output = child::command("locked_disk").stderr(Stdio::piped()).output().expect("a process");
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn locked_disk() {
    setrlimit(Resource::Memlock, Rlimit { current: Some(1 << 20), maximum: Some(1 << 20) }).expect("lowering is allowed");
    if rustix::process::getuid().is_root() {
        drop_capabilities(); // Root is exempt from limits.
    }
    let locked =
        |size_bytes, max_bytes| MemoryDisk::new(&MemoryOptions { size_bytes, max_bytes, lock: true, ..Default::default() });
    let text = locked(8 << 20, None).map(|_| ()).expect_err("refused");
    assert_says(&text, &["cannot lock 8388608 bytes", "is 1048576 bytes", "ulimit -l 8192", "LimitMEMLOCK=", "leave out lock"]);

    let disk = locked(256 << 10, Some(8 << 20)).expect("below the limit");
    assert_says(&disk.resize(8 << 11).expect_err("refused"), &["cannot lock 8388608 bytes", "ulimit -l"]);
    assert_eq!(disk.info().sector_count, 512, "a refused resize changes nothing");
    disk.resize(1024).expect("below the limit");
    disk.resize(128).expect("smaller");
    // Memory unlocked by the shrink can be locked by another disk.
    locked(896 << 10, None).expect("the shrunk disk holds 64 KiB");
}
