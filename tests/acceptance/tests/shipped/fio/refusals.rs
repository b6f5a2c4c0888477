//! What a user reads when a job cannot run.

use std::fs;

use fipsee_acceptance::{Scratch, serve};

use super::Fio;

#[test]
fn each_refusal_says_what_was_wrong_and_what_to_do() {
    let disks = ["a=memory:64M", "r=memory:1M,ro", "f=file:{dir}/f.img,size=16M,block=4096"];
    let Some(daemon) = serve("fio-refusals", &disks) else { return };
    let Some(fio) = Fio::new("fio-refusals", &daemon) else { return };
    let long = format!("filename={} rw=read", "x".repeat(65));
    let cases = [
        ("filename=zz rw=read", "no disk 'zz' that user "),
        ("filename=a socket=/nowhere/s rw=read", "no daemon at /nowhere/s: there is no such socket; start fipseed"),
        ("rw=read size=1m", "no disk is named; say filename=DISK or disk=DISK"),
        (&long, "has 65 bytes; a disk's name has 1 to 64"),
        ("filename=a:r rw=read", "a job uses one disk; give each of the 2 its own job"),
        ("filename=a rw=read uid=65534", "no disk 'a' that user 65534 may use"),
        ("filename=r rw=write bs=4k", "disk 'r' is read-only, but the job writes"),
        ("filename=r rw=randrw bs=4k", "disk 'r' is read-only, but the job writes"),
        ("filename=r rw=trim bs=4k", "disk 'r' is read-only, but the job writes"),
        ("filename=a rw=read bs=1000", "disk 'a' has blocks of 512 bytes"),
        ("filename=f rw=randwrite bs=512", "disk 'f' has blocks of 4096 bytes, but the job's bs, bsrange or blockalign"),
        ("filename=f rw=read bs=4k offset=512", "disk 'f' has blocks of 4096 bytes, but offset=512 is no multiple of that"),
        ("filename=a rw=read bs=32m", "carries at most 16777216 bytes, but the job's bs is 33554432"),
        ("filename=a rw=read bs=4k iodepth=1000", "the daemon grants 256 requests at a time, but iodepth is 1000"),
        ("filename=a rw=read bs=4k io_submit_mode=offload", "io_submit_mode=offload; use inline"),
        ("filename=a rw=read bs=4k wait=never", "failed parsing wait=never"),
    ];
    for (options, expected) in cases {
        let text = fio.fail(options);
        assert!(text.contains(expected), "{options}\nexpected: {expected}\n{text}");
    }
    // The same disks serve what can be done.
    fio.run("filename=r rw=randread bs=4k");
    fio.run("filename=f rw=randwrite bs=4k size=1m verify=crc32c");
}

#[test]
fn exclusive_disk_is_refused_while_it_is_in_use_and_free_afterwards() {
    let Some(daemon) = serve("fio-exclusive", &["x=memory:16M,exclusive"]) else { return };
    let Some(fio) = Fio::new("fio-exclusive", &daemon) else { return };
    fio.run("filename=x rw=write bs=4k size=1m");
    fio.run("filename=x rw=write bs=4k size=1m create_serialize=0");
    let text = fio.fail("filename=x rw=read bs=4k numjobs=2 time_based runtime=1");
    assert!(text.contains("'x'") && text.contains("error=Device or resource busy"), "{text}");
}

#[test]
fn a_job_that_claims_its_disk_is_the_only_one_that_writes() {
    let Some(daemon) = serve("fio-claim", &["x=memory:16M"]) else { return };
    let Some(fio) = Fio::new("fio-claim", &daemon) else { return };
    fio.run("filename=x rw=write bs=4k size=1m claim=sole_writer");
    fio.run("filename=x rw=write bs=4k size=1m numjobs=2");
    fio.run("filename=x rw=read bs=4k size=1m numjobs=2 claim=sole_writer");
    let text = fio.fail("filename=x rw=write bs=4k numjobs=2 time_based runtime=1 claim=sole_writer");
    assert!(text.contains("disk 'x' cannot be written safely") && text.contains("is its sole writer"), "{text}");
    fio.run("filename=x rw=write bs=4k size=1m numjobs=2 claim=ignore");
}

#[test]
fn socket_without_a_listener_is_distinguished_from_no_socket() {
    let directory = Scratch::new();
    let socket = directory.path("s");
    let Some(fio) = Fio::at("fio-deaf", &socket, &directory.path("")) else { return };
    // Bound and closed again: the name stays.
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("a socket"));
    let text = fio.fail("filename=a rw=read");
    assert!(text.contains("the socket is there but nothing listens; start fipseed"), "{text}");
}

#[test]
fn engine_for_another_fio_says_so() {
    let Some(daemon) = serve("fio-version", &["a=memory:1M"]) else { return };
    let Some(mut fio) = Fio::new("fio-version", &daemon) else { return };
    let mut bytes = fs::read(&fio.engine).expect("the engine");
    let mut changed = 0;
    for start in 0..bytes.len() - 6 {
        if &bytes[start..start + 6] == b"fio-3." {
            bytes[start + 4] = b'9';
            changed += 1;
        }
    }
    assert!(changed > 0, "the engine knows the version it was built for");
    fio.engine = daemon.dir.path("other.so");
    fs::write(&fio.engine, bytes).expect("a changed engine");
    let text = fio.fail("filename=a rw=read bs=4k");
    assert!(text.contains("this engine was built for fio-9") && text.contains("build it anew"), "{text}");
}
