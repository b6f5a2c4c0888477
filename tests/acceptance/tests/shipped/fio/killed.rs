//! fio is killed, the daemon is not. fio is its own oracle: before its trigger kills it, it saves how far it came, and the fio
//! that verifies reads all that was complete by then. Each run writes by another seed, so that a block of an earlier run is
//! wrong, too.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use fipsee_acceptance::{Daemon, eventually, serve, shipped, text_of};

use super::death::{kills, requests};
use super::{Fio, number};

const TRIGGER: &str = "trigger";

/// One run of fio, which is killed after about so many requests.
#[track_caller]
fn die(fio: &Fio, fipsee: &Path, daemon: &Daemon, job: &str, after: u64) {
    // fio runs the trigger by a shell as its child. Paced, so that it is not done before it looks for the trigger.
    let mut command = fio.job(&format!("{job} do_verify=0 rate_iops=8000 trigger-file={TRIGGER}"));
    let mut running = fio.start(command.arg("--trigger=kill -s KILL $PPID"));
    let mut has_ended = false;
    eventually("enough requests reach the daemon, or fio ends", || {
        has_ended = running.has_ended();
        has_ended || requests(fipsee, daemon).is_some_and(|count| count >= after)
    });
    assert!(!has_ended, "too few requests reach the daemon: {}", text_of(&running.end()));
    fs::write(fio.directory.join(TRIGGER), "").expect("a file in the test's directory");
    let output = running.end();
    assert_eq!(output.status.signal().or(output.status.code().map(|code| code - 128)), Some(9), "{}", text_of(&output));
}

/// Kill fio again and again, below the same daemon, and verify what each left.
fn disk_outlives_fio(options: &str) {
    let Some(daemon) = serve("fio-dies", &["b=file:{dir}/b.img,size=256M"]) else { return };
    let (Some(fio), Some(fipsee)) = (Fio::new("fio-dies", &daemon), shipped("fio-dies", "bin/fipsee")) else { return };
    let (count, mut verified) = (kills().div_ceil(5), 0.0);
    let job = |run: u64| {
        format!("filename=b bs=4k rw=randwrite size=256m thread=1 verify=crc32c verify_fatal=1 randseed={run} {options}")
    };
    let verification = |run| format!("{} verify_only verify_state_load=1", job(run));
    for run in 1..=count {
        die(&fio, &fipsee, &daemon, &job(run), 50 + run * 7919 % 2000);
        let results = fio.run(&verification(run));
        let blocks = number(&results[0], "read total_ios");
        assert!(blocks > 0.0, "{options}: nothing was complete");
        verified += blocks;
    }
    // What no run has written is noticed.
    fs::write(daemon.dir.path("b.img"), vec![0; 256 << 20]).expect("the disk's file");
    let text = fio.fail(&verification(count));
    assert!(text.contains("verify"), "{text}");
    println!("{options}: fio killed {count} times, {verified} blocks acknowledged before, all there");
}

#[test]
fn acknowledged_writes_are_there_when_fio_was_killed() {
    // Each mostly waits for fio to start and to look for its trigger.
    std::thread::scope(|scope| {
        for options in ["iodepth=32", "iodepth=1", "iodepth=16 mem=mmap iodepth_batch_submit=8 fsync=64"] {
            scope.spawn(move || disk_outlives_fio(options));
        }
    });
}
