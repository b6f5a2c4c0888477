//! Many calls and many clients leave nothing behind. They have a process of their own, whose footprint is measured.

use std::process::Stdio;

use fipsee_call::Client;
use fipsee_testkit::{child, eventually};

use crate::service::{Arithmetic, Running, add, ok};

/// Resident kilobytes of this process, and its open descriptors.
fn footprint() -> (u64, usize) {
    let status = std::fs::read_to_string("/proc/self/status").expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its resident memory");
    let resident_kb = line.trim_end_matches("kB").trim().parse().expect("a number of kB");
    (resident_kb, std::fs::read_dir("/proc/self/fd").expect("its descriptors").count())
}

fn calls(client: &mut Client<Arithmetic>, count: u64) {
    let (mut started, mut taken) = (0, 0);
    while taken < count {
        while started < count && client.start(&add(started, 1)).is_ok() {
            started += 1;
        }
        client
            .wait(&mut |reply, _| {
                taken += 1;
                assert_eq!(reply, ok(taken));
            })
            .expect("replies");
    }
}

#[test]
fn a_million_calls_and_five_hundred_clients_leave_memory_and_descriptors_as_they_were() {
    let output = child::command("a_million_calls").stderr(Stdio::piped()).output().expect("a process");
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn a_million_calls() {
    let running = Running::with_payloads();
    let mut client = running.client();
    let come_and_go = || {
        for _ in 0..500 {
            let mut client = running.client();
            assert_eq!(client.call(&add(1, 2)).expect("a reply"), ok(3));
        }
    };
    calls(&mut client, 10_000);
    let descriptors = footprint().1;
    come_and_go();
    eventually("the descriptors of clients that left are closed", || footprint().1 <= descriptors);
    let before_kb = footprint().0;
    calls(&mut client, 1_000_000);
    come_and_go();
    eventually("the descriptors of clients that left are closed", || footprint().1 <= descriptors);
    let after_kb = footprint().0;
    assert!(after_kb <= before_kb + 1024, "grew from {before_kb} kB to {after_kb} kB");
}
