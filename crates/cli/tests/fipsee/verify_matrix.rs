//! The load generator reads exactly what it wrote: on every kind of disk, at every depth, in every size.

use std::process::{Child, Output, Stdio};

use fipsee_testkit::Daemon;

use crate::program::{Fipsee, assert_error, json, serve};

const DISKS: [&str; 2] = ["m=memory:256M", "f=file:{dir}/disk,size=256M"];

/// The same, for several writers at a time.
const SHARED: [&str; 2] = ["m=memory:256M,shared", "f=file:{dir}/disk,size=256M,shared"];

/// Run a verifying load. Blocks that were never written are not compared, so how many are depends on the machine.
#[track_caller]
fn verify(daemon: &Daemon, arguments: &[&str]) {
    let common = ["bench", "--verify", "--json", "--seconds", "0.2"];
    assert_compared(&daemon.fipsee(&[&common[..], arguments].concat()), arguments);
}

#[track_caller]
fn assert_compared(output: &Output, arguments: &[&str]) {
    let report = json(output);
    let count = report["verified_blocks"].as_u64().unwrap_or_else(|| panic!("no count in {report}"));
    assert!(count > 0, "{arguments:?}: nothing was compared");
}

#[test]
fn every_block_size_at_every_depth_reads_what_it_wrote() {
    let daemon = serve(&DISKS);
    // The range holds a full queue, and is read back whole at the end, so small requests get a small one.
    for (block, range) in [("512", "2M"), ("4k", "8M"), ("64k", "32M"), ("1M", "64M"), ("4M", "256M")] {
        for disk in ["m", "f"] {
            for depth in ["1", "64"] {
                for (mix, path) in [("randrw", "memshare"), ("randwrite", "pool")] {
                    if path == "pool" && block == "4M" {
                        continue; // A pool has 64 MiB at most.
                    }
                    let arguments = [disk, "--rw", mix, "--bs", block, "--depth", depth, "--range", range, "--data-path", path];
                    verify(&daemon, &arguments);
                }
            }
        }
    }
}

#[test]
fn sequential_writes_and_several_queues_read_what_they_wrote() {
    let daemon = serve(&DISKS);
    for disk in ["m", "f"] {
        for (queues, mix, wait) in [("2", "write", "sleep"), ("4", "randrw", "adaptive"), ("7", "randwrite", "poll")] {
            let arguments = [disk, "--queues", queues, "--rw", mix, "--wait", wait, "--range", "28M"];
            verify(&daemon, &arguments);
        }
    }
}

/// Several processes at once, each on its own range of this many MiB.
fn at_once(daemon: &Daemon, disk: &str, offsets: &[&str]) -> Vec<Output> {
    let start = |offset: &&str| {
        let arguments =
            ["bench", disk, "--verify", "--json", "--seconds", "1", "--rw", "randrw", "--range", "8M", "--offset", offset];
        let mut command = daemon.command(&arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("fipsee runs")
    };
    let children: Vec<Child> = offsets.iter().map(start).collect();
    children.into_iter().map(|child| child.wait_with_output().expect("fipsee ends")).collect()
}

#[test]
fn several_processes_on_ranges_of_their_own_do_not_disturb_each_other() {
    let daemon = serve(&SHARED);
    for disk in ["m", "f"] {
        for output in at_once(&daemon, disk, &["0", "8M", "16M", "24M", "56M"]) {
            assert_compared(&output, &[disk]);
        }
    }
}

#[test]
fn processes_on_the_same_range_see_that_the_data_is_not_theirs() {
    let daemon = serve(&SHARED);
    let outputs = at_once(&daemon, "m", &["0", "0"]);
    let failed: Vec<_> = outputs.iter().filter(|output| !output.status.success()).collect();
    assert!(!failed.is_empty(), "the verification cannot fail");
    for output in failed {
        assert_error(output, &["sector"]);
    }
}
