//! A daemon that is killed or ends while fio runs.

use std::path::Path;
use std::process::Command;

use fipsee_acceptance::{Daemon, eventually, serve, shipped, text_of};
use serde_json::Value;

use super::{Fio, not_hung};

const GONE: &str = "fipsee: the daemon closed the connection";

/// Requests that the daemon's present clients have made; `None` before it answers.
pub(super) fn requests(fipsee: &Path, daemon: &Daemon) -> Option<u64> {
    let output = Command::new(fipsee).arg("--connect").arg(daemon.socket()).args(["stat", "--json"]).output().ok()?;
    let parsed: Value = serde_json::from_slice(&output.stdout).ok()?;
    let count = |queue: &Value| queue["reads"].as_u64().unwrap_or(0) + queue["writes"].as_u64().unwrap_or(0);
    Some(parsed["queues"].as_array()?.iter().map(count).sum())
}

/// Run `options` without end and do `what` to the daemon when requests flow; all fio prints.
fn fio_meets(test: &str, options: &str, what: &dyn Fn(&mut Daemon)) {
    let Some(mut daemon) = serve(test, &["n=null:1G", "b=file:{dir}/b.img,size=64M"]) else { return };
    let (Some(fio), Some(fipsee)) = (Fio::new(test, &daemon), shipped(test, "bin/fipsee")) else { return };
    let running = fio.start(&mut fio.job(&format!("{options} bs=4k norandommap time_based runtime=200")));
    let is_busy = || {
        // The admin socket is there a moment after the other one.
        let output = Command::new(&fipsee).arg("--connect").arg(daemon.socket()).args(["stat", "--json"]).output();
        let parsed: Option<Value> = output.ok().and_then(|output| serde_json::from_slice(&output.stdout).ok());
        let queues = parsed.and_then(|parsed| parsed["queues"].as_array().cloned()).unwrap_or_default();
        queues.iter().any(|queue| queue["reads"].as_u64() > Some(100))
    };
    eventually("requests reach the daemon", is_busy);
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
            fio_meets("fio-killed", &options, &|daemon| daemon.kill_9());
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
        fio_meets("fio-killed-too", options, &|daemon| daemon.kill_9());
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
    let Some(mut daemon) = serve("fio-back", &["b=file:{dir}/b.img,size=16M"]) else { return };
    let Some(fio) = Fio::new("fio-back", &daemon) else { return };
    let job = "filename=b bs=4k size=4m verify=crc32c verify_state_save=0";
    fio.run(&format!("{job} rw=write do_verify=0 end_fsync=1"));
    daemon.kill_9();
    let text = fio.fail(&format!("{job} rw=read"));
    assert!(text.contains("nothing listens; start fipseed"), "{text}");
    daemon.restart();
    fio.run(&format!("{job} rw=read"));
}

/// Kills of the daemon below each of the jobs; `cargo xtask endure` asks for more.
pub(super) fn kills() -> u64 {
    std::env::var("FIPSEE_ENDURE_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(20)
}

/// Kill the daemon again and again below a job that verifies every block it wrote: it ends well, and has done each request once.
fn fio_outlives(test: &str, disk: &str, options: &str) {
    let Some(mut daemon) = serve(test, &[disk]) else { return };
    let (Some(fio), Some(fipsee)) = (Fio::new(test, &daemon), shipped(test, "bin/fipsee")) else { return };
    // Paced, so that there is time for every kill, and no more blocks than a kill needs to come in between.
    let blocks = kills() * 400;
    let mut running = fio.start(&mut fio.job(&format!(
        "filename=b bs=4k rw=randwrite size={}k rate_iops=2000 verify=crc32c verify_fatal=1 reconnect=200 {options}",
        blocks * 4
    )));
    let mut killed = 0;
    while killed < kills() {
        let mut has_ended = false;
        eventually("requests reach the daemon, or fio ends", || {
            has_ended = running.has_ended();
            // Not always at the same place.
            has_ended || requests(&fipsee, &daemon).is_some_and(|count| count > killed * 37 % 200)
        });
        if has_ended {
            break;
        }
        daemon.kill_9();
        daemon.restart();
        killed += 1;
    }
    let output = running.end();
    let text = text_of(&output);
    not_hung(&output, options);
    assert!(output.status.success(), "{killed} kills, {options}\n{text}");
    assert!(killed >= kills() / 2, "the job ended after {killed} kills");
    assert!(text.matches("fipsee: connected again").count() as u64 >= killed / 2, "{killed} kills\n{text}");
    let json: Value =
        serde_json::from_str(&text[text.find("{\n").expect("JSON")..=text.rfind('}').expect("JSON")]).expect("JSON");
    let job = &json["jobs"][0];
    assert_eq!((super::number(job, "write total_ios"), super::number(job, "error")), (blocks as f64, 0.0), "{text}");
    println!("{options}: {killed} kills, {blocks} blocks written and verified");
}

#[test]
fn fio_goes_on_with_the_next_daemon() {
    for options in ["iodepth=32 fsync=64", "iodepth=1", "iodepth=16 sync=1 mem=mmap iodepth_batch_submit=8"] {
        fio_outlives("fio-outlives", &format!("b=file:{{dir}}/b.img,size={}K", kills() * 1600), options);
    }
}

#[test]
fn fio_waits_for_the_configured_time_and_refuses_another_disk() {
    let Some(mut daemon) = serve("fio-waits", &["m=memory:16M"]) else { return };
    let Some(fio) = Fio::new("fio-waits", &daemon) else { return };
    let Some(fipsee) = shipped("fio-waits", "bin/fipsee") else { return };
    for (seconds, comes_back, expected) in [(1, false, GONE), (200, true, "another identity; nothing was resubmitted")] {
        let running =
            fio.start(&mut fio.job(&format!("filename=m bs=4k rw=randwrite reconnect={seconds} time_based runtime=200")));
        eventually("requests reach the daemon", || requests(&fipsee, &daemon).is_some_and(|count| count >= 100));
        daemon.kill_9();
        // A memory disk is another one each time.
        if comes_back {
            daemon.restart();
        }
        let output = running.end();
        not_hung(&output, expected);
        assert!(!output.status.success() && text_of(&output).contains(expected), "{}", text_of(&output));
        if !comes_back {
            daemon.restart();
        }
    }
}
