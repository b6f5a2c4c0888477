//! A daemon that breaks the protocol: the engine, under sanitizers, finds each fault and ends with its name.

use fipsee_acceptance::{Scratch, text_of};
use fipsee_ring::seqpacket::socket_address;
use fipsee_testkit::faulty::daemon::{Answers, DAEMON_FAULTS, DaemonFault, EVENT_FAULTS, FaultyDaemon, completion};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::client::sanitized;
use super::{Fio, not_hung};

/// fio under sanitizers, at a socket of its own.
fn stage(test: &str) -> Option<(Scratch, Fio, String)> {
    let directory = Scratch::new();
    let mut fio = Fio::at(test, &directory.path("s"), &directory.path(""))?;
    let (engine, preload) = sanitized(test, &directory.path(""))?;
    fio.engine = engine;
    Some((directory, fio, preload))
}

const JOB: &str = "filename=a rw=randread bs=4k number_ios=100 iodepth=8 norandommap";

fn expect_each(test: &str, faults: &[(&str, DaemonFault)]) {
    let Some((_directory, fio, preload)) = stage(test) else { return };
    for (index, (expected, fault)) in faults.iter().enumerate() {
        let _faulty = FaultyDaemon::start(&fio.socket, *fault);
        let mut command = fio.job(JOB);
        let output = fio.output(command.env("LD_PRELOAD", &preload).env("ASAN_OPTIONS", "detect_leaks=0"));
        let (text, what) = (text_of(&output), format!("fault {index}: {expected}"));
        not_hung(&output, &what);
        assert!(!output.status.success() && text.contains(expected), "{what}\n{text}");
        assert!(text.contains("error=Protocol error"), "{what}\n{text}");
        assert!(!text.contains("Sanitizer") && !text.contains("runtime error"), "{what}\n{text}");
    }
}

/// checks: R-6-8, R-6-9, R-6-10, R-6-11, R-6-12, R-6-13
#[test]
fn faults_of_the_daemon_are_found() {
    expect_each("fio-faults", &DAEMON_FAULTS);
}

/// checks: R-6-14
#[test]
fn faults_in_events_are_found() {
    expect_each("fio-event-faults", &EVENT_FAULTS);
}

#[test]
fn answers_of_a_correct_daemon_are_taken_and_durable_writes_say_so() {
    let directory = Scratch::new();
    let Some(fio) = Fio::at("fio-correct", &directory.path("s"), &directory.path("")) else { return };
    let faulty = FaultyDaemon::start(&fio.socket, DaemonFault::None);
    let run = |options: &str| {
        faulty.requests.lock().expect("no panic").clear();
        fio.run(&format!("filename=a bs=4k iodepth=4 number_ios=40 norandommap {options}"));
        faulty.requests.lock().expect("no panic").clone()
    };
    assert!(run("rw=randread").iter().all(|request| *request == (1, 0)));
    assert!(run("rw=randwrite").iter().all(|request| *request == (2, 0)));
    assert!(run("rw=randwrite sync=1").iter().all(|request| *request == (2, 1)), "FUA");
    assert!(run("rw=randread sync=1").iter().all(|request| *request == (1, 0)), "reads have no flags");
    for options in ["rw=randwrite fsync=4", "rw=randwrite fdatasync=4"] {
        assert!(run(options).iter().filter(|request| **request == (3, 0)).count() >= 9, "flushes");
    }
    assert!(run("rw=randtrim").iter().all(|request| *request == (4, 0)));
}

/// Doorbells and flags cost nothing but time. A completion that changes while it is read is copied once.
#[test]
fn faults_beside_correct_answers_are_harmless_or_found() {
    let Some((_directory, fio, preload)) = stage("fio-frantic") else { return };
    let faults = [
        (DaemonFault::Ringing, true),
        (DaemonFault::Stamps, true),
        (DaemonFault::Touching, true),
        (DaemonFault::Rewriting, false),
    ];
    for (fault, must_succeed) in faults {
        for _ in 0..3 {
            let _faulty = FaultyDaemon::start(&fio.socket, fault);
            let mut command = fio.job(JOB);
            let output = fio.output(command.env("LD_PRELOAD", &preload).env("ASAN_OPTIONS", "detect_leaks=0"));
            let text = text_of(&output);
            not_hung(&output, &format!("{fault:?}"));
            let is_found = !must_succeed && text.contains("error=Protocol error");
            assert!(output.status.success() || is_found, "{fault:?}\n{text}");
            assert!(!text.contains("Sanitizer") && !text.contains("runtime error"), "{fault:?}\n{text}");
        }
    }
}

#[test]
fn statuses_reach_the_user_as_errors() {
    let directory = Scratch::new();
    let Some(fio) = Fio::at("fio-statuses", &directory.path("s"), &directory.path("")) else { return };
    let cases: [(&str, Answers); 3] = [
        ("Input/output error", |tag| vec![completion(1, tag, 1)]),
        ("No space left on device", |tag| vec![completion(1, tag, 7)]),
        ("No such device", |tag| vec![completion(1, tag, 8)]),
    ];
    for (expected, fault) in cases {
        let _faulty = FaultyDaemon::start(&fio.socket, DaemonFault::Answer(fault));
        let text = fio.fail(JOB);
        assert!(text.contains(&format!("error={expected}")), "{text}");
    }
}

#[test]
fn daemon_that_does_not_answer_in_time_is_named() {
    let directory = Scratch::new();
    let Some(fio) = Fio::at("fio-mute", &directory.path("s"), &directory.path("")) else { return };
    let listener =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::empty(), None).expect("a socket");
    rustix::net::bind(&listener, &socket_address(&fio.socket).expect("a path")).expect("the path is free");
    rustix::net::listen(&listener, 8).expect("it listens");
    let text = fio.fail(JOB);
    assert!(text.contains("the daemon did not answer the greeting in time; is it stopped or overloaded?"), "{text}");
}
