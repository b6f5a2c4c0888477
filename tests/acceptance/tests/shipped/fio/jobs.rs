//! Jobs that succeed, and verification that does not.

use std::process::Command;

use fipsee_acceptance::{eventually, run, serve, shipped, text_of};

use super::{Fio, not_hung, number};

const DISKS: [&str; 2] = ["a=memory:256M", "b=file:{dir}/b.img,size=256M"];

fn run_shipped_job_file(test: &str, file: &str, disks: &[&str]) {
    let Some(daemon) = serve(test, &DISKS) else { return };
    let (Some(fio), Some(path)) = (Fio::new(test, &daemon), shipped(test, &format!("share/doc/fipsee/fio/{file}.fio"))) else {
        return;
    };
    // As shipped, but for the time of a job: here it shall work, not measure.
    let short = fio.directory.join(format!("{file}.fio"));
    std::fs::write(&short, std::fs::read_to_string(&path).expect("a job file").replace("runtime=2\n", "runtime=500ms\n"))
        .expect("a copy of it");
    for disk in disks {
        let mut command = fio.command();
        command.arg("--output-format=json").env("DISK", disk).env("JOBS", "2").arg(&short);
        for job in fio.jobs_of(&mut command) {
            let done = number(&job, "read total_ios") + number(&job, "write total_ios");
            assert!(done > 0.0, "{file} on {disk}: {job}");
            if file == "verify" {
                // Everything that was written was read back and found right: fio counts both.
                assert_eq!(number(&job, "read io_bytes"), number(&job, "write io_bytes"), "{file} on {disk}: {job}");
            }
        }
    }
}

#[test]
fn latency_jobs_run() {
    run_shipped_job_file("fio-latency", "latency", &["a", "b"]);
}

#[test]
fn throughput_jobs_run() {
    run_shipped_job_file("fio-throughput", "throughput", &["a", "b"]);
}

#[test]
fn mixed_jobs_run_and_verify() {
    run_shipped_job_file("fio-mixed", "mixed", &["a", "b"]);
}

#[test]
fn verify_jobs_pass_from_512_bytes_to_4_mib() {
    run_shipped_job_file("fio-verify", "verify", &["a", "b"]);
}

#[test]
fn comparison_with_the_null_engine_runs() {
    run_shipped_job_file("fio-null", "null", &["a"]);
}

#[test]
fn verification_fails_when_another_client_changes_a_block() {
    let Some(daemon) = serve("fio-corrupt", &DISKS) else { return };
    let (Some(fio), Some(fipsee)) = (Fio::new("fio-corrupt", &daemon), shipped("fio-corrupt", "bin/fipsee")) else { return };
    let intruder = daemon.dir.path("intruder");
    std::fs::write(&intruder, [0x5a; 4096]).expect("a file");
    for disk in ["a", "b"] {
        let job = format!("filename={disk} bs=4k size=4m iodepth=8 verify=crc32c verify_state_save=0");
        fio.run(&format!("{job} rw=write do_verify=0"));
        fio.run(&format!("{job} rw=read"));
        run(Command::new(&fipsee).arg("--connect").arg(daemon.socket()).arg("cp").arg(&intruder).arg(format!("fip:{disk}")));
        let text = fio.fail(&format!("{job} rw=read"));
        assert!(text.contains("verify: bad magic header 5a5a"), "{text}");
    }
}

#[test]
fn whole_range_of_sizes_and_depths_verifies() {
    let Some(daemon) = serve("fio-sizes", &DISKS) else { return };
    let Some(fio) = Fio::new("fio-sizes", &daemon) else { return };
    for disk in ["a", "b"] {
        for options in [
            "bs=16m iodepth=3 size=96m",
            "bs=4k iodepth=256 size=16m",
            "bs=4k iodepth=256 iodepth_batch_submit=100 iodepth_batch_complete_max=7 size=16m",
            "bsrange=512-64k iodepth=13 size=16m",
            "bs=3k iodepth=5 size=6m",
            "bs=64k iodepth=4 size=16m thread=1",
            "bs=4k iodepth=4 size=4m create_serialize=0",
        ] {
            fio.run(&format!("filename={disk} rw=randwrite verify=crc32c {options}"));
        }
    }
}

#[test]
fn memory_that_is_not_ours_is_bounced() {
    let Some(daemon) = serve("fio-bounce", &DISKS) else { return };
    let Some(fio) = Fio::new("fio-bounce", &daemon) else { return };
    for memory in ["malloc", "mmap", "shm"] {
        for options in ["bs=4k iodepth=32 size=8m", "bs=1m iodepth=4 size=16m"] {
            fio.run(&format!("filename=a rw=randrw verify=md5 mem={memory} {options}"));
        }
    }
}

#[test]
fn every_way_to_wait_works() {
    let Some(daemon) = serve("fio-wait", &DISKS) else { return };
    let Some(fio) = Fio::new("fio-wait", &daemon) else { return };
    for mode in ["poll", "pause", "spin", "yield", "adaptive", "sleep"] {
        for depth in [1, 16] {
            fio.run(&format!("disk=a wait={mode} rw=randwrite bs=4k size=2m verify=crc32c iodepth={depth}"));
        }
        // Both sides fall asleep between the requests.
        fio.run(&format!("disk=a wait={mode} rw=randread bs=4k number_ios=20 thinktime=5000"));
    }
}

#[test]
fn trimmed_blocks_read_as_zeroes_and_their_neighbours_stay() {
    let Some(daemon) = serve("fio-trim", &DISKS) else { return };
    let Some(fio) = Fio::new("fio-trim", &daemon) else { return };
    for disk in ["a", "b"] {
        let pattern = |byte: &str, offset: &str| {
            format!(
                "filename={disk} rw=read bs=64k size=4m offset={offset} verify=pattern verify_pattern={byte} verify_state_save=0"
            )
        };
        fio.run(&format!("filename={disk} rw=write bs=64k size=8m verify=pattern verify_pattern=0xa5"));
        let jobs = fio.run(&format!("filename={disk} rw=randtrim bs=64k size=4m iodepth=8"));
        assert_eq!(number(&jobs[0], "trim total_ios"), 64.0);
        fio.run(&pattern("0x00", "0"));
        fio.run(&pattern("0xa5", "4m"));
        let text = fio.fail(&pattern("0x00", "4m"));
        assert!(text.contains("verify failed"), "{text}");
        fio.run(&format!("filename={disk} rw=trimwrite bs=64k size=4m iodepth=4"));
    }
}

#[test]
fn all_ways_to_ask_for_durability_succeed() {
    let Some(daemon) = serve("fio-sync", &DISKS) else { return };
    let Some(fio) = Fio::new("fio-sync", &daemon) else { return };
    for disk in ["a", "b"] {
        for options in ["fsync=4", "fdatasync=4", "sync=1", "sync=dsync", "end_fsync=1", "fsync=2 sync=1 sync_file_range=write:4"]
        {
            let job = format!("filename={disk} rw=randwrite bs=4k size=1m iodepth=4 verify=crc32c {options}");
            let jobs = fio.run(&job);
            let flushes = number(&jobs[0], "sync total_ios");
            // Of other kinds of flushes fio counts none.
            let expected = if options.starts_with("fsync=4") { 64.0 } else { 0.0 };
            assert!(flushes >= expected, "{job}: {flushes} flushes");
        }
    }
}

#[test]
fn four_jobs_all_make_progress() {
    let Some(daemon) = serve("fio-four", &["n=null:1G", "a=memory:64M"]) else { return };
    let Some(fio) = Fio::new("fio-four", &daemon) else { return };
    for disk in ["n", "a"] {
        for threads in [0, 1] {
            for depth in [1, 64] {
                let jobs = fio.run(&format!(
                    "filename={disk} rw=randread bs=4k numjobs=4 thread={threads} iodepth={depth} time_based runtime=1 norandommap"
                ));
                assert_eq!(jobs.len(), 4);
                let iops: Vec<f64> = jobs.iter().map(|job| number(job, "read iops")).collect();
                assert!(iops.iter().all(|iops| *iops > 0.0), "{disk}, threads {threads}, depth {depth}: {iops:?}");
            }
        }
    }
}

#[test]
fn idle_profile_and_rates_work_with_the_engine() {
    let Some(daemon) = serve("fio-idle", &DISKS) else { return };
    let Some(fio) = Fio::new("fio-idle", &daemon) else { return };
    let mut command = fio.job("filename=a rw=randread bs=4k iodepth=4 rate_iops=500 time_based runtime=1");
    let output = fio.output(command.arg("--idle-prof=system"));
    not_hung(&output, "--idle-prof");
    assert!(output.status.success(), "{}", text_of(&output));
}

#[test]
fn growing_disk_does_not_disturb_a_job() {
    let Some(daemon) = serve("fio-resize", &["a=memory:16M,max=64M"]) else { return };
    let (Some(fio), Some(fipsee)) = (Fio::new("fio-resize", &daemon), shipped("fio-resize", "bin/fipsee")) else { return };
    let job = fio.start(&mut fio.job("filename=a rw=randrw verify=crc32c bs=4k iodepth=16 time_based runtime=3"));
    let ask = |arguments: &[&str]| {
        let output = Command::new(&fipsee).arg("--connect").arg(daemon.socket()).args(arguments).output().expect("fipsee starts");
        text_of(&output)
    };
    eventually("fio attaches", || ask(&["stat", "--json"]).contains("\"client\""));
    for size in ["24M", "32M", "64M"] {
        let text = ask(&["resize", "a", size]);
        assert!(text.contains("disk 'a' has"), "{text}");
    }
    let output = job.end();
    assert!(output.status.success(), "{}", text_of(&output));
    let jobs = fio.run("filename=a rw=write bs=1m");
    assert_eq!(number(&jobs[0], "write io_bytes"), 64.0 * 1024.0 * 1024.0);
}
