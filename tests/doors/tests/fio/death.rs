//! A daemon that dies or ends while fio runs.

use std::process::Command;
use std::time::Instant;

use fipsee_doors::{DEADLINE, Daemon, shipped, text_of};
use serde_json::Value;

use super::{Fio, not_hung};

const GONE: &str = "fipsee: the daemon closed the connection";

/// Run `options` without end and do `what` to the daemon when requests flow; all fio prints.
fn fio_meets(test: &str, options: &str, what: &dyn Fn(&mut Daemon)) {
    let Some(mut daemon) = Daemon::start(test, &["n=null:1G", "b=file:DIR/b.img,size=64M"]) else { return };
    let (Some(fio), Some(fipsee)) = (Fio::new(test, &daemon), shipped(test, "bin/fipsee")) else { return };
    let running = fio.start(&mut fio.job(&format!("{options} bs=4k norandommap time_based runtime=200")));
    let is_busy = || {
        // The admin socket is there a moment after the other one.
        let output = Command::new(&fipsee).arg("--connect").arg(&daemon.socket).args(["stat", "--json"]).output();
        let parsed: Option<Value> = output.ok().and_then(|output| serde_json::from_slice(&output.stdout).ok());
        let queues = parsed.and_then(|parsed| parsed["queues"].as_array().cloned()).unwrap_or_default();
        queues.iter().any(|queue| queue["reads"].as_u64() > Some(100))
    };
    let deadline = Instant::now() + DEADLINE;
    while !is_busy() {
        assert!(Instant::now() < deadline, "no request reaches the daemon");
        std::thread::yield_now();
    }
    what(&mut daemon);
    let output = running.end();
    let text = text_of(&output);
    not_hung(&output, options);
    assert!(!output.status.success() && text.contains(GONE), "{options}\n{text}");
    assert!(text.contains("error=Transport endpoint is not connected"), "{options}\n{text}");
}

#[test]
fn fio_ends_when_the_daemon_is_killed() {
    for wait in ["adaptive", "poll", "spin", "yield", "sleep"] {
        for depth in [1, 64] {
            let options = format!("filename=n rw=randrw wait={wait} iodepth={depth}");
            fio_meets("fio-killed", &options, &|daemon| daemon.kill());
        }
    }
}

#[test]
fn fio_ends_when_the_daemon_is_killed_below_it_in_other_ways() {
    for options in [
        "filename=b rw=randrw iodepth=32",
        "filename=n rw=randread iodepth=8 numjobs=3",
        "filename=n rw=randread iodepth=8 numjobs=3 thread=1",
        "filename=n rw=randread iodepth=8 mem=mmap",
        "filename=n rw=randread iodepth=1 thinktime=20000 thinktime_blocks=200",
    ] {
        fio_meets("fio-killed-too", options, &|daemon| daemon.kill());
    }
}

#[test]
fn fio_ends_when_the_daemon_ends_in_order() {
    fio_meets("fio-ended", "filename=n rw=randread iodepth=16", &|daemon| {
        let pid = rustix::process::Pid::from_raw(daemon.pid().cast_signed()).expect("a process");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("the daemon is asked to end");
    });
}

#[test]
fn job_runs_again_when_the_daemon_is_back() {
    let Some(mut daemon) = Daemon::start("fio-back", &["b=file:DIR/b.img,size=16M"]) else { return };
    let Some(fio) = Fio::new("fio-back", &daemon) else { return };
    let job = "filename=b bs=4k size=4m verify=crc32c verify_state_save=0";
    fio.run(&format!("{job} rw=write do_verify=0 end_fsync=1"));
    daemon.kill();
    let text = fio.fail(&format!("{job} rw=read"));
    assert!(text.contains("nobody listens; start fipseed"), "{text}");
    daemon.restart();
    fio.run(&format!("{job} rw=read"));
}
