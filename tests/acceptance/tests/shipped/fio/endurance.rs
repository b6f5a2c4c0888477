//! Memory and descriptors over ten million requests.

use std::fs;
use std::time::Duration;

use fipsee_acceptance::{serve, text_of};

use super::Fio;

/// Growth that is noise; a byte lost with each request would be more than twice as much.
const SLACK_KIB: u64 = 4096;

#[derive(Clone, Copy, Debug)]
struct Sample {
    resident_kib: u64,
    descriptors: usize,
}

fn sample(pid: u32) -> Option<Sample> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let resident_kib = line.split_whitespace().next()?.parse().ok()?;
    Some(Sample { resident_kib, descriptors: fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() })
}

/// The process that does the work: the child of `timeout`.
fn child_of(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

#[test]
fn memory_and_descriptors_stay_flat_over_ten_million_requests() {
    let Some(daemon) = serve("fio-flat", &["n=null:1G"]) else { return };
    let Some(fio) = Fio::new("fio-flat", &daemon) else { return };
    let mut running = fio.start(&mut fio.job(
        "filename=n rw=randrw bs=4k iodepth=64 iodepth_batch_submit=16 iodepth_batch_complete_max=64 norandommap thread=1 \
         number_ios=10000000 io_size=1t",
    ));
    let mut samples = Vec::new();
    while !running.has_ended() {
        let pair = child_of(running.child.0.id()).and_then(sample).zip(sample(daemon.pid()));
        samples.extend(pair);
        // tidy: allow sleep, the distance between samples
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = running.end();
    assert!(output.status.success(), "{}", text_of(&output));
    // What came first is fio setting itself up, what comes last is fio tidying up.
    let steady = &samples[samples.len() / 4..samples.len() - samples.len() / 20 - 1];
    assert!(steady.len() > 20, "too short to say anything: {} samples", samples.len());
    for which in [|pair: &(Sample, Sample)| pair.0, |pair: &(Sample, Sample)| pair.1] {
        let (first, last) = (which(&steady[0]), which(&steady[steady.len() - 1]));
        assert!(last.resident_kib <= first.resident_kib + SLACK_KIB, "{first:?} became {last:?}");
        assert!(last.descriptors <= first.descriptors, "{first:?} became {last:?}");
    }
}
